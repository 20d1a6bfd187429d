// sampler, kernel scan: the greatest logits, and the processed logits of rows that have any.
//
// One block of kPieceThreads a piece and job, 8 neighbouring tokens a thread. Reads each logit once; writes processed logits
// only where rules ask for them. Every block looks through the biases and the window of the history for the tokens of its
// own piece, which it edits in shared memory.
#include "kernels/act.cuh"
#include "kernels/sampler_row.cuh"

namespace mr::cuda {
namespace {

__device__ __forceinline__ void load_tokens(const float* row, int32_t begin, int32_t vocab, float (&x)[8]) {
  if (begin + 8 <= vocab) {
    const float4 a = *reinterpret_cast<const float4*>(row + begin), b = *reinterpret_cast<const float4*>(row + begin + 4);
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
  } else {
    for (int i = 0; i < 8; ++i) x[i] = begin + i < vocab ? row[begin + i] : -INFINITY;
  }
}

// Bits of 8 neighbouring tokens of a bitmask; begin is a multiple of 8.
__device__ __forceinline__ uint32_t bits_at(const uint32_t* mask, int32_t begin) {
  return mask[begin / 32] >> (begin % 32) & 0xffu;
}

// Which of 8 neighbouring tokens may be chosen, by the job's mask and its slot's lists.
__device__ __forceinline__ uint32_t open_tokens(const SampleArgs& a, const SampleJob& job, const SlotParams& p,
                                                const Rules& rules, int32_t begin) {
  uint32_t open = 0xffu;
  if (begin >= a.vocab) return open;
  const int64_t words = static_cast<int64_t>(job.slot) * a.slots.mask_words;
  if (!p.all_allowed) open &= bits_at(a.slots.allowed + words, begin);
  if (job.mask_offset >= 0) open &= bits_at(a.masks + job.mask_offset, begin);
  if (rules.suppressed) open &= ~bits_at(a.slots.suppressed + words, begin);
  return open;
}

// x holds the piece's tokens, of which the first is `begin`. Entries of one id lie together: the first of them adds all,
// one after another.
__device__ void add_biases(const SampleArgs& a, const SampleJob& job, int32_t count, int32_t begin, float* x) {
  const int32_t* const ids = a.slots.bias_ids + static_cast<int64_t>(job.slot) * a.slots.bias_capacity;
  const float* const values = a.slots.bias_values + static_cast<int64_t>(job.slot) * a.slots.bias_capacity;
  for (int32_t i = threadIdx.x; i < count; i += kPieceThreads) {
    const int32_t id = ids[i];
    if (id < begin || id >= begin + kPiece || (i > 0 && ids[i - 1] == id)) continue;
    float logit = x[id - begin];
    for (int32_t n = i; n < count && ids[n] == id; ++n)
      logit = values[n] == -INFINITY || logit == -INFINITY ? -INFINITY : logit + values[n];
    x[id - begin] = logit;
  }
}

// counts: how often each of the piece's tokens is in the window; all zero before.
__device__ void count_window(const SampleArgs& a, const SampleJob& job, int32_t window, int32_t begin, int32_t* counts) {
  const int32_t* const history = a.slots.history + job.slot * a.slots.history_stride;
  const int32_t end = job.history_length;
#pragma unroll 4
  for (int32_t i = (window < 0 || window >= end ? 0 : end - window) + static_cast<int32_t>(threadIdx.x); i < end; i += kPieceThreads) {
    const int32_t at = history[i] - begin;
    if (at >= 0 && at < kPiece) atomicAdd(counts + at, 1);
  }
}

__device__ __forceinline__ float penalised(const SlotParams& p, float logit, int32_t count) {
  if (count == 0 || logit == -INFINITY) return logit;
  logit = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
  logit -= p.frequency_penalty * static_cast<float>(count);
  logit -= p.presence_penalty;
  return isnan(logit) ? -INFINITY : logit;  // infinite terms of both signs
}

// The greatest of a thread's tokens, and the lowest of those.
__device__ __forceinline__ Best greatest_of(const float (&x)[8], int32_t begin) {
  Best best{-INFINITY, begin};
  for (int i = 0; i < 8; ++i)
    if (x[i] > best.x) best = Best{x[i], begin + i};
  return best;
}

__global__ void __launch_bounds__(kPieceThreads) scan(const __grid_constant__ SampleKernelArgs k) {
  __shared__ Best scratch[32];
  __shared__ float edited[kPiece];
  __shared__ int32_t counts[kPiece];
  const SampleArgs& a = k.a;
  const int32_t index = blockIdx.y, piece = blockIdx.x * kPiece;
  const SampleJob job = a.jobs[index];
  const SlotParams p = params_of(a, job);
  const Rules rules = rules_of(a, job, p);
  grid_wait();
  grid_trigger();
  if (job.kind == kJobNone || poisoned(a, job)) return;
  const int32_t own = static_cast<int32_t>(threadIdx.x) * 8, begin = piece + own;
  float x[8];
  for (int i = 0; i < 8; ++i) x[i] = -INFINITY;
  if (begin < a.vocab) load_tokens(raw_row(a, job), begin, a.vocab, x);
  bool nan = false;
  for (int i = 0; i < 8; ++i) nan = nan || isnan(x[i]);
  nan = __syncthreads_or(nan);
  const Best mine = greatest_of(x, begin), raw = block_best(mine.x, mine.id, scratch);
  Best processed = raw;
  if (rules.processed) {
    const uint32_t open = open_tokens(a, job, p, rules, begin);
    for (int i = 0; i < 8; ++i)
      if ((open >> i & 1u) == 0) x[i] = -INFINITY;
    if (p.bias_count > 0 || rules.penalised) {
      for (int i = 0; i < 8; ++i) {
        edited[own + i] = x[i];
        counts[own + i] = 0;
      }
      __syncthreads();
      add_biases(a, job, p.bias_count, piece, edited);
      if (rules.penalised) count_window(a, job, p.penalty_window, piece, counts);
      __syncthreads();
      for (int i = 0; i < 8; ++i) x[i] = penalised(p, edited[own + i], counts[own + i]);
    }
    float* const out = k.space.processed + index * k.space.stride;
    for (int i = 0; i < 8; ++i)
      if (begin + i < a.vocab) out[begin + i] = x[i];
    const Best changed = greatest_of(x, begin);
    processed = block_best(changed.x, changed.id, scratch);
  }
  if (threadIdx.x == 0)
    k.space.tops[static_cast<int64_t>(index) * k.space.pieces + blockIdx.x] =
        PieceTop{nan ? NAN : raw.x, processed.x, raw.id, processed.id};
}

}  // namespace

cudaError_t launch_sampler_scan(const SampleKernelArgs& k, const Stream& on) {
  const dim3 grid(static_cast<unsigned>(k.space.pieces), static_cast<unsigned>(k.a.job_count));
  return launch(on, grid, dim3(kPieceThreads), 0, scan, k);
}

}  // namespace mr::cuda
