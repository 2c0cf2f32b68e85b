// Generates four tokens after a prompt of three and prints how many came.
#include <reprise/engine.h>

#include <exception>
#include <iostream>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: consumer CHECKPOINT\n";
    return 2;
  }
  try {
    auto engine = reprise::Engine::load(argv[1]);
    reprise::Request request;
    request.prompt_token_ids = {1, 2, 3};
    request.sampling.max_tokens = 4;
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    engine->submit(std::move(request));
    size_t generated = 0;
    while (engine->has_unfinished()) {
      for (const auto& output : engine->step()) generated += output.new_token_ids.size();
    }
    std::cout << "generated " << generated << " tokens\n";
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
