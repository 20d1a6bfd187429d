// Decode and prefill attention over an 8-bit cache: tokens without a scale, and scales of any size.
#include "attention_fixture.h"

namespace mr::cuda::testing {
namespace {

// If a token of an 8-bit cache had a NaN or infinite key or value, every row that sees it fails as NaN in the heads
// that read it, and no bit of any other row changes.
TEST(Attention, FailsRowsThatSeeAnF8TokenWithoutAScale) {
  const std::pair<bool, int32_t> cases[] = {{true, 64}, {false, 64}, {true, 512}, {false, 512}};
  for (const Act act : {Act::kF16, Act::kBF16})
    for (const float bad : {NAN, INFINITY, -INFINITY})
      for (const auto& [in_key, dim] : cases) {
        const Shape shape{4, 2, dim, 16};
        Cache cache(act, shape, {100}, 51, Kv::kF8);
        const std::vector<Row> rows = rows_at(0, 0, 100);
        std::vector<PrefillTile> tiles;
        cut(shape, 0, 100, &tiles);
        const std::vector<uint16_t> sound[2] = {attend(cache, rows, {}), attend(cache, rows, tiles)};
        std::vector<float> x(static_cast<size_t>(dim), 0.5f);
        x[7] = bad;
        cache.put(0, 40, 1, x, in_key ? cache.key : cache.value, in_key ? cache.key_bytes : cache.value_bytes);
        cache.upload();
        const std::vector<uint16_t> got[2] = {attend(cache, rows, {}), attend(cache, rows, tiles)};
        for (int kernel = 0; kernel < 2; ++kernel)
          for (size_t i = 0; i < got[kernel].size(); ++i) {
            const size_t width = static_cast<size_t>(dim), row = i / (4 * width), head = i % (4 * width) / width;
            if (row >= 40 && head >= 2) {
              ASSERT_TRUE(std::isnan(from_act(act, got[kernel][i]))) << kernel << " row " << row;
            } else {
              ASSERT_EQ(got[kernel][i], sound[kernel][i]) << kernel << " row " << row << " head " << head;
            }
          }
      }
}

// Values far from 1 in size: their scales carry it.
TEST(Attention, TakesF8ScalesOfAnySize) {
  for (const int power : {-100, -20, 0, 20, 100}) {
    const Shape shape{2, 1, 64, 16};
    Cache cache(Act::kBF16, shape, {70}, 52, Kv::kF8);
    std::vector<float> v(64);
    Numbers numbers(53);
    for (int32_t p = 0; p < 70; ++p) {
      for (float& element : v) element = std::ldexp(numbers.normal(), power);
      cache.put(0, p, 0, v, cache.value, cache.value_bytes);
    }
    cache.upload();
    const std::vector<Row> rows = rows_at(0, 60, 10);
    std::vector<PrefillTile> tiles;
    cut(shape, 0, 10, &tiles);
    const int64_t q_stride = shape.heads * cache.layout.padded_dim + 8, width = shape.heads * shape.dim;
    const std::vector<uint16_t> q = queries_of(cache, rows, q_stride);
    Bound bound = bound_of(Act::kBF16);
    bound.abs = std::ldexp(bound.abs, power);
    for (const auto& got : {attend(cache, rows, {}), attend(cache, rows, tiles)})
      for (const size_t r : {0, 9}) {
        const auto begin = got.begin() + static_cast<int64_t>(r) * width;
        EXPECT_TRUE(near(from_acts(Act::kBF16, std::vector<uint16_t>(begin, begin + width)),
                         reference(cache, rows[r], q, r * static_cast<size_t>(q_stride)), bound))
            << "2^" << power << " row " << r;
      }
  }
}

}  // namespace
}  // namespace mr::cuda::testing
