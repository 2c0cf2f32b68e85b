#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace reprise {

// Parses a JSON object strictly: a name that stands twice in one object is an error too (the parser alone keeps the
// last). Throws std::invalid_argument beginning with `origin`.
nlohmann::json parse_json_object(std::string_view text, const std::string& origin);

// Reads and parses a file. Throws std::invalid_argument naming the path.
nlohmann::json read_json_file(const std::string& path);

// CHECKPOINT/config.json. Throws std::invalid_argument where that is no checkpoint folder.
nlohmann::json read_config_file(const std::string& checkpoint_dir);

}  // namespace reprise
