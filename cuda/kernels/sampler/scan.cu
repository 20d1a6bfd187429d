// sampler, kernel scan: the greatest logits, and the processed logits of rows that need them.
//
// It reads each logit once, and writes processed logits only if the rules ask for them. Every block searches the biases
// and the window of the history for the tokens of its own pieces. It also clears what weigh and gather add to.
#include "kernels/sampler/pieces.cuh"

namespace mr::cuda {
namespace {

constexpr int kCounts = 4096;

struct Tokens {  // consecutive tokens of a block
  int32_t begin, end;
};

// Bits of 4 neighbouring tokens of a bitmask; id is a multiple of 4.
__device__ __forceinline__ uint32_t bits_at(const uint32_t* mask, int32_t id) { return mask[id / 32] >> (id % 32) & 0xfu; }

// Which of 4 neighbouring tokens may be chosen, by the job's mask and its slot's lists.
__device__ __forceinline__ uint32_t open_tokens(const SampleArgs& a, const SampleJob& job, const SlotParams& p,
                                                const Rules& rules, int32_t id) {
  uint32_t open = 0xfu;
  const int64_t words = static_cast<int64_t>(job.slot) * a.slots.mask_words;
  if (!p.all_allowed) open &= bits_at(a.slots.allowed + words, id);
  if (job.mask_offset >= 0) open &= bits_at(a.masks + job.mask_offset, id);
  if (rules.suppressed) open &= ~bits_at(a.slots.suppressed + words, id);
  return open;
}

// x: the row. Entries of one id are consecutive: the thread of the first adds them all, one after another.
__device__ void add_biases(const SampleArgs& a, const SampleJob& job, int32_t count, const Tokens& own, float* x) {
  const int32_t* const ids = a.slots.bias_ids + static_cast<int64_t>(job.slot) * a.slots.bias_capacity;
  const float* const values = a.slots.bias_values + static_cast<int64_t>(job.slot) * a.slots.bias_capacity;
  for (int32_t i = threadIdx.x; i < count; i += kPieceThreads) {
    const int32_t id = ids[i];
    if (id < own.begin || id >= own.end || (i > 0 && ids[i - 1] == id)) continue;
    float logit = x[id];
    for (int32_t n = i; n < count && ids[n] == id; ++n)
      logit = values[n] == -INFINITY || logit == -INFINITY ? -INFINITY : logit + values[n];
    x[id] = logit;
  }
}

__device__ __forceinline__ float penalised(const SlotParams& p, float logit, int32_t count) {
  if (count == 0 || logit == -INFINITY) return logit;
  logit = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
  logit -= p.frequency_penalty * static_cast<float>(count);
  logit -= p.presence_penalty;
  return isnan(logit) ? -INFINITY : logit;  // infinities of both signs
}

// Counts the window's tokens and penalises them, as many of the block's tokens at once as there is room for counts.
__device__ void penalise(const SampleArgs& a, const SampleJob& job, const SlotParams& p, const Tokens& own, int32_t* counts,
                         float* x) {
  const int32_t* const history = a.slots.history + job.slot * a.slots.history_stride;
  const int32_t end = job.history_length, start = p.penalty_window < 0 || p.penalty_window >= end ? 0 : end - p.penalty_window;
  for (int32_t begin = own.begin; begin < own.end; begin += kCounts) {
    const int32_t tokens = min(kCounts, own.end - begin);
    for (int32_t i = threadIdx.x; i < tokens; i += kPieceThreads) counts[i] = 0;
    __syncthreads();
#pragma unroll 4
    for (int32_t i = start + static_cast<int32_t>(threadIdx.x); i < end; i += kPieceThreads) {
      const int32_t at = history[i] - begin;
      if (at >= 0 && at < tokens) atomicAdd(counts + at, 1);
    }
    __syncthreads();
    for (int32_t i = threadIdx.x; i < tokens; i += kPieceThreads)
      if (counts[i] != 0) x[begin + i] = penalised(p, x[begin + i], counts[i]);
    __syncthreads();
  }
}

// Extremes is the result of a scan.
struct Extremes {
  float greatest = -INFINITY, least = INFINITY;
  bool nan = false;

  __device__ __forceinline__ void meet(const float4& v, bool finite_too) {
    const auto unordered = [](float x, float y) { return !(x <= y) && !(x >= y); };
    nan = nan || unordered(v.x, v.y) || unordered(v.z, v.w);
    greatest = fmaxf(greatest, fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)));
    if (!finite_too) return;
    const float lowest = fminf(fminf(v.x, v.y), fminf(v.z, v.w));
    if (lowest > -INFINITY) {
      least = fminf(least, lowest);
    } else {
      const auto finite = [](float x) { return x == -INFINITY ? INFINITY : x; };
      least = fminf(least, fminf(fminf(finite(v.x), finite(v.y)), fminf(finite(v.z), finite(v.w))));
    }
  }
};

// Visits a warp's tokens of a row; calls edit(id, logits, open_of(id)) for each four of them.
template <class Open, class Edit>
__device__ __forceinline__ void meet_span(const Span& span, const float* row, int32_t vocab, bool finite_too, Extremes& met,
                                          Open open_of, Edit edit) {
  constexpr int kAtOnce = 4;  // loaded before any is processed
#pragma unroll 1
  for (int32_t round = span.begin + static_cast<int32_t>(threadIdx.x % 32) * 4; round < span.end; round += 128 * kAtOnce) {
    float4 fours[kAtOnce];
    uint32_t open[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int32_t id = round + i * 128;
      if (id >= span.end) continue;
      fours[i] = four_of(row, id, vocab);
      open[i] = open_of(id);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (round + i * 128 >= span.end) break;
      met.meet(fours[i], finite_too);
      edit(round + i * 128, fours[i], open[i]);
    }
  }
}

__device__ __forceinline__ PieceTop top_of(const Extremes& raw, const Extremes& processed) {
  const auto greatest = [](float x) { return from_ascending(__reduce_max_sync(0xffffffffu, ascending(x))); };
  PieceTop top{greatest(raw.greatest), greatest(processed.greatest),
               from_ascending(__reduce_min_sync(0xffffffffu, ascending(processed.least))), 0};
  if (__any_sync(0xffffffffu, raw.nan)) top.raw = NAN;
  return top;
}

__global__ void __launch_bounds__(kPieceThreads, 4) scan(const __grid_constant__ SampleKernelArgs k) {
  __shared__ PieceTop parts[kBlockParts];
  __shared__ int32_t counts[kCounts];
  const SampleArgs& a = k.a;
  const int32_t index = blockIdx.y;
  const SampleJob job = a.jobs[index];
  const SlotParams p = params_of(a, job);
  const Rules rules = rules_of(a, job, p);
  grid_wait();
  grid_trigger();
  if (job.kind == kJobNone || has_nan(a, job)) return;
  if (rules.filtered()) {
    uint64_t* const bins = k.space.bins + static_cast<int64_t>(index) * kBins;
    for (int32_t i = blockIdx.x * kPieceThreads + threadIdx.x; i < kBins; i += gridDim.x * kPieceThreads) bins[i] = 0;
  }
  if (blockIdx.x == 0 && threadIdx.x < 2) k.space.listed[index * 2 + threadIdx.x] = 0;
  const float* const raw = raw_row(a, job);
  float* const out = k.space.processed + index * k.space.stride;
  const bool least = rules.filtered(), edits = p.bias_count > 0 || rules.penalised;
  const int32_t rounds = rounds_of(k);
#pragma unroll 1
  for (int32_t round = 0; round < rounds; ++round) {
    const Span span(k, round);
    Extremes met, processed;
    if (!rules.processed) {
      meet_span(span, raw, a.vocab, least, met, [](int32_t) { return 0xfu; }, [](int32_t, const float4&, uint32_t) {});
      processed = met;
    } else {
      const auto open_of = [&](int32_t id) { return open_tokens(a, job, p, rules, id); };
      meet_span(span, raw, a.vocab, false, met, open_of, [&](int32_t id, float4 v, uint32_t open) {
        if ((open & 1) == 0) v.x = -INFINITY;
        if ((open & 2) == 0) v.y = -INFINITY;
        if ((open & 4) == 0) v.z = -INFINITY;
        if ((open & 8) == 0) v.w = -INFINITY;
        *reinterpret_cast<float4*>(out + id) = v;
        if (!edits) processed.meet(v, least);
      });
    }
    const PieceTop top = top_of(met, processed);
    if (threadIdx.x % 32 == 0) parts[span.part] = top;
  }
  __syncthreads();
  if (rules.processed && edits) {
    const int32_t begin = min(a.vocab, (static_cast<int32_t>(blockIdx.x) << k.piece_bits) * k.piece);
    const Tokens own{begin, min(a.vocab, begin + (k.piece << k.piece_bits))};
    if (p.bias_count > 0) add_biases(a, job, p.bias_count, own, out);
    __syncthreads();
    if (rules.penalised) penalise(a, job, p, own, counts, out);
#pragma unroll 1
    for (int32_t round = 0; round < rounds; ++round) {
      const Span span(k, round);
      Extremes processed;
      for (int32_t id = span.begin + static_cast<int32_t>(threadIdx.x % 32) * 4; id < span.end; id += 128)
        processed.meet(*reinterpret_cast<const float4*>(out + id), least);
      const PieceTop top = top_of(Extremes{}, processed);
      if (threadIdx.x % 32 != 0) continue;
      parts[span.part].processed = top.processed;
      parts[span.part].least = top.least;
    }
    __syncthreads();
  }
  each_piece(k, [&](int32_t first, int32_t count, int32_t piece) {
    PieceTop all = parts[first];
    for (int32_t i = first + 1; i < first + count; ++i) {
      const PieceTop& other = parts[i];
      all.raw = isnan(all.raw) || isnan(other.raw) ? NAN : fmaxf(all.raw, other.raw);
      all.processed = fmaxf(all.processed, other.processed);
      all.least = fminf(all.least, other.least);
    }
    k.space.tops[static_cast<int64_t>(index) * kMostPieces + piece] = all;
  });
}

}  // namespace

cudaError_t launch_sampler_scan(const SampleKernelArgs& k, const Stream& on) {
  return launch(on, piece_grid(k), dim3(kPieceThreads), 0, scan, k);
}

}  // namespace mr::cuda
