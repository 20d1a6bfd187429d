#pragma GCC optimize("fp-contract=off")
#include "sampler.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>

#include "mathfn.h"
#include "philox.h"

namespace mr::cpu {
namespace {

using Entry = SamplerSpace::Entry;

constexpr float kForbidden = -std::numeric_limits<float>::infinity();
constexpr int32_t kHeapLimit = 1024;  // up to this many best tokens are kept in a heap
constexpr int64_t kDrawBlock = 1024;  // tokens whose masses are summed at once

// Ascending for descending x, then ascending id.
uint64_t best_first(float x, int32_t id) {
  x += 0.0f;  // -0 equals 0
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t ascending = bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
  return (static_cast<uint64_t>(~ascending) << 32) | static_cast<uint32_t>(id);
}

int32_t id_of(uint64_t key) { return static_cast<int32_t>(key & 0xffffffffu); }

uint64_t share(double fraction, uint64_t total) {  // ceil(fraction * total), at least 1, at most total
  const double wanted = std::ceil(fraction * static_cast<double>(total));
  if (wanted >= static_cast<double>(total)) return total;
  return wanted < 1 ? 1 : static_cast<uint64_t>(wanted);
}

uint64_t sum_mass(const Entry* e, int64_t n) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += e[i].mass;
  return sum;
}

// Moves the shortest run of least keys whose masses reach `target` to the front and gives its length; n when the whole
// does not reach it. Keys are distinct. Linear on average; after too many unlucky rounds the rest is sorted.
int64_t select_mass(Entry* e, int64_t n, uint64_t target) {
  const auto less = [](const Entry& a, const Entry& b) { return a.key < b.key; };
  int64_t low = 0, high = n;
  uint64_t before = 0;  // mass of [0, low) < target
  for (int round = 0; high - low > 32 && round < 64; ++round) {
    const uint64_t a = e[low].key, b = e[low + (high - low) / 2].key, c = e[high - 1].key;
    const uint64_t pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));  // neither least nor greatest
    int64_t middle = low;
    uint64_t sum = 0;
    for (int64_t i = low; i < high; ++i) {
      if (e[i].key > pivot) continue;
      sum += e[i].mass;
      std::swap(e[i], e[middle++]);
    }
    if (before + sum >= target) {
      high = middle;
    } else {
      before += sum;
      low = middle;
    }
  }
  std::sort(e + low, e + high, less);
  for (int64_t i = low; i < high; ++i) {
    before += e[i].mass;
    if (before >= target) return i + 1;
  }
  return high;
}

// The keys of the `count` <= kHeapLimit greatest of x in keys[0, count), unordered.
void heap_best(const VecOps& ops, const float* x, int32_t vocab, int32_t count, uint64_t* keys) {
  for (int32_t i = 0; i < count; ++i) keys[i] = best_first(x[i], i);
  std::make_heap(keys, keys + count);
  float bound = x[id_of(keys[0])];
  for (int64_t i = ops.find_greater(x, count, vocab, bound); i < vocab; i = ops.find_greater(x, i + 1, vocab, bound)) {
    std::pop_heap(keys, keys + count);
    keys[count - 1] = best_first(x[i], static_cast<int32_t>(i));
    std::push_heap(keys, keys + count);
    bound = x[id_of(keys[0])];
  }
}

bool penalises(const SlotParams& p) {
  return p.penalty_window != 0 &&
         (p.repetition_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0);
}

void penalise(const Choice& c, SamplerSpace& space, float* x) {
  const SlotParams& p = *c.params;
  const int32_t end = c.history_length;
  const int32_t begin = p.penalty_window < 0 || p.penalty_window >= end ? 0 : end - p.penalty_window;
  for (int32_t i = begin; i < end; ++i) ++space.counts[c.history[i]];
  for (int32_t i = begin; i < end; ++i) {
    const int32_t id = c.history[i], count = space.counts[id];
    if (count == 0) continue;
    space.counts[id] = 0;
    float& logit = x[id];
    if (logit == kForbidden) continue;
    logit = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
    logit -= p.frequency_penalty * static_cast<float>(count);
    logit -= p.presence_penalty;
    if (std::isnan(logit)) logit = kForbidden;  // infinite terms of both signs
  }
}

// The logits after everything that comes before temperature: the row itself when nothing applies.
const float* process(const VecOps& ops, const Choice& c, SamplerSpace& space) {
  const SlotParams& p = *c.params;
  const bool suppress = !p.suppressed.empty() && c.position - p.prompt_length < p.min_tokens;
  const bool penalties = penalises(p);
  if (c.mask == nullptr && p.all_allowed && !suppress && p.bias_ids.empty() && !penalties) return c.logits;
  float* x = space.processed;
  if (!p.all_allowed) {
    std::fill(x, x + c.vocab, kForbidden);
    for (const int32_t id : p.allowed)
      if (c.mask == nullptr || (c.mask[id / 32] >> (id % 32) & 1u)) x[id] = c.logits[id];
  } else if (c.mask != nullptr) {
    ops.mask(c.logits, c.mask, c.vocab, x);
  } else {
    std::memcpy(x, c.logits, static_cast<size_t>(c.vocab) * sizeof(float));
  }
  if (suppress)
    for (const int32_t id : p.suppressed) x[id] = kForbidden;
  for (size_t i = 0; i < p.bias_ids.size(); ++i) {
    float& logit = x[p.bias_ids[i]];
    logit = p.bias_values[i] == kForbidden || logit == kForbidden ? kForbidden : logit + p.bias_values[i];
  }
  if (penalties) penalise(c, space, x);
  return x;
}

float just_below(float x) {  // for x >= 0; the least number is below 0
  if (x <= 0) return -1;
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  --bits;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// Every token with weight >= floor and a mass, in ascending order of ids.
int64_t collect(const VecOps& ops, const float* x, const float* weights, int32_t vocab, float floor, Entry* e) {
  int64_t n = 0;
  const auto take = [&](int64_t i) {
    const uint64_t m = mass(weights[i]);
    if (m != 0) e[n++] = Entry{best_first(x[i], static_cast<int32_t>(i)), m};
  };
  if (floor < 0x1p-10f) {  // many: looking at each is faster than searching
    for (int64_t i = 0; i < vocab; ++i)
      if (weights[i] >= floor) take(i);
    return n;
  }
  const float below = just_below(floor);
  for (int64_t i = ops.find_greater(weights, 0, vocab, below); i < vocab;
       i = ops.find_greater(weights, i + 1, vocab, below))
    take(i);
  return n;
}

int64_t keep_typical(const SlotParams& p, float top, float temperature, const float* x, Entry* e, int64_t n) {
  const auto by_id = [](const Entry& a, const Entry& b) { return id_of(a.key) < id_of(b.key); };
  if (!std::is_sorted(e, e + n, by_id)) std::sort(e, e + n, by_id);
  const uint64_t total = sum_mass(e, n);
  const double log_total = log_f64(static_cast<double>(total) / mass_unit);
  const auto log_weight = [&](const Entry& entry) {
    const float logit = x[id_of(entry.key)];
    return logit == top ? 0.0 : static_cast<double>((logit - top) / temperature);
  };
  double mean = 0;  // of the log weights
  for (int64_t i = 0; i < n; ++i) mean += static_cast<double>(e[i].mass) * log_weight(e[i]);
  mean /= static_cast<double>(total);
  // -ln p = log_total - log weight and the entropy = log_total - mean: their difference needs no log_total, but keeping
  // both terms shows the comparison.
  for (int64_t i = 0; i < n; ++i) {
    const double surprise = log_total - log_weight(e[i]), entropy = log_total - mean;
    const float deviation = static_cast<float>(std::fabs(surprise - entropy));
    e[i].key = best_first(-deviation, id_of(e[i].key));
  }
  n = select_mass(e, n, share(p.typical_p, total));
  for (int64_t i = 0; i < n; ++i) e[i].key = best_first(x[id_of(e[i].key)], id_of(e[i].key));
  return n;
}

// The tokens that the filters leave, in any order. The weight of the best is 1.
int64_t filter(const VecOps& ops, const Choice& c, const float* x, float top, float temperature, SamplerSpace& space) {
  const SlotParams& p = *c.params;
  Entry* e = space.entries;
  int64_t n = 0;
  bool nucleus = p.top_p < 1;  // top-p is still to be applied
  if (p.top_k > 0 && p.top_k <= kHeapLimit && p.top_k < c.vocab) {
    heap_best(ops, x, c.vocab, p.top_k, space.keys);
    for (int32_t i = 0; i < p.top_k; ++i) {
      const uint64_t m = mass(space.weights[id_of(space.keys[i])]);
      if (m != 0) e[n++] = Entry{space.keys[i], m};
    }
  } else if (p.top_k > 0 && p.top_k < c.vocab) {
    n = collect(ops, x, space.weights, c.vocab, 0, e);
    if (n > p.top_k) {
      std::nth_element(e, e + p.top_k, e + n, [](const Entry& a, const Entry& b) { return a.key < b.key; });
      n = p.top_k;
    }
  } else if (p.typical_p < 1) {
    n = collect(ops, x, space.weights, c.vocab, 0, e);
  } else {
    // Lower the floor until the tokens above it hold what top-p asks for: the rest cannot be kept.
    const uint64_t target = share(p.top_p, ops.mass_at_least(space.weights, c.vocab, 0));
    float floor = 0x1p-4f;
    while (floor > 0x1p-36f && ops.mass_at_least(space.weights, c.vocab, floor) < target) floor *= 0x1p-4f;
    if (floor <= 0x1p-36f) floor = 0;
    n = collect(ops, x, space.weights, c.vocab, floor, e);
    n = select_mass(e, n, target);
    nucleus = false;
  }
  if (p.typical_p < 1) n = keep_typical(p, top, temperature, x, e, n);
  if (nucleus) n = select_mass(e, n, share(p.top_p, sum_mass(e, n)));
  if (p.min_p > 0) {
    float best = 0;
    for (int64_t i = 0; i < n; ++i) best = std::max(best, space.weights[id_of(e[i].key)]);
    const float floor = p.min_p * best;
    n = std::remove_if(e, e + n, [&](const Entry& entry) { return space.weights[id_of(entry.key)] < floor; }) - e;
  }
  return n;
}

uint64_t scaled(uint64_t random, uint64_t total) {  // floor(random * total / 2^64)
  return static_cast<uint64_t>((static_cast<unsigned __int128>(random) * total) >> 64);
}

// Draws among the tokens with weight >= floor.
int32_t draw_above(const VecOps& ops, const float* weights, int32_t vocab, float floor, uint64_t random) {
  uint64_t left = scaled(random, ops.mass_at_least(weights, vocab, floor));
  for (int64_t i = 0; i < vocab; i += kDrawBlock) {
    const int64_t n = std::min<int64_t>(kDrawBlock, vocab - i);
    const uint64_t block = ops.mass_at_least(weights + i, n, floor);
    if (left >= block) {
      left -= block;
      continue;
    }
    for (int64_t k = i;; ++k) {
      const uint64_t m = weights[k] >= floor ? mass(weights[k]) : 0;
      if (left < m) return static_cast<int32_t>(k);
      left -= m;
    }
  }
  return -1;
}

int32_t draw_entry(Entry* e, int64_t n, uint64_t random) {
  const uint64_t t = scaled(random, sum_mass(e, n));
  for (int64_t i = 0; i < n; ++i) e[i].key = static_cast<uint32_t>(id_of(e[i].key));
  const int64_t count = select_mass(e, n, t + 1);
  int32_t last = -1;
  for (int64_t i = 0; i < count; ++i) last = std::max(last, id_of(e[i].key));
  return last;
}

}  // namespace

float RowStats::logprob(float logit) const {
  if (logit == greatest) return static_cast<float>(-log_sum);
  return static_cast<float>((static_cast<double>(logit) - static_cast<double>(greatest)) - log_sum);
}

RowStats row_stats(const VecOps& ops, const float* logits, int32_t vocab) {
  const float greatest = ops.greatest(logits, vocab);
  if (std::isnan(greatest)) return {MR_ROW_NAN, greatest, 0};
  if (greatest == kForbidden) return {MR_ROW_EMPTY, greatest, 0};
  if (std::isinf(greatest)) {
    const int64_t count = ops.count_equal(logits, vocab, greatest);
    return {MR_ROW_OK, greatest, log_f64(static_cast<double>(count))};
  }
  return {MR_ROW_OK, greatest, log_f64(ops.sum_exp(logits, vocab, greatest))};
}

int32_t row_rank(const VecOps& ops, const float* logits, int32_t vocab, int32_t token) {
  const float x = logits[token];
  return static_cast<int32_t>(1 + ops.count_greater(logits, vocab, x) + ops.count_equal(logits, token, x));
}

uint64_t SamplerSpace::bytes(int32_t vocab) {
  const uint64_t n = (static_cast<uint64_t>(vocab) + 15) / 16 * 16;
  return n * (2 * sizeof(float) + sizeof(Entry) + sizeof(uint64_t) + sizeof(int32_t));
}

SamplerSpace::SamplerSpace(void* memory, int32_t vocab) {
  const uint64_t n = (static_cast<uint64_t>(vocab) + 15) / 16 * 16;
  uint8_t* p = static_cast<uint8_t *>(memory);
  const auto take = [&p](uint64_t bytes) {
    uint8_t* q = p;
    p += bytes;
    return q;
  };
  entries = reinterpret_cast<Entry *>(take(n * sizeof(Entry)));
  keys = reinterpret_cast<uint64_t *>(take(n * sizeof(uint64_t)));
  processed = reinterpret_cast<float *>(take(n * sizeof(float)));
  weights = reinterpret_cast<float *>(take(n * sizeof(float)));
  counts = reinterpret_cast<int32_t *>(take(n * sizeof(int32_t)));
  std::memset(counts, 0, n * sizeof(int32_t));
}

int32_t choose_token(const VecOps& ops, const Choice& c, SamplerSpace& space) {
  const SlotParams& p = *c.params;
  const float* x = process(ops, c, space);
  const float top = ops.greatest(x, c.vocab);
  if (!(top > kForbidden)) return -1;
  if (p.temperature == 0) return static_cast<int32_t>(ops.find_at_least(x, c.vocab, top));
  const float temperature = std::max(p.temperature, FLT_MIN);
  ops.weights(x, c.vocab, top, temperature, space.weights);
  const uint64_t random = random_bits(p.seed, static_cast<uint32_t>(c.position),
                                      static_cast<uint32_t>(p.output_index), random_sample);
  const bool top_k = p.top_k > 0 && p.top_k < c.vocab;
  if (!top_k && p.typical_p >= 1 && p.top_p >= 1) return draw_above(ops, space.weights, c.vocab, p.min_p, random);
  const int64_t n = filter(ops, c, x, top, temperature, space);
  return draw_entry(space.entries, n, random);
}

int32_t best_tokens(const VecOps& ops, const float* logits, int32_t vocab, int32_t count, const RowStats& stats,
                    SamplerSpace& space, mr_candidate* out) {
  count = std::min(count, vocab);
  if (count == 0) return 0;
  heap_best(ops, logits, vocab, count, space.keys);
  std::sort(space.keys, space.keys + count);
  for (int32_t i = 0; i < count; ++i) {
    const int32_t id = id_of(space.keys[i]);
    out[i] = mr_candidate{id, stats.logprob(logits[id])};
  }
  return count;
}

}  // namespace mr::cpu
