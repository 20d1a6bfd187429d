// sampler_scan: a block's part of the processed logits, and the greatest of a row.
//
// Where a row has masks, lists, biases or penalties, its processed logits are written to the block's part, wherever that
// lies. Every block looks through the biases and the window of the history for its own tokens.
#pragma once

#include "kernels/sampler_space.cuh"

namespace mr::cuda {

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

// x holds the part's tokens. Entries of one id lie together: the first of them adds all, one after another.
__device__ void add_biases(const SampleArgs& a, const SampleJob& job, int32_t count, const Part& part, float* x) {
  const int32_t* const ids = a.slots.bias_ids + static_cast<int64_t>(job.slot) * a.slots.bias_capacity;
  const float* const values = a.slots.bias_values + static_cast<int64_t>(job.slot) * a.slots.bias_capacity;
  for (int32_t i = threadIdx.x; i < count; i += kThreads) {
    const int32_t id = ids[i];
    if (id < part.begin || id >= part.end || (i > 0 && ids[i - 1] == id)) continue;
    float logit = x[id - part.begin];
    for (int32_t n = i; n < count && ids[n] == id; ++n)
      logit = values[n] == -INFINITY || logit == -INFINITY ? -INFINITY : logit + values[n];
    x[id - part.begin] = logit;
  }
}

__device__ __forceinline__ float penalised(const SlotParams& p, float logit, int32_t count) {
  if (count == 0 || logit == -INFINITY) return logit;
  logit = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
  logit -= p.frequency_penalty * static_cast<float>(count);
  logit -= p.presence_penalty;
  return isnan(logit) ? -INFINITY : logit;  // infinite terms of both signs
}

// Counts the window's tokens and penalises them, as many of the part at once as there is room for counts.
__device__ void penalise(SamplerSpace& s, const SampleArgs& a, const SampleJob& job, const SlotParams& p, const Part& part,
                         float* x) {
  constexpr int32_t kCounts = static_cast<int32_t>(sizeof s.counts / sizeof s.counts[0]);
  const int32_t* const history = a.slots.history + job.slot * a.slots.history_stride;
  const int32_t end = job.history_length, start = p.penalty_window < 0 || p.penalty_window >= end ? 0 : end - p.penalty_window;
  for (int32_t begin = part.begin; begin < part.end; begin += kCounts) {
    const int32_t tokens = min(kCounts, part.end - begin);
    for (int32_t i = threadIdx.x; i < tokens; i += kThreads) s.counts[i] = 0;
    __syncthreads();
#pragma unroll 4
    for (int32_t i = start + static_cast<int32_t>(threadIdx.x); i < end; i += kThreads) {
      const int32_t at = history[i] - begin;
      if (at >= 0 && at < tokens) atomicAdd(s.counts + at, 1);
    }
    __syncthreads();
    for (int32_t i = threadIdx.x; i < tokens; i += kThreads) {
      const int32_t count = s.counts[i];
      if (count != 0) x[begin - part.begin + i] = penalised(p, x[begin - part.begin + i], count);
    }
    __syncthreads();
  }
}

// What a scan meets: the greatest and the least finite logit.
struct Extremes {
  float greatest = -INFINITY, least = INFINITY;

  __device__ __forceinline__ void meet(float x) {
    greatest = fmaxf(greatest, x);
    least = fminf(least, x == -INFINITY ? INFINITY : x);
  }
};

struct RowTop {
  bool nan;
  float raw, processed;              // the greatest logits
  float raw_least, processed_least;  // the least finite logits; +inf where there is none
};

// raw: the part's raw logits; part_of_row: where to put the processed ones, or a copy of the raw ones where those are the
// processed ones too; null: there is no need. Leaves the histogram as it finds it, zeroed.
__device__ __noinline__ RowTop scan_row(SamplerSpace& s, const SampleArgs& a, const SampleJob& job, const SlotParams& p,
                                        const Rules& rules, Team& team, const Part& part, const float* raw, float* part_of_row) {
  Extremes met, processed;
  bool nan = false;
  const int lane = threadIdx.x % 32;
  constexpr int kAtOnce = 4;  // asked for before any is looked at
  for (int32_t round = part.warp_begin; round < part.warp_end; round += 128 * kAtOnce) {
    float4 fours[kAtOnce];
    uint32_t open[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int32_t id = round + i * 128 + lane * 4;
      if (id < part.warp_end) fours[i] = part.four(raw, id);
      open[i] = rules.processed && id < part.warp_end ? open_tokens(a, job, p, rules, id) : 0xfu;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int32_t id = round + i * 128 + lane * 4;
      if (id >= part.warp_end) continue;
      float4 v = fours[i];
      nan = nan || isnan(v.x) || isnan(v.y) || isnan(v.z) || isnan(v.w);
      met.meet(v.x);
      met.meet(v.y);
      met.meet(v.z);
      met.meet(v.w);
      if ((open[i] & 1) == 0) v.x = -INFINITY;
      if ((open[i] & 2) == 0) v.y = -INFINITY;
      if ((open[i] & 4) == 0) v.z = -INFINITY;
      if ((open[i] & 8) == 0) v.w = -INFINITY;
      if (part_of_row != nullptr) *reinterpret_cast<float4*>(part_of_row + (id - part.begin)) = v;
    }
  }
  if (rules.processed) {
    __syncthreads();
    if (p.bias_count > 0) add_biases(a, job, p.bias_count, part, part_of_row);
    __syncthreads();
    if (rules.penalised) {
      penalise(s, a, job, p, part, part_of_row);
      clear_bins(s.histogram);
    }
    part.each(part_of_row, [&](int32_t, float x) { processed.meet(x); });
  } else {
    processed = met;
  }
  nan = __any_sync(0xffffffffu, nan);
  const auto greatest = [](float x) { return __reduce_max_sync(0xffffffffu, ascending(x)); };
  const auto least = [](float x) { return __reduce_min_sync(0xffffffffu, ascending(x)); };
  // No logit but NaN has the bits of 0 here.
  const Note mine{0, 0, 0, 0, nan ? 0 : ~greatest(met.greatest), ~greatest(processed.greatest), least(met.least),
                  least(processed.least)};
  const Note* const notes = team.tell(mine, Leasts{});
  const uint32_t top = team.least(notes, &Note::e);
  return RowTop{top == 0, from_ascending(~top), from_ascending(~team.least(notes, &Note::f)),
                from_ascending(team.least(notes, &Note::g)), from_ascending(team.least(notes, &Note::h))};
}

}  // namespace mr::cuda
