// An index of any bytes over two good shards is refused with std::invalid_argument, or the checkpoint has both shards'
// tensors.
#include <cstdlib>
#include <stdexcept>

#include "checkpoint/checkpoint.h"
#include "fuzz_folder.h"

namespace {

// a.safetensors with tensor "a" and b.safetensors with tensor "b".
void write_shards(const reprise::fuzzing::Folder& folder) {
  for (const std::string name : {"a", "b"}) {
    const std::string header = "{\"" + name + R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
    folder.write(name + ".safetensors", reprise::fuzzing::bytes_of(reprise::fuzzing::safetensors_file(header, 8)));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const reprise::fuzzing::Folder folder;
  static const bool written = (write_shards(folder), true);
  folder.write("model.safetensors.index.json", {data, size});
  try {
    const reprise::Checkpoint checkpoint(folder.path());
    // A shard that is not named is not loaded; one that is named brings its tensor.
    if (!written || !(checkpoint.has("a") || checkpoint.has("b") || checkpoint.total_bytes() == 0)) std::abort();
  } catch (const std::invalid_argument&) {
  }
  return 0;
}
