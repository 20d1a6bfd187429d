// choose: a block for each row and panel of 16 experts computes logits, one more for each row applies the norm, and another computes the
// weight of the row's shared expert. No block waits for another: a warp of the block that ends last of a row chooses its experts, and the
// block whose row is chosen last plans the rows.
#include "kernels/experts/choose.h"

#include "kernels/experts/read_once.cuh"
#include "kernels/experts/route_row.cuh"
#include "kernels/experts/router_block.cuh"
#include "kernels/experts/shared_weight.cuh"

namespace mr::cuda {
namespace {

constexpr int32_t kWarps = kColumnSlices, kThreads = kWarps * 32;
constexpr int32_t kMostExperts = kThreads, kMostPairs = kThreads;

// The norm of a row with the bits of launch_rms_norm: the threads that it would have compute, and the others add zeros.
template <class A, bool whole>
__device__ __forceinline__ void norm_row(const RmsNormArgs& a, int64_t row) {
  __shared__ float scratch[kWarps];
  const int32_t groups = (a.dim + 3) / 4, threads = norm_warps(a.dim) * 32, thread = static_cast<int32_t>(threadIdx.x);
  const float* const x = a.x + row * a.x_stride;
  A* const out = static_cast<A*>(a.out) + row * a.out_stride;
  float sum = 0;
  if (thread < threads)
    for (int32_t i = thread; i < groups; i += threads) sum = norm_square(load_group<whole>(x, i, a.dim), sum);
  const float factor = norm_factor(block_sum(sum, scratch), a.dim, a.eps) * a.scale;
  for (int32_t i = thread; i < groups; i += kThreads)
    store_normed<A, whole>(out, i, a.dim, load_group<whole>(x, i, a.dim), factor, load_group<whole>(a.weight, i, a.dim));
}

__device__ __forceinline__ void weigh_shared(const ChooseArgs& a, int32_t row) {
  static_assert(kThreads == kMostWeightThreads, "a block has all threads of a weight");
  __shared__ float scratch[kWarps];
  const float* const x = a.router.x + row * a.router.x_stride;
  const auto dim = static_cast<int32_t>(a.router.router.cols);
  const float weight = shared_weight(x, a.shared.norm, a.shared.router, dim, a.router.eps, scratch);
  if (threadIdx.x == 0) a.shared.weight[row] = weight;
}

// Returns the sum over the lanes below this one, and of all in `total`.
__device__ __forceinline__ int32_t sum_before(int32_t x, int32_t& total) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  int32_t sum = x;
  for (int32_t distance = 1; distance < 32; distance *= 2) {
    const int32_t before = __shfl_up_sync(0xffffffffu, sum, distance);
    if (lane >= distance) sum += before;
  }
  total = __shfl_sync(0xffffffffu, sum, 31);
  return sum - x;
}

// Plans all rows by one block. Thread p has pair p, thread e has expert e.
__device__ void plan_rows(const RouteArgs& a, int32_t tile) {
  __shared__ int32_t ids[kMostPairs], pairs_of_expert[kMostExperts + 1], first_of_expert[kMostExperts + 1];
  __shared__ int32_t pairs_of[kWarps], tiles_of[kWarps], active_of[kWarps];
  const int32_t pairs = a.rows * a.experts.used, thread = static_cast<int32_t>(threadIdx.x), expert = thread, warp = thread / 32;
  pairs_of_expert[expert] = 0;
  if (thread == 0) pairs_of_expert[kMostExperts] = 0;
  if (thread < pairs) ids[thread] = min(__ldcg(a.ids + thread), kMostExperts);  // padding rows name an expert past the last
  __syncthreads();
  int32_t place = 0;  // among its expert's pairs
  if (thread < pairs) {
    atomicAdd(pairs_of_expert + ids[thread], 1);
#pragma unroll 8
    for (int32_t p = 0; p < pairs; ++p) place += p < thread && ids[p] == ids[thread] ? 1 : 0;
  }
  __syncthreads();
  const int32_t count = expert < a.experts.count ? pairs_of_expert[expert] : 0;
  int32_t all = 0, all_tiles = 0;
  int32_t first = sum_before(count, all), at = sum_before((count + tile - 1) / tile, all_tiles);
  const int32_t counted = expert < a.experts.count ? read_once(a.bytes, expert, count > 0) : 0;
  const int32_t active = __popc(__ballot_sync(0xffffffffu, counted > 0));
  if (expert % 32 == 0) {
    pairs_of[warp] = all;
    tiles_of[warp] = all_tiles;
    active_of[warp] = active;
  }
  __syncthreads();
  for (int32_t w = 0; w < warp; ++w) {
    first += pairs_of[w];
    at += tiles_of[w];
  }
  first_of_expert[expert] = first;
  for (int32_t done = 0; done < count; done += tile) a.plan.tiles[at++] = {expert, first + done, min(count - done, tile)};
  if (expert < a.experts.count) {
    a.plan.first[expert] = first;
    a.plan.count[expert] = count;
  }
  __syncthreads();
  if (thread < pairs && ids[thread] < a.experts.count) a.plan.pairs[first_of_expert[ids[thread]] + place] = thread;
  if (thread != 0) return;
  int32_t tiles = 0, experts = 0;
  for (int32_t w = 0; w < kWarps; ++w) {
    tiles += tiles_of[w];
    experts += active_of[w];
  }
  *a.plan.tile_count = tiles;
  count_read(a.bytes, experts);
}

// Counts the block of a warp and returns, in every lane, whether it is the last of `blocks`. The counter is zero afterwards. The warp sees
// the writes of the other blocks' warps before they counted.
__device__ __forceinline__ bool ends_last(int32_t* done, int32_t blocks) {
  __syncwarp();
  bool last = false;
  if (threadIdx.x % 32 == 0) {
    last = count_done(done, 1) + 1 == blocks;
    if (last) *done = 0;
  }
  return __any_sync(0xffffffffu, last);
}

template <int32_t T, bool whole>
__global__ void __launch_bounds__(kThreads, 2) choose(const __grid_constant__ ChooseArgs a) {
  __shared__ bool plans;
  const int32_t row = static_cast<int32_t>(blockIdx.y), panels = (a.route.experts.count + kPanelRows - 1) / kPanelRows;
  if (static_cast<int32_t>(blockIdx.x) >= panels) {
    grid_wait();
    grid_trigger();
    if (static_cast<int32_t>(blockIdx.x) > panels || a.norm.x == nullptr) weigh_shared(a, row);
    else if (a.norm.act == Act::kF16) norm_row<__half, whole>(a.norm, row);
    else norm_row<__nv_bfloat16, whole>(a.norm, row);
    return;
  }
  const bool padding = __ldcg(a.route.slot + row) < 0;            // which the row's last block needs at once
  router_block<T, 1, kWarps, whole>(a.router, dynamic_memory());  // whose logits the first warp has written
  if (threadIdx.x < 32) {
    bool last = ends_last(a.route.plan.done + row, panels);
    if (last) {
      route_row<256>(a.route, row, padding, dynamic_memory());  // 512 would need more registers than two blocks of an SM leave
      last = a.route.rows > 1 && ends_last(a.route.plan.done + kMostChosenRows, a.route.rows);
    }
    if (threadIdx.x == 0) plans = last;
  }
  if (a.route.rows == 1) return;
  __syncthreads();
  if (plans) plan_rows(a.route, a.tile);
}

template <int32_t T>
cudaError_t launch_type(const ChooseArgs& args, const Stream& on) {
  const mr_experts_desc& e = args.route.experts;
  const uintptr_t either = reinterpret_cast<uintptr_t>(args.router.x) | reinterpret_cast<uintptr_t>(args.router.norm) |
                           reinterpret_cast<uintptr_t>(args.norm.x) | reinterpret_cast<uintptr_t>(args.norm.weight);
  const bool whole = args.router.router.cols % kUnitCols == 0 && args.router.x_stride % 4 == 0 && args.norm.out_stride % 4 == 0 &&
                     either % 16 == 0;
  const auto panels = static_cast<unsigned>((e.count + kPanelRows - 1) / kPanelRows);
  const unsigned more = (args.norm.x == nullptr ? 0 : 1) + (args.shared.weight == nullptr ? 0 : 1);
  const dim3 grid(panels + more, static_cast<unsigned>(args.route.rows));
  if (!whole) return launch(on, grid, dim3(kThreads), route_shared_bytes(e), choose<T, false>, args);
  // The route's memory lies where the router's was. The kernel's static memory is below 8 KiB, and devices of compute capability 8.6, 8.9
  // and 12.0 have 99 KiB for a block.
  constexpr size_t bytes = kRouterRowBytes<T>, most_of_route = (3 * kMostExperts + kMostExperts / 32 + 3 * kMostExperts) * sizeof(float);
  static_assert(most_of_route <= bytes && bytes + (8 << 10) <= 99 << 10);
  const cudaError_t error = cudaFuncSetAttribute(choose<T, true>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  return error != cudaSuccess ? error : launch(on, grid, dim3(kThreads), bytes, choose<T, true>, args);
}

}  // namespace

bool choose_supported(const mr_experts_desc& experts, int32_t rows) {
  return rows >= 1 && rows <= kMostChosenRows && experts.count <= kMostExperts && rows * experts.used <= kMostPairs;
}

cudaError_t launch_choose(const ChooseArgs& args, const Stream& on) {
  const PackedWeight& router = args.router.router;
  if (!choose_supported(args.route.experts, args.route.rows) || !weight_supported(router.type, router.rows, router.cols) ||
      args.route.experts.used > args.route.experts.count || args.route.plan.done == nullptr || args.tile < 1) {
    return cudaErrorInvalidValue;
  }
  switch (router.type) {
    case kF32: return launch_type<kF32>(args, on);
    case kF16: return launch_type<kF16>(args, on);
    case kBF16: return launch_type<kBF16>(args, on);
    default: return cudaErrorNotSupported;
  }
}

}  // namespace mr::cuda
