// attention_saturated: f16 caches whose values all have the largest stored size, and the bounds of their means.
#pragma once

#include "attention_fixture.h"
#include "kernels/act.cuh"

namespace mr::cuda::testing {

static __global__ void keep_within_f16(float x, float* kept) { *kept = within_f16(x); }

// Returns the number that kernels store for a value beyond f16's range.
inline float largest_kept() {
  Guarded<float> kept(1);
  keep_within_f16<<<1, 1>>>(1e30f, kept.data());
  MUST(cudaGetLastError());
  return kept.read()[0];
}

// Spread is how a row's weights are distributed: 1 for the key `first` and every `every`th after it, `others` for all
// others that the row sees. others == 0: queries and keys are random.
struct Spread {
  const char* name;
  double others;
  int32_t first, every;
};

// Weights are multiplied as f16 and summed as f32, so a mean grows by as much as its weights are rounded up: at most by
// 2^-11 of itself, most of which the third spread reaches.
inline const Spread kSpreads[] = {
    {"random", 0, 0, 1},
    {"all equal", 1, 0, 1},
    {"just above halfway between two f16", 0.5 * (1 + 0x1p-11 + 0x1p-15), 0, 16},
    {"one, and others that become f16's least", 0x1.1p-25, 16, 1 << 20},
    {"one alone", 0x1p-40, 16, 1 << 20},
};

enum class Signs { kOne, kByHeadAndColumn, kByPosition };
inline const Signs kSigns[] = {Signs::kOne, Signs::kByHeadAndColumn, Signs::kByPosition};

// Sets all values of a cache's only sequence to +size or -size, and its queries and keys as a spread needs them:
// queries of ones, and keys whose first two elements add up to a score.
inline void saturate(Cache& cache, float size, const Spread& spread, Signs signs) {
  const int32_t dim = cache.shape.dim;
  std::vector<float> value(static_cast<size_t>(dim)), key(value);
  const std::vector<float> zeros(value);
  if (spread.others > 0) {
    const double dot = std::log(spread.others) * std::sqrt(static_cast<double>(dim));
    key[0] = from_act(cache.act, to_act(cache.act, static_cast<float>(dot)));
    key[1] = static_cast<float>(dot - static_cast<double>(key[0]));
    cache.query = 1;
  }
  for (int32_t p = 0; p < cache.lengths[0]; ++p)
    for (int32_t h = 0; h < cache.shape.kv_heads; ++h) {
      for (int32_t d = 0; d < dim; ++d) {
        const bool negative = signs == Signs::kByPosition ? p % 3 == 0 : signs == Signs::kByHeadAndColumn && (h + d) % 2 != 0;
        value[static_cast<size_t>(d)] = negative ? -size : size;
      }
      cache.put(0, p, h, value, cache.value, cache.value_bytes);
      const bool one = p >= spread.first && (p - spread.first) % spread.every == 0;
      if (spread.others > 0) cache.put(0, p, h, one ? zeros : key, cache.key, cache.key_bytes);
    }
  cache.upload();
}

// Checks means of +size and -size: no element exceeds a mean of `size` whose weights were all rounded up, and the rows
// `which` are near float64. NaN and infinity fail both.
inline void expect_means(const Cache& cache, float size, const std::vector<Row>& rows, const std::vector<uint16_t>& got, Act out,
                         const std::vector<size_t>& which, const char* what) {
  const std::vector<float> means = from_acts(out, got);
  const float most = from_act(out, to_act(out, size * (1 + 0x1p-11f)));
  const auto beyond = [&](float x) { return !(std::isfinite(x) && std::fabs(x) <= most); };
  const auto first = std::find_if(means.begin(), means.end(), beyond);
  if (first != means.end())
    ADD_FAILURE() << what << ": element " << first - means.begin() << " is " << *first << " as " << name(out) << ", of values of " << size;
  const int64_t q_stride = cache.shape.heads * cache.layout.padded_dim + 8, width = cache.shape.heads * cache.shape.dim;
  const std::vector<uint16_t> q = queries_of(cache, rows, q_stride);
  const Bound bound{static_cast<double>(size) * bound_of(cache.act).abs, half_step(out)};
  for (const size_t r : which) {
    const auto begin = means.begin() + static_cast<int64_t>(r) * width;
    EXPECT_TRUE(near(std::vector<float>(begin, begin + width), reference(cache, rows[r], q, r * static_cast<size_t>(q_stride)), bound))
        << what << ": " << name(out) << " position " << rows[r].position;
  }
}

// Calls check(cache, size) for every spread and every distribution of signs, over a cache of `length` positions.
template <class Check>
void with_saturated(const Shape& shape, int32_t length, Check check) {
  const float size = largest_kept();
  for (const Spread& spread : kSpreads)
    for (const Signs signs : kSigns) {
      SCOPED_TRACE(::testing::Message() << "weights " << spread.name << ", signs " << static_cast<int>(signs) << ", dim " << shape.dim
                                        << " heads " << shape.heads << "/" << shape.kv_heads);
      Cache cache(Act::kF16, shape, {length}, 16);
      saturate(cache, size, spread, signs);
      check(cache, size);
    }
}

}  // namespace mr::cuda::testing
