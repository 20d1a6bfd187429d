// sampler, kernel choose: takes what the kernels before it found to a job's token, its logprob and rank, and the best
// candidates.
//
// Several blocks take a job: each finds the token for itself, which needs little, and counts the better ones in its part of the
// row. The first writes the results, the last the candidates. Where no short list holds the tokens among which a bound lies,
// and those are not all alike, each block looks at the whole row, as often as filters ask.
#include "kernels/sampler_rank.cuh"

namespace mr::cuda {
namespace {

union Shared {
  CutSpace cut;
  BestSpace best;
};

// The first of the tokens with the greatest logit.
__device__ __forceinline__ int32_t greatest_token(DrawSpace& s, const SampleKernelArgs& k, int32_t index, bool processed,
                                                  const float* row, float top) {
  uint32_t piece = static_cast<uint32_t>(kMostPieces);
  for (int i = 0; i < kMostPieces / 32; ++i) {
    const int32_t at = i * 32 + static_cast<int32_t>(threadIdx.x % 32);
    if (at >= k.pieces) continue;
    const PieceTop& own = k.space.tops[static_cast<int64_t>(index) * kMostPieces + at];
    if ((processed ? own.processed : own.raw) == top) piece = min(piece, static_cast<uint32_t>(at));
  }
  piece = __reduce_min_sync(0xffffffffu, piece);
  return find_token(s, k, row, Place{static_cast<int32_t>(piece), 0}, [&](int32_t, float x) { return uint64_t{x == top}; });
}

// ln of the sum of a row's exponentials; each warp for itself.
__device__ __forceinline__ double log_sum_of(const SampleKernelArgs& k, int32_t index) {
  uint64_t sum = 0;
  for (int i = 0; i < kMostPieces / 32; ++i) {
    const int32_t at = i * 32 + static_cast<int32_t>(threadIdx.x % 32);
    if (at < k.pieces) sum += k.space.sums[static_cast<int64_t>(index) * kMostPieces + at].exponentials;
  }
  return log_f64(static_cast<double>(warp_sum_u64(sum)) * 0x1p-44);
}

__global__ void __launch_bounds__(kThreads, 2) choose(const __grid_constant__ SampleKernelArgs k) {
  __shared__ __align__(16) Shared s;
  const SampleArgs& a = k.a;
  const int32_t index = blockIdx.y;
  const SampleJob job = a.jobs[index];
  const SlotParams p = params_of(a, job);
  const Rules rules = rules_of(a, job, p);
  grid_wait();
  grid_trigger();
  if (job.kind == kJobNone) return;
  const bool sample = job.kind == kJobSample, first = blockIdx.x == 0, last = blockIdx.x == gridDim.x - 1;
  int32_t status = MR_ROW_NAN, token = 0, candidates = 0;
  float logprob = 0;
  if (!poisoned(a, job)) {
    const RowTop top = row_top(k, index);
    status = status_of(job, top);
    if (status == MR_ROW_OK) {
      const float* const raw = raw_row(a, job);
      const float* const x = processed_row(k, index, rules, raw);
      candidates = min(job.top_n, a.vocab);
      const bool finds_best = last && candidates > 0, ranked = sample && !rules.draws && !rules.processed;
      if (ranked && !first && !finds_best) return;
      if (!sample) {
        token = job.target;
      } else if (!rules.draws) {
        token = greatest_token(s.cut.draw, k, index, rules.processed, x, top.processed);
      } else {
        Filter filter(Weights(top.processed, p.temperature));
        cut_row(s.cut, k, index, x, rules, p, filter);
        token = draw(s.cut.draw, k, x, filter, random_bits(p.seed, static_cast<uint32_t>(job.position), static_cast<uint32_t>(p.output_index)));
      }
      const float own = raw[token];
      if (!ranked) {
        const uint32_t better = count_better(raw, a.vocab, token, own);
        if (better != 0 && threadIdx.x % 32 == 0) atomicAdd(&a.results[index].rank, static_cast<int32_t>(better));
      }
      if (first || finds_best) {
        const double log_sum = log_sum_of(k, index);
        logprob = logprob_of(own, top.raw, log_sum);
        __syncthreads();
        if (finds_best) best_tokens(s.best, k, index, raw, candidates, top.raw, log_sum, a.candidates + job.candidate_offset);
      }
    }
  }
  if (!first || threadIdx.x != 0) return;
  mr_row_result& result = a.results[index];
  result.slot = sample ? job.slot : -1;
  result.position = sample ? job.position : -1;
  result.status = status;
  result.count = status == MR_ROW_OK ? 1 : 0;
  result.token = token;
  result.logprob = logprob;
  result.candidate_offset = job.candidate_offset;
  result.candidate_count = candidates;
  if (sample && (job.flags & kJobFeeds) != 0) a.slots.feeds[job.slot] = SlotFeed{token, status};
}

// Blocks that count the better tokens of a job.
unsigned blocks_of(int32_t jobs) { return jobs <= 4 ? 32 : jobs <= 16 ? 16 : jobs <= 32 ? 8 : jobs <= 64 ? 4 : 2; }

}  // namespace

cudaError_t launch_sampler_choose(const SampleKernelArgs& k, const Stream& on) {
  const dim3 grid(blocks_of(k.a.job_count), static_cast<unsigned>(k.a.job_count));
  return launch(on, grid, dim3(kThreads), 0, choose, k);
}

}  // namespace mr::cuda
