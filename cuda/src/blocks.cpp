#include "src/blocks.h"

#include <memory>
#include <string>
#include <vector>

#include "src/error.h"
#include "src/workspace.h"

namespace mr::cuda {
namespace {

std::unique_ptr<Pinned> host_memory(Ledger& ledger, uint64_t bytes) {
  cudaError_t error = cudaErrorMemoryAllocation;
  if (!ledger.refuses_outside()) {
    try {
      return std::make_unique<Pinned>(bytes);
    } catch (const Error& e) {
      error = static_cast<cudaError_t>(e.native);
    }
  }
  throw Error(MR_RESOURCE_EXHAUSTED, error, "host memory for blocks: " + std::to_string(bytes) +
                                                " bytes asked, but the driver refuses: " + cudaGetErrorName(error));
}

}  // namespace

Blocks::Blocks(Ledger& ledger, uint8_t* pool, const mr_runner_config& config, const Sizes& sizes)
    : ledger_(ledger), pool_(pool), host_(config.host_blocks, sizes.kv_block_bytes),
      host_window_(config.host_window_blocks, sizes.window_block_bytes, MR_PRE_BLOCK_OUT, true) {}

void Blocks::hold(const StepPlan& plan) {
  const auto make = [this](uint64_t bytes) { return host_memory(ledger_, bytes); };
  const std::vector<size_t> taken = host_.hold(plan, make);
  try {
    host_window_.hold(plan, make);
  } catch (...) {
    host_.give_back(taken);  // a refused step has changed nothing
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

BlockCopy Blocks::copy_of(const StepPlan::PreOp& op) const {
  BlockCopy copy{{pool_, op.src}, {pool_, op.dst}};
  const mr::HostBlocks<Pinned>& host = op.window ? host_window_ : host_;
  if (op.kind == MR_PRE_BLOCK_IN) copy.src = {host.block(op.src), -1};
  if (op.kind == MR_PRE_BLOCK_OUT) copy.dst = {host.block(op.dst), -1};
  return copy;
}

}  // namespace mr::cuda
