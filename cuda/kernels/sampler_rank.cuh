// sampler_rank: where a token stands among the raw logits of its row, and the best of them.
#pragma once

#include "kernels/sampler_filter.cuh"
#include "kernels/sampler_scan.cuh"

namespace mr::cuda {

// 1 + tokens with a greater logit + those of lower id with an equal one; x: the part's raw logits, own: the token's.
__device__ __noinline__ int32_t rank_of(Team& team, const Part& part, const float* x, int32_t token, float own) {
  uint32_t better = 0;
  part.each<4>(x, [&](int32_t id, float other) { better += other > own || (other == own && id < token) ? 1 : 0; });
  better = __reduce_add_sync(0xffffffffu, better);
  return static_cast<int32_t>(1 + team.sum(team.tell(Note{better}, Sums{}), &Note::a));
}

__device__ float logprob_of(float logit, float top, double log_sum) {
  if (logit == top) return static_cast<float>(-log_sum);
  return static_cast<float>((static_cast<double>(logit) - static_cast<double>(top)) - log_sum);
}

// All tokens of a row by their raw logits.
struct ByRaw {
  float top;
  Bins bins;

  __device__ __forceinline__ bool look(int32_t id, float x, Entry& entry) const {
    entry = Entry{best_first(x, id), 1, bins.bin(below(x, top), id)};
    return true;
  }
  __device__ Band band(int bin) const { return logit_band(bins, top, 1, bin); }
  __device__ __forceinline__ void add(HistogramSpace& s, const Entry& entry) const { count_in_bin(s, entry.bin); }
};

// The `count` best tokens by raw logit, best first; x: the part's, row: the row's raw logits. The team's first block writes them.
__device__ __noinline__ void best_tokens(SamplerSpace& s, Team& team, const Part& part, const float* x, const float* row,
                                         int32_t count, const RowTop& top, double log_sum, mr_candidate* out) {
  const ByRaw view{top.raw, Bins::of_values(fminf(below(top.raw_least, top.raw), kMassless))};
  const uint64_t limit = select_run(s, team, part, x, view, static_cast<uint64_t>(count), false);
  gather(s, team, part, x, [&](int32_t id, float logit, Entry& entry) { return view.look(id, logit, entry) && entry.key <= limit; });
  if (team.rank != 0 || static_cast<int32_t>(threadIdx.x) >= count) return;
  const uint64_t key = s.list.keys[threadIdx.x];
  int32_t place = 0;
  for (int32_t i = 0; i < count; ++i) place += s.list.keys[i] < key ? 1 : 0;
  const int32_t id = id_of(key);
  out[place] = mr_candidate{id, logprob_of(row[id], top.raw, log_sum)};
}

}  // namespace mr::cuda
