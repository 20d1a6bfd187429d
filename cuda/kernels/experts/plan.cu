// plan_experts: a block for each expert counts the pairs of lower experts, which is where its own begin, and lists its
// own in order. No block waits for another; the block that ends last cuts the tiles, because it can read every count.
#include "kernels/experts/plan.h"
#include "kernels/experts/read_once.cuh"
#include "kernels/instructions.cuh"

namespace mr::cuda {
namespace {

constexpr int32_t kWarps = 8, kThreads = kWarps * 32;

__device__ __forceinline__ int32_t warp_total(int32_t x) {
  for (int32_t lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
  return x;
}

// Returns the sum over the lanes below this one, and of all in `total`.
__device__ __forceinline__ int32_t sum_before(int32_t x, int32_t lane, int32_t& total) {
  int32_t sum = x;
  for (int32_t distance = 1; distance < 32; distance *= 2) {
    const int32_t before = __shfl_up_sync(0xffffffffu, sum, distance);
    if (lane >= distance) sum += before;
  }
  total = __shfl_sync(0xffffffffu, sum, 31);
  return sum - x;
}

// Lists the expert's pairs. A warp has a run of neighbouring pairs.
__device__ void list_pairs(const PlanExpertsArgs& a, int32_t expert, int32_t warp, int32_t lane) {
  __shared__ int32_t lower[kWarps], own[kWarps];
  const int32_t run = (a.pairs + kThreads - 1) / kThreads * 32, begin = warp * run, end = min(begin + run, a.pairs);
  int32_t below = 0, equal = 0;
  for (int32_t p = begin + lane; p < end; p += 32) {
    const int32_t id = __ldcg(a.ids + p);
    below += id >= 0 && id < expert ? 1 : 0;
    equal += id == expert ? 1 : 0;
  }
  below = warp_total(below);
  equal = warp_total(equal);
  if (lane == 0) {
    lower[warp] = below;
    own[warp] = equal;
  }
  __syncthreads();
  int32_t first = 0, count = 0, at = 0;
  for (int32_t w = 0; w < kWarps; ++w) {
    first += lower[w];
    at += w < warp ? own[w] : 0;
    count += own[w];
  }
  if (threadIdx.x == 0) {
    a.plan.first[expert] = first;
    a.plan.count[expert] = count;
  }
  if (equal == 0) return;
  at += first;
  for (int32_t p0 = begin; p0 < end; p0 += 32) {
    const int32_t p = p0 + lane;
    const bool is = p < end && __ldcg(a.ids + p) == expert;
    const uint32_t all = __ballot_sync(0xffffffffu, is);
    if (is) a.plan.pairs[at + __popc(all & ((1u << lane) - 1))] = p;
    at += __popc(all);
  }
}

// Cuts the tiles of all experts. A thread has a run of neighbouring experts.
__device__ void cut_tiles(const PlanExpertsArgs& a, int32_t warp, int32_t lane) {
  __shared__ int32_t of_warp[kWarps], active_of_warp[kWarps];
  const int32_t run = (a.experts + kThreads - 1) / kThreads, begin = static_cast<int32_t>(threadIdx.x) * run;
  const int32_t end = min(begin + run, a.experts);
  int32_t tiles = 0, active = 0, total = 0;
  for (int32_t e = begin; e < end; ++e) {
    const int32_t count = __ldcg(a.plan.count + e);
    tiles += (count + a.tile - 1) / a.tile;
    active += read_once(a.bytes, e, count > 0);
  }
  active = warp_total(active);
  int32_t at = sum_before(tiles, lane, total);
  if (lane == 0) {
    of_warp[warp] = total;
    active_of_warp[warp] = active;
  }
  __syncthreads();
  for (int32_t w = 0; w < warp; ++w) at += of_warp[w];
  for (int32_t e = begin; e < end; ++e) {
    const int32_t first = __ldcg(a.plan.first + e), count = __ldcg(a.plan.count + e);
    const int32_t each = equal_tile(count, a.tile);
    for (int32_t done = 0; done < count; done += each) a.plan.tiles[at++] = {e, first + done, min(count - done, each)};
  }
  if (threadIdx.x != 0) return;
  int32_t all_tiles = 0, all_active = 0;
  for (int32_t w = 0; w < kWarps; ++w) {
    all_tiles += of_warp[w];
    all_active += active_of_warp[w];
  }
  *a.plan.tile_count = all_tiles;
  count_read(a.bytes, all_active);
}

__global__ void __launch_bounds__(kThreads) plan_experts(const __grid_constant__ PlanExpertsArgs a) {
  __shared__ bool last;
  const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  grid_wait();
  grid_trigger();
  list_pairs(a, static_cast<int32_t>(blockIdx.x), warp, lane);
  __syncthreads();
  if (threadIdx.x == 0) {
    last = count_done(a.plan.done, 1) + 1 == a.experts;
    if (last) *a.plan.done = 0;
  }
  __syncthreads();
  if (last) cut_tiles(a, warp, lane);
}

}  // namespace

cudaError_t launch_plan_experts(const PlanExpertsArgs& args, const Stream& on) {
  if (args.pairs < 0 || args.experts < 1 || args.tile < 1) return cudaErrorInvalidValue;
  if (args.pairs == 0) return cudaSuccess;
  return launch(on, dim3(static_cast<unsigned>(args.experts)), dim3(kThreads), 0, plan_experts, args);
}

}  // namespace mr::cuda
