#include "src/blocks.h"

#include <memory>
#include <string>
#include <vector>

#include "src/error.h"
#include "src/workspace.h"

namespace mr::cuda {
namespace {

std::unique_ptr<Pinned> host_memory(Ledger& ledger, const char* purpose, uint64_t bytes) {
  cudaError_t error = cudaErrorMemoryAllocation;
  if (!ledger.refuses_outside()) {
    try {
      return std::make_unique<Pinned>(bytes);
    } catch (const Error& e) {
      error = static_cast<cudaError_t>(e.native);
    }
  }
  throw Error(MR_RESOURCE_EXHAUSTED, error, std::string("host memory for ") + purpose + ": " + std::to_string(bytes) +
                                                " bytes asked, but the driver refuses: " + cudaGetErrorName(error));
}

}  // namespace

Blocks::Blocks(Ledger& ledger, uint8_t* pool, uint8_t* states, const mr_runner_config& config, const Sizes& sizes)
    : ledger_(ledger), pool_(pool), states_(states), host_(config.host_blocks, sizes.kv_block_bytes),
      host_window_(config.host_window_blocks, sizes.window_block_bytes, MR_PRE_BLOCK_OUT, true),
      host_states_(config.host_states, sizes.state_bytes(), MR_PRE_STATE_OUT) {}

// A refused step has changed nothing.
void Blocks::hold(const StepPlan& plan) {
  const auto blocks = [this](uint64_t bytes) { return host_memory(ledger_, "blocks", bytes); };
  const std::vector<size_t> taken = host_.hold(plan, blocks);
  std::vector<size_t> taken_window;
  try {
    taken_window = host_window_.hold(plan, blocks);
    host_states_.hold(plan, [this](uint64_t bytes) { return host_memory(ledger_, "states", bytes); });
  } catch (...) {
    host_.give_back(taken);
    host_window_.give_back(taken_window);
    throw;
  }
}

bool Blocks::copies(const StepPlan::PreOp& op) {
  switch (op.kind) {
    case MR_PRE_BLOCK_COPY: return op.src != op.dst;
    case MR_PRE_BLOCK_OUT:
    case MR_PRE_BLOCK_IN: return true;
    default: return false;
  }
}

bool Blocks::copies_state(const StepPlan::PreOp& op) { return op.kind == MR_PRE_STATE_OUT || op.kind == MR_PRE_STATE_IN; }

BlockCopy Blocks::copy_of(const StepPlan::PreOp& op) const {
  if (op.kind == MR_PRE_STATE_IN) return {{host_states_.block(op.src), -1}, {states_, op.dst}};
  if (op.kind == MR_PRE_STATE_OUT) return {{states_, op.src}, {host_states_.block(op.dst), -1}};
  BlockCopy copy{{pool_, op.src}, {pool_, op.dst}};
  const mr::HostBlocks<Pinned>& host = op.window ? host_window_ : host_;
  if (op.kind == MR_PRE_BLOCK_IN) copy.src = {host.block(op.src), -1};
  if (op.kind == MR_PRE_BLOCK_OUT) copy.dst = {host.block(op.dst), -1};
  return copy;
}

}  // namespace mr::cuda
