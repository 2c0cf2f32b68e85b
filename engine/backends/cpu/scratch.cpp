#include "backends/cpu/scratch.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "reprise/error.h"

namespace reprise::cpu {

namespace {

constexpr size_t kAlign = 64;
constexpr size_t kFirstBlock = size_t{64} << 10;

std::atomic<int> poisons{0};

}  // namespace

// Blocks of one thread, each filled before the next. What is handed out must not move, so an arena that is too small
// grows by a block, and becomes one block of the whole size when its last frame has ended.
class ScratchArena {
 public:
  static ScratchArena& of_this_thread() {
    thread_local ScratchArena arena;
    return arena;
  }

  size_t block() const { return block_; }
  size_t used() const { return used_; }

  std::byte* take(size_t size) {
    size = (size + kAlign - 1) / kAlign * kAlign;
    if (block_ == blocks_.size() || size > blocks_[block_].size - used_) next_block(size);
    auto* memory = static_cast<std::byte*>(blocks_[block_].memory.get()) + used_;
    used_ += size;
    if (poisons.load(std::memory_order_relaxed) > 0) std::memset(memory, 0xFF, size);
    return memory;
  }

  void go_back(size_t block, size_t used) {
    block_ = block;
    used_ = used;
    if (block == 0 && used == 0 && blocks_.size() > 1) blocks_.clear();
  }

 private:
  struct Block {
    c10::DataPtr memory;
    size_t size;
  };

  void next_block(size_t size) {
    used_ = 0;
    if (block_ < blocks_.size()) ++block_;
    // An inner frame that has ended may have left one.
    if (block_ < blocks_.size() && blocks_[block_].size >= size) return;
    blocks_.resize(block_);
    for (const Block& block : blocks_) size += block.size;  // at least doubles the arena
    size = std::max({size, most_, kFirstBlock});
    blocks_.push_back({c10::GetCPUAllocator()->allocate(size), size});
    size_t total = 0;
    for (const Block& block : blocks_) total += block.size;
    most_ = std::max(most_, total);
  }

  std::vector<Block> blocks_;
  size_t block_ = 0;  // the one that is being filled
  size_t used_ = 0;   // bytes of it
  size_t most_ = 0;   // bytes of all blocks there ever were at once
};

ScratchFrame::ScratchFrame() : arena_(ScratchArena::of_this_thread()), block_(arena_.block()), used_(arena_.used()) {}
ScratchFrame::~ScratchFrame() { arena_.go_back(block_, used_); }
std::byte* ScratchFrame::bytes(size_t size) { return arena_.take(size); }

ScratchPoison::ScratchPoison() { ++poisons; }
ScratchPoison::~ScratchPoison() { --poisons; }

}  // namespace reprise::cpu
