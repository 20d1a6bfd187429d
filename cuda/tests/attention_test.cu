// Decode and prefill attention over a paged cache: against float64, and bit for bit alone, among others and in chunks.
#include "kernels/attention.h"
#include "kernels/f8.cuh"
#include "kernels/rows.h"
#include "kernel_fixture.h"
#include "millrace/engine.h"

namespace mr::cuda::testing {
namespace {

struct Shape {
  int32_t heads, kv_heads, dim, block_size;
};

// Sequences with random keys and values, each in blocks of its own in shuffled order; what is not of a sequence is NaN.
struct Cache {
  Act act;
  Shape shape;
  KvLayout layout;
  std::vector<int32_t> lengths, table, blocks;
  std::vector<float> key, value;  // as stored, by pool element
  std::vector<uint8_t> key_bytes, value_bytes;
  Guarded<uint8_t> keys, values;

  static size_t pool(const std::vector<int32_t>& lengths, const KvLayout& l) {
    int64_t count = 0;
    for (const int32_t n : lengths) count += (n + l.block_size - 1) / l.block_size;
    return static_cast<size_t>(count);
  }
  Cache(Act a, const Shape& s, const std::vector<int32_t>& n, uint64_t seed, Kv kv = Kv::kAct)
      : act(a), shape(s), layout{a, s.block_size, s.kv_heads, s.dim, pad_head_dim(s.dim), kv}, lengths(n),
        key(pool(n, layout) * static_cast<size_t>(layout.block_elements())), value(key.size()),
        key_bytes(pool(n, layout) * static_cast<size_t>(layout.block_bytes()), 0xff), value_bytes(key_bytes),
        keys(key_bytes.size()), values(key_bytes.size()) {
    Numbers numbers(seed);
    for (const int32_t length : n) {
      table.push_back(static_cast<int32_t>(blocks.size()));
      for (int32_t b = 0; b < length; b += s.block_size) blocks.push_back(static_cast<int32_t>(blocks.size()));
    }
    for (size_t i = blocks.size(); i > 1; --i) std::swap(blocks[i - 1], blocks[static_cast<size_t>(numbers.below(static_cast<int64_t>(i)))]);
    std::vector<float> k(static_cast<size_t>(s.dim)), v(k.size());
    for (size_t i = 0; i < n.size(); ++i)
      for (int32_t p = 0; p < n[i]; ++p)
        for (int32_t h = 0; h < s.kv_heads; ++h) {
          // Scales of 8-bit tokens differ.
          const float size = kv == Kv::kF8 ? 1.0f / static_cast<float>(1 + numbers.below(8)) : 1.0f;
          for (int32_t d = 0; d < s.dim; ++d) {
            k[static_cast<size_t>(d)] = size * numbers.normal();
            v[static_cast<size_t>(d)] = size * numbers.normal();
          }
          put(i, p, h, k, key, key_bytes);
          put(i, p, h, v, value, value_bytes);
        }
    upload();
  }
  void upload() {
    keys.write(key_bytes);
    values.write(value_bytes);
  }
  // One head of one token, as kernels write it.
  void put(size_t sequence, int32_t position, int32_t head, const std::vector<float>& x, std::vector<float>& stored,
           std::vector<uint8_t>& bytes) const {
    const int64_t block = blocks[static_cast<size_t>(table[sequence] + position / layout.block_size)];
    const int32_t token = position % layout.block_size;
    uint32_t greatest = 0;
    for (const float element : x) greatest = std::max(greatest, f8_size(element));
    const float scale = f8_scale(greatest);
    if (layout.kv == Kv::kF8) std::memcpy(bytes.data() + layout.f8_scale_at(block, head, token), &scale, sizeof scale);
    for (int32_t d = 0; d < layout.padded_dim; ++d) {
      const float element = d < shape.dim ? x[static_cast<size_t>(d)] : 0.0f;
      const size_t at = place(sequence, position, head) + static_cast<size_t>(d);
      if (layout.kv == Kv::kF8) {
        const uint32_t small = f8_from_f32(element, scale);
        bytes[static_cast<size_t>(layout.f8_at(block, head, token) + d)] = static_cast<uint8_t>(small);
        stored[at] = f8_to_f32(small) * scale;
      } else {
        const uint16_t half = to_act(act, element);
        std::memcpy(bytes.data() + 2 * at, &half, sizeof half);
        stored[at] = from_act(act, half);
      }
    }
  }
  size_t place(size_t sequence, int32_t position, int32_t head) const {
    const int64_t block = blocks[static_cast<size_t>(table[sequence] + position / layout.block_size)];
    return static_cast<size_t>(block * layout.block_elements() + head * layout.head_elements() +
                               static_cast<int64_t>(position % layout.block_size) * layout.padded_dim);
  }
};

struct Row {
  int32_t sequence, position;  // sequence -1: padding
};

// Queries of rows, random but the same for the same sequence and position.
std::vector<uint16_t> queries_of(const Cache& cache, const std::vector<Row>& rows, int64_t stride) {
  std::vector<uint16_t> q(rows.size() * static_cast<size_t>(stride), 0);
  const int32_t padded = cache.layout.padded_dim;
  for (size_t r = 0; r < rows.size(); ++r) {
    Numbers numbers(static_cast<uint64_t>(rows[r].sequence * 1000003 + rows[r].position));
    for (int32_t h = 0; h < cache.shape.heads; ++h)
      for (int32_t d = 0; d < cache.shape.dim; ++d)
        q[r * static_cast<size_t>(stride) + static_cast<size_t>(h * padded + d)] = to_act(cache.act, 1.5f * numbers.normal());
  }
  return q;
}

// How the work is divided; none of it may change bits.
struct Division {
  int32_t capacity = 0;  // of decode's workspace; 0: what a runner has
  int runs = 1;
  PrefillSplit split = PrefillSplit::kByWork;
  int32_t sm_count = 7;
  int32_t places = 0;  // of prefill's workspace; 0: room for every piece of every row where tiles must be split
};

// Runs decode (tiles empty) or prefill attention over the rows; gives (rows, heads * dim). Positions of tiles are those of
// their first rows.
std::vector<uint16_t> attend(const Cache& cache, const std::vector<Row>& rows, std::vector<PrefillTile> tiles,
                             const Division& division = {}) {
  const int32_t count = static_cast<int32_t>(rows.size()), padded = cache.layout.padded_dim;
  const int64_t q_stride = cache.shape.heads * padded + 8, out_stride = (cache.shape.heads * cache.shape.dim + 7) / 8 * 8;
  std::vector<int32_t> slot, position, table, zero(rows.size(), 0);
  int32_t longest = 1;
  for (const Row& r : rows) {
    slot.push_back(r.sequence);
    position.push_back(r.position);
    table.push_back(r.sequence < 0 ? 0 : cache.table[static_cast<size_t>(r.sequence)]);
    longest = std::max(longest, r.position + 1);
  }
  Guarded<int32_t> dslot(slot), dposition(position), dtable(table), dblocks(cache.blocks), dtoken(zero), dout(zero), dpoison(zero);
  Guarded<uint16_t> q(queries_of(cache, rows, q_stride)), out(static_cast<size_t>(count * out_stride));
  AttentionArgs common{};
  common.rows = Rows{dslot, dposition, dtable, dblocks};
  common.layout = cache.layout;
  common.heads = cache.shape.heads;
  common.scale = 1.0f / std::sqrt(static_cast<float>(cache.shape.dim));
  common.q = q.data();
  common.q_stride = q_stride;
  common.out = out.data();
  common.out_stride = out_stride;
  common.keys = cache.keys.data();
  common.values = cache.values.data();
  if (tiles.empty()) {
    const int32_t capacity = division.capacity != 0 ? division.capacity : decode_attention_capacity(count, longest);
    const int64_t bytes = decode_attention_bytes(count, capacity, cache.shape.heads, cache.shape.dim);
    Guarded<uint8_t> workspace(static_cast<size_t>(bytes));
    workspace.zero();
    Guarded<int32_t> first(static_cast<size_t>(count) + 1), span(1), history(static_cast<size_t>(longest) * (cache.lengths.size() + 1));
    Guarded<SlotFeed> feeds(cache.lengths.size() + 1);
    BeginArgs begin{};
    begin.rows = common.rows;
    begin.count = begin.decode_rows = count;
    begin.token_in = dtoken;
    begin.token = dout;
    begin.poison = dpoison;
    begin.feeds = feeds;
    begin.history = history;
    begin.history_stride = longest;
    begin.plan = DecodePlan{first, span, capacity};
    MUST(launch_begin(begin, Stream{}));
    for (int i = 0; i < division.runs; ++i)
      MUST(launch_decode_attention({common, count, begin.plan, workspace.data(), division.sm_count}, Stream{}));
    synchronize();
  } else {
    for (PrefillTile& t : tiles) t.position = rows[static_cast<size_t>(t.row)].position;
    const int32_t places = division.places != 0 ? division.places : division.split == PrefillSplit::kAlways ? count * (prefill_piece_of(longest - 1) + 1)
                                                                   : prefill_attention_capacity(count, longest);
    PrefillPlan plan;
    EXPECT_TRUE(plan_prefill(tiles, {prefill_columns(cache.shape.heads, cache.shape.kv_heads), division.sm_count, places,
                                     division.split}, &plan));
    Guarded<PrefillItem> items(plan.items);
    Guarded<PrefillMerge> merges(plan.merges);
    Guarded<uint8_t> workspace(static_cast<size_t>(prefill_attention_bytes(places, cache.shape.heads, cache.shape.dim)));
    PrefillAttentionArgs args{common, items, 0, merges, 0, workspace.data(), places, division.sm_count};
    for (int32_t i = 0; i < plan.group_count; ++i) {
      args.item_count = plan.groups[i].items;
      args.merge_count = plan.groups[i].merges;
      MUST(launch_prefill_attention(args, Stream{}));
      args.items += args.item_count;
      args.merges += args.merge_count;
    }
    synchronize();
  }
  const std::vector<uint16_t> all = out.read();
  std::vector<uint16_t> result;
  for (int32_t r = 0; r < count; ++r)
    result.insert(result.end(), all.begin() + r * out_stride, all.begin() + r * out_stride + cache.shape.heads * cache.shape.dim);
  return result;
}

std::vector<double> reference(const Cache& cache, const Row& row, const std::vector<uint16_t>& q_bits, size_t q_at) {
  const Shape& s = cache.shape;
  std::vector<double> out(static_cast<size_t>(s.heads * s.dim), 0.0);
  if (row.sequence < 0) return out;
  const double scale = static_cast<double>(1.0f / std::sqrt(static_cast<float>(s.dim)));
  for (int32_t h = 0; h < s.heads; ++h) {
    const int32_t kv = h / (s.heads / s.kv_heads);
    std::vector<double> score(static_cast<size_t>(row.position) + 1);
    double top = -INFINITY, sum = 0;
    for (int32_t p = 0; p <= row.position; ++p) {
      const size_t at = cache.place(static_cast<size_t>(row.sequence), p, kv);
      double dot = 0;
      for (int32_t d = 0; d < s.dim; ++d)
        dot += static_cast<double>(from_act(cache.act, q_bits[q_at + static_cast<size_t>(h * cache.layout.padded_dim + d)])) *
               cache.key[at + static_cast<size_t>(d)];
      score[static_cast<size_t>(p)] = dot * scale;
      top = std::max(top, dot * scale);
    }
    for (double& x : score) sum += x = std::exp(x - top);
    for (int32_t p = 0; p <= row.position; ++p) {
      const size_t at = cache.place(static_cast<size_t>(row.sequence), p, kv);
      for (int32_t d = 0; d < s.dim; ++d)
        out[static_cast<size_t>(h * s.dim + d)] += score[static_cast<size_t>(p)] / sum * cache.value[at + static_cast<size_t>(d)];
    }
  }
  return out;
}

// Values are of size 1, weights and results are rounded to the activation type, and the errors of weights average out.
Bound bound_of(Act act) { return {act == Act::kF16 ? 0x1p-10 : 0x1p-7, half_step(act)}; }

const Shape kShapes[] = {{4, 2, 64, 16},  {8, 8, 64, 32}, {32, 8, 128, 16}, {7, 1, 80, 16},  {6, 2, 96, 32},
                         {20, 1, 32, 16}, {6, 2, 34, 16}, {6, 3, 20, 32},   {4, 2, 256, 16}, {3, 3, 33, 16}};

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
  for (const Shape& shape : {Shape{8, 2, 128, 16}, Shape{4, 2, 256, 32}, Shape{20, 1, 64, 16}, Shape{7, 1, 80, 32}}) {
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

// Tiles of `count` rows that begin at `row`.
void cut(const Shape& s, int32_t row, int32_t count, std::vector<PrefillTile>* tiles) {
  const int32_t most = prefill_tile_rows(s.dim, s.heads, s.kv_heads);
  for (int32_t at = 0; at < count; at += most) tiles->push_back({row + at, std::min(most, count - at), 0});
}

TEST(PrefillAttention, AgreesWithFloat64AndDoesNotSeeChunks) {
  for (const Act act : {Act::kF16, Act::kBF16})
    for (const Shape& shape : kShapes) {
      const int32_t length = 203;
      const Cache cache(act, shape, {length, 70}, 13);
      std::vector<Row> rows;
      for (int32_t p = 0; p < length; ++p) rows.push_back({0, p});
      for (int32_t p = 33; p < 70; ++p) rows.push_back({1, p});
      std::vector<PrefillTile> tiles;
      cut(shape, 0, length, &tiles);
      cut(shape, length, 37, &tiles);
      const std::vector<uint16_t> whole = attend(cache, rows, tiles);
      const std::vector<float> got = from_acts(act, whole);
      const int64_t q_stride = shape.heads * cache.layout.padded_dim + 8;
      const std::vector<uint16_t> q = queries_of(cache, rows, q_stride);
      const size_t width = static_cast<size_t>(shape.heads * shape.dim);
      for (size_t r = 0; r < rows.size(); r += r < 4 ? 1 : 17)
        EXPECT_TRUE(near(std::vector<float>(got.begin() + static_cast<int64_t>(r * width), got.begin() + static_cast<int64_t>((r + 1) * width)),
                         reference(cache, rows[r], q, r * static_cast<size_t>(q_stride)), bound_of(act)))
            << name(act) << " dim " << shape.dim << " heads " << shape.heads << "/" << shape.kv_heads << " row " << r;
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
        EXPECT_TRUE(same_bits(pieces.data(), whole.data(), pieces.size())) << name(act) << " dim " << shape.dim << " chunks of " << chunk;
      }
    }
}

std::vector<Row> rows_at(int32_t sequence, int32_t position, int32_t count) {
  std::vector<Row> rows;
  for (int32_t i = 0; i < count; ++i) rows.push_back({sequence, position + i});
  return rows;
}

// Rows of results, as many as `rows` names, against float64. The more keys, the more the errors of weights average out: the
// bound is `parts` times narrower.
void expect_near(const Cache& cache, const std::vector<Row>& rows, const std::vector<uint16_t>& got,
                 const std::vector<size_t>& which, double parts, const char* what) {
  const int64_t q_stride = cache.shape.heads * cache.layout.padded_dim + 8;
  const std::vector<uint16_t> q = queries_of(cache, rows, q_stride);
  const int64_t width = cache.shape.heads * cache.shape.dim;
  Bound bound = bound_of(cache.act);
  bound.abs /= parts;
  for (const size_t r : which) {
    const auto begin = got.begin() + static_cast<int64_t>(r) * width;
    EXPECT_TRUE(near(from_acts(cache.act, std::vector<uint16_t>(begin, begin + width)),
                     reference(cache, rows[r], q, r * static_cast<size_t>(q_stride)), bound))
        << what << ": " << name(cache.act) << " dim " << cache.shape.dim << " heads " << cache.shape.heads << "/"
        << cache.shape.kv_heads << " position " << rows[r].position;
  }
}

TEST(PrefillAttention, AgreesWithFloat64AroundCutsHoweverItsWorkIsDivided) {
  const Shape shapes[] = {{2, 2, 32, 16}, {4, 1, 128, 16}, {7, 1, 64, 32}, {16, 1, 80, 16}, {4, 1, 96, 32}, {1, 1, 256, 16},
                          {8, 2, 128, 32}, {17, 1, 33, 16}};
  int turn = 0;
  for (const Shape& shape : shapes) {
    const Act act = turn % 2 == 0 ? Act::kBF16 : Act::kF16;
    const Kv kv = turn++ % 3 == 1 ? Kv::kF8 : Kv::kAct;
    const Cache cache(act, shape, {4097 + 300, 2600}, static_cast<uint64_t>(20 + turn), kv);
    for (const int32_t cut_at : {2048, 4096})
      for (const int32_t prefix : {cut_at - 150, cut_at - 1, cut_at, cut_at + 1})
        for (const int32_t count : {1, 300}) {
          // Strangers are in the step: a prompt of its own, and rows behind another prefix.
          std::vector<Row> rows = rows_at(0, prefix, count);
          std::vector<PrefillTile> tiles;
          cut(shape, 0, count, &tiles);
          const std::vector<uint16_t> folded = attend(cache, rows, tiles, {0, 1, PrefillSplit::kNever, 1});
          std::vector<size_t> which = {0};
          if (count > 1) which.insert(which.end(), {149, 150, 299});
          expect_near(cache, rows, folded, which, 8, "folded");
          const std::vector<uint16_t> split = attend(cache, rows, tiles, {0, 1, PrefillSplit::kAlways, 1});
          EXPECT_TRUE(same_bits(split.data(), folded.data(), folded.size())) << "split, dim " << shape.dim << " behind " << prefix;
          // Room for one tile of up to three pieces beside what all rows need where they are not split: groups follow.
          const int32_t room = count + 3 * prefill_tile_rows(shape.dim, shape.heads, shape.kv_heads);
          const std::vector<uint16_t> groups = attend(cache, rows, tiles, {0, 1, PrefillSplit::kAlways, 1, room});
          EXPECT_TRUE(same_bits(groups.data(), folded.data(), folded.size())) << "groups, dim " << shape.dim << " behind " << prefix;
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
  for (const Shape& shape : {Shape{4, 1, 128, 16}, Shape{7, 1, 64, 32}, Shape{2, 1, 256, 16}, Shape{3, 1, 128, 32}}) {
    const int32_t length = 4200;
    const Cache cache(Act::kBF16, shape, {length}, 31, shape.heads == 3 ? Kv::kF8 : Kv::kAct);
    const std::vector<Row> rows = rows_at(0, 0, length);
    std::vector<PrefillTile> tiles;
    cut(shape, 0, length, &tiles);
    const std::vector<uint16_t> whole = attend(cache, rows, tiles, {0, 1, PrefillSplit::kNever, 1});
    expect_near(cache, rows, whole, {0, 1023, 2047, 2048, 4095, 4096, 4199}, 4, "whole");
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

TEST(Attention, SeesKeysBeyond65536) {
  for (const Act act : {Act::kF16, Act::kBF16}) {
    const Shape shape{4, 1, 64, 16};
    const Cache cache(act, shape, {70001}, 41, act == Act::kF16 ? Kv::kAct : Kv::kF8);
    const std::vector<Row> rows = rows_at(0, 69960, 41);
    std::vector<PrefillTile> tiles;
    cut(shape, 0, 41, &tiles);
    const std::vector<uint16_t> folded = attend(cache, rows, tiles, {0, 1, PrefillSplit::kNever, 132});
    expect_near(cache, rows, folded, {0, 40}, 32, "prefill");
    const std::vector<uint16_t> split = attend(cache, rows, tiles, {0, 1, PrefillSplit::kAlways, 132});
    EXPECT_TRUE(same_bits(split.data(), folded.data(), folded.size())) << "split";
    const std::vector<uint16_t> decoded = attend(cache, rows, {}, {0, 1, PrefillSplit::kByWork, 132});
    expect_near(cache, rows, decoded, {0, 40}, 32, "decode");
    const std::vector<uint16_t> alone = attend(cache, {rows[40]}, {}, {0, 1, PrefillSplit::kByWork, 132});
    EXPECT_TRUE(same_bits(alone.data(), decoded.data() + decoded.size() - alone.size(), alone.size())) << "decode alone";
  }
}

// Decode and prefill of one shape over few keys: rows against float64, and a prompt in chunks bit for bit.
void check_width(Act act, const Shape& shape, Kv kv) {
  const int32_t length = 45;
  const Cache cache(act, shape, {length, 18}, static_cast<uint64_t>(shape.dim), kv);
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
    const std::vector<double> want = reference(cache, rows[r], q, r * static_cast<size_t>(q_stride));
    for (const auto* got : {&decoded, &whole}) {
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

// A token of an 8-bit cache whose key, or value, was NaN or infinite: every row that sees it fails as NaN in the heads that
// read it, and no bit of any other changes.
TEST(Attention, FailsRowsThatSeeAnF8TokenWithoutAScale) {
  for (const Act act : {Act::kF16, Act::kBF16})
    for (const float bad : {NAN, INFINITY, -INFINITY})
      for (const bool in_key : {true, false}) {
        const Shape shape{4, 2, 64, 16};
        Cache cache(act, shape, {100}, 51, Kv::kF8);
        const std::vector<Row> rows = rows_at(0, 0, 100);
        std::vector<PrefillTile> tiles;
        cut(shape, 0, 100, &tiles);
        const std::vector<uint16_t> sound[2] = {attend(cache, rows, {}), attend(cache, rows, tiles)};
        std::vector<float> x(64, 0.5f);
        x[7] = bad;
        cache.put(0, 40, 1, x, in_key ? cache.key : cache.value, in_key ? cache.key_bytes : cache.value_bytes);
        cache.upload();
        const std::vector<uint16_t> got[2] = {attend(cache, rows, {}), attend(cache, rows, tiles)};
        for (int kernel = 0; kernel < 2; ++kernel)
          for (size_t i = 0; i < got[kernel].size(); ++i) {
            const size_t row = i / 256, head = i % 256 / 64;
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

TEST(Attention, RefusesShapesItDoesNotRun) {
  for (int32_t dim = 1; dim <= 256; ++dim) EXPECT_TRUE(attention_supports(dim, 4, 2)) << dim;
  EXPECT_FALSE(attention_supports(-2, 1, 1));
  EXPECT_FALSE(attention_supports(64, 2, 0));
  EXPECT_TRUE(attention_supports(128, 32, 8));
  EXPECT_FALSE(attention_supports(257, 32, 8));
  EXPECT_FALSE(attention_supports(64, 7, 2));
  EXPECT_FALSE(attention_supports(0, 1, 1));
}

}  // namespace
}  // namespace mr::cuda::testing
