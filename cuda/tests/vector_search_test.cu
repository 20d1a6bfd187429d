// The search finds what binary64 brute force finds: every id, every bit of Q.
#include <string>

#include "kernels/vectors/search.h"
#include "src/error.h"
#include "vector_fixture.h"

namespace mr::cuda::testing {
namespace {

struct Problem {
  int32_t metric, row_type, codeword_type;
  int64_t spaces, codewords, width, rows;

  std::string name() const {
    return std::string(metric == MR_METRIC_L2 ? "l2 " : "inner ") + type_name(row_type) + " x " + type_name(codeword_type) + ", " +
           std::to_string(spaces) + " spaces, k " + std::to_string(codewords) + ", d " + std::to_string(width) + ", " +
           std::to_string(rows) + " rows";
  }
};

struct Found {
  std::vector<uint32_t> ids;
  std::vector<double> distances;
  uint64_t recomputed;
};

// Searches rows that begin `skew` bytes after an aligned address, with id strides `gap` entries longer than there are
// rows.
Found search(const Problem& p, const Values& rows, const Values& codewords, size_t skew = 0, int64_t gap = 0, bool distances = true) {
  const SearchShape shape{p.metric, p.row_type, p.codeword_type, p.spaces, p.codewords, p.width, p.rows + 3};
  Guarded<uint8_t> memory(Search::bytes(shape, 0)), bytes(rows.bytes.size() + 256);
  MUST(cudaMemcpy(bytes.data() + skew, rows.bytes.data(), rows.bytes.size(), cudaMemcpyHostToDevice));
  Guarded<float> values(codewords.floats);
  const size_t stride = static_cast<size_t>(p.rows + gap), all = stride * static_cast<size_t>(p.spaces);
  Guarded<uint32_t> ids(all);
  Guarded<double> q(all);
  Guarded<uint64_t> recomputed(1);
  recomputed.zero();
  Search searched(shape, 0, memory.data());
  searched.prepare(values, Stream{});
  searched.nearest(bytes.data() + skew, p.rows, ids, distances ? q.data() : nullptr, static_cast<int64_t>(stride), recomputed, Stream{});
  synchronize();
  return {ids.read(), q.read(), recomputed.read()[0]};
}

void expect_reference(const Problem& p, const Values& rows, const Values& codewords, const Found& found, int64_t gap = 0) {
  const size_t stride = static_cast<size_t>(p.rows + gap);
  for (int64_t s = 0; s < p.spaces; ++s)
    for (int64_t r = 0; r < p.rows; ++r) {
      const float* const x = rows.floats.data() + (r * p.spaces + s) * p.width;
      double least = std::numeric_limits<double>::infinity();
      uint32_t id = 0;
      for (int64_t c = 0; c < p.codewords; ++c) {
        const double q = reference_distance(x, codewords.floats.data() + (s * p.codewords + c) * p.width, p.width, p.metric);
        if (q < least) {
          least = q;
          id = static_cast<uint32_t>(c);
        }
      }
      const size_t at = static_cast<size_t>(s) * stride + static_cast<size_t>(r);
      ASSERT_EQ(found.ids[at], id) << p.name() << ": row " << r << " of space " << s;
      ASSERT_TRUE(same_bits(&found.distances[at], &least, 1)) << p.name() << ": row " << r << " of space " << s;
    }
}

// Returns values of a simple distribution in each type's range.
double plain(int32_t type, Numbers& numbers) {
  const double v = static_cast<double>(numbers.normal());
  return type == MR_VECTOR_U8 ? 128 + 40 * v : type == MR_VECTOR_I8 ? 40 * v : v;
}

// Codewords are distributed like the rows.
void expect_plain(const Problem& p, uint64_t seed, size_t skew = 0, int64_t gap = 0) {
  Numbers numbers(seed);
  const Values rows = values_of(p.row_type, static_cast<size_t>(p.rows * p.spaces * p.width), [&](size_t) { return plain(p.row_type, numbers); });
  const Values codewords = values_of(p.codeword_type, static_cast<size_t>(p.spaces * p.codewords * p.width),
                                     [&](size_t) { return plain(p.row_type, numbers); });
  expect_reference(p, rows, codewords, search(p, rows, codewords, skew, gap), gap);
}

TEST(VectorSearch, FindsWhatBinary64FindsInEveryTypeAndMetric) {
  uint64_t seed = 1;
  for (const int32_t metric : {MR_METRIC_L2, MR_METRIC_INNER_PRODUCT})
    for (int32_t row_type = MR_VECTOR_F32; row_type <= MR_VECTOR_I8; ++row_type)
      for (int32_t codeword_type = MR_VECTOR_F32; codeword_type <= MR_VECTOR_BF16; ++codeword_type)
        for (const int64_t width : {8, 33, 128})
          expect_plain({metric, row_type, codeword_type, 1, 200, width, 300}, seed++);
}

TEST(VectorSearch, FindsWhatBinary64FindsInEveryShape) {
  uint64_t seed = 100;
  for (const int64_t width : {1, 2, 3, 7, 15, 16, 17, 31, 48, 64, 100, 129, 384, 700, 1031, 4096})
    for (const int64_t codewords : {1, 2, 3, 127, 128, 129, 300}) {
      const int64_t rows = width > 1000 ? 65 : 257;
      expect_plain({MR_METRIC_L2, MR_VECTOR_F16, MR_VECTOR_F16, 1, codewords, width, rows}, seed++);
      expect_plain({MR_METRIC_L2, MR_VECTOR_F32, MR_VECTOR_F16, 1, codewords, width, rows}, seed++);
    }
  expect_plain({MR_METRIC_L2, MR_VECTOR_F16, MR_VECTOR_F16, 1, 65536, 4, 100}, seed++);
  expect_plain({MR_METRIC_L2, MR_VECTOR_F32, MR_VECTOR_F32, 1, 5000, 64, 130}, seed++);
  expect_plain({MR_METRIC_L2, MR_VECTOR_BF16, MR_VECTOR_BF16, 1, 2, 65536, 3}, seed++);
}

// One kernel serves searches of every size, so a smaller search must not lower the limit of a larger one.
TEST(VectorSearch, LeavesOtherSearchesTheirSharedMemory) {
  const Problem large{MR_METRIC_L2, MR_VECTOR_F32, MR_VECTOR_F32, 1, 300, 160, 100};
  const SearchShape shape{large.metric, large.row_type, large.codeword_type, 1, large.codewords, large.width, large.rows};
  Guarded<uint8_t> memory(Search::bytes(shape, 0));
  Numbers numbers(99);
  const auto value = [&](size_t) { return static_cast<double>(numbers.normal()); };
  const Values rows = values_of(large.row_type, static_cast<size_t>(large.rows * large.width), value);
  const Values codewords = values_of(large.codeword_type, static_cast<size_t>(large.codewords * large.width), value);
  Guarded<uint8_t> data(rows.bytes);
  Guarded<float> values(codewords.floats);
  Guarded<uint32_t> ids(static_cast<size_t>(large.rows));
  Guarded<uint64_t> recomputed(1);
  recomputed.zero();
  Search searched(shape, 0, memory.data());
  expect_plain({MR_METRIC_L2, MR_VECTOR_F32, MR_VECTOR_F32, 1, 2, 16, 10}, 98);
  searched.prepare(values, Stream{});
  searched.nearest(data, large.rows, ids, nullptr, large.rows, recomputed, Stream{});
  synchronize();
  EXPECT_EQ(ids.read(), search(large, rows, codewords).ids);
}

TEST(VectorSearch, FindsRowsOfEveryCountAndPlace) {
  uint64_t seed = 500;
  for (const int64_t rows : {1, 63, 64, 65, 255, 256, 257, 513, 40000}) {
    const Problem p{MR_METRIC_L2, MR_VECTOR_F16, MR_VECTOR_F16, 1, 17, 5, rows};
    expect_plain(p, seed++, 2, 7);
    expect_plain(p, seed++, 16, 0);
  }
  for (const size_t skew : {0, 4, 8, 12}) expect_plain({MR_METRIC_L2, MR_VECTOR_F32, MR_VECTOR_F32, 1, 70, 24, 90}, seed++, skew);
  for (const size_t skew : {0, 1, 7, 8}) expect_plain({MR_METRIC_L2, MR_VECTOR_U8, MR_VECTOR_F32, 1, 70, 24, 90}, seed++, skew);
}

// So many rows that every SM has several tiles, one after another, of one subspace and then of the next.
TEST(VectorSearch, FindsRowsOfTileAfterTile) {
  uint64_t seed = 550;
  for (const int64_t width : {16, 40, 72}) {
    expect_plain({MR_METRIC_L2, MR_VECTOR_F16, MR_VECTOR_F16, 1, 24, width, 132 * 256 * 2 + 77}, seed++);
    expect_plain({MR_METRIC_L2, MR_VECTOR_F16, MR_VECTOR_F16, 5, 20, width, 30001}, seed++, 16, 3);
  }
  expect_plain({MR_METRIC_INNER_PRODUCT, MR_VECTOR_F16, MR_VECTOR_F16, 1, 2050, 64, 600}, seed++);
}

TEST(VectorSearch, FindsSubspacesInOneCall) {
  uint64_t seed = 600;
  for (const int32_t type : {MR_VECTOR_F32, MR_VECTOR_F16, MR_VECTOR_U8}) {
    expect_plain({MR_METRIC_L2, type, MR_VECTOR_F32, 16, 256, 8, 300}, seed++, 0, 5);
    expect_plain({MR_METRIC_L2, type, MR_VECTOR_F16, 5, 300, 3, 1000}, seed++, 0, 1);
    expect_plain({MR_METRIC_L2, type, MR_VECTOR_F16, 33, 20, 17, 260}, seed++);
  }
}

TEST(VectorSearch, FindsNarrowRows) {
  uint64_t seed = 130;
  for (const int64_t width : {8, 16})
    for (const int64_t codewords : {1, 2, 31, 129, 256, 512, 513})
      for (const int64_t rows : {1, 16, 127, 129, 5001}) {
        expect_plain({MR_METRIC_L2, MR_VECTOR_F16, MR_VECTOR_F16, 1 + rows % 3, codewords, width, rows}, seed++, 0, rows % 2);
        expect_plain({MR_METRIC_INNER_PRODUCT, MR_VECTOR_F16, MR_VECTOR_F16, 2, codewords, width, rows}, seed++);
      }
}

TEST(VectorSearch, DecidesTiesForTheLowestId) {
  Numbers numbers(7);
  for (const int64_t codewords : {2, 300, 3000})
    for (const int64_t width : {4, 128}) {
      const Problem p{MR_METRIC_L2, MR_VECTOR_F16, MR_VECTOR_F16, 1, codewords, width, 100};
      const auto small = [&](size_t) { return static_cast<double>(numbers.below(2)); };
      const size_t all = static_cast<size_t>(codewords * width);
      const Values rows = values_of(p.row_type, static_cast<size_t>(p.rows * width), small);
      const Values same = values_of(p.codeword_type, all, [](size_t) { return 0.5; });
      const Found found = search(p, rows, same);
      expect_reference(p, rows, same, found);
      EXPECT_EQ(found.recomputed, static_cast<uint64_t>(p.rows)) << p.name();
      const Values pairs = values_of(p.codeword_type, all, small);
      expect_reference(p, rows, pairs, search(p, rows, pairs));
    }
}

TEST(VectorSearch, FindsDataFarFromZero) {
  Numbers numbers(8);
  for (const int32_t metric : {MR_METRIC_L2, MR_METRIC_INNER_PRODUCT}) {
    const Problem p{metric, MR_VECTOR_F32, MR_VECTOR_F32, 1, 500, 40, 300};
    const auto far = [&](size_t) { return 1e6 + static_cast<double>(numbers.normal()); };
    const Values rows = values_of(p.row_type, static_cast<size_t>(p.rows * p.width), far);
    const Values codewords = values_of(p.codeword_type, static_cast<size_t>(p.codewords * p.width), far);
    expect_reference(p, rows, codewords, search(p, rows, codewords));
  }
  // A type that needs no center, with one all the same.
  const Problem p{MR_METRIC_L2, MR_VECTOR_F16, MR_VECTOR_F16, 1, 500, 128, 300};
  const auto far = [&](size_t) { return 1000 + 2 * static_cast<double>(numbers.normal()); };
  const Values rows = values_of(p.row_type, static_cast<size_t>(p.rows * p.width), far);
  const Values codewords = values_of(p.codeword_type, static_cast<size_t>(p.codewords * p.width), far);
  const Found found = search(p, rows, codewords);
  expect_reference(p, rows, codewords, found);
  EXPECT_LT(found.recomputed, static_cast<uint64_t>(p.rows));
}

TEST(VectorSearch, FindsNormsOfEverySize) {
  Numbers numbers(9);
  const Problem p{MR_METRIC_L2, MR_VECTOR_F32, MR_VECTOR_F32, 1, 400, 24, 300};
  const auto width = static_cast<size_t>(p.width);
  for (const double least : {1e-45, 1e-40, 1e-30, 1e-3, 1e15, 1e31}) {
    const auto spread = [&](size_t i) {
      Numbers of(i / width);
      return least * std::pow(10.0, 6 * of.uniform()) * static_cast<double>(numbers.normal());
    };
    const Values rows = values_of(p.row_type, static_cast<size_t>(p.rows) * width, spread);
    const Values codewords = values_of(p.codeword_type, static_cast<size_t>(p.codewords) * width, spread);
    expect_reference(p, rows, codewords, search(p, rows, codewords));
  }
}

TEST(VectorSearch, GivesTheSameBitsInEverySlice) {
  Numbers numbers(10);
  const Problem p{MR_METRIC_L2, MR_VECTOR_F16, MR_VECTOR_F32, 1, 1000, 96, 700};
  const auto value = [&](size_t) { return static_cast<double>(numbers.normal()); };
  const size_t width = static_cast<size_t>(p.width);
  const Values rows = values_of(p.row_type, static_cast<size_t>(p.rows) * width, value);
  const Values codewords = values_of(p.codeword_type, static_cast<size_t>(p.codewords) * width, value);
  const Found whole = search(p, rows, codewords);
  for (const int64_t slice : {1, 7, 300}) {
    for (int64_t first = 0; first < p.rows; first += slice * 20) {
      Problem part = p;
      part.rows = std::min(slice, p.rows - first);
      Values some;
      some.bytes.assign(rows.bytes.begin() + first * p.width * 2, rows.bytes.begin() + (first + part.rows) * p.width * 2);
      const Found found = search(part, some, codewords);
      EXPECT_TRUE(same_bits(found.ids.data(), whole.ids.data() + first, static_cast<size_t>(part.rows)));
      EXPECT_TRUE(same_bits(found.distances.data(), whole.distances.data() + first, static_cast<size_t>(part.rows)));
    }
  }
}

TEST(VectorSearch, RecomputesFewRowsOfGaussians) {
  Numbers numbers(11);
  for (const int32_t type : {MR_VECTOR_F16, MR_VECTOR_F32}) {
    const Problem p{MR_METRIC_L2, type, type, 1, 4096, 128, 4000};
    const auto value = [&](size_t) { return static_cast<double>(numbers.normal()); };
    const Values rows = values_of(type, static_cast<size_t>(p.rows * p.width), value);
    const Values codewords = values_of(type, static_cast<size_t>(p.codewords * p.width), value);
    // The three products of an F32 row leave out as much again as the tensor cores may be off.
    const int64_t percent = type == MR_VECTOR_F16 ? 1 : 2;
    EXPECT_LE(search(p, rows, codewords).recomputed, static_cast<uint64_t>(p.rows * percent / 100)) << p.name();
  }
}

TEST(VectorSearch, LeavesAllAloneWithoutRowsAndDistancesUnwanted) {
  Numbers numbers(12);
  Problem p{MR_METRIC_L2, MR_VECTOR_F32, MR_VECTOR_F32, 1, 10, 6, 5};
  const auto value = [&](size_t) { return static_cast<double>(numbers.normal()); };
  const Values rows = values_of(p.row_type, 30, value), codewords = values_of(p.codeword_type, 60, value);
  const Found found = search(p, rows, codewords, 0, 0, false);
  const std::vector<uint64_t> untouched(5, UINT64_MAX);
  EXPECT_EQ(std::memcmp(found.distances.data(), untouched.data(), 40), 0);
  p.rows = 0;
  const Found none = search(p, rows, codewords, 0, 4);
  EXPECT_EQ(none.ids, std::vector<uint32_t>(4, UINT32_MAX));
  EXPECT_EQ(none.recomputed, 0u);
}

}  // namespace
}  // namespace mr::cuda::testing
