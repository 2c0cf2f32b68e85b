// Embeds the engine: loads a checkpoint, continues two prompts of token ids, prints tokens as they come.
//   embed CHECKPOINT
// An Engram model needs its vocabulary map beside the checkpoint first: reprise prepare CHECKPOINT.
#include <exception>
#include <iostream>

#include "reprise/engine.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: embed CHECKPOINT\n";
    return 2;
  }
  try {
    reprise::EngineConfig config;
    config.replay = reprise::ReplayMode::kExact;
    const auto engine = reprise::Engine::load(argv[1], config);

    reprise::Request request;
    request.sampling.max_tokens = 8;
    request.sampling.temperature = 0;
    for (const auto& prompt : {std::vector<int32_t>{5, 17, 3}, {42, 7, 7, 9, 11, 60, 61, 62, 63, 64}}) {
      request.prompt_token_ids = prompt;
      engine->submit(request);
    }
    while (engine->has_unfinished()) {
      for (const reprise::RequestOutput& output : engine->step()) {
        for (const int32_t token : output.new_token_ids) std::cout << "request " << output.id << ": " << token << "\n";
        if (output.finished) {
          std::cout << "request " << output.id << ": done, " << output.metrics.replay_rows_run << " replay rows for "
                    << output.metrics.prompt_rows << " prompt rows\n";
        }
      }
    }
  } catch (const std::exception& error) {
    std::cerr << "embed: " << error.what() << "\n";
    return 1;
  }
}
