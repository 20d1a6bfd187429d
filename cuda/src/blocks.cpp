#include "src/blocks.h"

#include <memory>
#include <string>

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
    : ledger_(ledger), pool_(pool), host_(config.host_blocks, sizes.kv_block_bytes) {}

void Blocks::hold(const StepPlan& plan) {
  host_.hold(plan, [this](uint64_t bytes) { return host_memory(ledger_, bytes); });
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
  if (op.kind == MR_PRE_BLOCK_IN) copy.src = {host_.block(op.src), -1};
  if (op.kind == MR_PRE_BLOCK_OUT) copy.dst = {host_.block(op.dst), -1};
  return copy;
}

}  // namespace mr::cuda
