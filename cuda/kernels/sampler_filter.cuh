// sampler_filter: which tokens top-k, typical-p, top-p and min-p keep. Each filter is a bound on a key: a token is kept when it
// lies within all bounds.
#pragma once

#include "kernels/sampler_gather.cuh"
#include "kernels/sampler_weights.cuh"

namespace mr::cuda {

constexpr float kMassless = 28.5f;  // tokens at this distance have no mass

// Bins for values 0 .. most; where all logits are equal, for ids.
struct Bins {
  float scale;
  int32_t id_shift;  // < 0: values

  // The scale is bounded so that quotients that weigh like 0 bin like 0.
  __device__ static Bins of_values(float most) { return Bins{fminf(static_cast<float>(kBins) / most, 1e18f), -1}; }
  __device__ static Bins of_ids(int32_t vocab) { return Bins{0, max(0, 32 - __clz(vocab - 1) - 8)}; }
  __device__ __forceinline__ int bin(float value, int32_t id) const {
    return id_shift >= 0 ? id >> id_shift : static_cast<int>(fminf(value * scale, kBins - 1.0f));
  }
};

struct Filter {
  Weights weights;
  uint64_t limit = kNoKey;  // on best_first(x, id)
  float least = -INFINITY;  // its logit
  float floor = 0;          // of weights
  bool typical = false;
  uint64_t deviation_limit = kNoKey;  // on best_first(-deviation, id)
  Band deviations = Band::everything();  // what may be within it
  double log_total = 0, entropy = 0;

  __device__ explicit Filter(const Weights& w) : weights(w) {}

  __device__ void set_limit(uint64_t key) {
    limit = min(limit, key);
    if (limit != kNoKey) least = value_of(limit);
  }
  __device__ void set_deviation_limit(uint64_t key) {
    typical = true;
    deviation_limit = key;
    if (key != kNoKey) deviations = deviation_band(0, -value_of(key));
  }
  __device__ __forceinline__ float deviation(float distance) const {
    const double surprise = log_total + static_cast<double>(distance);
    return static_cast<float>(fabs(surprise - entropy));
  }
  // Logits whose deviations lie in low .. high: a deviation is |distance - (entropy - log_total)|.
  __device__ Band deviation_band(float low, float high) const {
    const float top = weights.top, temperature = weights.temperature;
    if (isinf(top) || !(temperature > 1e-9f && temperature < 1e9f)) return Band::everything();
    const float factor = 1 / temperature, slack = 1e-4f + fabsf(top) * factor * 1e-6f;
    return Band{top * factor - static_cast<float>(entropy - log_total), factor, low - slack, high + slack};
  }
  // Whether a token is kept; its weight is then in w.
  __device__ __forceinline__ bool keeps(int32_t id, float x, Weighed& w) const {
    if (x < least) return false;
    if (typical && !deviations.may_have(x)) return false;
    return weigh(weights, x, w) && w.weight >= floor && best_first(x, id) <= limit &&
           (!typical || best_first(-deviation(w.distance), id) <= deviation_limit);
  }
};

// Logits whose distances are of a bin.
__device__ inline Band logit_band(const Bins& bins, float top, float temperature, int bin) {
  if (bins.id_shift >= 0 || isinf(top) || !(temperature > 1e-9f && temperature < 1e9f)) return Band::everything();
  const float width = temperature / bins.scale, slack = 0.02f * width + fabsf(top) * 1e-6f;
  const float high = bin == kBins - 1 ? INFINITY : static_cast<float>(bin + 1) * width + slack;
  return Band{top, 1, static_cast<float>(bin) * width - slack, high};
}

// Kept tokens by their logits.
struct ByLogit {
  Filter filter;
  Bins bins;
  bool counts;  // tokens instead of masses

  __device__ __forceinline__ bool look(int32_t id, float x, Entry& entry) const {
    Weighed w;
    if (!filter.keeps(id, x, w)) return false;
    entry = Entry{best_first(x, id), counts ? 1 : w.mass, bins.bin(w.distance, id)};
    return true;
  }
  __device__ Band band(int bin) const { return logit_band(bins, filter.weights.top, filter.weights.temperature, bin); }
  __device__ __forceinline__ void add(HistogramSpace& s, const Entry& entry) const {
    if (counts) count_in_bin(s, entry.bin);
    else add_to_bin(s, entry.bin, entry.value);
  }
};

// Kept tokens by how far their surprise is from the entropy.
struct ByDeviation {
  Filter filter;
  Bins bins;

  __device__ __forceinline__ bool look(int32_t id, float x, Entry& entry) const {
    Weighed w;
    if (!filter.keeps(id, x, w)) return false;
    const float deviation = filter.deviation(w.distance);
    entry = Entry{best_first(-deviation, id), w.mass, bins.bin(deviation, id)};
    return true;
  }
  __device__ Band band(int bin) const {
    if (bins.id_shift >= 0) return Band::everything();
    const float width = 1 / bins.scale;
    return filter.deviation_band((static_cast<float>(bin) - 0.02f) * width,
                                 bin == kBins - 1 ? INFINITY : (static_cast<float>(bin) + 1.02f) * width);
  }
  __device__ __forceinline__ void add(HistogramSpace& s, const Entry& entry) const { add_to_bin(s, entry.bin, entry.value); }
};

// mass * distance in units of 2^-80, as two words.
__device__ __forceinline__ Note add_surprise(Note sums, const Weighed& w) {
  const uint64_t distance = in_units(w.distance);
  return Sums{}(sums, Note{0, w.mass, w.mass * distance, __umul64hi(w.mass, distance), kNoId, kNoId, kNoId, kNoId});
}

struct TeamSums {
  const Note* notes;
  Note all;  // a and b; c and d where surprises are wanted
};

// Tells the sums of a and b, and of surprises where those are wanted; the least of e and f, in every lane.
__device__ __forceinline__ TeamSums tell_sums(Team& team, Note sums, bool surprises) {
  if (surprises) {
    sums = warp_join(sums, 32, Sums{});
  } else {
    sums.a = warp_sum_u64(sums.a);
    sums.b = warp_sum_u64(sums.b);
  }
  const Note* const notes = team.tell(sums, Sums{});
  if (surprises) return TeamSums{notes, team.all(notes, Sums{})};
  Note all{};
  all.a = team.sum(notes, &Note::a);
  all.b = team.sum(notes, &Note::b);
  return TeamSums{notes, all};
}

// Sums of kept tokens over the team: b of masses, c and d of surprises where those are wanted.
__device__ __noinline__ Note sum_kept(Team& team, const Part& part, const float* x, const Filter& filter, bool surprises) {
  Note sums{};
  part.each(x, [&](int32_t id, float logit) {
    Weighed w;
    if (!filter.keeps(id, logit, w)) return;
    if (surprises) sums = add_surprise(sums, w);
    else sums.b += w.mass;
  });
  return tell_sums(team, sums, surprises).all;
}

// ceil(fraction * total), at least 1, at most total.
__device__ __forceinline__ uint64_t share(double fraction, uint64_t total) {
  const double wanted = ceil(fraction * static_cast<double>(total));
  if (wanted >= static_cast<double>(total)) return total;
  return wanted < 1 ? 1 : static_cast<uint64_t>(wanted);
}

// What is known of a row when filters begin: the sums over all its tokens that have a mass, as sum_kept gives them, and
// the bins of their logits, in which the histogram has them where top-k or top-p is the first filter.
struct FilteredRow {
  const float* x;
  Note sums;
  Bins bins;
};

__device__ inline Bins logit_bins(const Weights& weights, float least, int32_t vocab) {
  if (least == weights.top) return Bins::of_ids(vocab);
  const float under = weights.top - least;
  return Bins::of_values(under > weights.reach ? kMassless : fminf(weights.distance(under), kMassless));
}

// Applies a job's filters. At least one token is kept.
__device__ inline void apply_filters(SamplerSpace& s, Team& team, const Part& part, const FilteredRow& row, const Rules& rules,
                              const SlotParams& p, Filter& filter) {
  if (rules.top_k)
    filter.set_limit(
        select_run(s, team, part, row.x, ByLogit{filter, row.bins, true}, static_cast<uint64_t>(p.top_k), true));
  if (rules.typical) {
    const Note sums = rules.top_k ? sum_kept(team, part, row.x, filter, true) : row.sums;
    const double mean = -(static_cast<double>(sums.d) * 0x1p64 + static_cast<double>(sums.c)) * 0x1p-40 / static_cast<double>(sums.b);
    filter.log_total = log_f64(static_cast<double>(sums.b) * 0x1p-40);
    filter.entropy = filter.log_total - mean;
    Bins bins = row.bins;
    if (bins.id_shift < 0) bins = Bins::of_values(fmaxf(filter.deviation(0), filter.deviation(kBins / row.bins.scale)));
    filter.set_deviation_limit(select_run(s, team, part, row.x, ByDeviation{filter, bins}, share(p.typical_p, sums.b), false));
  }
  if (rules.top_p) {
    const bool first = !rules.top_k && !rules.typical;
    const uint64_t total = first ? row.sums.b : sum_kept(team, part, row.x, filter, false).b;
    filter.set_limit(select_run(s, team, part, row.x, ByLogit{filter, row.bins, false}, share(p.top_p, total), first));
  }
  if (p.min_p > 0) {
    float best = 1;  // of the greatest, which only typical-p leaves out
    if (rules.typical) {
      best = 0;
      part.each(row.x, [&](int32_t id, float logit) {
        Weighed w;
        if (filter.keeps(id, logit, w)) best = fmaxf(best, w.weight);
      });
      Note note{};
      note.e = ~__reduce_max_sync(0xffffffffu, __float_as_uint(best));
      best = __uint_as_float(~team.least(team.tell(note, Leasts{}), &Note::e));
    }
    filter.floor = p.min_p * best;
  }
}

}  // namespace mr::cuda
