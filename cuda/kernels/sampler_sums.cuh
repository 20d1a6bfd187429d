// sampler_sums: what all tokens of a row weigh: exponentials for logprobs, masses for draws, and the bins of the first filter.
#pragma once

#include "kernels/sampler_filter.cuh"
#include "kernels/sampler_scan.cuh"

namespace mr::cuda {

struct RowSums {
  const Note* notes;  // b: masses of the tokens that may be drawn, where no filter applies
  Note all;           // a: exponentials, in units of 2^-44; b; c and d: surprises, where typical-p is the first filter
  uint32_t raw_id, processed_id;  // the lowest of the greatest raw logits; of the processed ones, where nothing is drawn
};

// raw, x: the part's raw and processed logits. Fills the histogram where top-k or top-p is the first filter.
__device__ __noinline__ RowSums sum_row(SamplerSpace& s, Team& team, const Part& part, const float* raw, const float* x,
                                        const RowTop& top, const Rules& rules, const Filter& filter, const Bins& bins, float min_p) {
  Note sums{};
  sums.e = kNoId;
  part.each<4>(raw, [&](int32_t id, float logit) {
    sums.a += exponential_of(logit, top.raw);
    if (logit == top.raw) sums.e = min(sums.e, static_cast<uint32_t>(id));
  });
  sums.e = sums.f = __reduce_min_sync(0xffffffffu, sums.e);
  const Weights weights = filter.weights;
  if (!rules.draws) {
    if (rules.processed) {
      sums.f = kNoId;
      part.each<4>(x, [&](int32_t id, float logit) {
        if (logit == top.processed) sums.f = min(sums.f, static_cast<uint32_t>(id));
      });
      sums.f = __reduce_min_sync(0xffffffffu, sums.f);
    }
  } else if (rules.top_k) {
    part.each(x, [&](int32_t id, float logit) {
      Weighed w;
      if (weigh(weights, logit, w)) count_in_bin(s.histogram, bins.bin(w.distance, id));
    });
  } else if (rules.typical) {
    part.each(x, [&](int32_t, float logit) {
      Weighed w;
      if (weigh(weights, logit, w)) sums = add_surprise(sums, w);
    });
  } else if (rules.top_p) {
    part.each(x, [&](int32_t id, float logit) {
      Weighed w;
      if (!weigh(weights, logit, w)) return;
      sums.b += w.mass;
      add_to_bin(s.histogram, bins.bin(w.distance, id), w.mass);
    });
  } else {
    part.each(x, [&](int32_t, float logit) {
      Weighed w;
      if (weigh(weights, logit, w) && w.weight >= min_p) sums.b += w.mass;
    });
  }
  const TeamSums told = tell_sums(team, sums, rules.typical && !rules.top_k);
  return RowSums{told.notes, told.all, team.least(told.notes, &Note::e), team.least(told.notes, &Note::f)};
}

}  // namespace mr::cuda
