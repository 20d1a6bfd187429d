// The begin of a step and the finish of Q, K and V against float64: tokens, histories, rotations, norms, cache writes.
#include "kernels/attention.h"
#include "kernels/qkv.h"
#include "kernels/rows.h"
#include "kernel_fixture.h"
#include "millrace/engine.h"

namespace mr::cuda::testing {
namespace {

// Device arrays of one step's rows, begun by launch_begin.
struct Step {
  Guarded<int32_t> slot, position, table, block_ids, token_in, token, poison, history, first, span;
  Guarded<SlotFeed> feeds;
  Guarded<double> frequencies;
  Guarded<float> turns;
  BeginArgs begin;

  Step(const std::vector<int32_t>& slots, const std::vector<int32_t>& positions, const std::vector<int32_t>& tables,
       const std::vector<int32_t>& blocks, const std::vector<int32_t>& tokens, const std::vector<SlotFeed>& fed,
       const std::vector<double>& frequency, int32_t decode_rows, int32_t history_stride, int32_t capacity)
      : slot(slots), position(positions), table(tables), block_ids(blocks), token_in(tokens), token(slots.size()),
        poison(slots.size()), history(fed.size() * static_cast<size_t>(history_stride)), first(static_cast<size_t>(decode_rows) + 1),
        span(1), feeds(fed), frequencies(frequency), turns(slots.size() * frequency.size() * 2), begin{} {
    begin.rows = Rows{slot, position, table, block_ids};
    begin.count = static_cast<int32_t>(slots.size());
    begin.decode_rows = decode_rows;
    begin.token_in = token_in;
    begin.token = token;
    begin.poison = poison;
    begin.feeds = feeds;
    begin.history = history;
    begin.history_stride = history_stride;
    begin.frequencies = frequencies;
    begin.rope_dims = static_cast<int32_t>(frequency.size()) * 2;
    begin.turns = turns;
    begin.plan = DecodePlan{first, span, capacity};
    MUST(launch_begin(begin, Stream{}));
  }
};

TEST(Begin, ResolvesTokensAndKeepsHistories) {
  std::vector<double> frequency(3);
  rope_frequencies(6, 10000, 1, nullptr, frequency.data());
  // Slot 1 feeds its sample back, slot 2 one that failed, two tokens of slot 0 follow, the last row is padding.
  Step step({1, 2, 0, 0, -1}, {7, 3, 4, 5, 0}, {0, 0, 0, 0, 0}, {0}, {-1, -1, 21, 22, 99},
            {{5, MR_ROW_OK}, {11, MR_ROW_OK}, {0, MR_ROW_NAN}}, frequency, 2, 10, 100);
  EXPECT_EQ(step.token.read(), (std::vector<int32_t>{11, 0, 21, 22, 0}));
  EXPECT_EQ(step.poison.read(), (std::vector<int32_t>{MR_ROW_OK, MR_ROW_NAN, MR_ROW_OK, MR_ROW_OK, MR_ROW_OK}));
  std::vector<int32_t> want(30, -1);
  want[4] = 21, want[5] = 22, want[17] = 11, want[23] = 0;
  EXPECT_EQ(step.history.read(), want);
  const std::vector<float> turns = step.turns.read();
  const int positions[] = {7, 3, 4, 5, 0};
  for (size_t r = 0; r < 5; ++r)
    for (size_t i = 0; i < 3; ++i) {
      const double angle = positions[r] * std::pow(10000.0, -2.0 * static_cast<double>(i) / 6);
      EXPECT_NEAR(turns[r * 6 + i], std::cos(angle), 1e-7);
      EXPECT_NEAR(turns[r * 6 + 3 + i], std::sin(angle), 1e-7);
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
  bool bias, norm, f32, factors;
};

void check_finish(const Case& c, Act act, int32_t count) {
  Numbers numbers(static_cast<uint64_t>(c.dim * 1000 + c.rope_dims));
  const int32_t all_heads = c.heads + 2 * c.kv_heads, width = all_heads * c.dim, stride = width + 8;
  const int32_t padded = pad_head_dim(c.dim), q_stride = c.heads * padded + 8;
  const KvLayout layout{act, c.block_size, c.kv_heads, c.dim, padded};
  std::vector<float> factor(static_cast<size_t>(c.rope_dims / 2) + 1);
  for (float& f : factor) f = static_cast<float>(1 + numbers.uniform());
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

  std::vector<float> qkv = numbers.normals(static_cast<size_t>(count * stride));
  const std::vector<uint16_t> packed = to_acts(act, qkv);
  if (!c.f32) qkv = from_acts(act, packed);
  const std::vector<float> bias = numbers.normals(static_cast<size_t>(width)), norm = numbers.normals(static_cast<size_t>(2 * c.dim));
  Guarded<float> dqkv(qkv), dbias(bias), dnorm(norm);
  Guarded<uint16_t> dpacked(packed), q(static_cast<size_t>(count * q_stride));
  const size_t cache = static_cast<size_t>(layout.block_elements() * 3 * count);
  Guarded<uint16_t> keys(cache), values(cache);
  FinishQkvArgs args{};
  args.rows = step.begin.rows;
  args.count = count;
  args.qkv = c.f32 ? static_cast<void*>(dqkv.data()) : dpacked.data();
  args.qkv_is_f32 = c.f32;
  args.qkv_stride = stride;
  if (c.bias) args.q_bias = dbias, args.k_bias = dbias + c.heads * c.dim, args.v_bias = dbias + (c.heads + c.kv_heads) * c.dim;
  if (c.norm) args.q_norm = dnorm, args.k_norm = dnorm + c.dim;
  args.norm_eps = 1e-6f;
  args.turns = step.turns;
  args.rope_dims = c.rope_dims;
  args.rope_style = c.style;
  args.heads = c.heads;
  args.q_out = q.data();
  args.q_stride = q_stride;
  args.layout = layout;
  args.keys = keys.data();
  args.values = values.data();
  MUST(launch_finish_qkv(args, Stream{}));
  const std::vector<float> got_q = from_acts(act, q.read());
  const std::vector<uint16_t> raw_keys = keys.read(), raw_values = values.read();
  const std::vector<float> got_k = from_acts(act, raw_keys), got_v = from_acts(act, raw_values);
  std::vector<bool> written(cache, false);
  for (int32_t r = 0; r < count; ++r)
    for (int32_t h = 0; h < all_heads; ++h) {
      const int part = h < c.heads ? 0 : h < c.heads + c.kv_heads ? 1 : 2;
      std::vector<double> x(static_cast<size_t>(padded), 0.0);
      if (r != 1) {
        for (int32_t d = 0; d < c.dim; ++d)
          x[static_cast<size_t>(d)] = static_cast<double>(qkv[static_cast<size_t>(r * stride + h * c.dim + d)]) +
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
      size_t at = static_cast<size_t>(r * q_stride + h * padded);
      if (part != 0) {
        const int32_t p = positions[static_cast<size_t>(r)], own = h - c.heads - (part == 2 ? c.kv_heads : 0);
        const int32_t block = blocks[static_cast<size_t>(tables[static_cast<size_t>(r)] + p / c.block_size)];
        at = static_cast<size_t>(block * layout.block_elements() + own * layout.head_elements() + p % c.block_size * padded);
        for (int32_t d = 0; d < padded; ++d) written[at + static_cast<size_t>(d)] = true;
      }
      const std::vector<float>& from = part == 0 ? got_q : part == 1 ? got_k : got_v;
      EXPECT_TRUE(near(std::vector<float>(from.begin() + static_cast<int64_t>(at), from.begin() + static_cast<int64_t>(at) + padded), x,
                       {half_least(act) + 2e-6, half_step(act) + 0x1p-20}))
          << name(act) << " dim " << c.dim << " row " << r << " head " << h;
    }
  for (size_t i = 0; i < cache; ++i)
    if (!written[i]) ASSERT_TRUE(raw_keys[i] == 0xffff && raw_values[i] == 0xffff) << "cache written at " << i;
}

TEST(FinishQkv, AgreesWithFloat64) {
  for (const Act act : {Act::kF16, Act::kBF16}) {
    check_finish({4, 2, 64, 64, MR_ROPE_NEOX, 16, true, false, true, false}, act, 5);
    check_finish({32, 8, 128, 128, MR_ROPE_NORM, 16, false, false, true, true}, act, 3);
    check_finish({6, 2, 80, 32, MR_ROPE_NEOX, 32, true, true, false, true}, act, 4);
    check_finish({3, 1, 96, 96, MR_ROPE_NORM, 32, false, true, false, false}, act, 2);
    check_finish({2, 1, 256, 64, MR_ROPE_NORM, 16, false, true, true, false}, act, 9);
    check_finish({6, 2, 34, 34, MR_ROPE_NEOX, 16, true, true, true, false}, act, 7);
    check_finish({6, 3, 20, 12, MR_ROPE_NORM, 16, false, false, true, false}, act, 7);
    check_finish({2, 2, 33, 6, MR_ROPE_NEOX, 32, true, true, true, false}, act, 3);
    check_finish({1, 1, 1, 0, MR_ROPE_NORM, 16, false, false, true, false}, act, 2);
  }
}

TEST(FinishQkv, RunsHeadsOfEveryEvenWidth) {
  for (int32_t dim = 2; dim <= 256; dim += 2) {
    const int32_t turn = dim / 2, rope = turn % 4 == 3 ? dim / 4 * 2 : dim;
    check_finish({1 + turn % 3, 1, dim, rope, turn % 2 == 0 ? MR_ROPE_NORM : MR_ROPE_NEOX, 16, turn % 3 == 2, turn % 3 == 1, true,
                  turn % 5 == 4}, turn % 2 == 0 ? Act::kBF16 : Act::kF16, 3);
  }
}

TEST(FinishQkv, RefusesShapesItDoesNotRun) {
  FinishQkvArgs args{};
  args.count = 1;
  args.heads = 1;
  args.layout = KvLayout{Act::kF16, 16, 1, 300, 0};
  EXPECT_EQ(launch_finish_qkv(args, Stream{}), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace mr::cuda::testing
