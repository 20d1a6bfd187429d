// Attention over a latent: decode and prefill against float64 and bit for bit however the work is divided; the norm, the rotation and the
// cache write before it; and the plan and the conversions of its matrices of heads.
#include "kernels/experts/plan.h"
#include "kernels/latents.h"
#include "latent_fixture.h"

namespace mr::cuda::testing {
namespace {

// One head, groups of heads that fill a tile and that do not, and as many as published models have; rotations of 2 and 64 dims and none.
const LatentShape kShapes[] = {
    {1, 16, 2, 16, Act::kF16},    {2, 1, 0, 32, Act::kBF16},    {7, 37, 10, 16, Act::kF16},  {33, 26, 6, 32, Act::kBF16},
    {1, 512, 64, 16, Act::kF16},  {16, 512, 64, 32, Act::kF16}, {20, 512, 64, 16, Act::kBF16}, {64, 16, 2, 16, Act::kF16},
    {13, 500, 76, 16, Act::kF16}, {16, 63, 2, 32, Act::kF16},   {128, 512, 64, 16, Act::kF16},
};

class LatentAttention : public ::testing::TestWithParam<LatentShape> {
 protected:
  // Heads at both ends of tiles: float64 of all would take minutes.
  static std::vector<int32_t> some_heads(int32_t heads) {
    std::vector<int32_t> which = {0};
    for (const int32_t h : {7, 15, 16, 31, 32, heads - 1})
      if (h < heads && h > which.back()) which.push_back(h);
    return which;
  }
  static size_t width() { return static_cast<size_t>(GetParam().heads) * static_cast<size_t>(GetParam().latent); }
  static void expect_rows(const LatentCache& cache, const std::vector<LatentQuery>& rows, const std::vector<uint16_t>& got, size_t step) {
    for (size_t r = 0; r < rows.size(); r += step) expect_row_near(cache, rows[r], got.data() + r * width(), some_heads(GetParam().heads));
  }
  static void expect_decodes(int32_t length) {
    const LatentCache cache(GetParam(), {length, 40});
    std::vector<LatentQuery> rows = {{0, length - 1}, {-1, 0}, {1, 0}, {1, 15}, {1, 31}, {1, 32}};
    const std::vector<uint16_t> few = attend_latent(cache, rows, {}, {0, PrefillSplit::kByWork, 5});
    expect_rows(cache, rows, few, 1);
    // A capacity without room for single chunks makes units of 16.
    const int32_t groups = static_cast<int32_t>(rows.size()) * ((length + 16 * kAttentionChunk - 1) / (16 * kAttentionChunk));
    const auto divided = [&](int32_t capacity, int32_t sm_count) {
      return same_bits(attend_latent(cache, rows, {}, {capacity, PrefillSplit::kByWork, sm_count}).data(), few.data(), few.size());
    };
    for (const int32_t sm_count : {1, 40}) EXPECT_TRUE(divided(0, sm_count)) << sm_count;
    EXPECT_TRUE(divided(groups, 7)) << "by groups";
    EXPECT_TRUE(same_bits(attend_latent(cache, {rows[0]}, {}).data(), few.data(), width())) << "alone";
    for (int32_t i = 0; i < 14; ++i) rows.push_back({1, 1 + i});
    EXPECT_TRUE(same_bits(attend_latent(cache, rows, {}).data(), few.data(), few.size())) << "among many rows";
  }
  static void expect_prefills(int32_t prefix, int32_t count, const std::vector<int32_t>& cuts) {
    const LatentCache cache(GetParam(), {prefix + count});
    const std::vector<LatentQuery> rows = queries_at(0, prefix, count);
    std::vector<PrefillTile> tiles;
    cut_latent(GetParam(), 0, count, &tiles);
    const std::vector<uint16_t> whole = attend_latent(cache, rows, tiles, {0, PrefillSplit::kNever, 1});
    expect_rows(cache, rows, whole, count < 20 ? 3 : 17);
    const std::vector<uint16_t> split = attend_latent(cache, rows, tiles, {0, PrefillSplit::kAlways, 100});
    EXPECT_TRUE(same_bits(split.data(), whole.data(), whole.size())) << "split";
    for (const int32_t piece : cuts) {
      std::vector<uint16_t> chunks;
      for (int32_t at = 0; at < count; at += piece) {
        const int32_t own = std::min(piece, count - at);
        tiles.clear();
        cut_latent(GetParam(), 0, own, &tiles);
        const std::vector<uint16_t> part = attend_latent(cache, queries_at(0, prefix + at, own), tiles);
        chunks.insert(chunks.end(), part.begin(), part.end());
      }
      EXPECT_TRUE(same_bits(chunks.data(), whole.data(), whole.size())) << "in chunks of " << piece;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Shapes, LatentAttention, ::testing::ValuesIn(kShapes), [](const auto& info) {
  const LatentShape& s = info.param;
  return std::to_string(s.heads) + "_" + std::to_string(s.latent) + "_" + std::to_string(s.rotated) + "_" + name(s.act);
});

TEST_P(LatentAttention, DecodesOneToken) { expect_decodes(1); }
TEST_P(LatentAttention, DecodesToTheEndOfATile) { expect_decodes(32); }
TEST_P(LatentAttention, DecodesIntoTheSecondTile) { expect_decodes(33); }
TEST_P(LatentAttention, DecodesAcrossChunks) { expect_decodes(600); }
TEST_P(LatentAttention, DecodesAcrossGroups) { expect_decodes(17 * kAttentionChunk + 48); }
TEST_P(LatentAttention, PrefillsOneToken) { expect_prefills(0, 1, {1}); }
TEST_P(LatentAttention, PrefillsAcrossTiles) { expect_prefills(0, 67, {1, 19, 64}); }
TEST_P(LatentAttention, PrefillsAfterAPrefix) { expect_prefills(90, 9, {4}); }
TEST_P(LatentAttention, PrefillsAcrossPieces) { expect_prefills(kFirstPiece - 9, 20, {7}); }
TEST_P(LatentAttention, PrefillsAcrossManyPieces) { expect_prefills(kWholePiece - 9, 20, {7}); }

TEST(LatentWidths, AreRefusedBeyondTheKernels) {
  EXPECT_EQ(pad_latent(512, 64), 576);
  EXPECT_EQ(pad_latent(1, 0), 64);
  EXPECT_EQ(pad_latent(60, 4), 64);
  EXPECT_EQ(pad_latent(60, 6), 576);
  EXPECT_EQ(pad_latent(513, 2), 0);
  EXPECT_EQ(pad_latent(512, 66), 0);
  EXPECT_EQ(pad_latent(0, 2), 0);
}

// One step of finish_latent: rows at `positions` of one sequence, or padding below 0.
struct Finished {
  std::vector<uint16_t> plain, q, keys;
};

struct FinishShape {
  int32_t heads, key_dim, latent, rotated, style;
  Act act, plain_act;
  int32_t cached() const { return latent + rotated; }
  int32_t queries() const { return heads * key_dim; }
};

// Inputs of a position, and its cosines and sines.
struct FinishInputs {
  std::vector<float> queries, cached, table;
};
FinishInputs inputs_of(const FinishShape& s, int32_t position) {
  Numbers numbers(static_cast<uint64_t>(position + 7));
  FinishInputs in{numbers.normals(static_cast<size_t>(s.queries()), 3), numbers.normals(static_cast<size_t>(s.cached()), 2), {}};
  for (int32_t p = 0; p < s.rotated / 2; ++p) in.table.push_back(static_cast<float>(std::cos(0.1 * (position + 1) * (p + 1))));
  for (int32_t p = 0; p < s.rotated / 2; ++p) in.table.push_back(static_cast<float>(std::sin(0.1 * (position + 1) * (p + 1))));
  return in;
}
constexpr float kEps = 1e-5f;
constexpr int32_t kFinishBlocks = 3, kFinishBlock = 16;

std::vector<float> norm_of(const FinishShape& s) {
  Numbers numbers(3);
  return numbers.normals(static_cast<size_t>(s.latent));
}

Finished finish(const FinishShape& s, const std::vector<int32_t>& positions) {
  const KvLayout layout = latent_layout(s.act, kFinishBlock, s.latent, s.rotated);
  const int64_t plain_stride = (s.key_dim - s.rotated + 7) / 8 * 8, q_stride = int64_t{s.heads} * layout.padded_dim;
  const size_t count = positions.size();
  std::vector<float> queries, cached, table;
  std::vector<int32_t> slot, position;
  for (const int32_t p : positions) {
    const FinishInputs in = inputs_of(s, p);
    queries.insert(queries.end(), in.queries.begin(), in.queries.end());
    cached.insert(cached.end(), in.cached.begin(), in.cached.end());
    table.insert(table.end(), in.table.begin(), in.table.end());
    slot.push_back(p < 0 ? -1 : 0);
    position.push_back(std::max(p, 0));
  }
  table.resize(std::max<size_t>(table.size(), 1));
  Guarded<float> dqueries(queries), dcached(cached), dtable(table), dnorm(norm_of(s));
  Guarded<int32_t> dslot(slot), dposition(position), first(std::vector<int32_t>(count, 0)), blocks(std::vector<int32_t>{2, 0, 1});
  Guarded<uint16_t> plain(count * static_cast<size_t>(s.heads * plain_stride)), q(count * static_cast<size_t>(q_stride)),
      keys(static_cast<size_t>(kFinishBlocks * layout.block_elements()));
  FinishLatentArgs args{};
  args.rows = Rows{dslot, dposition, first, blocks};
  args.count = static_cast<int32_t>(count);
  args.queries = dqueries;
  args.cached = dcached;
  args.queries_stride = s.queries();
  args.cached_stride = s.cached();
  args.heads = s.heads;
  args.key_dim = s.key_dim;
  args.latent = s.latent;
  args.norm = dnorm;
  args.norm_eps = kEps;
  args.rope_table = dtable;
  args.rope_dims = s.rotated;
  args.rope_style = s.style;
  args.plain = plain.data();
  args.plain_act = s.plain_act;
  args.plain_stride = plain_stride;
  args.q = q.data();
  args.q_stride = q_stride;
  args.layout = layout;
  args.keys = keys.data();
  MUST(launch_finish_latent(args, Stream{}));
  synchronize();
  return {plain.read(), q.read(), keys.read()};
}

// The rotated pairs of `in` in float64.
std::vector<double> rotated(const FinishShape& s, const float* in, const std::vector<float>& table) {
  std::vector<double> out(static_cast<size_t>(s.rotated));
  const int32_t half = s.rotated / 2;
  for (int32_t p = 0; p < half; ++p) {
    const int32_t at = s.style == MR_ROPE_NEOX ? p : 2 * p, to = s.style == MR_ROPE_NEOX ? p + half : 2 * p + 1;
    const double x = static_cast<double>(in[at]), y = static_cast<double>(in[to]);
    const double c = static_cast<double>(table[static_cast<size_t>(p)]), sine = static_cast<double>(table[static_cast<size_t>(half + p)]);
    out[static_cast<size_t>(at)] = x * c - y * sine;
    out[static_cast<size_t>(to)] = x * sine + y * c;
  }
  return out;
}

const FinishShape kFinishShapes[] = {
    {16, 192, 512, 64, MR_ROPE_NORM, Act::kF16, Act::kF16}, {1, 3, 16, 2, MR_ROPE_NEOX, Act::kBF16, Act::kF16},
    {7, 31, 37, 10, MR_ROPE_NORM, Act::kF16, Act::kBF16},   {5, 8, 512, 2, MR_ROPE_NEOX, Act::kBF16, Act::kBF16},
    {128, 192, 512, 64, MR_ROPE_NEOX, Act::kF16, Act::kF16}, {3, 1, 1, 0, MR_ROPE_NORM, Act::kF16, Act::kF16},
};

TEST(FinishLatent, NormsRotatesAndCaches) {
  for (const FinishShape& s : kFinishShapes) {
    SCOPED_TRACE(::testing::Message() << s.heads << " heads of " << s.key_dim << ", latent " << s.latent << " + " << s.rotated);
    const std::vector<int32_t> positions = {0, 15, -1, 16, 47};
    const Finished got = finish(s, positions);
    const KvLayout layout = latent_layout(s.act, kFinishBlock, s.latent, s.rotated);
    const int32_t plain = s.key_dim - s.rotated, plain_stride = (plain + 7) / 8 * 8;
    const int32_t blocks[] = {2, 0, 1};
    std::vector<bool> written(got.keys.size());
    for (size_t r = 0; r < positions.size(); ++r) {
      const int32_t position = positions[r];
      const FinishInputs in = inputs_of(s, position);
      for (int32_t h = 0; h < s.heads; ++h) {
        const auto head = got.plain.begin() + static_cast<int64_t>(r) * s.heads * plain_stride + h * plain_stride;
        const auto query = got.q.begin() + (static_cast<int64_t>(r) * s.heads + h) * layout.padded_dim;
        std::vector<double> want_plain(static_cast<size_t>(plain)), want(static_cast<size_t>(layout.padded_dim - s.latent));
        if (position >= 0) {
          for (int32_t d = 0; d < plain; ++d)
            want_plain[static_cast<size_t>(d)] = static_cast<double>(in.queries[static_cast<size_t>(h * s.key_dim + d)]);
          const std::vector<double> turned = rotated(s, in.queries.data() + h * s.key_dim + plain, in.table);
          std::copy(turned.begin(), turned.end(), want.begin());
        }
        EXPECT_TRUE(near(from_acts(s.plain_act, std::vector<uint16_t>(head, head + plain)), want_plain,
                         {half_least(s.plain_act), half_step(s.plain_act)})) << "head " << h << " of row " << r;
        EXPECT_TRUE(near(from_acts(s.act, std::vector<uint16_t>(query + s.latent, query + layout.padded_dim)), want,
                         {0x1p-20, half_step(s.act)})) << "head " << h << " of row " << r;
        for (int32_t d = 0; d < s.latent; ++d) ASSERT_EQ(query[d], 0xffff) << "the absorbed part is not of this kernel";
      }
      if (position < 0) continue;
      const int64_t at = blocks[position / kFinishBlock] * layout.block_elements() + position % kFinishBlock * layout.padded_dim;
      double squares = 0;
      for (int32_t d = 0; d < s.latent; ++d) squares += std::pow(static_cast<double>(in.cached[static_cast<size_t>(d)]), 2);
      const double factor = 1 / std::sqrt(squares / s.latent + static_cast<double>(kEps));
      const std::vector<float> norm = norm_of(s);
      std::vector<double> want(static_cast<size_t>(layout.padded_dim));
      for (size_t d = 0; d < norm.size(); ++d) want[d] = static_cast<double>(in.cached[d]) * factor * static_cast<double>(norm[d]);
      const std::vector<double> turned = rotated(s, in.cached.data() + s.latent, in.table);
      std::copy(turned.begin(), turned.end(), want.begin() + s.latent);
      EXPECT_TRUE(near(from_acts(s.act, std::vector<uint16_t>(got.keys.begin() + at, got.keys.begin() + at + layout.padded_dim)), want,
                       {0x1p-20, half_step(s.act) + 0x1p-20})) << "cache of row " << r;
      for (int32_t d = 0; d < layout.padded_dim; ++d) written[static_cast<size_t>(at + d)] = true;
    }
    for (size_t i = 0; i < written.size(); ++i) ASSERT_TRUE(written[i] || got.keys[i] == 0xffff) << "written to another position";
  }
}

TEST(FinishLatent, GivesARowTheSameBitsAmongOthers) {
  const FinishShape s = kFinishShapes[0];
  std::vector<int32_t> positions;
  for (int32_t i = 0; i < 48; ++i) positions.push_back(i);
  positions.resize(600, -1);  // above 511 rows, each has one block
  const Finished many = finish(s, positions), one = finish(s, {5});
  EXPECT_TRUE(same_bits(many.plain.data() + 5 * one.plain.size(), one.plain.data(), one.plain.size()));
  EXPECT_TRUE(same_bits(many.q.data() + 5 * one.q.size(), one.q.data(), one.q.size()));
  const int64_t at = 2 * latent_layout(s.act, kFinishBlock, s.latent, s.rotated).block_elements() + 5 * 576;
  EXPECT_TRUE(same_bits(many.keys.data() + at, one.keys.data() + at, 576));
}

// Each head has all rows: the plan that plan_experts makes if every row uses every expert.
TEST(PlanHeads, IsThatOfExpertsWhichAllRowsUse) {
  for (const int32_t heads : {1, 5, 20})
    for (const int32_t rows : {1, 16, 17, 65, 130})
      for (const int32_t tile : {8, 64, 128}) {
        SCOPED_TRACE(::testing::Message() << heads << " heads, " << rows << " rows, tiles of " << tile);
        const size_t pairs = static_cast<size_t>(heads * rows), each = static_cast<size_t>(heads);
        std::vector<int32_t> ids;
        for (size_t p = 0; p < pairs; ++p) ids.push_back(static_cast<int32_t>(p) % heads);
        struct Plan {
          Guarded<int32_t> pairs, first, count, tile_count, done;
          Guarded<ExpertTile> tiles;
          ExpertPlan plan() const { return {pairs, first, count, tiles, tile_count, done}; }
        };
        const auto make = [&] {
          return Plan{Guarded<int32_t>(pairs), Guarded<int32_t>(each), Guarded<int32_t>(each), Guarded<int32_t>(1),
                      Guarded<int32_t>(std::vector<int32_t>(kPlanCounters, 0)),
                      Guarded<ExpertTile>(static_cast<size_t>(expert_tiles(heads, heads * rows, tile)))};
        };
        const Plan got = make(), want = make();
        Guarded<int32_t> dids(ids);
        MUST(launch_plan_heads({got.plan(), rows, heads, tile}, Stream{}));
        MUST(launch_plan_experts({dids, heads * rows, heads, tile, want.plan()}, Stream{}));
        synchronize();
        ASSERT_EQ(got.tile_count.read(), want.tile_count.read());
        ASSERT_EQ(got.pairs.read(), want.pairs.read());
        ASSERT_EQ(got.first.read(), want.first.read());
        ASSERT_EQ(got.count.read(), want.count.read());
        const std::vector<ExpertTile> a = got.tiles.read(), b = want.tiles.read();
        for (int32_t i = 0; i < want.tile_count.read()[0]; ++i) {
          const ExpertTile &x = a[static_cast<size_t>(i)], &y = b[static_cast<size_t>(i)];
          ASSERT_TRUE(x.expert == y.expert && x.first == y.first && x.count == y.count) << "tile " << i;
        }
      }
}

TEST(PlaceHeads, RoundsAndLeavesTheRest) {
  struct Case {
    int32_t rows, heads, width, in_stride, head_stride, out_stride;
  };
  const Case cases[] = {{3, 16, 512, 512, 576, 16 * 576}, {2, 5, 7, 8, 7, 64}, {1, 1, 1, 4, 64, 64}, {4, 3, 12, 12, 12, 40}};
  for (const Case& c : cases)
    for (const Act act : {Act::kF16, Act::kBF16}) {
      SCOPED_TRACE(::testing::Message() << c.rows << " rows, " << c.heads << " heads of " << c.width << " " << name(act));
      Numbers numbers(17);
      std::vector<float> in = numbers.normals(static_cast<size_t>(c.rows * c.heads * c.in_stride), 100);
      in[0] = 1e6f;  // beyond f16
      Guarded<float> din(in);
      Guarded<uint16_t> out(static_cast<size_t>(c.rows * c.out_stride));
      MUST(launch_place_heads({din, c.in_stride, out.data(), c.out_stride, c.head_stride, act, c.rows, c.heads, c.width}, Stream{}));
      synchronize();
      std::vector<uint16_t> want(static_cast<size_t>(c.rows * c.out_stride), 0xffff);
      for (int32_t r = 0; r < c.rows; ++r)
        for (int32_t h = 0; h < c.heads; ++h)
          for (int32_t d = 0; d < c.width; ++d) {
            const float x = in[static_cast<size_t>((r * c.heads + h) * c.in_stride + d)];
            want[static_cast<size_t>(r * c.out_stride + h * c.head_stride + d)] = to_act(act, act == Act::kF16 && x > 64992 ? 64992.0f : x);
          }
      EXPECT_EQ(out.read(), want);
    }
}

}  // namespace
}  // namespace mr::cuda::testing
