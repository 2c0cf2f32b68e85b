#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "checkpoint/regular_file.h"
#include "reprise/generation_config.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace reprise {

void bind_checkpoint(nb::module_& m) {
  nb::class_<GenerationConfig>(m, "GenerationConfig",
                               "What CHECKPOINT/generation_config.json says; None or empty where it says nothing.")
      .def_ro("eos_token_ids", &GenerationConfig::eos_token_ids)
      .def_ro("temperature", &GenerationConfig::temperature)
      .def_ro("top_p", &GenerationConfig::top_p)
      .def_ro("min_p", &GenerationConfig::min_p)
      .def_ro("top_k", &GenerationConfig::top_k)
      .def_ro("max_new_tokens", &GenerationConfig::max_new_tokens)
      .def_ro("stop_strings", &GenerationConfig::stop_strings)
      .def_ro("notices", &GenerationConfig::notices);
  m.def(
      "load_generation_config",
      [](const std::filesystem::path& checkpoint_dir) { return load_generation_config(checkpoint_dir.native()); },
      "checkpoint_dir"_a,
      "Reads and checks CHECKPOINT/generation_config.json; empty when there is none. Raises ValueError naming every "
      "field that is wrong.");
  m.def(
      "stands_at", [](const std::filesystem::path& path) { return stands_at(path.native()); }, "path"_a,
      "Whether anything stands there, be it a link to nothing.");
  m.def(
      "read_file",
      [](const std::filesystem::path& path, uint64_t most) {
        const std::string bytes = read_text_file(path.native(), most);
        return nb::bytes(bytes.data(), bytes.size());
      },
      "path"_a, "most"_a = uint64_t{1} << 30,
      "A file's bytes, at most `most` of them. Raises ValueError that says what stands there instead: a folder, a "
      "pipe, "
      "a link to nothing, a Git LFS pointer.");
}

}  // namespace reprise
