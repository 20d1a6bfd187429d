// Decode attention over a paged cache, and properties that prefill shares: against float64, and bit for bit alone, in a
// batch and in chunks.
#include "attention_saturated.h"

namespace mr::cuda::testing {
namespace {

TEST(DecodeAttention, AgreesWithFloat64) {
  for (const Kv kv : {Kv::kAct, Kv::kF8})
    for (const Act act : {Act::kF16, Act::kBF16})
      for (const Shape& shape : kShapes) {
        const Cache cache(act, shape, {1, 17, 128, 129, 600}, 11, kv);
        const std::vector<Row> rows = {{0, 0},   {1, 15},  {1, 16},  {-1, 0},  {2, 126},
                                       {2, 127}, {3, 128}, {4, 255}, {4, 256}, {4, 599}};
        const std::vector<float> got = from_acts(act, attend(cache, rows, {}));
        const int64_t q_stride = shape.heads * cache.layout.padded_dim + 8;
        const std::vector<uint16_t> q = queries_of(cache, rows, q_stride);
        const int64_t width = shape.heads * shape.dim;
        for (size_t r = 0; r < rows.size(); ++r) {
          const auto begin = got.begin() + static_cast<int64_t>(r) * width;
          EXPECT_TRUE(near(std::vector<float>(begin, begin + width),
                           reference(cache, rows[r], q, r * static_cast<size_t>(q_stride)), bound_of(act)))
              << name(act) << (kv == Kv::kF8 ? " over f8" : "") << " dim " << shape.dim << " heads " << shape.heads << "/"
              << shape.kv_heads << " row " << r;
        }
      }
}

TEST(DecodeAttention, GivesTheSameBitsAloneAmongOthersAndWhateverAUnitIs) {
  for (const Shape& shape : {Shape{8, 2, 128, 16}, Shape{4, 2, 256, 32}, Shape{20, 1, 64, 16}, Shape{7, 1, 80, 32},
                             Shape{8, 1, 512, 16}}) {
    const Cache cache(Act::kBF16, shape, {5000, 2049, 300}, 12, shape.dim == 128 || shape.dim == 80 ? Kv::kF8 : Kv::kAct);
    std::vector<Row> rows = {{0, 4999}, {1, 2047}, {1, 2048}, {-1, 0}, {2, 299}, {0, 0}, {0, 127}, {0, 128}};
    const std::vector<uint16_t> together = attend(cache, rows, {});
    const size_t width = static_cast<size_t>(shape.heads * shape.dim);
    EXPECT_TRUE(same_bits(attend(cache, rows, {}, {20}).data(), together.data(), together.size())) << "units of groups";
    EXPECT_TRUE(same_bits(attend(cache, rows, {}, {0, 5}).data(), together.data(), together.size())) << "several runs";
    for (size_t r = 0; r < rows.size(); ++r)
      EXPECT_TRUE(same_bits(attend(cache, {rows[r]}, {}).data(), together.data() + r * width, width)) << "row " << r << " alone";
    for (int32_t i = 0; i < 200; ++i) rows.push_back({2, 1 + i});
    EXPECT_TRUE(same_bits(attend(cache, rows, {}).data(), together.data(), together.size())) << "among strangers";
  }
}

// Rows of one chunk, one group and several groups, with padding between them, on one workspace, launch after launch.
TEST(DecodeAttention, MergesAnyNumberOfGroups) {
  const int32_t group = kAttentionChunk * kChunksAGroup;
  for (const Kv kv : {Kv::kAct, Kv::kF8})
    for (const Shape& shape : {Shape{8, 2, 128, 16}, Shape{2, 1, 256, 32}, Shape{3, 1, 80, 16}, Shape{2, 1, 512, 16}}) {
      const Cache cache(Act::kBF16, shape, {9 * group + 3137, 2 * group + 1, 300}, 13, kv);
      std::vector<Row> rows = {{0, 9 * group + 3136}, {-1, 0}, {2, 9},        {1, group - 1},    {1, group},       {-1, 0},
                               {1, 2 * group - 1},    {2, 299}, {1, 2 * group}, {0, 3 * group + 99}, {0, 9 * group - 1}, {-1, 0}};
      const std::vector<uint16_t> together = attend(cache, rows, {});
      expect_near(cache, rows, together, {0, 3, 4, 8, 9}, 8, "many groups");
      expect_near(cache, rows, together, {1, 2, 7}, 1, "few keys and none");
      const size_t width = static_cast<size_t>(shape.heads * shape.dim);
      for (size_t r = 0; r < rows.size(); ++r)
        EXPECT_TRUE(same_bits(attend(cache, {rows[r]}, {}).data(), together.data() + r * width, width)) << "row " << r << " alone";
      for (const int32_t sm_count : {1, 3, 50, 132}) {  // other shares, so other parts of groups and rows
        const std::vector<uint16_t> got = attend(cache, rows, {}, {0, 3, PrefillSplit::kByWork, sm_count});
        EXPECT_TRUE(same_bits(got.data(), together.data(), together.size())) << sm_count << " SMs, three runs";
        const std::vector<uint16_t> groups = attend(cache, rows, {}, {40, 3, PrefillSplit::kByWork, sm_count});
        EXPECT_TRUE(same_bits(groups.data(), together.data(), together.size())) << sm_count << " SMs, units of groups, three runs";
      }
      for (int32_t i = 0; i < 60; ++i) rows.push_back({i % 3 == 0 ? -1 : 2, i % 3 == 0 ? 0 : 5 * i});
      EXPECT_TRUE(same_bits(attend(cache, rows, {}, {0, 2, PrefillSplit::kByWork, 132}).data(), together.data(), together.size()))
          << "among short rows";
    }
}

// Runs decode attention of one row twice, in a step of `step_rows` rows.
std::vector<uint16_t> attend_in_step(const Cache& cache, const Row& row, int32_t step_rows) {
  const int32_t padded = cache.layout.padded_dim, capacity = decode_attention_capacity(1, row.position + 1);
  const int64_t q_stride = cache.shape.heads * padded + 8, width = cache.shape.heads * cache.shape.dim;
  const int32_t units = row.position / kAttentionChunk + 1;
  const auto ints = [](std::initializer_list<int32_t> values) { return std::vector<int32_t>(values); };
  Guarded<int32_t> slot(ints({0})), position(ints({row.position})), ids(cache.blocks), first(ints({0, units})), span(ints({1}));
  Guarded<int32_t> table(ints({cache.table[static_cast<size_t>(row.sequence)]}));
  Guarded<uint16_t> q(queries_of(cache, {row}, q_stride)), out(static_cast<size_t>(width));
  Guarded<uint8_t> workspace(static_cast<size_t>(decode_attention_bytes(1, capacity, cache.shape.heads, cache.shape.dim)));
  workspace.zero();
  DecodeAttentionArgs args{};
  args.common = {{slot, position, table, ids}, cache.layout, cache.shape.heads,
                 1.0f / std::sqrt(static_cast<float>(cache.shape.dim)), q.data(), q_stride, out.data(), width, cache.layout.act, cache.keys.data(),
                 cache.values.data()};
  args.count = 1;
  args.plan = DecodePlan{first, span, capacity};
  args.workspace = workspace.data();
  args.sm_count = 132;
  args.step_rows = step_rows;
  for (int i = 0; i < 2; ++i) MUST(launch_decode_attention(args, Stream{}));
  synchronize();
  return out.read();
}

// Keys of earlier steps may be loaded before the kernel ahead has ended. Which keys those are must change no bits.
TEST(DecodeAttention, GivesTheSameBitsWhateverTheStepWrites) {
  for (const Kv kv : {Kv::kAct, Kv::kF8})
    for (const Shape& shape : {Shape{8, 2, 128, 16}, Shape{2, 2, 64, 32}, Shape{2, 1, 256, 16}, Shape{2, 1, 512, 32}}) {
      const Cache cache(Act::kF16, shape, {1200, 40}, 14, kv);
      const std::vector<Row> rows = {{0, 1199}, {0, 1023}, {0, 256}, {0, 255}, {1, 0}, {1, 15}, {1, 16}, {1, 39}};
      for (const Row& row : rows) {
        const std::vector<uint16_t> want = attend(cache, {row}, {});
        for (const int32_t step_rows : {0, 1, 2, 16, 17, 200, 100000})
          EXPECT_TRUE(same_bits(attend_in_step(cache, row, step_rows).data(), want.data(), want.size()))
              << "position " << row.position << " in a step of " << step_rows;
      }
    }
}

// The largest stored value of an f16 cache leaves headroom for means whose weights are rounded up.
TEST(DecodeAttention, GivesFiniteMeansOfSaturatedValues) {
  for (const Shape& shape : {Shape{4, 2, 64, 16}, Shape{2, 1, 128, 32}, Shape{7, 1, 80, 16}, Shape{2, 2, 256, 16}, Shape{2, 1, 512, 16}})
    with_saturated(shape, kAttentionChunk * kChunksAGroup + 104, [&](const Cache& cache, float size) {
      // One key, a chunk, two chunks, several, and more than a group of them.
      std::vector<Row> rows = {{0, 0}, {0, 16}, {0, 255}, {0, 256}, {0, 599}, {0, cache.lengths[0] - 1}};
      const std::vector<size_t> which = {0, 1, 2, 3, 4, 5};
      for (const Act out : {Act::kF16, Act::kBF16})
        expect_means(cache, size, rows, attend(cache, rows, {}, {}, out), out, which, "few rows");
      for (int32_t i = 0; i < 12; ++i) rows.push_back({0, 600 + 30 * i});  // more rows than use several steps at once
      expect_means(cache, size, rows, attend(cache, rows, {}), Act::kF16, which, "many rows");
    });
}

TEST(Attention, SeesKeysBeyond65536) {
  for (const Act act : {Act::kF16, Act::kBF16}) {
    const Shape shape{4, 1, 64, 16};
    const Cache cache(act, shape, {70001}, 41, act == Act::kF16 ? Kv::kAct : Kv::kF8);
    const std::vector<Row> rows = rows_at(0, 69960, 41);
    std::vector<PrefillTile> tiles;
    cut(shape, 0, 41, &tiles);
    const std::vector<uint16_t> folded = attend(cache, rows, tiles, {0, 1, PrefillSplit::kNever, 132});
    expect_near(cache, rows, folded, {0, 40}, 32, "prefill", true);
    const std::vector<uint16_t> split = attend(cache, rows, tiles, {0, 1, PrefillSplit::kAlways, 132});
    EXPECT_TRUE(same_bits(split.data(), folded.data(), folded.size())) << "split";
    const std::vector<uint16_t> decoded = attend(cache, rows, {}, {0, 1, PrefillSplit::kByWork, 132});
    expect_near(cache, rows, decoded, {0, 40}, 32, "decode");
    const std::vector<uint16_t> alone = attend(cache, {rows[40]}, {}, {0, 1, PrefillSplit::kByWork, 132});
    EXPECT_TRUE(same_bits(alone.data(), decoded.data() + decoded.size() - alone.size(), alone.size())) << "decode alone";
  }
}

// Decode and prefill of one shape over few keys: rows against float64, and a prompt in chunks bit for bit.
void check_width(Act act, const Shape& shape, Kv kv, int32_t window = 0, float cap = 0, const std::vector<float>& sinks = {}) {
  const int32_t length = 45;
  Cache cache(act, shape, {length, 18}, static_cast<uint64_t>(shape.dim), kv);
  cache.window = window;
  cache.cap = cap;
  cache.sinks = sinks;
  std::vector<Row> rows;
  for (int32_t p = 0; p < length; ++p) rows.push_back({0, p});
  rows.push_back({1, 17});
  std::vector<PrefillTile> tiles;
  cut(shape, 0, length, &tiles);
  cut(shape, length, 1, &tiles);
  const int64_t q_stride = shape.heads * cache.layout.padded_dim + 8;
  const std::vector<uint16_t> q = queries_of(cache, rows, q_stride);
  const size_t width = static_cast<size_t>(shape.heads * shape.dim);
  const std::vector<uint16_t> decoded = attend(cache, rows, {}), whole = attend(cache, rows, tiles);
  for (size_t r = 0; r < rows.size(); r += r % 15 == 0 ? 1 : 7) {
    for (const auto* got : {&decoded, &whole}) {
      const std::vector<double> want = reference(cache, rows[r], q, r * static_cast<size_t>(q_stride), got == &whole);
      const auto begin = got->begin() + static_cast<int64_t>(r * width);
      const std::vector<uint16_t> row(begin, begin + static_cast<int64_t>(width));
      EXPECT_TRUE(near(from_acts(act, row), want, bound_of(act)))
          << name(act) << (kv == Kv::kF8 ? " over f8" : "") << " dim " << shape.dim << " heads " << shape.heads << "/"
          << shape.kv_heads << " row " << r << (got == &decoded ? " decoded" : " of a prompt");
    }
  }
  std::vector<uint16_t> pieces;
  for (int32_t at = 0; at < length; at += 19) {
    const int32_t count = std::min(19, length - at);
    std::vector<PrefillTile> own;
    cut(shape, 0, count, &own);
    const std::vector<uint16_t> part = attend(cache, std::vector<Row>(rows.begin() + at, rows.begin() + at + count), own);
    pieces.insert(pieces.end(), part.begin(), part.end());
  }
  EXPECT_TRUE(same_bits(pieces.data(), whole.data(), pieces.size())) << name(act) << " dim " << shape.dim << " in chunks";
}

TEST(Attention, RunsHeadsOfEveryEvenWidth) {
  const int32_t groups[][2] = {{1, 1}, {2, 1}, {4, 2}, {3, 3}, {9, 1}};
  for (int32_t dim = 2; dim <= 256; dim += 2) {
    const auto& group = groups[dim / 2 % 5];
    const Shape shape{group[0], group[1], dim, dim / 2 % 3 == 0 ? 32 : 16};
    check_width(dim % 4 == 0 ? Act::kF16 : Act::kBF16, shape, Kv::kAct);
    check_width(dim % 4 == 0 ? Act::kBF16 : Act::kF16, shape, Kv::kF8);
  }
  for (const int32_t dim : {1, 3, 15, 17, 31, 33, 255})
    for (const Kv kv : {Kv::kAct, Kv::kF8}) check_width(Act::kBF16, {2, 1, dim, 16}, kv);
}

TEST(Attention, RunsHeadsAbove256Dims) {
  const int32_t groups[][2] = {{1, 1}, {2, 1}, {8, 1}, {16, 1}, {4, 2}};
  int32_t turn = 0;
  for (const int32_t dim : {257, 258, 320, 384, 511, 512})
    for (const auto& group : groups) {
      const Shape shape{group[0], group[1], dim, turn % 3 == 0 ? 32 : 16};
      check_width(turn % 2 == 0 ? Act::kF16 : Act::kBF16, shape, Kv::kAct);
      check_width(turn % 2 == 0 ? Act::kBF16 : Act::kF16, shape, Kv::kF8);
      ++turn;
    }
}

// Windows that end within a tile of keys, and caps.
TEST(Attention, SeesWhatAWindowAndACapLeave) {
  for (const int32_t dim : {64, 80, 128, 256, 320, 512})
    for (const Act act : {Act::kF16, Act::kBF16})
      for (const Kv kv : {Kv::kAct, Kv::kF8}) {
        check_width(act, {4, 1, dim, 16}, kv, 24);
        check_width(act, {2, 1, dim, 32}, kv, 0, 2.0f);
        check_width(act, {8, 1, dim, 16}, kv, 1, 5.0f);
      }
}

// A sink that outweighs the keys, one that they outweigh, and none.
const std::vector<float> kSinks{5, -3, -INFINITY, 0.5f};

TEST(Attention, AddsSinksAfterAllKeys) {
  for (const int32_t dim : {64, 80, 128, 320})
    for (const Act act : {Act::kF16, Act::kBF16})
      for (const Kv kv : {Kv::kAct, Kv::kF8}) {
        check_width(act, {4, 2, dim, 16}, kv, 0, 0, kSinks);
        check_width(act, {4, 1, dim, 32}, kv, 20, 3.0f, kSinks);
      }
}

TEST(Attention, AddsSinksAfterPiecesAndGroupsOfChunks) {
  for (const Act act : {Act::kF16, Act::kBF16}) {
    const Shape shape{4, 1, 64, 16};
    Cache cache(act, shape, {9000}, 42);
    cache.sinks = kSinks;
    const std::vector<Row> rows = rows_at(0, 8960, 40);
    std::vector<PrefillTile> tiles;
    cut(shape, 0, 40, &tiles);
    const std::vector<uint16_t> folded = attend(cache, rows, tiles, {0, 1, PrefillSplit::kNever, 132});
    expect_near(cache, rows, folded, {0, 39}, 1, "prefill", true);
    const std::vector<uint16_t> split = attend(cache, rows, tiles, {0, 1, PrefillSplit::kAlways, 132});
    EXPECT_TRUE(same_bits(split.data(), folded.data(), folded.size())) << "split";
    const std::vector<uint16_t> decoded = attend(cache, rows, {}, {0, 1, PrefillSplit::kByWork, 132});
    expect_near(cache, rows, decoded, {0, 39}, 1, "decode");
    const std::vector<uint16_t> alone = attend(cache, {rows[39]}, {}, {0, 1, PrefillSplit::kByWork, 7});
    EXPECT_TRUE(same_bits(alone.data(), decoded.data() + decoded.size() - alone.size(), alone.size())) << "decode alone";
  }
}

TEST(Attention, NeedsSharedMemoryThatDevicesHave) {
  for (const int32_t dim : {1, 64, 128, 256}) EXPECT_LE(attention_shared_bytes(dim), 99 << 10) << dim;
  for (const int32_t dim : {257, 512}) EXPECT_LE(attention_shared_bytes(dim), 163 << 10) << dim;
}

TEST(Attention, RefusesShapesItDoesNotRun) {
  for (int32_t dim = 1; dim <= 512; ++dim) EXPECT_TRUE(attention_supports(dim, 4, 2)) << dim;
  EXPECT_FALSE(attention_supports(-2, 1, 1));
  EXPECT_FALSE(attention_supports(64, 2, 0));
  EXPECT_TRUE(attention_supports(128, 32, 8));
  EXPECT_FALSE(attention_supports(513, 32, 8));
  EXPECT_FALSE(attention_supports(64, 7, 2));
  EXPECT_FALSE(attention_supports(0, 1, 1));
}

}  // namespace
}  // namespace mr::cuda::testing
