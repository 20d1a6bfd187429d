// sampler, kernel weigh: one block of kPieceThreads a piece and job. Sums are integers, so that their order is free; the
// histograms go through shared memory and are added to the job's in global memory.
#include "kernels/act.cuh"
#include "kernels/sampler_select.cuh"

namespace mr::cuda {
namespace {

struct Bins {
  uint32_t low[kBins], high[kBins], count[kBins], raw[kBins];
};

__global__ void __launch_bounds__(kPieceThreads) weigh(const __grid_constant__ SampleKernelArgs k) {
  __shared__ Best scratch[32];
  __shared__ uint64_t sums[32];
  __shared__ Bins bins;
  const SampleArgs& a = k.a;
  const int32_t index = blockIdx.y;
  const SampleJob job = a.jobs[index];
  const SlotParams p = params_of(a, job);
  const Rules rules = rules_of(a, job, p);
  grid_wait();
  grid_trigger();
  if (job.kind == kJobNone || poisoned(a, job)) return;
  const RowTop top = row_top(k, index, rules, scratch);
  if (top.nan || top.raw == -INFINITY) return;
  const bool draws = rules.draws && top.processed > -INFINITY;
  const bool histogram = draws && rules.filtered, candidates = job.top_n > 0;
  if (histogram || candidates) {
    for (int i = threadIdx.x; i < kBins; i += kPieceThreads)
      bins.low[i] = bins.high[i] = bins.count[i] = bins.raw[i] = 0;
    __syncthreads();
  }
  const float* const raw = raw_row(a, job);
  const float* const processed = rules.processed ? k.space.processed + index * k.space.stride : raw;
  const float temperature = temperature_of(p);
  const bool infinite = isinf(top.raw);
  const int32_t begin = blockIdx.x * kPiece, end = min(a.vocab, begin + kPiece);
  uint64_t exponentials = 0, mass = 0;
#pragma unroll 4
  for (int32_t i = begin + static_cast<int32_t>(threadIdx.x); i < end; i += kPieceThreads) {
    const float x = raw[i];
    exponentials += infinite ? (x == top.raw ? 1u : 0u) : __float2ull_rn(exp_f32(x - top.raw) * 17592186044416.0f);
    if (candidates) atomicAdd(bins.raw + bin_of(x == top.raw ? 0.0f : top.raw - x), 1u);
    if (!draws) continue;
    const float y = processed[i], weight = weight_of(y, top.processed, temperature);
    const uint64_t own = mass_of(weight);
    if (own == 0) continue;
    if (!histogram) {
      if (weight >= p.min_p) mass += own;
      continue;
    }
    const int bin = bin_of(y == top.processed ? 0.0f : (top.processed - y) / temperature);
    atomicAdd(bins.count + bin, 1u);
    add_mass(bins.low + bin, bins.high + bin, own);
  }
  exponentials = block_sum_u64(exponentials, sums);
  mass = block_sum_u64(mass, sums);
  if (threadIdx.x == 0)
    k.space.sums[static_cast<int64_t>(index) * k.space.pieces + blockIdx.x] = PieceSum{exponentials, mass};
  if (!histogram && !candidates) return;
  __syncthreads();
  for (int i = threadIdx.x; i < kBins; i += kPieceThreads) {
    const int64_t at = static_cast<int64_t>(index) * kBins + i;
    if (bins.count[i] != 0) {
      atomicAdd(k.space.bin_count + at, bins.count[i]);
      atomicAdd(reinterpret_cast<unsigned long long*>(k.space.bin_mass + at),
                static_cast<unsigned long long>(bins.high[i]) << 32 | bins.low[i]);
    }
    if (bins.raw[i] != 0) atomicAdd(k.space.raw_count + at, bins.raw[i]);
  }
}

}  // namespace

cudaError_t launch_sampler_weigh(const SampleKernelArgs& k, const Stream& on) {
  const dim3 grid(static_cast<unsigned>(k.space.pieces), static_cast<unsigned>(k.a.job_count));
  return launch(on, grid, dim3(kPieceThreads), 0, weigh, k);
}

}  // namespace mr::cuda
