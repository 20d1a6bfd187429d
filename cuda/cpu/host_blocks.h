// host_blocks: key-value blocks, or states, in host memory, whose bytes are taken some at a time, when they are first written.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "millrace/engine.h"
#include "step_plan.h"

namespace mr {

// Piece is memory of an engine's own kind: data() is its first byte, its destructor gives it back. Used by the
// submitting thread only, but for the bytes of the blocks: those belong to the steps that name them. Blocks never move.
template <class Piece>
class HostBlocks {
 public:
  static constexpr uint64_t kPiece = uint64_t{64} << 20;  // bytes of a piece; of one block where that is more

  // blocks >= 0; written_by: the kind of the pre-operations that write them; window: of the window group
  HostBlocks(int32_t blocks, uint64_t block_bytes, int32_t written_by = MR_PRE_BLOCK_OUT, bool window = false)
      : written_by_(written_by), window_(window), blocks_(static_cast<uint64_t>(blocks)), block_bytes_(std::max<uint64_t>(block_bytes, 1)),
        piece_blocks_(std::clamp<uint64_t>(kPiece / block_bytes_, 1, std::max<uint64_t>(blocks_, 1))) {}

  // Takes the memory of all blocks that the plan copies out to, and returns the pieces that it took, for give_back.
  // make(bytes) gives a std::unique_ptr<Piece>, or throws RESOURCE_EXHAUSTED when the host has none: then nothing has changed.
  template <class Make>
  std::vector<size_t> hold(const StepPlan& plan, Make make) {
    std::vector<size_t> taken;
    try {
      for (const StepPlan::PreOp& op : plan.pre_ops) {
        if (op.kind != written_by_ || op.window != window_) continue;
        const size_t at = static_cast<size_t>(op.dst) / piece_blocks_;
        if (at >= pieces_.size()) pieces_.resize(at + 1);
        if (pieces_[at] != nullptr) continue;
        taken.push_back(at);
        pieces_[at] = make(block_bytes_ * std::min(piece_blocks_, blocks_ - at * piece_blocks_));
      }
    } catch (...) {
      give_back(taken);
      throw;
    }
    return taken;
  }

  // Gives back what the last hold took, for a step that is refused after it.
  void give_back(const std::vector<size_t>& taken) {
    for (const size_t at : taken) pieces_[at].reset();
  }

  // The first byte of a block that was held; 0 <= block < blocks.
  uint8_t* block(int32_t block) const {
    const size_t at = static_cast<size_t>(block);
    return static_cast<uint8_t*>(pieces_[at / piece_blocks_]->data()) + at % piece_blocks_ * block_bytes_;
  }

 private:
  const int32_t written_by_;
  const bool window_;
  const uint64_t blocks_, block_bytes_, piece_blocks_;
  std::vector<std::unique_ptr<Piece>> pieces_;  // by block / piece_blocks_; null or absent until written
};

}  // namespace mr
