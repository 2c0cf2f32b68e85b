// A config.json of any bytes is refused with std::invalid_argument, or gives a model's facts.
#include <stdexcept>

#include "fuzz_folder.h"
#include "reprise/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const reprise::fuzzing::Folder folder;
  folder.write("config.json", {data, size});
  try {
    reprise::load_model_config(folder.path());
  } catch (const std::invalid_argument&) {
  }
  return 0;
}
