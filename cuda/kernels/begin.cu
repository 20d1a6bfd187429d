// begin: the first kernel of every step. Grid row y has rotation y and plan y. One thread for each row and pair of
// rotated dims computes the RoPE table; in grid row 0 the threads of pair 0 also resolve their row's token and write it
// into the history. The first block of a grid row plans decode attention. The first thread counts the step.
//
// table (count, dims) f32: cosines of position * frequencies[i] in [0, dims/2), then sines, both computed in double,
// multiplied by the magnitude and rounded once. The rows of a step have distinct positions in their slots, so no two threads
// write one address.
#include <algorithm>

#include "kernels/attention/attention.h"
#include "kernels/math.cuh"
#include "kernels/rows.h"

namespace mr::cuda {
namespace {

constexpr int kThreads = 256;
static_assert(kThreads >= kMaxDecodeRows, "one thread a decode row plans");

// first = exclusive sums of the rows' units. A unit is one chunk or, if these do not fit the workspace, one group.
__device__ void plan_decode(const BeginArgs& a, const DecodePlan& plan, int32_t window) {
  __shared__ int32_t sums[kThreads];
  const int r = threadIdx.x;
  int32_t chunks = 0;
  if (r < a.decode_rows && a.rows.slot[r] >= 0) {
    const int32_t position = a.rows.position[r];
    chunks = position / kAttentionChunk - first_seen(position, window) / kAttentionChunk + 1;
  }
  for (int32_t span = 1;; span = kChunksAGroup) {
    const int32_t units = (chunks + span - 1) / span;
    sums[r] = units;
    __syncthreads();
    for (int distance = 1; distance < kThreads; distance *= 2) {
      const int32_t before = r >= distance ? sums[r - distance] : 0;
      __syncthreads();
      sums[r] += before;
      __syncthreads();
    }
    const bool fits = sums[kThreads - 1] <= plan.capacity;
    if (fits || span == kChunksAGroup) {
      if (r < a.decode_rows) plan.first[r + 1] = sums[r];
      if (r == 0) {
        plan.first[0] = 0;
        *plan.span = span;
      }
      return;
    }
    __syncthreads();
  }
}

__device__ void resolve(const BeginArgs& a, int32_t row) {
  const int32_t slot = a.rows.slot[row];
  int32_t token = slot < 0 ? 0 : a.token_in[row], nan_flags = MR_ROW_OK;
  if (token < 0) {
    const SlotFeed feed = a.feeds[slot];
    token = feed.token;
    nan_flags = feed.status;
  }
  a.token[row] = token;
  a.nan_flags[row] = nan_flags;
  if (slot >= 0) a.history[slot * a.history_stride + a.rows.position[row]] = token;
}

__global__ void __launch_bounds__(kThreads) begin_rows(const __grid_constant__ BeginArgs a) {
  grid_wait();
  grid_trigger();
  const int32_t y = static_cast<int32_t>(blockIdx.y);
  const int32_t half = y < a.rope_count ? a.ropes[y].dims / 2 : 0, width = half > 0 ? half : 1;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int32_t row = static_cast<int32_t>(i / width), pair = static_cast<int32_t>(i % width);
  if (row < a.count) {
    if (y == 0 && pair == 0) resolve(a, row);
    if (half > 0) {
      const BeginRope& rope = a.ropes[y];
      double sine, cosine;
      sincos_f64(static_cast<double>(a.rows.position[row]) * rope.frequencies[pair], &sine, &cosine);
      const double magnitude = static_cast<double>(rope.magnitude);
      float* const table = rope.table + static_cast<int64_t>(row) * rope.dims;
      table[pair] = static_cast<float>(cosine * magnitude);
      table[half + pair] = static_cast<float>(sine * magnitude);
    }
  }
  if (y == 0 && i == 0 && a.step != nullptr) ++*a.step;
  if (y == 0 && i == 0 && a.expert_bytes != nullptr) *a.expert_bytes = 0;
  if (blockIdx.x == 0 && y < a.plan_count) plan_decode(a, a.plans[y], a.windows[y]);
}

}  // namespace

cudaError_t launch_begin(const BeginArgs& args, const Stream& on) {
  if (args.count < 0 || args.decode_rows < 0 || args.decode_rows > args.count || args.decode_rows > kMaxDecodeRows ||
      args.rope_count < 0 || args.rope_count > kMostRopes || args.plan_count < 0 || args.plan_count > kMostKinds)
    return cudaErrorInvalidValue;
  int64_t width = 1;
  for (int32_t i = 0; i < args.rope_count; ++i) {
    const int32_t dims = args.ropes[i].dims;
    if (dims < 0 || dims % 2 != 0) return cudaErrorInvalidValue;
    width = std::max(width, int64_t{dims / 2});
  }
  if (args.count == 0) return cudaSuccess;
  const int64_t blocks = (args.count * width + kThreads - 1) / kThreads;
  const int32_t rows = std::max({1, args.rope_count, args.plan_count});
  return launch(on, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(rows)), dim3(kThreads), 0, begin_rows, args);
}

void rope_frequencies(int32_t dims, float base, float scale, const double* divisors, double* frequencies) {
  for (int32_t i = 0; i < dims / 2; ++i) {
    const double exponent = -2.0 * i / dims;
    double f = exp_f64(exponent * log_f64(static_cast<double>(base))) / static_cast<double>(scale);
    if (divisors != nullptr) f /= divisors[i];
    frequencies[i] = f;
  }
}

}  // namespace mr::cuda
