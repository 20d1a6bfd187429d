// Prefill attention over a paged cache: against float64, and bit for bit across chunkings and divisions of the work.
#include "attention_saturated.h"

namespace mr::cuda::testing {
namespace {

class PrefillShapes : public ::testing::TestWithParam<ActAndShape> {};

INSTANTIATE_TEST_SUITE_P(All, PrefillShapes, ::testing::Combine(::testing::Values(Act::kF16, Act::kBF16), ::testing::ValuesIn(kShapes)),
                         act_and_shape);

TEST_P(PrefillShapes, AgreeWithFloat64AndDoNotSeeChunks) {
  const auto& [act, shape] = GetParam();
  const int32_t length = 203;
  const Cache cache(act, shape, {length, 70}, 13);
  std::vector<Row> rows = rows_at(0, 0, length);
  for (const Row& row : rows_at(1, 33, 37)) rows.push_back(row);
  std::vector<PrefillTile> tiles;
  cut(shape, 0, length, &tiles);
  cut(shape, length, 37, &tiles);
  const std::vector<uint16_t> whole = attend(cache, rows, tiles);
  std::vector<size_t> which;
  for (size_t r = 0; r < rows.size(); r += r < 4 ? 1 : 17) which.push_back(r);
  expect_near(cache, rows, whole, which, 1, "whole", true);
  for (const int32_t chunk : {128, 37, 1}) {
    std::vector<uint16_t> pieces;
    for (int32_t at = 0; at < length; at += chunk) {
      const int32_t count = std::min(chunk, length - at);
      std::vector<PrefillTile> own;
      cut(shape, 0, count, &own);
      const std::vector<uint16_t> part = attend(cache, std::vector<Row>(rows.begin() + at, rows.begin() + at + count), own);
      pieces.insert(pieces.end(), part.begin(), part.end());
      if (chunk == 1 && at > 20) break;
    }
    EXPECT_TRUE(same_bits(pieces.data(), whole.data(), pieces.size())) << "chunks of " << chunk;
  }
}

TEST(PrefillAttention, AgreesWithFloat64AroundCutsHoweverItsWorkIsDivided) {
  const Shape shapes[] = {{2, 2, 32, 16}, {4, 1, 128, 16}, {7, 1, 64, 32}, {16, 1, 80, 16}, {4, 1, 96, 32}, {1, 1, 256, 16},
                          {8, 2, 128, 32}, {17, 1, 33, 16}, {2, 1, 512, 16}, {1, 1, 320, 32}, {8, 1, 512, 32}};
  int turn = 0;
  for (const Shape& shape : shapes) {
    const Act act = turn % 2 == 0 ? Act::kBF16 : Act::kF16;
    const Kv kv = turn++ % 3 == 1 ? Kv::kF8 : Kv::kAct;
    const Cache cache(act, shape, {4097 + 300, 2600}, static_cast<uint64_t>(20 + turn), kv);
    for (const int32_t cut_at : {1024, 2048, 4096})
      for (const int32_t prefix : {cut_at - 150, cut_at - 1, cut_at, cut_at + 1})
        for (const int32_t count : {1, 300}) {
          // The step also has a prompt of another sequence, and rows after another prefix.
          std::vector<Row> rows = rows_at(0, prefix, count);
          std::vector<PrefillTile> tiles;
          cut(shape, 0, count, &tiles);
          const std::vector<uint16_t> folded = attend(cache, rows, tiles, {0, 1, PrefillSplit::kNever, 1});
          std::vector<size_t> which = {0};
          if (count > 1) which.insert(which.end(), {149, 150, 299});
          expect_near(cache, rows, folded, which, 8, "folded", true);
          const std::vector<uint16_t> split = attend(cache, rows, tiles, {0, 1, PrefillSplit::kAlways, 1});
          EXPECT_TRUE(same_bits(split.data(), folded.data(), folded.size())) << "split, dim " << shape.dim << " behind " << prefix;
          // Room for one tile of up to three pieces in addition to what all unsplit rows need, so that several groups
          // follow.
          const int32_t room = count + 3 * prefill_tile_rows(shape.dim, shape.heads, shape.kv_heads);
          const std::vector<uint16_t> groups = attend(cache, rows, tiles, {0, 1, PrefillSplit::kAlways, 1, room});
          EXPECT_TRUE(same_bits(groups.data(), folded.data(), folded.size()))
              << "groups, dim " << shape.dim << " behind " << prefix;
          const std::vector<Row> more = rows_at(1, 2500, 90);
          rows.insert(rows.end(), more.begin(), more.end());
          cut(shape, count, 90, &tiles);
          for (const int32_t sm_count : {1, 7, 1000}) {
            const std::vector<uint16_t> by_work = attend(cache, rows, tiles, {0, 1, PrefillSplit::kByWork, sm_count});
            EXPECT_TRUE(same_bits(by_work.data(), folded.data(), folded.size()))
                << "for " << sm_count << " processors, dim " << shape.dim << " behind " << prefix;
          }
        }
  }
}

TEST(PrefillAttention, DoesNotSeeChunksAcrossCuts) {
  for (const Shape& shape : {Shape{4, 1, 128, 16}, Shape{7, 1, 64, 32}, Shape{2, 1, 256, 16}, Shape{3, 1, 128, 32}, Shape{2, 1, 512, 16},
                             Shape{3, 1, 512, 32}}) {
    const int32_t length = 4200;
    const Cache cache(Act::kBF16, shape, {length}, 31, shape.heads == 3 ? Kv::kF8 : Kv::kAct);
    const std::vector<Row> rows = rows_at(0, 0, length);
    std::vector<PrefillTile> tiles;
    cut(shape, 0, length, &tiles);
    const std::vector<uint16_t> whole = attend(cache, rows, tiles, {0, 1, PrefillSplit::kNever, 1});
    expect_near(cache, rows, whole, {0, 1023, 2047, 2048, 4095, 4096, 4199}, 4, "whole", true);
    for (const int32_t chunk : {2048, 2000, 2047, 2049, 555})
      for (const PrefillSplit split : {PrefillSplit::kByWork, PrefillSplit::kAlways}) {
        std::vector<uint16_t> pieces;
        for (int32_t at = 0; at < length; at += chunk) {
          const int32_t count = std::min(chunk, length - at);
          std::vector<PrefillTile> own;
          cut(shape, 0, count, &own);
          const std::vector<uint16_t> part = attend(cache, rows_at(0, at, count), own, {0, 1, split, 132});
          pieces.insert(pieces.end(), part.begin(), part.end());
        }
        EXPECT_TRUE(same_bits(pieces.data(), whole.data(), whole.size())) << "dim " << shape.dim << " chunks of " << chunk;
      }
  }
}

// Tiles of keys are 64 or 128 long and tiles of rows 128 packed rows, depending on the kernel: tests rows and prefixes
// around both, for several numbers of query heads per kv head.
TEST(PrefillAttention, AgreesWithFloat64AroundTiles) {
  const Shape shapes[] = {{1, 1, 128, 16}, {2, 2, 64, 32},   {8, 2, 128, 32}, {7, 1, 128, 16},
                          {8, 1, 64, 16},  {17, 1, 128, 16}, {4, 1, 100, 32}, {3, 1, 63, 16}, {9, 3, 64, 16}, {8, 1, 512, 16},
                          {8, 2, 256, 32}, {3, 1, 200, 16}};
  const std::pair<int32_t, int32_t> works[] = {{0, 1},   {0, 127},   {0, 128},   {0, 129},  {0, 300},  {63, 2},   {64, 1},
                                               {100, 29}, {127, 1},   {127, 130}, {128, 1},  {129, 33}, {255, 66}, {256, 16}};
  int turn = 0;
  for (const Shape& shape : shapes)
    for (const auto& [prefix, count] : works) {
      const Act act = turn++ % 2 == 0 ? Act::kBF16 : Act::kF16;
      // Everything after the last row, also in its block, is NaN.
      const Cache cache(act, shape, {prefix + count}, static_cast<uint64_t>(prefix + count));
      const std::vector<Row> rows = rows_at(0, prefix, count);
      std::vector<PrefillTile> tiles;
      cut(shape, 0, count, &tiles);
      const std::vector<uint16_t> whole = attend(cache, rows, tiles, {0, 1, PrefillSplit::kByWork, 1});
      std::vector<size_t> which = {0};
      for (const int32_t r : {1, count / 2, count - 2, count - 1})
        if (r > static_cast<int32_t>(which.back()) && r < count) which.push_back(static_cast<size_t>(r));
      expect_near(cache, rows, whole, which, 1, "whole", true);
      for (const int32_t chunk : {1, 31, 128}) {
        std::vector<uint16_t> pieces;
        for (int32_t at = 0; at < std::min(count, 5 * chunk); at += chunk) {
          const int32_t own = std::min(chunk, count - at);
          std::vector<PrefillTile> part;
          cut(shape, 0, own, &part);
          const std::vector<uint16_t> got = attend(cache, rows_at(0, prefix + at, own), part, {0, 1, PrefillSplit::kByWork, 5});
          pieces.insert(pieces.end(), got.begin(), got.end());
        }
        EXPECT_TRUE(same_bits(pieces.data(), whole.data(), pieces.size()))
            << name(act) << " heads " << shape.heads << "/" << shape.kv_heads << " of " << shape.dim << ", " << count << " rows behind "
            << prefix << ", chunks of " << chunk;
      }
    }
}

// As in decode attention: values as large as an f16 cache stores them, over tiles of keys, a border between pieces, and
// pieces merged in the block or from the workspace. Heads of 33 to 256 dims use wgmma if the device has it, others
// mma.
TEST(PrefillAttention, GivesFiniteMeansOfSaturatedValues) {
  for (const Shape& shape : {Shape{4, 2, 64, 16}, Shape{2, 1, 128, 32}, Shape{7, 1, 80, 16}, Shape{2, 2, 256, 16}, Shape{2, 1, 512, 16}})
    with_saturated(shape, kFirstPiece + 76, [&](const Cache& cache, float size) {
      std::vector<Row> rows = rows_at(0, 0, 150);
      const std::vector<Row> more = rows_at(0, kFirstPiece - 24, 100);
      rows.insert(rows.end(), more.begin(), more.end());
      std::vector<PrefillTile> tiles;
      cut(shape, 0, 150, &tiles);
      cut(shape, 150, 100, &tiles);
      const std::vector<size_t> which = {0, 1, 15, 16, 17, 64, 149, 150, 173, 174, 249};
      for (const Act out : {Act::kF16, Act::kBF16}) {
        const std::vector<uint16_t> folded = attend(cache, rows, tiles, {0, 1, PrefillSplit::kNever, 1}, out);
        expect_means(cache, size, rows, folded, out, which, "folded");
        const std::vector<uint16_t> split = attend(cache, rows, tiles, {0, 1, PrefillSplit::kAlways, 1000}, out);
        EXPECT_TRUE(same_bits(split.data(), folded.data(), folded.size())) << "split";
      }
    });
}

// The same work on as many SMs as there are blocks of work, and on fewer, which then process several.
TEST(PrefillAttention, DoesNotSeeHowManyProcessorsThereAre) {
  for (const bool f8 : {false, true})
    for (const Shape& shape : {Shape{8, 2, 128, 16}, Shape{14, 2, 64, 32}, Shape{8, 2, 256, 16}, Shape{8, 1, 512, 16}}) {
      const int32_t lengths[] = {700, 65, 1, 1300};
      const Cache cache(f8 ? Act::kF16 : Act::kBF16, shape, {700, 65, 1, 1300}, 77, f8 ? Kv::kF8 : Kv::kAct);
      std::vector<Row> rows;
      std::vector<PrefillTile> tiles;
      for (int32_t s = 0; s < 4; ++s) {
        cut(shape, static_cast<int32_t>(rows.size()), lengths[s], &tiles);
        const std::vector<Row> own = rows_at(s, 0, lengths[s]);
        rows.insert(rows.end(), own.begin(), own.end());
      }
      const std::vector<uint16_t> one = attend(cache, rows, tiles, {0, 1, PrefillSplit::kNever, 1});
      expect_near(cache, rows, one, {0, 699, 700, 764, 765, 766, 1789, 1790, 2065}, 1, "of one", true);
      for (const int32_t sm_count : {2, 3, 13, 132, 1000})
        for (const PrefillSplit split : {PrefillSplit::kNever, PrefillSplit::kAlways}) {
          const std::vector<uint16_t> got = attend(cache, rows, tiles, {0, 1, split, sm_count});
          EXPECT_TRUE(same_bits(got.data(), one.data(), one.size())) << sm_count << " processors, dim " << shape.dim;
        }
    }
}

// Tiles that no row's window reaches are skipped, and the first one that is read lies within a piece of keys.
TEST(PrefillAttention, SeesAWindowOverSeveralTiles) {
  for (const Shape& shape : {Shape{4, 1, 64, 16}, Shape{8, 2, 128, 16}, Shape{8, 2, 256, 16}, Shape{2, 1, 512, 32}})
    for (const int32_t window : {65, 128, 500, 1100}) {
      const int32_t length = 1500;
      Cache cache(Act::kF16, shape, {length}, static_cast<uint64_t>(window));
      cache.window = window;
      const std::vector<Row> rows = rows_at(0, 0, length);
      std::vector<PrefillTile> tiles;
      cut(shape, 0, length, &tiles);
      const std::vector<uint16_t> whole = attend(cache, rows, tiles, {0, 1, PrefillSplit::kByWork, 132});
      expect_near(cache, rows, whole, {0, 63, 64, 65, 127, 129, 640, 1023, 1024, 1099, 1100, 1101, 1499}, 1, "whole", true);
      std::vector<PrefillTile> last;
      cut(shape, 0, 300, &last);
      const std::vector<uint16_t> part = attend(cache, rows_at(0, 1200, 300), last, {0, 1, PrefillSplit::kAlways, 132});
      EXPECT_TRUE(same_bits(part.data(), whole.data() + 1200 * shape.heads * shape.dim, part.size())) << "dim " << shape.dim << " window " << window;
    }
}

// A stage of shared memory that is released too early gives wrong rows once in several hundred launches. Keys in L2 arrive soonest.
TEST(PrefillAttention, GivesTheSameBitsLaunchAfterLaunch) {
  for (const Kv kv : {Kv::kAct, Kv::kF8})
    for (const Shape& shape : {Shape{8, 2, 64, 16}, Shape{8, 2, 128, 16}, Shape{8, 2, 256, 16}, Shape{8, 2, 256, 32}, Shape{8, 2, 96, 16}}) {
      const int32_t length = 2100;
      const Cache cache(Act::kF16, shape, {length}, 91, kv);
      std::vector<PrefillTile> tiles;
      cut(shape, 0, length, &tiles);
      (void)attend(cache, rows_at(0, 0, length), tiles, {0, 2000, PrefillSplit::kByWork, 132});
    }
}

}  // namespace
}  // namespace mr::cuda::testing
