// Decode and prefill attention over an 8-bit cache: tokens without a scale, scales of any size, and blocks that are widened ahead.
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
    for (const bool prompt : {false, true}) {
      const std::vector<uint16_t> got = attend(cache, rows, prompt ? tiles : std::vector<PrefillTile>{});
      for (const size_t r : {0, 9}) {
        const auto begin = got.begin() + static_cast<int64_t>(r) * width;
        EXPECT_TRUE(near(from_acts(Act::kBF16, std::vector<uint16_t>(begin, begin + width)),
                         reference(cache, rows[r], q, r * static_cast<size_t>(q_stride), prompt), bound))
            << "2^" << power << " row " << r;
      }
    }
  }
}

// Blocks that prefill_widen widens for all tiles, and those that each tile widens itself, give the same bits: of three sequences, with
// windows, across pieces, and with a key and a value that have no scale.
class WidenedKeys : public ::testing::TestWithParam<ActAndShape> {};

INSTANTIATE_TEST_SUITE_P(All, WidenedKeys,
                         ::testing::Combine(::testing::Values(Act::kF16, Act::kBF16),
                                          ::testing::Values(Shape{32, 8, 128, 16}, Shape{4, 2, 64, 32}, Shape{4, 2, 256, 16}, Shape{7, 1, 100, 32},
                                                          Shape{3, 1, 255, 32}, Shape{4, 2, 96, 16}, Shape{9, 9, 80, 32})),
                         act_and_shape);

TEST_P(WidenedKeys, HaveTheSameBitsWhereverTheyAreWidened) {
  const auto& [act, shape] = GetParam();
  Cache cache(act, shape, {1500, 70, 4200}, 54, Kv::kF8);
  int32_t blocks = 0;
  MUST(prefill_wide_blocks(cache.layout, 1000, &blocks));
  if (blocks == 0) GTEST_SKIP() << "no kernel widens blocks ahead on this GPU";
  std::vector<float> x(static_cast<size_t>(shape.dim), 0.5f);
  x[7] = NAN;
  cache.put(0, 40, 0, x, cache.value, cache.value_bytes);
  cache.put(0, 1300, shape.kv_heads - 1, x, cache.key, cache.key_bytes);
  cache.upload();
  std::vector<Row> rows;
  std::vector<PrefillTile> tiles;
  for (const auto& [first, count] : std::vector<std::pair<Row, int32_t>>{{{0, 900}, 600}, {{1, 3}, 67}, {{2, 4090}, 110}}) {
    cut(shape, static_cast<int32_t>(rows.size()), count, &tiles);
    const std::vector<Row> own = rows_at(first.sequence, first.position, count);
    rows.insert(rows.end(), own.begin(), own.end());
  }
  for (const int32_t window : {0, 100, 1500}) {
    cache.window = window;
    const std::vector<uint16_t> each = attend(cache, rows, tiles, {0, 2, PrefillSplit::kByWork, 132});
    for (const PrefillSplit split : {PrefillSplit::kNever, PrefillSplit::kByWork, PrefillSplit::kAlways}) {
      const std::vector<uint16_t> ahead = attend(cache, rows, tiles, {0, 20, split, 132, 0, blocks});
      EXPECT_TRUE(same_bits(ahead.data(), each.data(), each.size())) << "window " << window << " split " << static_cast<int>(split);
    }
  }
}

}  // namespace
}  // namespace mr::cuda::testing
