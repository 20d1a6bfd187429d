// The router of a mixture, its choice and the plan, against float64 and against plain loops.
#include "experts_route_fixture.h"
#include "kernels/experts/combine.h"

namespace mr::cuda::testing {
namespace {

TEST(Router, AgreesWithFloat64OnEveryShape) {
  Numbers numbers(1);
  for (const int32_t type : {kF32, kF16, kBF16})
    // A warp has two units of 64 columns of 2 048, up to three of 2 880 and seven of 7 168, each with a norm and without.
    for (const int32_t hidden : {3, 64, 130, 700, 1088, 2048, 2880, 7168})
      for (const int32_t experts : {1, 16, 37})
        for (const int32_t rows : {1, 5, 21}) {
          if (hidden > 1088 && (experts == 1 || rows == 5)) continue;
          const bool normed = (hidden + experts + rows) % 2 == 0;
          const int32_t stride = hidden == 1088 ? hidden + 2 : (hidden + 7) / 4 * 4;  // rows that do not begin at 16 bytes
          std::vector<float> x = numbers.normals(static_cast<size_t>(rows * stride), 3);
          std::vector<float> router = numbers.normals(static_cast<size_t>(experts * hidden));
          if (type != kF32)
            for (float& w : router) w = from_act(type == kF16 ? Act::kF16 : Act::kBF16, to_act(type == kF16 ? Act::kF16 : Act::kBF16, w));
          const std::vector<float> norm = normed ? numbers.normals(static_cast<size_t>(hidden)) : std::vector<float>{};
          const std::vector<float> bias = experts % 2 == 0 ? numbers.normals(static_cast<size_t>(experts)) : std::vector<float>{};
          const std::vector<float> got = logits_of(type, x, router, norm, bias, rows, hidden, experts, stride);
          for (int32_t r = 0; r < rows; ++r) {
            double squares = 0;
            for (int32_t k = 0; k < hidden; ++k) squares += std::pow(static_cast<double>(x[static_cast<size_t>(r * stride + k)]), 2);
            const double factor = 0.25 * (normed ? 1 / std::sqrt(squares / hidden + static_cast<double>(kEps)) : 1);
            for (int32_t e = 0; e < experts; ++e) {
              double want = 0, size = 0;
              for (int32_t k = 0; k < hidden; ++k) {
                const double term = static_cast<double>(x[static_cast<size_t>(r * stride + k)]) * (normed ? norm[static_cast<size_t>(k)] : 1.0f) *
                                    static_cast<double>(router[static_cast<size_t>(e * hidden + k)]) * factor;
                want += term;
                size += std::fabs(term);
              }
              want += bias.empty() ? 0 : bias[static_cast<size_t>(e)];
              EXPECT_TRUE(near({got[static_cast<size_t>(r * experts + e)]}, {want}, {size * 0x1p-17 + 0x1p-22, 0}))
                  << "type " << type << ", hidden " << hidden << ", expert " << e << " of " << experts << ", row " << r;
            }
          }
        }
}

TEST(Router, GivesARowTheSameBitsAloneAndAmongOthers) {
  Numbers numbers(2);
  const int32_t experts = 20, rows = 30;
  for (const int32_t hidden : {330, 2048, 2880, 7168}) {
    const std::vector<float> x = numbers.normals(rows * hidden), router = numbers.normals(experts * hidden), norm = numbers.normals(hidden);
    for (const std::vector<float>& of : {norm, std::vector<float>{}}) {
      const std::vector<float> all = logits_of(kF32, x, router, of, {}, rows, hidden, experts, hidden);
      for (const int32_t r : {0, 7, 29}) {
        const std::vector<float> row(x.begin() + r * hidden, x.begin() + (r + 1) * hidden);
        EXPECT_EQ(logits_of(kF32, row, router, of, {}, 1, hidden, experts, hidden),
                  std::vector<float>(all.begin() + r * experts, all.begin() + (r + 1) * experts))
            << hidden << " columns, row " << r;
      }
    }
  }
}

TEST(Route, ChoosesAsFloat64Does) {
  Numbers numbers(3);
  for (const mr_experts_desc& e : kMixtures) {
    const int32_t rows = 5;
    const std::vector<float> logits = numbers.normals(static_cast<size_t>(rows * e.count), 2);
    const std::vector<float> bias = (e.flags & MR_EXPERTS_CHOICE_BIAS) != 0 ? numbers.normals(static_cast<size_t>(e.count)) : std::vector<float>{};
    const std::vector<float> scales = e.used % 2 == 0 ? numbers.normals(static_cast<size_t>(e.count)) : std::vector<float>{};
    const Chosen got = route_of(e, logits, bias, scales, std::vector<int32_t>(rows, 0));
    for (int32_t r = 0; r < rows; ++r) {
      const auto want = reference_route(e, logits.data() + r * e.count, bias, scales);
      for (int32_t i = 0; i < e.used; ++i) {
        const auto at = static_cast<size_t>(r * e.used + i);
        ASSERT_EQ(got.ids[at], want[static_cast<size_t>(i)].first) << e.count << " experts, row " << r << ", choice " << i;
        EXPECT_TRUE(near({got.weights[at]}, {want[static_cast<size_t>(i)].second}, {0x1p-30, 0x1p-19})) << e.count << " experts, row " << r;
      }
    }
  }
}

// A mixture of more experts than a warp keeps in registers, of which those after the first have no weight.
TEST(Route, HasTheSameBitsInRegistersAndInMemory) {
  Numbers numbers(13);
  constexpr int32_t kInMemory = 528;
  for (const int32_t count : {7, 128, 250, 512})
    for (const int32_t gating : {MR_GATE_SOFTMAX, MR_GATE_SIGMOID})
      for (const float spread : {0.0f, 2.0f, 60.0f, 1000.0f}) {
        std::vector<float> few = numbers.normals(static_cast<size_t>(count), spread), bias = numbers.normals(static_cast<size_t>(count));
        few[0] = std::max(few[0], 0.0f);
        if (count == 250)
          for (float& v : few) v = std::round(v);  // with equal ones
        std::vector<float> many = few, many_bias = bias;
        many.resize(kInMemory, -INFINITY);
        many_bias.resize(kInMemory, -100);
        for (const bool biased : {false, true}) {
          const uint32_t flags = biased ? MR_EXPERTS_CHOICE_BIAS : 0;
          const Chosen got = route_of(experts(count, 5, gating, flags), few, biased ? bias : std::vector<float>{}, {}, {0});
          const Chosen want = route_of(experts(kInMemory, 5, gating, flags), many, biased ? many_bias : std::vector<float>{}, {}, {0});
          EXPECT_EQ(got.ids, want.ids) << count << " experts";
          EXPECT_EQ(std::memcmp(got.weights.data(), want.weights.data(), 5 * sizeof(float)), 0) << count << " experts, spread " << spread;
        }
      }
}

TEST(Route, TakesTheLowestOfEqualExpertsAndGroups) {
  const Chosen plain = route_of(experts(40, 3, MR_GATE_SOFTMAX), std::vector<float>(40, 1.0f), {}, {}, {0});
  EXPECT_EQ(plain.ids, (std::vector<int32_t>{0, 1, 2}));
  std::vector<float> logits(40, 1.0f);
  logits[39] = 2;
  EXPECT_EQ(route_of(experts(40, 3, MR_GATE_SIGMOID), logits, {}, {}, {0}).ids, (std::vector<int32_t>{0, 1, 39}));
  EXPECT_EQ(route_of(experts(40, 3, MR_GATE_SIGMOID, 0, 4, 2), logits, {}, {}, {0}).ids, (std::vector<int32_t>{0, 1, 39}));
}

TEST(Route, FailsARowWhoseScoresAreNotNumbers) {
  const mr_experts_desc e = experts(6, 2, MR_GATE_SIGMOID, MR_EXPERTS_CHOICE_BIAS, 2, 1);
  std::vector<float> logits(18, 0.5f);
  logits[9] = NAN;  // of row 1
  const Chosen got = route_of(e, logits, std::vector<float>(6, 0.0f), {}, {0, 1, 2});
  EXPECT_EQ(got.ids, (std::vector<int32_t>{0, 1, 0, 1, 0, 1}));
  for (int32_t i = 0; i < 6; ++i) EXPECT_EQ(std::isnan(got.weights[static_cast<size_t>(i)]), i / 2 == 1);
  // Biases of both infinities give a group no score.
  const mr_experts_desc two = experts(6, 2, MR_GATE_SIGMOID, MR_EXPERTS_CHOICE_BIAS | MR_EXPERTS_GROUP_BEST_TWO, 2, 1);
  const Chosen none = route_of(two, std::vector<float>(6, 0.5f), {INFINITY, -INFINITY, -INFINITY, 0, 0, 0}, {}, {0});
  EXPECT_TRUE(std::isnan(none.weights[0]));
}

TEST(Route, PlansASingleRow) {
  const mr_experts_desc e = experts(40, 3, MR_GATE_SOFTMAX);
  std::vector<float> logits(40, 1.0f);
  logits[7] = logits[30] = 2;
  const auto expect = [](const Chosen& got, const std::vector<int32_t>& ids) {
    EXPECT_EQ(got.ids, ids);
    EXPECT_EQ(got.pairs, (std::vector<int32_t>{0, 1, 2}));
    EXPECT_EQ(got.tile_count[0], 3);
    EXPECT_EQ(got.bytes, 30u);
    for (int32_t i = 0; i < 3; ++i) {
      const ExpertTile& tile = got.tiles[static_cast<size_t>(i)];
      EXPECT_EQ(tile.expert, ids[static_cast<size_t>(i)]);
      EXPECT_EQ(tile.first, i);
      EXPECT_EQ(tile.count, 1);
    }
  };
  expect(route_of(e, logits, {}, {}, {0}), {0, 7, 30});
  logits[3] = NAN;
  expect(route_of(e, logits, {}, {}, {0}), {0, 1, 2});
  const Chosen padding = route_of(e, logits, {}, {}, {-1});
  EXPECT_EQ(padding.tile_count[0], 0);
  EXPECT_EQ(padding.bytes, 0u);
  EXPECT_EQ(route_of(e, std::vector<float>(80, 1.0f), {}, {}, {0, 1}).tile_count[0], -1) << "written for several rows";
}

TEST(Route, GivesPaddingNoExpert) {
  const Chosen got = route_of(experts(6, 2, MR_GATE_SOFTMAX), std::vector<float>(12, 0.5f), {}, {}, {-1, 3});
  EXPECT_EQ(got.ids, (std::vector<int32_t>{6, 6, 0, 1}));
}

struct Planned {
  std::vector<int32_t> pairs, first, count;
  std::vector<ExpertTile> tiles;
  int32_t tile_count;
  uint64_t bytes;
};

Planned plan_of(const std::vector<int32_t>& ids, int32_t experts, int32_t tile, const ExpertBytes& piece = {}) {
  const auto n = static_cast<int32_t>(ids.size());
  Guarded<int32_t> dids(ids), pairs(ids.size()), first(static_cast<size_t>(experts)), count(static_cast<size_t>(experts)), tile_count(1), done(1);
  Guarded<ExpertTile> tiles(static_cast<size_t>(expert_tiles(experts, n, tile)));
  Guarded<uint64_t> bytes(1);
  done.zero();
  bytes.zero();
  PlanExpertsArgs args{dids, n, experts, tile, {pairs, first, count, tiles, tile_count, done}, {bytes, 1000}};
  if (piece.total != nullptr) args.bytes = piece;
  for (int32_t i = 0; i < (piece.total == nullptr ? 2 : 1); ++i) MUST(launch_plan_experts(args, Stream{}));  // the second finds the counter at zero again
  EXPECT_EQ(done.read()[0], 0);
  return {pairs.read(), first.read(), count.read(), tiles.read(), tile_count.read()[0], bytes.read()[0] / 2};
}

TEST(Plan, ListsPairsByExpertInOrder) {
  Numbers numbers(4);
  for (const int32_t experts : {1, 2, 7, 300})
    for (const int32_t rows : {1, 3, 33, 400})
      for (const int32_t tile : {8, 64, 128}) {
        const int32_t used = std::min(experts, 1 + numbers.below(4));
        std::vector<int32_t> ids;
        for (int32_t r = 0; r < rows; ++r) {
          // Expert 0 is every third row's first, and one expert has no row at all.
          std::vector<int32_t> of_row;
          while (static_cast<int32_t>(of_row.size()) < used) {
            const int32_t id = of_row.empty() && r % 3 == 0 ? 0 : numbers.below(experts);
            if ((id != 5 || experts < 300) && std::find(of_row.begin(), of_row.end(), id) == of_row.end()) of_row.push_back(id);
          }
          std::sort(of_row.begin(), of_row.end());
          if (r == 1) of_row.assign(static_cast<size_t>(used), experts);  // padding
          ids.insert(ids.end(), of_row.begin(), of_row.end());
        }
        const Planned got = plan_of(ids, experts, tile);
        int32_t at = 0, tiles = 0, active = 0;
        for (int32_t e = 0; e < experts; ++e) {
          std::vector<int32_t> want;
          for (size_t p = 0; p < ids.size(); ++p)
            if (ids[p] == e) want.push_back(static_cast<int32_t>(p));
          const auto n = static_cast<int32_t>(want.size());
          ASSERT_EQ(got.first[static_cast<size_t>(e)], at);
          ASSERT_EQ(got.count[static_cast<size_t>(e)], n);
          ASSERT_EQ(std::vector<int32_t>(got.pairs.begin() + at, got.pairs.begin() + at + n), want) << "expert " << e << " of " << experts;
          const int32_t cut = std::max((n + tile - 1) / tile, 1), each = std::min(tile, ((n + cut - 1) / cut + 31) / 32 * 32);
          for (int32_t done = 0; done < n; done += each, ++tiles) {
            const ExpertTile& t = got.tiles[static_cast<size_t>(tiles)];
            ASSERT_EQ(t.expert, e);
            ASSERT_EQ(t.first, at + done);
            ASSERT_EQ(t.count, std::min(each, n - done));
          }
          active += n > 0 ? 1 : 0;
          at += n;
        }
        EXPECT_EQ(got.tile_count, tiles);
        EXPECT_EQ(got.bytes, static_cast<uint64_t>(active) * 1000);
      }
}

// Four pieces of a layer: several rows, one row, padding, and several rows.
TEST(Plan, CountsAnExpertOfSeveralPiecesOnce) {
  const mr_experts_desc e = experts(40, 3, MR_GATE_SOFTMAX);
  Guarded<uint64_t> bytes(1);
  Guarded<int32_t> read(40);
  bytes.zero();
  ExpertBytes piece{bytes, 10, read, true};
  std::vector<float> logits(40, 1.0f);
  logits[7] = logits[30] = 2;
  const auto total = [&] { return bytes.read()[0]; };
  for (int32_t layer = 0; layer < 2; ++layer) {
    piece.first = true;
    plan_of({0, 2, 4, 2, 4, 30}, 40, 8, piece);
    EXPECT_EQ(total(), static_cast<uint64_t>(60 * layer + 40)) << "0, 2, 4 and 30";
    piece.first = false;
    route_of(e, logits, {}, {}, {0}, piece);
    EXPECT_EQ(total(), static_cast<uint64_t>(60 * layer + 50)) << "7 of 0, 7 and 30";
    route_of(e, logits, {}, {}, {-1}, piece);
    plan_of({0, 7, 30, 2, 4, 39}, 40, 8, piece);
    EXPECT_EQ(total(), static_cast<uint64_t>(60 * layer + 60)) << "39";
  }
  piece.first = true;
  route_of(e, logits, {}, {}, {-1}, piece);
  EXPECT_EQ(read.read(), std::vector<int32_t>(40, 0));
  route_of(e, logits, {}, {}, {0}, piece);
  EXPECT_EQ(total(), 150u);
}

// What launch_choose writes, or the four launches whose bits it has.
struct FewRows {
  std::vector<int32_t> ids, tile_count;
  std::vector<float> weights;
  std::vector<uint16_t> normed;
  std::vector<std::vector<int32_t>> pairs_of;  // by tile: its expert, and its pairs
  uint64_t bytes;
  std::vector<int32_t> read;
  bool operator==(const FewRows& o) const {
    return read == o.read && ids == o.ids && tile_count == o.tile_count && normed == o.normed && pairs_of == o.pairs_of && bytes == o.bytes &&
           weights.size() == o.weights.size() && std::memcmp(weights.data(), o.weights.data(), weights.size() * sizeof(float)) == 0;
  }
};

FewRows chosen_rows(const mr_experts_desc& e, int32_t hidden, const std::vector<int32_t>& slots, const std::vector<float>& x,
                    const std::vector<float>& router, const std::vector<float>& norm, Act act, bool at_once) {
  const auto rows = static_cast<int32_t>(slots.size()), pairs = rows * e.used;
  const size_t cells = static_cast<size_t>(rows * hidden);
  Guarded<float> dx(x), dnorm(norm), logits(static_cast<size_t>(rows * e.count)), weights(static_cast<size_t>(pairs));
  Guarded<uint8_t> packed(packed_floats(kF32, router, e.count, hidden));
  Guarded<int32_t> dslots(slots), ids(static_cast<size_t>(pairs)), list(static_cast<size_t>(pairs)), first(static_cast<size_t>(e.count)),
      count(static_cast<size_t>(e.count)), tile_count(1), done(kPlanCounters), read(static_cast<size_t>(e.count));
  Guarded<ExpertTile> tiles(static_cast<size_t>(expert_tiles(e.count, pairs, rows == 1 ? 1 : 8)));
  Guarded<uint16_t> normed(cells);
  Guarded<uint64_t> bytes(1);
  done.zero();
  bytes.zero();
  weights.zero();
  ChooseArgs args{};
  args.router.x = dx;
  args.router.x_stride = hidden;
  args.router.norm = dnorm;
  args.router.eps = kEps;
  args.router.scale = 1;
  args.router.router = {kF32, e.count, hidden, packed.data()};
  args.router.logits = logits;
  args.router.rows = rows;
  args.route.experts = e;
  args.route.logits = logits;
  args.route.slot = dslots;
  args.route.ids = ids;
  args.route.weights = weights;
  args.route.rows = rows;
  args.route.plan = {list, first, count, tiles, tile_count, done};
  args.route.bytes = {bytes, 10, read, true};
  args.norm.x = dx;
  args.norm.weight = dnorm;
  args.norm.out = normed;
  args.norm.act = act;
  args.norm.rows = rows;
  args.norm.dim = hidden;
  args.norm.x_stride = args.norm.out_stride = hidden;
  args.norm.eps = kEps;
  args.tile = 8;
  if (at_once) {
    for (int32_t i = 0; i < 2; ++i) MUST(launch_choose(args, Stream{}));  // the second finds the counters at zero again
    EXPECT_EQ(done.read(), std::vector<int32_t>(kPlanCounters, 0));
  } else {
    MUST(launch_router(args.router, Stream{}));
    MUST(launch_route(args.route, Stream{}));
    if (rows > 1) MUST(launch_plan_experts({ids, pairs, e.count, args.tile, args.route.plan, args.route.bytes}, Stream{}));
    MUST(launch_rms_norm(args.norm, Stream{}));
  }
  FewRows out{ids.read(), tile_count.read(), weights.read(), normed.read(), {}, bytes.read()[0] / (at_once ? 2 : 1), read.read()};
  const std::vector<ExpertTile> tile = tiles.read();
  const std::vector<int32_t> pair = list.read();
  for (size_t i = 0; i < static_cast<size_t>(out.tile_count[0]); ++i) {
    std::vector<int32_t> of{tile[i].expert};
    for (int32_t k = 0; k < tile[i].count; ++k) of.push_back(pair[static_cast<size_t>(tile[i].first + k)]);
    out.pairs_of.push_back(of);
  }
  return out;
}

// One row, several, padding rows among them, rows that share experts, and a row that is not a number.
TEST(Choose, HasTheBitsOfSeparateKernels) {
  Numbers numbers(9);
  struct Case {
    int32_t experts, used, rows, hidden, gating, groups, groups_used;
    Act act;
  };
  const Case cases[] = {{20, 2, 1, 64, MR_GATE_SOFTMAX, 0, 0, Act::kF16},     {130, 8, 1, 600, MR_GATE_SIGMOID, 0, 0, Act::kBF16},
                        {130, 8, 7, 130, MR_GATE_SOFTMAX, 0, 0, Act::kF16},   {6, 3, 16, 64, MR_GATE_SOFTMAX, 0, 0, Act::kF16},
                        {32, 4, 9, 192, MR_GATE_SIGMOID, 8, 3, Act::kBF16},   {512, 1, 16, 72, MR_GATE_SOFTMAX, 0, 0, Act::kF16},
                        {1, 1, 2, 64, MR_GATE_SOFTMAX, 0, 0, Act::kF16}};
  for (const Case& c : cases) {
    mr_experts_desc e{};
    e.count = c.experts;
    e.used = c.used;
    e.gating = c.gating;
    e.groups = c.groups;
    e.groups_used = c.groups_used;
    e.flags = MR_EXPERTS_RENORM;
    std::vector<float> x = numbers.normals(static_cast<size_t>(c.rows * c.hidden));
    if (c.rows == 9) x[static_cast<size_t>(5 * c.hidden)] = NAN;
    const std::vector<float> router = numbers.normals(static_cast<size_t>(c.experts * c.hidden));
    const std::vector<float> norm = numbers.normals(static_cast<size_t>(c.hidden));
    for (const bool padding : {false, true}) {
      std::vector<int32_t> slots(static_cast<size_t>(c.rows), 3);
      if (padding) slots.back() = -1;
      EXPECT_TRUE(chosen_rows(e, c.hidden, slots, x, router, norm, c.act, true) ==
                  chosen_rows(e, c.hidden, slots, x, router, norm, c.act, false))
          << c.used << " of " << c.experts << ", " << c.rows << " rows of " << c.hidden << (padding ? ", the last is padding" : "");
    }
  }
}

// A branch of zeros and a shared expert of ones is the weight.
TEST(Choose, WeighsASharedExpertAsCombineDoes) {
  Numbers numbers(15);
  mr_experts_desc e{};
  e.count = 4;
  e.used = 2;
  for (const int32_t rows : {1, 3})
    for (const int32_t hidden : {37, 600, 2500})
      for (const bool normed : {false, true}) {
        const auto cells = static_cast<size_t>(rows * hidden), width = static_cast<size_t>(hidden);
        std::vector<float> router = numbers.normals(width);
        for (float& v : router) v *= 0.05f;
        Guarded<float> x(numbers.normals(cells)), of_shared(router), norm(numbers.normals(width));
        Guarded<float> logits(static_cast<size_t>(rows * e.count));
        Guarded<float> got(static_cast<size_t>(rows)), weights(static_cast<size_t>(rows * e.used)), branch(cells);
        Guarded<float> zeros(std::vector<float>(cells, 0.0f)), ones(std::vector<float>(cells, 1.0f));
        Guarded<uint8_t> packed(packed_floats(kF32, numbers.normals(static_cast<size_t>(e.count * hidden)), e.count, hidden));
        Guarded<int32_t> slots(std::vector<int32_t>(static_cast<size_t>(rows), 0)), ids(static_cast<size_t>(rows * e.used));
        Guarded<int32_t> list(static_cast<size_t>(rows * e.used)), first(4), count(4), tile_count(1), done(kPlanCounters);
        Guarded<ExpertTile> tiles(static_cast<size_t>(expert_tiles(e.count, rows * e.used, rows == 1 ? 1 : 8)));
        Guarded<uint16_t> out(cells);
        done.zero();
        ChooseArgs args{};
        args.router.x = x;
        args.router.x_stride = hidden;
        args.router.eps = kEps;
        args.router.scale = 1;
        args.router.router = {kF32, e.count, hidden, packed.data()};
        args.router.logits = logits;
        args.router.rows = args.route.rows = args.norm.rows = rows;
        args.route.experts = e;
        args.route.logits = logits;
        args.route.slot = slots;
        args.route.ids = ids;
        args.route.weights = weights;
        args.route.plan = {list, first, count, tiles, tile_count, done};
        args.tile = 8;
        if (normed) args.norm.x = x;  // otherwise no block norms
        args.norm.weight = norm;
        args.norm.out = out;
        args.norm.dim = hidden;
        args.norm.x_stride = args.norm.out_stride = hidden;
        args.norm.eps = kEps;
        args.shared = {got, of_shared, normed ? norm.data() : nullptr};
        MUST(launch_choose(args, Stream{}));
        CombineArgs combine{};
        combine.ids = ids;
        combine.ids_stride = e.used;
        combine.used = 1;
        combine.experts = e.count;
        combine.y = zeros;
        combine.shared = ones;
        combine.shared_router = of_shared;
        combine.norm = args.shared.norm;
        combine.x = x;
        combine.branch = branch;
        combine.y_stride = combine.shared_stride = combine.x_stride = hidden;
        combine.eps = kEps;
        combine.rows = rows;
        combine.dim = hidden;
        MUST(launch_combine(combine, Stream{}));
        const std::vector<float> weight = got.read(), want = branch.read();
        for (int32_t r = 0; r < rows; ++r)
          EXPECT_EQ(std::memcmp(&weight[static_cast<size_t>(r)], &want[static_cast<size_t>(r * hidden)], sizeof(float)), 0)
              << "row " << r << " of " << rows << ", " << hidden << " columns: " << weight[static_cast<size_t>(r)];
      }
}

TEST(Choose, RefusesMoreThanABlockPlans) {
  mr_experts_desc e{};
  e.count = 128;
  e.used = 8;
  EXPECT_TRUE(choose_supported(e, 16));
  EXPECT_FALSE(choose_supported(e, 17));
  e.count = 513;
  EXPECT_FALSE(choose_supported(e, 1));
  EXPECT_EQ(launch_choose({}, Stream{}), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace mr::cuda::testing
