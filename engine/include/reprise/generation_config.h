#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace reprise {

// What CHECKPOINT/generation_config.json says; a field that is absent says nothing. The ids that end a text are part of
// ModelConfig too; the others are defaults for those who choose no sampling parameters of their own.
struct GenerationConfig {
  std::vector<int64_t> eos_token_ids;
  std::optional<double> temperature;  // 0 where the file says do_sample = false
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<int64_t> top_k;           // 0 = all tokens
  std::optional<int64_t> max_new_tokens;  // generated tokens at most
  std::vector<std::string> stop_strings;
  std::vector<std::string> notices;  // what the file asks for and this engine does not do; fields it does not know
};

// Reads and checks the file; an empty GenerationConfig when there is none. Throws std::invalid_argument naming every
// field that is wrong.
GenerationConfig load_generation_config(const std::string& checkpoint_dir);

}  // namespace reprise
