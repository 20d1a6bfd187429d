#include <algorithm>
#include <cmath>

#include "kernels/check.h"
#include "kernels/vectors/search_layout.h"
#include "millrace/vectors.h"

namespace mr::cuda {
namespace {

constexpr int32_t kBarriers = (2 * kMostStages + kRowBarriers) * 8, kOnes = kRowBlock;
constexpr int32_t kNorms = kSearchTile * 4;
constexpr int32_t kAlign = 1024;
constexpr int32_t kFewStages = 3;  // with fewer the producer cannot run ahead
constexpr int32_t kFixed = kBarriers + kOnes + kNorms + kAlign;

// Bytes that a block may use if it is alone on its SM; lists, or kept scores, are added to it.
constexpr int32_t kRoom = 226 * 1024 - kSearchLists;

int32_t terms_of(int32_t type) { return type == MR_VECTOR_F32 || type == MR_VECTOR_F16 ? 2 : 1; }

SearchForm form_of(const SearchShape& shape, int64_t tiles, bool moved, bool hopper, int32_t major, int32_t most_shared) {
  SearchForm f;
  f.half = !moved && shape.row_type == MR_VECTOR_F16 && shape.codeword_type == MR_VECTOR_F16;
  f.row_terms = f.half ? 1 : moved ? 2 : terms_of(shape.row_type);
  f.codeword_terms = f.half ? 1 : moved ? 2 : terms_of(shape.codeword_type);
  f.steps = static_cast<int32_t>((shape.width + 15) / 16);
  f.blocks = f.codeword_terms * f.steps + 1;
  const int32_t room = std::min(kRoom, most_shared - kSearchLists);
  const auto step_of = [&](int32_t groups) { return groups * f.row_terms * kRowBlock; };
  // Reading and cutting rows again for every tile of codewords costs more than tensor cores that serve fewer
  // warpgroups.
  for (const int32_t groups : {4, 2, 1}) {
    if (!hopper || f.steps * step_of(groups) > room - kFixed - kFewStages * kStageBytes) continue;
    f.groups = groups;
    break;
  }
  const int32_t step_bytes = step_of(f.groups);
  f.chunk_steps = std::min(f.steps, (room - kFixed - (hopper ? 2 : 0) * kStageBytes) / step_bytes);
  // If rows are read again for every tile, leave room for codewords to run ahead.
  if (f.chunk_steps < f.steps && hopper) f.chunk_steps = std::min(f.chunk_steps, (room - kFixed - 4 * kStageBytes) / step_bytes);
  f.chunks = (f.steps + f.chunk_steps - 1) / f.chunk_steps;
  int32_t rows = f.chunk_steps * step_bytes;
  const int64_t whole = f.chunks == 1 ? tiles * ((f.blocks + kStageBlocks - 1) / kStageBlocks) : INT64_MAX;  // stages
  f.stages = hopper ? static_cast<int32_t>(std::min<int64_t>({(room - kFixed - rows) / kStageBytes, kMostStages, std::max<int64_t>(whole, 2)}))
                    : 0;
  f.held = whole <= f.stages;
  // Double-buffer the rows if few codewords follow on each, and the pipeline keeps its stages.
  if (f.held && f.half && f.stages <= (room - kFixed - 2 * rows) / kStageBytes) {
    f.row_buffers = 2;
    rows *= 2;
  }
  f.shared_bytes = kFixed + rows + f.stages * kStageBytes;
  if (f.half && f.shared_bytes + kept_bytes(8) <= room + kSearchLists) f.compared = 8;
  const bool inexact = (moved || shape.row_type == MR_VECTOR_F32) || (moved || shape.codeword_type == MR_VECTOR_F32) ||
                       (f.row_terms == 2 && f.codeword_terms == 2);
  const float products = static_cast<float>(f.steps * (f.row_terms + f.codeword_terms - 1) + 1);
  f.relative = (products * step_error(major) + (inexact ? kSplitError : 0.0f) + kCenterError) * (1 + 0x1p-10f);
  return f;
}

uint64_t place(uint64_t* at, uint64_t bytes) {
  const uint64_t here = *at;
  *at += (bytes + 255) / 256 * 256;
  return here;
}

}  // namespace

SearchPlan search_plan(const SearchShape& shape, int device) {
  SearchPlan plan;
  int major = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  CUDA_CHECK(cudaDeviceGetAttribute(&plan.most_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  CUDA_CHECK(cudaDeviceGetAttribute(&plan.processors, cudaDevAttrMultiProcessorCount, device));
  plan.hopper = MR_HOPPER && major == 9;
  plan.tiles = (shape.codewords + kSearchWide - 1) / kSearchWide;
  // Minus the center, F32 rows are no longer operands than before; others are moved only if codewords are far from 0.
  const bool l2 = shape.metric == MR_METRIC_L2;
  plan.may_move = l2;
  plan.may_be_plain = !l2 || shape.row_type != MR_VECTOR_F32;
  plan.plain = form_of(shape, plan.tiles, false, plan.hopper, major, plan.most_shared);
  plan.moved = form_of(shape, plan.tiles, true, plan.hopper, major, plan.most_shared);

  const uint64_t spaces = static_cast<uint64_t>(shape.spaces), rows = static_cast<uint64_t>(shape.most_rows);
  const int32_t blocks = std::max(plan.may_move ? plan.moved.blocks : 0, plan.may_be_plain ? plan.plain.blocks : 0);
  uint64_t at = 256;
  plan.memory.center = place(&at, spaces * static_cast<uint64_t>(shape.width) * 4);
  plan.memory.radius = place(&at, spaces * 4);
  plan.memory.listed = place(&at, listed_bytes(shape.spaces, plan.processors));
  plan.memory.least = place(&at, static_cast<uint64_t>(plan.processors) * kSearchTile * 8);
  plan.memory.least_ids = place(&at, static_cast<uint64_t>(plan.processors) * kSearchTile * 4);
  plan.memory.list = place(&at, spaces * rows * 4);
  plan.memory.limits = place(&at, spaces * rows * 4);
  plan.memory.images = place(&at, spaces * static_cast<uint64_t>(plan.tiles) * static_cast<uint64_t>(blocks) * kCodewordBlock);
  plan.memory.size = at;
  return plan;
}

}  // namespace mr::cuda
