// begin: the first kernel of every step. One thread for each row and pair of rotated dims computes the RoPE table; the
// threads of pair 0 also resolve their row's token and write it into the history. Block 0 plans decode attention. The
// first thread counts the step.
//
// rope_table (count, rope_dims) f32: cosines of position * frequencies[i] in [0, rope_dims/2), then sines, both
// computed in double and rounded once. The rows of a step have distinct positions in their slots, so no two threads
// write one address.
#include "kernels/attention/attention.h"
#include "kernels/math.cuh"
#include "kernels/rows.h"

namespace mr::cuda {
namespace {

constexpr int kThreads = 256;
static_assert(kThreads >= kMaxDecodeRows, "one thread a decode row plans");

// first = exclusive sums of the rows' units. A unit is one chunk or, if these do not fit the workspace, one group.
__device__ void plan_decode(const BeginArgs& a) {
  __shared__ int32_t sums[kThreads];
  const int r = threadIdx.x;
  int32_t chunks = 0;
  if (r < a.decode_rows && a.rows.slot[r] >= 0) chunks = a.rows.position[r] / kAttentionChunk + 1;
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
    const bool fits = sums[kThreads - 1] <= a.plan.capacity;
    if (fits || span == kChunksAGroup) {
      if (r < a.decode_rows) a.plan.first[r + 1] = sums[r];
      if (r == 0) {
        a.plan.first[0] = 0;
        *a.plan.span = span;
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

__global__ void __launch_bounds__(kThreads) begin_rows(BeginArgs a) {
  grid_wait();
  grid_trigger();
  const int32_t half = a.rope_dims / 2, width = half > 0 ? half : 1;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int32_t row = static_cast<int32_t>(i / width), pair = static_cast<int32_t>(i % width);
  if (row < a.count) {
    if (pair == 0) resolve(a, row);
    if (half > 0) {
      double sine, cosine;
      sincos_f64(static_cast<double>(a.rows.position[row]) * a.frequencies[pair], &sine, &cosine);
      float* const rope_table = a.rope_table + static_cast<int64_t>(row) * a.rope_dims;
      rope_table[pair] = static_cast<float>(cosine);
      rope_table[half + pair] = static_cast<float>(sine);
    }
  }
  if (i == 0 && a.step != nullptr) ++*a.step;
  if (blockIdx.x == 0 && a.plan.first != nullptr) plan_decode(a);
}

}  // namespace

cudaError_t launch_begin(const BeginArgs& args, const Stream& on) {
  if (args.count < 0 || args.decode_rows < 0 || args.decode_rows > args.count || args.decode_rows > kMaxDecodeRows ||
      args.rope_dims < 0 || args.rope_dims % 2 != 0)
    return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  const int64_t width = args.rope_dims > 0 ? args.rope_dims / 2 : 1;
  const int64_t blocks = (args.count * width + kThreads - 1) / kThreads;
  return launch(on, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, begin_rows, args);
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
