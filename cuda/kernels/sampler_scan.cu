// sampler, kernels scan and edit: the greatest logits, and the processed logits of rows that have any.
//
// scan: one block of kPieceThreads a piece and job, 8 neighbouring tokens a thread. Reads each logit once; writes processed
// logits only where rules ask for them.
// edit: one block of 1024 a job, one pass over the biases, two over the window of the history, one over the row. The count
// of a token in the window is a table entry that the token's first comer takes and zeroes, so tables stay zero.
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

__global__ void __launch_bounds__(kPieceThreads) scan(const __grid_constant__ SampleKernelArgs k) {
  __shared__ Best scratch[32];
  grid_wait();
  grid_trigger();
  const SampleArgs& a = k.a;
  const int32_t index = blockIdx.y;
  const SampleJob job = a.jobs[index];
  if (job.kind == kJobNone) return;
  const SlotParams p = params_of(a, job);
  const Rules rules = rules_of(a, job, p);
  if (rules.poisoned) return;
  const int32_t begin = blockIdx.x * kPiece + threadIdx.x * 8;
  float x[8];
  for (int i = 0; i < 8; ++i) x[i] = -INFINITY;
  if (begin < a.vocab) load_tokens(raw_row(a, job), begin, a.vocab, x);
  bool nan = false;
  float top = -INFINITY;
  int32_t id = begin;
  for (int i = 0; i < 8; ++i) {
    nan = nan || isnan(x[i]);
    if (x[i] > top) {
      top = x[i];
      id = begin + i;
    }
  }
  nan = __syncthreads_or(nan);
  const Best raw = block_best(top, id, scratch);
  Best processed = raw;
  if (rules.processed) {
    uint32_t open = 0xffu;
    if (begin < a.vocab) {
      if (!p.all_allowed) open &= bits_at(a.slots.allowed + static_cast<int64_t>(job.slot) * a.slots.mask_words, begin);
      if (job.mask_offset >= 0) open &= bits_at(a.masks + job.mask_offset, begin);
      if (rules.suppressed) open &= ~bits_at(a.slots.suppressed + static_cast<int64_t>(job.slot) * a.slots.mask_words, begin);
    }
    float* const out = k.space.processed + index * k.space.stride;
    top = -INFINITY;
    id = begin;
    for (int i = 0; i < 8; ++i) {
      if ((open >> i & 1u) == 0) x[i] = -INFINITY;
      if (x[i] > top) {
        top = x[i];
        id = begin + i;
      }
      if (begin + i < a.vocab) out[begin + i] = x[i];
    }
    if (!rules.edited) processed = block_best(top, id, scratch);
  }
  if (threadIdx.x == 0)
    k.space.tops[static_cast<int64_t>(index) * k.space.pieces + blockIdx.x] =
        PieceTop{nan ? NAN : raw.x, processed.x, raw.id, processed.id};
}

// Entries of one id lie together: the first of them adds all, one after another.
__device__ void add_biases(const SampleArgs& a, const SampleJob& job, int32_t count, float* x) {
  const int32_t* const ids = a.slots.bias_ids + static_cast<int64_t>(job.slot) * a.slots.bias_capacity;
  const float* const values = a.slots.bias_values + static_cast<int64_t>(job.slot) * a.slots.bias_capacity;
  for (int32_t i = threadIdx.x; i < count; i += blockDim.x) {
    const int32_t id = ids[i];
    if (i > 0 && ids[i - 1] == id) continue;
    float logit = x[id];
    for (int32_t n = i; n < count && ids[n] == id; ++n)
      logit = values[n] == -INFINITY || logit == -INFINITY ? -INFINITY : logit + values[n];
    x[id] = logit;
  }
}

__device__ void penalise(const SampleArgs& a, const SampleJob& job, const SlotParams& p, int32_t* counts, float* x) {
  const int32_t* const history = a.slots.history + job.slot * a.slots.history_stride;
  const int32_t end = job.history_length;
  const int32_t begin = p.penalty_window < 0 || p.penalty_window >= end ? 0 : end - p.penalty_window;
  for (int32_t i = begin + threadIdx.x; i < end; i += blockDim.x) atomicAdd(counts + history[i], 1);
  __syncthreads();
  for (int32_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
    const int32_t id = history[i], count = atomicExch(counts + id, 0);
    if (count == 0 || x[id] == -INFINITY) continue;
    float logit = x[id];
    logit = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
    logit -= p.frequency_penalty * static_cast<float>(count);
    logit -= p.presence_penalty;
    x[id] = isnan(logit) ? -INFINITY : logit;  // infinite terms of both signs
  }
}

__global__ void __launch_bounds__(1024) edit(const __grid_constant__ SampleKernelArgs k) {
  __shared__ Best scratch[32];
  grid_wait();
  grid_trigger();
  const SampleArgs& a = k.a;
  for (int32_t index = blockIdx.x; index < a.job_count; index += gridDim.x) {
    const SampleJob job = a.jobs[index];
    if (job.kind != kJobSample) continue;
    const SlotParams p = params_of(a, job);
    const Rules rules = rules_of(a, job, p);
    if (!rules.edited || rules.poisoned) continue;
    float* const x = k.space.processed + index * k.space.stride;
    add_biases(a, job, p.bias_count, x);
    __syncthreads();
    if (rules.penalised) penalise(a, job, p, k.space.counts + blockIdx.x * k.space.stride, x);
    __syncthreads();
    float top = -INFINITY;
    int32_t id = 0x7fffffff;
    for (int32_t begin = threadIdx.x * 8; begin < a.vocab; begin += 8 * blockDim.x) {
      float v[8];
      load_tokens(x, begin, a.vocab, v);
      for (int i = 0; i < 8; ++i)
        if (begin + i < a.vocab && !isnan(v[i])) take_best(top, id, v[i], begin + i);
    }
    const Best best = block_best(top, id, scratch);
    if (threadIdx.x == 0) k.space.edited[index] = PieceTop{0, best.x, 0, best.id};
    __syncthreads();
  }
}

}  // namespace

cudaError_t launch_sampler_scan(const SampleKernelArgs& k, const Stream& on) {
  const dim3 grid(static_cast<unsigned>(k.space.pieces), static_cast<unsigned>(k.a.job_count));
  return launch(on, grid, dim3(kPieceThreads), 0, scan, k);
}

cudaError_t launch_sampler_edit(const SampleKernelArgs& k, const Stream& on) {
  const int32_t blocks = k.a.job_count < kEditTables ? k.a.job_count : kEditTables;
  return launch(on, dim3(static_cast<unsigned>(blocks)), dim3(1024), 0, edit, k);
}

}  // namespace mr::cuda
