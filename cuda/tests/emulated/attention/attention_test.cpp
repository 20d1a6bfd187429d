// Prefill attention by wgmma on the emulated device, with its swizzles, pipelines, barriers and alternation: against
// float64, and bit for bit however the work is divided and an 8-bit cache is widened.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/attention/prefill_merge.cuh"
#include "kernels/attention/prefill_wgmma_kernel.cuh"

namespace mr::cuda {
namespace {

using namespace prefill;

struct Case {
  int32_t heads, kv_heads, dim, block_size, window = 0;
  float cap = 0;
  bool sinks = false;
  Kv kv = Kv::kAct;
};

template <class T>
float value_of(uint16_t bits) {
  return static_cast<float>(term_of<T>(bits));
}
template <class T>
uint16_t bits_of(float v) {
  if constexpr (std::is_same_v<T, __half>) return __half_as_ushort(__float2half_rn(v));
  else return __bfloat16_as_ushort(__float2bfloat16_rn(v));
}

// One sequence of `length` tokens whose rows after `prefix` are queries; blocks are shuffled, and all other memory is
// NaN.
template <class T>
struct Problem {
  Case c;
  int32_t prefix, length, rows;
  KvLayout layout;
  std::vector<int32_t> blocks;
  std::vector<uint8_t> keys, values;
  std::vector<float> key, value;  // as stored, by place()
  std::vector<uint16_t> queries;
  std::vector<float> sinks;

  Problem(const Case& shape, int32_t before, int32_t count) : c(shape), prefix(before), length(before + count), rows(count) {
    layout = KvLayout{std::is_same_v<T, __half> ? Act::kF16 : Act::kBF16, c.block_size, c.kv_heads, c.dim, pad_head_dim(c.dim), c.kv};
    std::mt19937_64 random(static_cast<uint64_t>(length * 131 + c.heads));
    std::normal_distribution<float> normal;
    for (int32_t h = 0; c.sinks && h < c.heads; ++h) sinks.push_back(h % 3 == 2 ? -INFINITY : 1.5f * static_cast<float>(h) - 1);
    for (int32_t b = 0; b * c.block_size < length; ++b) blocks.push_back(b);
    std::shuffle(blocks.begin(), blocks.end(), random);
    keys.assign(blocks.size() * static_cast<size_t>(layout.block_bytes()), 0xff);
    values = keys;
    key.resize(blocks.size() * static_cast<size_t>(layout.block_elements()));
    value = key;
    std::vector<float> k(static_cast<size_t>(layout.padded_dim)), v(k.size());
    for (int32_t p = 0; p < length; ++p)
      for (int32_t h = 0; h < c.kv_heads; ++h) {
        for (int32_t d = 0; d < layout.padded_dim; ++d) {
          k[static_cast<size_t>(d)] = d < c.dim ? normal(random) : 0;
          v[static_cast<size_t>(d)] = d < c.dim ? normal(random) : 0;
        }
        put(p, h, k, key, keys);
        put(p, h, v, value, values);
      }
    for (int32_t i = 0; i < rows * c.heads; ++i)
      for (int32_t d = 0; d < layout.padded_dim; ++d) queries.push_back(bits_of<T>(d < c.dim ? 1.5f * normal(random) : 0));
  }
  size_t at(int32_t position, int32_t head, int32_t d) const {
    const int64_t block = blocks[static_cast<size_t>(position / c.block_size)];
    return static_cast<size_t>(block * layout.block_elements() + head * layout.head_elements() +
                               static_cast<int64_t>(position % c.block_size) * layout.padded_dim + d);
  }
  // Stores a head of a token as the kernels write it.
  void put(int32_t position, int32_t head, const std::vector<float>& x, std::vector<float>& stored, std::vector<uint8_t>& bytes) const {
    uint32_t greatest = 0;
    for (const float element : x) greatest = std::max(greatest, f8_size(element));
    const float scale = f8_scale(greatest);
    const int32_t block = blocks[static_cast<size_t>(position / c.block_size)], token = position % c.block_size;
    if (c.kv == Kv::kF8) memcpy(&bytes[static_cast<size_t>(layout.f8_scale_at(block, head, token))], &scale, sizeof scale);
    for (int32_t d = 0; d < layout.padded_dim; ++d) {
      const size_t place = at(position, head, d);
      const float element = x[static_cast<size_t>(d)];
      if (c.kv == Kv::kF8) {
        const uint32_t small = f8_from_f32(element, scale);
        bytes[static_cast<size_t>(layout.f8_at(block, head, token) + d)] = static_cast<uint8_t>(small);
        stored[place] = f8_to_f32(small) * scale;
      } else {
        const uint16_t half = bits_of<T>(element);
        memcpy(&bytes[2 * place], &half, sizeof half);
        stored[place] = value_of<T>(half);
      }
    }
  }
  double scale() const { return static_cast<double>(1 / std::sqrt(static_cast<float>(c.dim))); }

  std::vector<double> reference(int32_t row, int32_t head) const {
    const int32_t kv = head / (c.heads / c.kv_heads), position = prefix + row;
    std::vector<double> weight, out(static_cast<size_t>(c.dim));
    double top = -INFINITY, sum = 0;
    const int32_t low = first_seen(position, c.window);
    for (int32_t p = low; p <= position; ++p) {
      double dot = 0;
      for (int32_t d = 0; d < c.dim; ++d)
        dot += static_cast<double>(value_of<T>(queries[static_cast<size_t>((row * c.heads + head) * layout.padded_dim + d)])) *
               static_cast<double>(key[at(p, kv, d)]);
      const double score = dot * scale(), cap = static_cast<double>(c.cap);
      weight.push_back(c.cap > 0 ? cap * std::tanh(score / cap) : score);
      top = std::max(top, weight.back());
    }
    if (c.sinks) {
      const double sink = static_cast<double>(sinks[static_cast<size_t>(head)]);
      top = std::max(top, sink);
      sum = std::exp(sink - top);
    }
    for (double& w : weight) sum += w = std::exp(w - top);
    for (int32_t p = low; p <= position; ++p)
      for (int32_t d = 0; d < c.dim; ++d)
        out[static_cast<size_t>(d)] += weight[static_cast<size_t>(p - low)] / sum * static_cast<double>(value[at(p, kv, d)]);
    return out;
  }

  template <bool f8>
  void run_block(const Params& p, const CacheMaps& maps) const {
    const int32_t width = wgmma_width(layout.padded_dim);
    if (width == 64) prefill_attention_wgmma<T, 64, f8>(p, maps);
    else if (width == 128) prefill_attention_wgmma<T, 128, f8>(p, maps);
    else prefill_attention_wgmma<T, 256, f8>(p, maps);
  }

  // Widens the blocks of the plan's spans into `scratch`, whose other bytes are NaN.
  WidePlanes widen(const AttentionArgs& a, const PrefillPlan& plan, std::vector<uint8_t>& scratch, WideCache* wide) const {
    EXPECT_FALSE(plan.spans.empty());
    wide->blocks = plan.wide_blocks + 3;
    scratch.assign(static_cast<size_t>(wide->blocks * 2 * WidePlanes::plane_bytes(layout)), 0xff);
    wide->memory = scratch.data();
    const WidePlanes planes(layout, *wide);
    const WidenParams p(
        {a.rows, layout, a.keys, a.values, plan.spans.data(), static_cast<int32_t>(plan.spans.size()), plan.wide_blocks, *wide}, planes);
    const dim3 grid(static_cast<unsigned>(plan.wide_blocks), kWidenPlanes);
    (void)emulated::run_grid(grid, dim3(kWidenThreads), [&] { widen_blocks<T>(p); });
    return planes;
  }

  // Computes rows [first, first + count) as one chunk; returns (count, heads * dim). ahead: blocks are widened before.
  std::vector<uint16_t> attend(int32_t first, int32_t count, PrefillSplit split, int32_t sm_count, bool ahead = false) const {
    const int32_t group = c.heads / c.kv_heads, tile_heads = std::min(group, 16), tiles = (group + tile_heads - 1) / tile_heads;
    std::vector<PrefillTile> cut;
    for (int32_t r = 0; r < count; r += 128 / tile_heads) cut.push_back({r, std::min(128 / tile_heads, count - r), prefix + first + r});
    const int32_t places = count * (prefill_piece_of(length - 1) + 1);
    PrefillPlan plan;
    const PrefillWide room{ahead ? 1000 : 0, c.block_size, c.kv_heads, layout.padded_dim, c.window, true};
    EXPECT_TRUE(plan_prefill(cut, {c.kv_heads * tiles, sm_count, places, split, room}, &plan));
    std::vector<int32_t> position, table(static_cast<size_t>(count), 0);
    for (int32_t r = 0; r < count; ++r) position.push_back(prefix + first + r);
    const int64_t width = c.heads * layout.padded_dim, stride = (c.heads * c.dim + 1) / 2 * 2 + 4;
    std::vector<float> sums(static_cast<size_t>(places * c.heads * wgmma_width(layout.padded_dim)), NAN);
    std::vector<float2> parts(static_cast<size_t>(places * c.heads), float2{NAN, NAN});
    std::vector<uint16_t> out(static_cast<size_t>(count * stride), 0xffff), result;
    Params p{};
    AttentionArgs& a = p.args.common;
    a.rows = Rows{nullptr, position.data(), table.data(), blocks.data()};
    a.layout = layout;
    a.heads = c.heads;
    a.q = queries.data() + first * width;
    a.q_stride = width;
    a.out = out.data();
    a.out_stride = stride;
    a.out_act = layout.act;
    a.window = c.window;
    a.sinks = c.sinks ? sinks.data() : nullptr;
    const ScoreRule rule(static_cast<float>(scale()), c.cap);
    p.scale_log2 = rule.scale_log2;
    p.cap_scale = rule.cap_scale;
    p.group = group;
    p.tile_heads = tile_heads;
    p.tiles = tiles;
    p.tile_share = (1 << 16) / tile_heads + 1;
    p.slot_dims = wgmma_width(layout.padded_dim);
    p.values = sums.data();
    p.parts = parts.data();
    a.keys = keys.data();
    a.values = values.data();
    CacheMaps maps{};
    EmulatedCache k{keys.data(), layout.padded_dim, c.block_size}, v{values.data(), layout.padded_dim, c.block_size};
    std::vector<uint8_t> scratch;
    if (ahead) {
      const WidePlanes planes = widen(a, plan, scratch, &p.args.wide);
      k.block0 = planes.keys, v.block0 = planes.values;
    }
    memcpy(&maps.keys, &k, sizeof k);
    memcpy(&maps.values, &v, sizeof v);
    p.args.items = plan.items.data();
    p.args.merges = plan.merges.data();
    for (int32_t g = 0; g < plan.group_count; ++g) {
      p.args.item_count = plan.groups[g].items;
      p.args.merge_count = plan.groups[g].merges;
      const dim3 grid(static_cast<unsigned>(std::min(p.args.item_count * p.columns(), sm_count)));
      (void)emulated::run_grid(grid, dim3(kBlockThreads), [&] {
        if (c.kv == Kv::kF8 && !ahead) run_block<true>(p, maps);
        else run_block<false>(p, maps);
      });
      for (const NamedBarrier& barrier : named_barriers) EXPECT_EQ(barrier.here, 0) << "an arrival that nobody waited for";
      const dim3 merges(static_cast<unsigned>(p.args.merge_count), static_cast<unsigned>((width / 4 + kMergeThreads - 1) / kMergeThreads));
      if (p.args.merge_count > 0)
        (void)emulated::run_grid(merges, dim3(kMergeThreads), [&] {
          merge_pieces(p);
        });
      p.args.items += p.args.item_count;
      p.args.merges += p.args.merge_count;
    }
    for (int32_t r = 0; r < count; ++r)
      result.insert(result.end(), out.begin() + r * stride, out.begin() + r * stride + c.heads * c.dim);
    return result;
  }

  void expect_near(const std::vector<uint16_t>& got) const {
    for (int32_t row = 0; row < rows; row += row + 8 < rows ? 7 : 1)
      for (int32_t head = 0; head < c.heads; ++head) {
        const std::vector<double> want = reference(row, head);
        for (int32_t d = 0; d < c.dim; ++d) {
          const double x = static_cast<double>(value_of<T>(got[static_cast<size_t>((row * c.heads + head) * c.dim + d)]));
          const double y = want[static_cast<size_t>(d)], step = std::is_same_v<T, __half> ? 0x1p-11 : 0x1p-8;
          ASSERT_LE(std::fabs(x - y), step * (2 + std::fabs(y))) << "row " << row << " head " << head << " dim " << d;
        }
      }
  }
};

template <class T>
void expect_same(const Case& c, int32_t prefix, int32_t rows) {
  SCOPED_TRACE(std::to_string(c.heads) + "/" + std::to_string(c.kv_heads) + " heads of " + std::to_string(c.dim) + ", " +
               std::to_string(rows) + " rows behind " + std::to_string(prefix));
  const Problem<T> problem(c, prefix, rows);
  products_first = false;
  const std::vector<uint16_t> whole = problem.attend(0, rows, PrefillSplit::kNever, 2);
  problem.expect_near(whole);
  products_first = true;
  EXPECT_EQ(problem.attend(0, rows, PrefillSplit::kNever, 1), whole) << "products at once, copies late";
  products_first = false;
  EXPECT_EQ(problem.attend(0, rows, PrefillSplit::kAlways, 3), whole) << "split";
  for (const PrefillSplit split : {PrefillSplit::kNever, PrefillSplit::kAlways}) {
    if (c.kv != Kv::kF8) break;
    for (const bool first : {false, true}) {
      products_first = first;
      EXPECT_EQ(problem.attend(0, rows, split, 2, true), whole) << "widened ahead";
    }
    products_first = false;
  }
  std::vector<uint16_t> pieces;
  for (int32_t first = 0; first < rows; first += 37) {
    const bool ahead = c.kv == Kv::kF8 && first % 2 == 1;
    const std::vector<uint16_t> part = problem.attend(first, std::min(37, rows - first), PrefillSplit::kByWork, 100, ahead);
    pieces.insert(pieces.end(), part.begin(), part.end());
  }
  EXPECT_EQ(pieces, whole) << "in chunks";
}

TEST(EmulatedAttention, IsFloat64sAndDoesNotSeeHowItIsDivided) {
  expect_same<__half>({1, 1, 64, 16}, 0, 1);
  expect_same<__nv_bfloat16>({4, 1, 128, 16}, 0, 127);
  expect_same<__half>({4, 1, 64, 32}, 0, 129);
  expect_same<__nv_bfloat16>({7, 1, 64, 16}, 121, 60);
  expect_same<__half>({16, 2, 128, 32}, 127, 17);
  expect_same<__nv_bfloat16>({17, 1, 63, 16}, 250, 9);
  expect_same<__half>({1, 1, 100, 16}, 256, 129);
  expect_same<__half>({4, 2, 256, 16}, 60, 40);
  expect_same<__nv_bfloat16>({3, 1, 255, 32}, 190, 7);
}

Case f8(Case c) {
  c.kv = Kv::kF8;
  return c;
}

TEST(EmulatedAttention, TakesDimsThatHeadsLackAsZeros) {
  expect_same<__half>({4, 1, 96, 16}, 0, 129);
  expect_same<__nv_bfloat16>({3, 3, 80, 32}, 121, 20);
  expect_same<__half>({5, 1, 72, 16, 0, 0, true}, 1020, 12);
  expect_same<__nv_bfloat16>({2, 1, 95, 32, 40, 30.0f}, 2040, 20);
  expect_same<__half>(f8({4, 1, 96, 16}), 0, 129);
  expect_same<__nv_bfloat16>(f8({9, 9, 80, 32}), 121, 20);
  expect_same<__half>(f8({8, 8, 96, 32}), 127, 17);
  expect_same<__half>(f8({2, 1, 65, 16, 24, 30.0f, true}), 1020, 12);
}

// After the last token lie elements that nobody wrote. Times a large scale they are infinite, and a query's zeros do not cancel that.
TEST(EmulatedAttention, ReadsNothingForDimsThatHeadsLack) {
  Problem<__half> problem(f8({1, 1, 80, 16}), 30, 9);
  const float large = 140;
  memcpy(&problem.keys[static_cast<size_t>(problem.layout.f8_scale_at(problem.blocks[38 / 16], 0, 38 % 16))], &large, sizeof large);
  const std::vector<uint16_t> got = problem.attend(0, 9, PrefillSplit::kNever, 2);
  EXPECT_EQ(got, problem.attend(0, 9, PrefillSplit::kNever, 2, true));
  for (const uint16_t bits : got) ASSERT_TRUE(std::isfinite(value_of<__half>(bits)));
}

TEST(EmulatedAttention, WidensAnF8Cache) {
  expect_same<__half>(f8({1, 1, 64, 16}), 0, 1);
  expect_same<__nv_bfloat16>(f8({4, 1, 128, 16}), 0, 127);
  expect_same<__half>(f8({7, 1, 64, 32}), 121, 60);
  expect_same<__half>(f8({16, 2, 128, 32}), 127, 17);
  expect_same<__half>(f8({2, 1, 100, 16, 24, 30.0f, true}), 256, 129);
  expect_same<__half>(f8({4, 2, 256, 16}), 60, 80);
  expect_same<__nv_bfloat16>(f8({3, 1, 255, 32}), 190, 7);
  expect_same<__half>(f8({8, 1, 128, 16}), 1020, 12);
  expect_same<__nv_bfloat16>(f8({2, 1, 256, 32, 70}), 1020, 12);
  expect_same<__half>(f8({4, 2, 128, 32, 40}), 300, 40);
}

// Every element times scales of ordinary sizes, by the bounds that prefill_widen.cuh states.
template <class T>
void expect_products() {
  std::mt19937 random(9);
  std::uniform_real_distribution<float> power(-16, 7);
  const int32_t digits = std::is_same_v<T, __half> ? 10 : 7, least = std::is_same_v<T, __half> ? -14 : -126;
  for (int32_t n = 0; n < 500; ++n) {
    const float scale = std::exp2(power(random));
    const Factor<T> factor = key_factor<T>(scale, 1.0f), of_value = value_factor<T>(scale);
    ASSERT_EQ(memcmp(&factor, &of_value, sizeof factor), 0);
    for (uint32_t element = 0; element < 256; ++element) {
      if ((element & 0x7f) == 0x7f) continue;  // NaN, which no cache has
      const uint4 eight = scaled<T>(widen_f8<T>(element * 0x01010101u, element * 0x01010101u), factor);
      ASSERT_TRUE(eight.x == eight.w && eight.x >> 16 == (eight.x & 0xffff));
      const double want = static_cast<double>(f8_to_f32(element)) * static_cast<double>(scale);
      const double step = std::ldexp(1.0, (want == 0 ? least : std::max(std::ilogb(want), least)) - digits);
      const double got = static_cast<double>(value_of<T>(static_cast<uint16_t>(eight.x)));
      ASSERT_LE(std::fabs(got - want), step * 0.5 * (1 + 0x1p-6) + (digits == 10 ? 0x1p-23 : 0)) << element << " times " << scale;
    }
  }
}

TEST(EmulatedAttention, MultipliesF8ElementsByTheirScales) {
  expect_products<__half>();
  expect_products<__nv_bfloat16>();
  const Factor<__half> most = key_factor<__half>(145.0f, 1.0f), beyond = key_factor<__half>(1e6f, 1.0f);
  EXPECT_EQ(memcmp(&most, &beyond, sizeof most), 0) << "448 times a scale is finite in f16";
  EXPECT_EQ(value_of<__half>(static_cast<uint16_t>(scaled<__half>(widen_f8<__half>(0x7e, 0), beyond).x)), 64960.0f);
}

// A token whose value, or key, has no scale: rows that see it are NaN, and others are not.
TEST(EmulatedAttention, WidensF8TokensWithoutAScaleAhead) {
  Case c{4, 1, 128, 16};
  c.kv = Kv::kF8;
  for (const bool of_value : {false, true}) {
    Problem<__half> problem(c, 30, 60);
    const float bad = NAN;
    memcpy(&(of_value ? problem.values : problem.keys)[static_cast<size_t>(problem.layout.f8_scale_at(problem.blocks[4], 0, 6))], &bad, 4);
    const std::vector<uint16_t> got = problem.attend(0, 60, PrefillSplit::kNever, 2, true);
    EXPECT_EQ(got, problem.attend(0, 60, PrefillSplit::kNever, 2));
    for (size_t i = 0; i < got.size(); ++i)  // position 70 is row 40
      ASSERT_EQ(std::isnan(value_of<__half>(got[i])), i / 512 >= 40) << "row " << i / 512 << (of_value ? ", a value" : ", a key");
  }
}

TEST(EmulatedAttention, AddsSinksAfterAllKeys) {
  expect_same<__half>({4, 1, 64, 16, 0, 0, true}, 0, 45);
  expect_same<__nv_bfloat16>({8, 2, 128, 32, 20, 0, true}, 1010, 30);
}

TEST(EmulatedAttention, IsTheSameAcrossCutsOfKeys) {
  expect_same<__nv_bfloat16>({4, 1, 64, 16}, 1010, 30);
  expect_same<__half>({4, 1, 64, 32}, 2040, 20);
  expect_same<__nv_bfloat16>({8, 1, 128, 16}, 1023, 2);
  expect_same<__half>({2, 1, 256, 16}, 1020, 12);
  expect_same<__nv_bfloat16>({3, 1, 256, 32}, 2046, 4);
}

TEST(EmulatedAttention, SeesWhatAWindowAndACapLeave) {
  expect_same<__half>({4, 1, 64, 16, 1}, 0, 40);
  expect_same<__nv_bfloat16>({4, 1, 64, 16, 100}, 90, 140);
  expect_same<__half>({2, 1, 128, 32, 24, 30.0f}, 1000, 60);
  expect_same<__nv_bfloat16>({16, 2, 64, 16, 300, 5.0f}, 1200, 30);
  expect_same<__half>({1, 1, 64, 16, 0, 2.0f}, 5, 150);
  expect_same<__nv_bfloat16>({4, 1, 64, 16, 20}, 2030, 50);
  expect_same<__half>({2, 1, 256, 16, 70}, 100, 60);
  expect_same<__nv_bfloat16>({2, 1, 256, 16, 1030}, 1040, 20);
}

}  // namespace
}  // namespace mr::cuda
