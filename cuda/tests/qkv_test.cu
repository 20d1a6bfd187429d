// launch_begin and launch_finish_qkv against float64: tokens, histories, rotations, norms, cache writes.
#include <cuda_fp8.h>

#include <iterator>

#include "kernel_fixture.h"
#include "kernels/attention/attention.h"
#include "kernels/f8.cuh"
#include "kernels/qkv.h"
#include "kernels/rows.h"
#include "millrace/engine.h"

namespace mr::cuda::testing {
namespace {

// Step is the device arrays of one step's rows, initialised by launch_begin.
struct Step {
  Guarded<int32_t> slot, position, table, block_ids, token_in, token, nan_flags, history, first, span;
  Guarded<SlotFeed> feeds;
  Guarded<double> frequencies;
  Guarded<float> rope_table;
  BeginArgs begin;

  Step(const std::vector<int32_t>& slots, const std::vector<int32_t>& positions, const std::vector<int32_t>& tables,
       const std::vector<int32_t>& blocks, const std::vector<int32_t>& tokens, const std::vector<SlotFeed>& fed,
       const std::vector<double>& frequency, int32_t decode_rows, int32_t history_stride, int32_t capacity)
      : slot(slots), position(positions), table(tables), block_ids(blocks), token_in(tokens), token(slots.size()),
        nan_flags(slots.size()), history(fed.size() * static_cast<size_t>(history_stride)), first(static_cast<size_t>(decode_rows) + 1),
        span(1), feeds(fed), frequencies(frequency), rope_table(slots.size() * frequency.size() * 2), begin{} {
    begin.rows = Rows{slot, position, table, block_ids};
    begin.count = static_cast<int32_t>(slots.size());
    begin.decode_rows = decode_rows;
    begin.token_in = token_in;
    begin.token = token;
    begin.nan_flags = nan_flags;
    begin.feeds = feeds;
    begin.history = history;
    begin.history_stride = history_stride;
    begin.ropes[0] = {frequencies, static_cast<int32_t>(frequency.size()) * 2, 1, rope_table};
    begin.rope_count = 1;
    begin.plans[0] = DecodePlan{first, span, capacity};
    begin.plan_count = 1;
    MUST(launch_begin(begin, Stream{}));
  }
};

TEST(Begin, ResolvesTokensAndKeepsHistories) {
  std::vector<double> frequency(3);
  rope_frequencies(6, 10000, 1, nullptr, frequency.data());
  // Slot 1 feeds its sample back, slot 2 a failed one, two tokens of slot 0 follow, and the last row is padding.
  Step step({1, 2, 0, 0, -1}, {7, 3, 4, 5, 0}, {0, 0, 0, 0, 0}, {0}, {-1, -1, 21, 22, 99},
            {{5, MR_ROW_OK}, {11, MR_ROW_OK}, {0, MR_ROW_NAN}}, frequency, 2, 10, 100);
  EXPECT_EQ(step.token.read(), (std::vector<int32_t>{11, 0, 21, 22, 0}));
  EXPECT_EQ(step.nan_flags.read(), (std::vector<int32_t>{MR_ROW_OK, MR_ROW_NAN, MR_ROW_OK, MR_ROW_OK, MR_ROW_OK}));
  std::vector<int32_t> want(30, -1);
  want[4] = 21, want[5] = 22, want[17] = 11, want[23] = 0;
  EXPECT_EQ(step.history.read(), want);
  const std::vector<float> rope_table = step.rope_table.read();
  const int positions[] = {7, 3, 4, 5, 0};
  for (size_t r = 0; r < 5; ++r)
    for (size_t i = 0; i < 3; ++i) {
      const double angle = positions[r] * std::pow(10000.0, -2.0 * static_cast<double>(i) / 6);
      EXPECT_NEAR(rope_table[r * 6 + i], std::cos(angle), 1e-7);
      EXPECT_NEAR(rope_table[r * 6 + 3 + i], std::sin(angle), 1e-7);
    }
}

TEST(Begin, PlansDecodeByChunksAndByGroupsWhereTheyDoNotFit) {
  const std::vector<double> frequency(1, 1.0);
  const std::vector<int32_t> slots = {0, 1, -1, 2}, positions = {0, 128, 0, 5000}, zero(4, 0);
  for (const int32_t capacity : {22, 21, 4}) {
    Step step(slots, positions, zero, {0}, zero, std::vector<SlotFeed>(3, SlotFeed{0, 0}), frequency, 4, 6000, capacity);
    if (capacity == 22) {
      EXPECT_EQ(step.first.read(), (std::vector<int32_t>{0, 1, 2, 2, 22}));
      EXPECT_EQ(step.span.read()[0], 1);
    } else {
      EXPECT_EQ(step.first.read(), (std::vector<int32_t>{0, 1, 2, 2, 4}));
      EXPECT_EQ(step.span.read()[0], kChunksAGroup);
    }
  }
}

struct Case {
  int32_t heads, kv_heads, dim, rope_dims, style, block_size;
  bool bias, norm, factors;
  bool gates = false;  // one follows each head of Q
  int32_t column(int32_t head) const { return (head + (gates ? std::min(head, heads) : 0)) * dim; }  // of heads of Q, K and V
};

// Checks one head of one token of an 8-bit cache: the scale is that of the largest |want|, every element is within half
// a step of the wanted one, and the largest is at the end of the range. Wanted values are float64, so results may be
// slightly off.
::testing::AssertionResult near_f8(const uint8_t* got, float scale, const std::vector<double>& want) {
  double greatest = 0;
  for (const double x : want) greatest = std::max(greatest, std::fabs(x));
  if (!(std::fabs(scale - greatest / 448) <= 1e-5 * greatest / 448))
    return ::testing::AssertionFailure() << "scale " << scale << ", want " << greatest / 448;
  uint32_t most = 0;
  for (size_t d = 0; d < want.size(); ++d) {
    const double step = std::max(std::fabs(want[d]) * 0x1p-4, 0x1p-10 * scale) + 1e-5 * greatest;
    if (!(std::fabs(static_cast<double>(f8_to_f32(got[d])) * scale - want[d]) <= step))
      return ::testing::AssertionFailure() << "dim " << d << " is " << f8_to_f32(got[d]) << " times " << scale << ", want "
                                           << want[d];
    most = std::max<uint32_t>(most, got[d] & 0x7fu);
  }
  if (most != 0x7e) return ::testing::AssertionFailure() << "the largest element is " << f8_to_f32(most);
  return ::testing::AssertionSuccess();
}

void check_finish(const Case& c, Act act, int32_t count, Kv kv) {
  Numbers numbers(static_cast<uint64_t>(c.dim * 1000 + c.rope_dims));
  const int32_t all_heads = c.heads + 2 * c.kv_heads, width = all_heads * c.dim, stride = c.column(all_heads) + 8;
  const int32_t padded = pad_head_dim(c.dim), q_stride = c.heads * padded + 8;
  const KvLayout layout{act, c.block_size, c.kv_heads, c.dim, padded, kv};
  std::vector<double> factor(static_cast<size_t>(c.rope_dims / 2) + 1);
  for (double& f : factor) f = 1 + numbers.uniform();
  std::vector<double> frequency(static_cast<size_t>(c.rope_dims / 2));
  rope_frequencies(c.rope_dims, 500000.0f, 4.0f, c.factors ? factor.data() : nullptr, frequency.data());
  std::vector<int32_t> slots, positions, tables, blocks, tokens;
  for (int32_t r = 0; r < count; ++r) {
    slots.push_back(r == 1 ? -1 : r);
    positions.push_back(r == 1 ? 0 : numbers.below(3 * c.block_size));
    tables.push_back(r == 1 ? 0 : 3 * r);
    tokens.push_back(0);
  }
  for (int32_t b = 0; b < 3 * count; ++b) blocks.push_back(3 * count - 1 - b);
  Step step(slots, positions, tables, blocks, tokens, std::vector<SlotFeed>(static_cast<size_t>(count), SlotFeed{0, 0}),
            frequency, 0, 3 * c.block_size, 1);

  const std::vector<float> qkv = numbers.normals(static_cast<size_t>(count * stride));
  const std::vector<float> bias = numbers.normals(static_cast<size_t>(width)), norm = numbers.normals(static_cast<size_t>(2 * c.dim));
  Guarded<float> dqkv(qkv), dbias(bias), dnorm(norm);
  Guarded<uint16_t> q(static_cast<size_t>(count * q_stride));
  const size_t cache = static_cast<size_t>(layout.block_bytes() * 3 * count);
  Guarded<uint8_t> keys(cache), values(cache);
  FinishQkvArgs args{};
  args.rows = step.begin.rows;
  args.count = count;
  args.qkv = dqkv.data();
  args.qkv_stride = stride;
  if (c.bias) args.q_bias = dbias, args.k_bias = dbias + c.heads * c.dim, args.v_bias = dbias + (c.heads + c.kv_heads) * c.dim;
  if (c.norm) args.q_norm = dnorm, args.k_norm = dnorm + c.dim;
  args.norm_eps = 1e-6f;
  args.rope_table = step.rope_table;
  args.rope_dims = c.rope_dims;
  args.rope_style = c.style;
  args.heads = c.heads;
  args.query_gates = c.gates;
  args.q_out = q.data();
  args.q_stride = q_stride;
  args.layout = layout;
  args.keys = keys.data();
  args.values = values.data();
  MUST(launch_finish_qkv(args, Stream{}));
  const std::vector<float> got_q = from_acts(act, q.read());
  const std::vector<uint8_t> raw[2] = {keys.read(), values.read()};
  std::vector<bool> written(cache, false);
  for (int32_t r = 0; r < count; ++r)
    for (int32_t h = 0; h < all_heads; ++h) {
      const int part = h < c.heads ? 0 : h < c.heads + c.kv_heads ? 1 : 2;
      std::vector<double> x(static_cast<size_t>(padded), 0.0);
      if (r != 1) {
        for (int32_t d = 0; d < c.dim; ++d)
          x[static_cast<size_t>(d)] = static_cast<double>(qkv[static_cast<size_t>(r * stride + c.column(h) + d)]) +
                                      (c.bias ? static_cast<double>(bias[static_cast<size_t>(h * c.dim + d)]) : 0.0);
        if (c.norm && part < 2) {
          double square = 0;
          for (const double v : x) square += v * v;
          for (int32_t d = 0; d < c.dim; ++d)
            x[static_cast<size_t>(d)] *= norm[static_cast<size_t>(part * c.dim + d)] / std::sqrt(square / c.dim + 1e-6);
        }
        for (int32_t i = 0; part < 2 && i < c.rope_dims / 2; ++i) {
          const size_t a = static_cast<size_t>(c.style == MR_ROPE_NEOX ? i : 2 * i);
          const size_t b = static_cast<size_t>(c.style == MR_ROPE_NEOX ? i + c.rope_dims / 2 : 2 * i + 1);
          const double angle = positions[static_cast<size_t>(r)] * frequency[static_cast<size_t>(i)], u = x[a], v = x[b];
          x[a] = u * std::cos(angle) - v * std::sin(angle);
          x[b] = u * std::sin(angle) + v * std::cos(angle);
        }
      } else if (part != 0) {
        continue;
      }
      std::vector<float> got(static_cast<size_t>(padded));
      if (part == 0) {
        const auto from = got_q.begin() + r * q_stride + h * padded;
        got.assign(from, from + padded);
      } else {
        const int32_t p = positions[static_cast<size_t>(r)], own = h - c.heads - (part == 2 ? c.kv_heads : 0);
        const int32_t block = blocks[static_cast<size_t>(tables[static_cast<size_t>(r)] + p / c.block_size)];
        const uint8_t* const from = raw[part - 1].data();
        const auto wrote = [&written](int64_t at, int64_t bytes) {
          for (int64_t i = at; i < at + bytes; ++i) written[static_cast<size_t>(i)] = true;
        };
        if (kv == Kv::kF8) {
          const int64_t at = layout.f8_at(block, own, p % c.block_size);
          const int64_t at_scale = layout.f8_scale_at(block, own, p % c.block_size);
          wrote(at, padded);
          wrote(at_scale, 4);
          float scale;
          std::memcpy(&scale, from + at_scale, sizeof scale);
          EXPECT_TRUE(near_f8(from + at, scale, x)) << name(act) << " dim " << c.dim << " row " << r << " head " << h;
          continue;
        }
        const int64_t at = block * layout.block_elements() + own * layout.head_elements() + p % c.block_size * padded;
        wrote(2 * at, 2 * padded);
        std::vector<uint16_t> bits(static_cast<size_t>(padded));
        std::memcpy(bits.data(), from + 2 * at, bits.size() * 2);
        got = from_acts(act, bits);
      }
      EXPECT_TRUE(near(got, x, {half_least(act) + 2e-6, half_step(act) + 0x1p-20}))
          << name(act) << " dim " << c.dim << " row " << r << " head " << h;
    }
  for (size_t i = 0; i < cache; ++i)
    if (!written[i]) {
      ASSERT_TRUE(raw[0][i] == 0xff && raw[1][i] == 0xff) << "cache written at " << i;
    }
}

TEST(FinishQkv, AgreesWithFloat64) {
  const std::pair<Case, int32_t> cases[] = {{{4, 2, 64, 64, MR_ROPE_NEOX, 16, true, false, false}, 5},
                                            {{32, 8, 128, 128, MR_ROPE_NORM, 16, false, false, true}, 3},
                                            {{6, 2, 80, 32, MR_ROPE_NEOX, 32, true, true, true}, 4},
                                            {{3, 1, 96, 96, MR_ROPE_NORM, 32, false, true, false}, 2},
                                            {{2, 1, 256, 64, MR_ROPE_NORM, 16, false, true, false}, 9},
                                            {{6, 2, 34, 34, MR_ROPE_NEOX, 16, true, true, false}, 7},
                                            {{6, 3, 20, 12, MR_ROPE_NORM, 16, false, false, false}, 7},
                                            {{8, 1, 512, 512, MR_ROPE_NEOX, 16, false, true, true}, 5},
                                            {{2, 1, 512, 128, MR_ROPE_NORM, 32, true, true, false}, 3},
                                            {{3, 1, 511, 510, MR_ROPE_NEOX, 16, true, true, false}, 4},
                                            {{2, 2, 33, 6, MR_ROPE_NEOX, 32, true, true, false}, 3},
                                            {{1, 1, 1, 0, MR_ROPE_NORM, 16, false, false, false}, 2},
                                            {{4, 2, 64, 64, MR_ROPE_NEOX, 16, true, false, false}, 600},
                                            {{21, 2, 128, 96, MR_ROPE_NEOX, 16, true, true, false}, 600},  // heads that a warp has in turn
                                            {{17, 2, 64, 64, MR_ROPE_NORM, 16, true, true, false}, 520},
                                            {{16, 2, 256, 64, MR_ROPE_NEOX, 16, false, true, false, true}, 5},
                                            {{4, 2, 20, 12, MR_ROPE_NORM, 16, true, true, false, true}, 600},
                                            {{3, 1, 9, 4, MR_ROPE_NORM, 16, true, true, false, true}, 3}};
  for (const Act act : {Act::kF16, Act::kBF16})
    for (const Kv kv : {Kv::kAct, Kv::kF8})
      for (const auto& [c, count] : cases) check_finish(c, act, count, kv);
}

// One head of queries, keys and values for each row, without bias, norm or rotation.
void finish_one_head(const Step& step, const float* qkv, const KvLayout& layout, uint16_t* q, void* keys, void* values) {
  FinishQkvArgs args{};
  args.rows = step.begin.rows;
  args.count = step.begin.count;
  args.qkv = qkv;
  args.qkv_stride = 3 * layout.head_dim;
  args.rope_table = step.rope_table;
  args.rope_style = MR_ROPE_NORM;
  args.heads = 1;
  args.q_out = q;
  args.q_stride = layout.padded_dim;
  args.layout = layout;
  args.keys = keys;
  args.values = values;
  MUST(launch_finish_qkv(args, Stream{}));
}

// Queries, keys and values beyond f16 become the largest stored number. NaN and infinity, which indicate faults, are
// kept.
TEST(FinishQkv, KeepsF16WithinItsRange) {
  const float some[] = {64992.0f, -65000.0f, 65504.0f, 65520.0f, -65520.0f, 1e6f, -3e38f, INFINITY, -INFINITY, NAN, 6e-8f, 1.0f};
  for (const int32_t dim : {64, 33})  // stored in pairs, and one by one
    for (const Act act : {Act::kF16, Act::kBF16}) {
      const int32_t padded = pad_head_dim(dim);
      const KvLayout layout{act, 16, 1, dim, padded, Kv::kAct};
      std::vector<float> qkv(static_cast<size_t>(3 * dim));
      for (size_t i = 0; i < qkv.size(); ++i) qkv[i] = some[i % std::size(some)];
      Step step({0}, {0}, {0}, {0}, {0}, std::vector<SlotFeed>(1, SlotFeed{0, 0}), {}, 0, 16, 1);
      Guarded<float> dqkv(qkv);
      Guarded<uint16_t> q(static_cast<size_t>(padded)), keys(static_cast<size_t>(layout.block_elements()));
      Guarded<uint16_t> values(static_cast<size_t>(layout.block_elements()));
      finish_one_head(step, dqkv, layout, q, keys.data(), values.data());
      const std::vector<float> got[3] = {from_acts(act, q.read()), from_acts(act, keys.read()), from_acts(act, values.read())};
      for (int32_t part = 0; part < 3; ++part)
        for (int32_t d = 0; d < dim; ++d) {
          const float x = qkv[static_cast<size_t>(part * dim + d)], y = got[part][static_cast<size_t>(d)];
          const bool beyond = act == Act::kF16 && std::isfinite(x) && std::fabs(x) > 64992;
          const float want = beyond ? std::copysign(64992.0f, x) : from_acts(act, to_acts(act, {x}))[0];
          EXPECT_TRUE(y == want || (std::isnan(y) && std::isnan(x))) << name(act) << " " << x << " is kept as " << y;
        }
    }
}

TEST(FinishQkv, RunsHeadsOfEveryEvenWidth) {
  for (int32_t dim = 2; dim <= 512; dim += dim < 256 ? 2 : 14) {
    const int32_t turn = dim / 2, rope = turn % 4 == 3 ? dim / 4 * 2 : dim;
    for (const Kv kv : {Kv::kAct, Kv::kF8})
      check_finish({1 + turn % 3, 1, dim, rope, turn % 2 == 0 ? MR_ROPE_NORM : MR_ROPE_NEOX, 16, turn % 3 == 2, turn % 3 == 1, true,
                    turn % 5 == 4}, turn % 2 == 0 ? Act::kBF16 : Act::kF16, 3, kv);
  }
}

TEST(F8, ConvertsAsTheToolkitDoes) {
  Numbers numbers(61);
  std::vector<float> some = {0.0f,     -0.0f,   0x1p-10f, 0x1.8p-10f, 0x1p-9f, 0x1.8p-9f, 0x1.cp-7f, 0x1.fp-7f,
                             0x1p-6f, 447.9f, 448.0f,  463.9f,    464.0f, 1e9f,     1e-40f};
  for (int i = 0; i < 100000; ++i) some.push_back(std::ldexp(numbers.normal(), numbers.below(24) - 14));
  for (uint32_t e = 0; e < 0x7e; ++e)  // halfway between neighbours, and next to it
    for (const float side : {0.0f, 1.0f, 500.0f}) {
      const float half = (f8_to_f32(e) + f8_to_f32(e + 1)) / 2;
      some.push_back(side == 1 ? half : std::nextafter(half, side));
    }
  for (const float x : some)
    for (const float signed_x : {x, -x})
      ASSERT_EQ(f8_from_f32(signed_x, 1.0f), __nv_cvt_float_to_fp8(signed_x, __NV_SATFINITE, __NV_E4M3)) << signed_x;
  for (uint32_t e = 0; e < 256; ++e)
    if ((e & 0x7f) != 0x7f) {
      ASSERT_EQ(f8_from_f32(f8_to_f32(e), 1.0f), e);
    }
}

// Values as finish_qkv writes them, bit for bit as f8.cuh specifies, and as attention reads them: row r is alone in its
// sequence, so its attention is its own value.
TEST(F8, KeepsEveryKindOfHead) {
  for (const int32_t dim : {1, 33, 64, 80, 96, 128, 255, 256, 257, 320, 512})
    for (const Act act : {Act::kF16, Act::kBF16}) {
      const int32_t padded = pad_head_dim(dim), count = 9, width = 3 * dim;
      const KvLayout layout{act, 16, 1, dim, padded, Kv::kF8};
      Numbers numbers(static_cast<uint64_t>(dim));
      std::vector<float> qkv(static_cast<size_t>(count * width), 0.25f);
      const auto value = [&](int32_t row, int32_t d) -> float& { return qkv[static_cast<size_t>(row * width + 2 * dim + d)]; };
      for (int32_t d = 0; d < dim; ++d) {
        const float x = numbers.normal();
        value(0, d) = 0.0f;
        value(1, d) = x;
        value(2, d) = x;                                     // next to a huge one
        value(3, d) = std::ldexp(x, -140);                   // below the normal numbers
        value(4, d) = std::ldexp(x, -120);                   // the scale would be
        value(5, d) = x;                                     // next to NaN
        value(6, d) = x;                                     // next to infinity
        value(7, d) = -0.0f;
        value(8, d) = std::ldexp(x, act == Act::kF16 ? 10 : 80);
      }
      value(2, dim / 2) = 3e38f;
      value(5, dim - 1) = NAN;
      value(6, 0) = -INFINITY;
      std::vector<int32_t> slots, positions(count, 0), tables, blocks, zero(count, 0);
      for (int32_t r = 0; r < count; ++r) slots.push_back(r), tables.push_back(r), blocks.push_back(count - 1 - r);
      Step step(slots, positions, tables, blocks, zero, std::vector<SlotFeed>(count, SlotFeed{0, 0}), {}, 0, 16, 1);
      Guarded<float> dqkv(qkv);
      Guarded<uint16_t> q(static_cast<size_t>(count * padded)), out(static_cast<size_t>(count * (dim + 1)));
      const size_t cache = static_cast<size_t>(layout.block_bytes() * count);
      Guarded<uint8_t> keys(cache), values(cache);
      finish_one_head(step, dqkv, layout, q, keys.data(), values.data());
      AttentionArgs common{};
      common.rows = step.begin.rows;
      common.layout = layout;
      common.heads = 1;
      common.scale = 1.0f;
      common.q = q.data();
      common.q_stride = padded;
      common.out = out.data();
      common.out_stride = (dim + 1) / 2 * 2;
      common.out_act = act;
      common.keys = keys.data();
      common.values = values.data();
      std::vector<PrefillTile> tiles;
      for (int32_t r = 0; r < count; ++r) tiles.push_back({r, 1, 0});
      PrefillPlan plan;
      ASSERT_TRUE(plan_prefill(tiles, {1, 132, 0}, &plan));
      Guarded<PrefillItem> items(plan.items);
      MUST(launch_prefill_attention({common, items, count, nullptr, 0, nullptr, 0, 132}, Stream{}));
      synchronize();
      const std::vector<uint8_t> raw = values.read();
      const std::vector<uint16_t> got = out.read();
      for (int32_t r = 0; r < count; ++r) {
        uint32_t greatest = 0;
        for (int32_t d = 0; d < dim; ++d) greatest = std::max(greatest, f8_size(value(r, d)));
        const float want_scale = f8_scale(greatest);
        float scale;
        std::memcpy(&scale, raw.data() + layout.f8_scale_at(blocks[static_cast<size_t>(r)], 0, 0), sizeof scale);
        const uint8_t* const elements = raw.data() + layout.f8_at(blocks[static_cast<size_t>(r)], 0, 0);
        if (r == 5 || r == 6) {
          EXPECT_TRUE(std::isnan(scale)) << r;
        } else {
          EXPECT_EQ(scale, want_scale) << r;
        }
        for (int32_t d = 0; d < padded; ++d) {
          const float x = d < dim ? value(r, d) : 0.0f;
          ASSERT_EQ(elements[d], f8_from_f32(x, want_scale)) << "dim " << dim << " row " << r << " at " << d;
          if (d >= dim) continue;
          const float read = from_act(act, got[static_cast<size_t>(r * common.out_stride + d)]);
          if (r == 5 || r == 6) {
            ASSERT_TRUE(std::isnan(read)) << "dim " << dim << " row " << r;
          } else if (act == Act::kBF16 || r != 2) {  // f16 has no room for the huge one
            const double kept = static_cast<double>(f8_to_f32(elements[d])) * want_scale;
            ASSERT_LE(std::fabs(read - kept), 2.1 * half_step(act) * std::fabs(kept) + 2 * half_least(act))
                << name(act) << " dim " << dim << " row " << r << " at " << d;
          }
        }
      }
    }
}

TEST(FinishQkv, RefusesShapesItDoesNotRun) {
  FinishQkvArgs args{};
  args.count = 1;
  args.heads = 1;
  args.layout = KvLayout{Act::kF16, 16, 1, 513, 0};
  EXPECT_EQ(launch_finish_qkv(args, Stream{}), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace mr::cuda::testing
