// sampler, kernel choose: from the results of the earlier kernels to a job's token, logprob, rank and best candidates.
//
// Several blocks work on a job. Each finds the token by itself, which costs little, and counts the better tokens in its
// part of the row. The first block writes the results, the last one the candidates. If no short list holds the tokens
// among which a bound lies, and these are not all equal, each block reads the whole row, once for each filter.
//
// All functions are inlined: calls take longer, and some answers change under compute-sanitizer (cuda/kernels/README.md).
#include "kernels/sampler/rank.cuh"

namespace mr::cuda {
namespace {

struct Shared {
  SampleJob job;
  SlotParams params;
  Rules rules;
  CutSpace cut;
  BestSpace best;
};

// Returns the first of the tokens with the greatest logit.
__device__ __forceinline__ Drawn greatest_token(DrawSpace& s, const SampleKernelArgs& k, int32_t index, bool processed,
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

// Returns ln of the sum of a row's exponentials; each warp computes it by itself.
__device__ __forceinline__ double log_sum_of(const SampleKernelArgs& k, int32_t index) {
  uint64_t sum = 0;
  for (int i = 0; i < kMostPieces / 32; ++i) {
    const int32_t at = i * 32 + static_cast<int32_t>(threadIdx.x % 32);
    if (at < k.pieces) sum += k.space.sums[static_cast<int64_t>(index) * kMostPieces + at].exponentials;
  }
  return log_f64(static_cast<double>(warp_sum_u64(sum)) * 0x1p-44);
}

// Draws the token of a job by its rules.
__device__ __forceinline__ Drawn draw_token(CutSpace& s, ListSpace& list, const SampleKernelArgs& k, int32_t index,
                                            const SampleJob& job, const SlotParams& p, const Rules& rules, const float* row,
                                            float top) {
  Filter filter(Weights(top, p.temperature));
  if (rules.filtered()) {
    cut_row(s, list, k, index, row, rules, p, filter);
  } else {  // weigh has left the masses
    const int32_t piece = threadIdx.x;
    if (piece < kMostPieces)
      s.draw.set(piece, piece < k.pieces ? k.space.sums[static_cast<int64_t>(index) * kMostPieces + piece].mass : 0, 0);
    __syncthreads();
    filter.floor = p.min_p * kWeightUnit;
  }
  return draw(s.draw, k, row, filter, random_of(job, p));
}

// A scored token, or the one with the greatest logit, and its rank are found before the wait for gather, from scan's
// results alone, because weigh may still be running then.
__global__ void __launch_bounds__(kThreads, 2) choose(const __grid_constant__ SampleKernelArgs k) {
  extern __shared__ __align__(16) uint8_t memory[];
  ListSpace& list = *reinterpret_cast<ListSpace*>(memory);
  __shared__ __align__(16) Shared s;
  const SampleArgs& a = k.a;
  const int32_t index = blockIdx.y;
  if (threadIdx.x == 0) {
    s.job = a.jobs[index];
    s.params = params_of(a, s.job);
    s.rules = rules_of(a, s.job, s.params);
    s.best.count = 0;
    s.cut.draw.drawn = Drawn{};
  }
  s.cut.filter.select.clear();
  __syncthreads();
  const SampleJob& job = s.job;
  const Rules& rules = s.rules;
  const bool sample = job.kind == kJobSample, first = blockIdx.x == 0, last = blockIdx.x == gridDim.x - 1;
  const bool ranked = sample && !rules.draws && !rules.processed;  // then the rank is 1
  int32_t status = MR_ROW_NAN;
  const float* const raw = raw_row(a, job);
  const float* const x = processed_row(k, index, rules, raw);
  RowTop top{};
  if (job.kind != kJobNone && !has_nan(a, job)) {
    top = row_top(k, index);
    status = status_of(job, top);
  }
  const int32_t candidates = status == MR_ROW_OK ? min(job.top_n, a.vocab) : 0;
  const bool writes = first || (last && candidates > 0), looks = status == MR_ROW_OK && (writes || !ranked);
  Part part(raw, a.vocab);
  Drawn drawn{};
  if (looks) {
    if (!ranked) part.ask();
    if (!sample) drawn.token = job.target;
    else if (!rules.draws) drawn = greatest_token(s.cut.draw, k, index, rules.processed, x, top.processed);
  }
  const auto wait = [] {
    grid_wait();
    grid_trigger();
  };
  float logit = 0;
  uint32_t better = 0;
  if (looks) {
    if (rules.draws) {
      wait();
      drawn = draw_token(s.cut, list, k, index, job, s.params, rules, x, top.processed);
    }
    logit = sample && !rules.processed ? drawn.logit : raw[drawn.token];
    if (!ranked) better = part.count_better(drawn.token, logit);
  }
  wait();
  if (job.kind == kJobNone) return;
  double log_sum = 0;
  if (looks) {
    if (better != 0 && threadIdx.x % 32 == 0) atomicAdd(&a.results[index].rank, static_cast<int32_t>(better));
    if (writes) log_sum = log_sum_of(k, index);
    if (last && candidates > 0)
      best_tokens(s.best, s.cut.filter.select, k, index, raw, candidates, top.raw, log_sum, a.candidates + job.candidate_offset);
  }
  if (!first || threadIdx.x != 0) return;
  mr_row_result& result = a.results[index];
  result.slot = sample ? job.slot : -1;
  result.position = sample ? job.position : -1;
  result.status = status;
  result.count = status == MR_ROW_OK ? 1 : 0;
  result.token = drawn.token;
  result.logprob = status == MR_ROW_OK ? logprob_of(logit, top.raw, log_sum) : 0;
  result.candidate_offset = job.candidate_offset;
  result.candidate_count = candidates;
  if (sample && (job.flags & kJobFeeds) != 0) a.slots.feeds[job.slot] = SlotFeed{drawn.token, status};
}

// Returns how many blocks count the better tokens of a job.
unsigned blocks_of(int32_t jobs) { return jobs <= 4 ? 32 : jobs <= 16 ? 16 : jobs <= 32 ? 8 : jobs <= 64 ? 4 : 2; }

}  // namespace

cudaError_t launch_sampler_choose(const SampleKernelArgs& k, const Stream& on) {
  const dim3 grid(blocks_of(k.a.job_count), static_cast<unsigned>(k.a.job_count));
  constexpr int kShared = static_cast<int>(sizeof(ListSpace));
  const cudaError_t error = cudaFuncSetAttribute(choose, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  return error != cudaSuccess ? error : launch(on, grid, dim3(kThreads), kShared, choose, k);
}

}  // namespace mr::cuda
