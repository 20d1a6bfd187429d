// attention_fixture: runs rows of queries over a cache through decode or prefill attention, and computes a float64
// reference.
#pragma once

#include <optional>

#include "attention_cache.h"
#include "kernels/launch.h"
#include "kernels/rows.h"
#include "millrace/engine.h"

namespace mr::cuda::testing {

struct Row {
  int32_t sequence, position;  // sequence -1: padding
};

inline std::vector<Row> rows_at(int32_t sequence, int32_t position, int32_t count) {
  std::vector<Row> rows;
  for (int32_t i = 0; i < count; ++i) rows.push_back({sequence, position + i});
  return rows;
}

// Tiles of `count` rows that begin at `row`.
inline void cut(const Shape& s, int32_t row, int32_t count, std::vector<PrefillTile>* tiles) {
  const int32_t most = prefill_tile_rows(s.dim, s.heads, s.kv_heads);
  for (int32_t at = 0; at < count; at += most) tiles->push_back({row + at, std::min(most, count - at), 0});
}

// Queries of rows: random, but equal for equal sequence and position; or all of them cache.query.
inline std::vector<uint16_t> queries_of(const Cache& cache, const std::vector<Row>& rows, int64_t stride) {
  std::vector<uint16_t> q(rows.size() * static_cast<size_t>(stride), 0);
  const int32_t padded = cache.layout.padded_dim;
  for (size_t r = 0; r < rows.size(); ++r) {
    Numbers numbers(static_cast<uint64_t>(rows[r].sequence * 1000003 + rows[r].position));
    for (int32_t h = 0; h < cache.shape.heads; ++h)
      for (int32_t d = 0; d < cache.shape.dim; ++d)
        q[r * static_cast<size_t>(stride) + static_cast<size_t>(h * padded + d)] =
            to_act(cache.act, cache.query != 0 ? cache.query : 1.5f * numbers.normal());
  }
  return q;
}

// Counts elements of two arrays whose bits differ.
static __global__ void count_others(const uint16_t* got, const uint16_t* want, int64_t count, unsigned* others) {
  unsigned own = 0;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += step) own += got[i] != want[i] ? 1u : 0u;
  if (own != 0) atomicAdd(others, own);
}

// Division is how the work is divided. No member may change bits.
struct Division {
  int32_t capacity = 0;  // of decode's workspace; 0: the size that a runner uses
  int runs = 1;  // one after another; later ones of prefill attention must have the first one's bits
  PrefillSplit split = PrefillSplit::kByWork;
  int32_t sm_count = 7;
  int32_t places = 0;  // slots of prefill's workspace; 0: room for every piece of every row if tiles must be split
  int32_t wide = 0;    // KV blocks of the scratch for widened blocks, enough for all that the rows see; 0: none
};

// Runs decode (tiles empty) or prefill attention over the rows. Returns (rows, heads * dim), of the cache's type unless
// `out_act` is another. Positions of tiles are those of their first rows.
inline std::vector<uint16_t> attend(const Cache& cache, const std::vector<Row>& rows, std::vector<PrefillTile> tiles,
                             const Division& division = {}, std::optional<Act> out_act = {}) {
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
  Guarded<int32_t> dslot(slot), dposition(position), dtable(table), dblocks(cache.blocks), dtoken(zero), dout(zero), dnan_flags(zero);
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
  common.out_act = out_act.value_or(cache.layout.act);
  common.keys = cache.keys.data();
  common.values = cache.values.data();
  common.cap = cache.cap;
  common.window = cache.window;
  const Guarded<float> sinks(cache.sinks);
  if (!cache.sinks.empty()) common.sinks = sinks;
  if (tiles.empty()) {
    const int32_t capacity = division.capacity != 0 ? division.capacity : decode_attention_capacity(count, longest);
    const int64_t bytes = decode_attention_bytes(count, capacity, cache.shape.heads, cache.shape.dim);
    Guarded<uint8_t> workspace(static_cast<size_t>(bytes));
    workspace.zero();
    Guarded<int32_t> first(static_cast<size_t>(count) + 1), span(1);
    Guarded<int32_t> history(static_cast<size_t>(longest) * (cache.lengths.size() + 1));
    Guarded<SlotFeed> feeds(cache.lengths.size() + 1);
    BeginArgs begin{};
    begin.rows = common.rows;
    begin.count = begin.decode_rows = count;
    begin.token_in = dtoken;
    begin.token = dout;
    begin.nan_flags = dnan_flags;
    begin.feeds = feeds;
    begin.history = history;
    begin.history_stride = longest;
    begin.plans[0] = DecodePlan{first, span, capacity};
    begin.windows[0] = common.window;
    begin.plan_count = 1;
    MUST(launch_begin(begin, Stream{}));
    for (int i = 0; i < division.runs; ++i)
      MUST(launch_decode_attention({common, count, begin.plans[0], workspace.data(), division.sm_count}, Stream{}));
    synchronize();
  } else {
    for (PrefillTile& t : tiles) {
      t.position = rows[static_cast<size_t>(t.row)].position;
      t.segment = rows[static_cast<size_t>(t.row)].sequence;
    }
    const int32_t room = division.split == PrefillSplit::kAlways ? count * (prefill_piece_of(longest - 1) + 1)
                                                                 : prefill_attention_capacity(count, longest);
    const int32_t places = division.places != 0 ? division.places : room;
    PrefillPlan plan;
    const PrefillWide scratch{division.wide, cache.layout.block_size, cache.layout.kv_heads, padded, cache.window, true};
    EXPECT_TRUE(plan_prefill(tiles, {prefill_columns(cache.shape.heads, cache.shape.kv_heads), division.sm_count, places,
                                     division.split, scratch}, &plan));
    EXPECT_EQ(plan.spans.empty(), division.wide == 0);
    Guarded<PrefillItem> items(plan.items);
    Guarded<PrefillMerge> merges(plan.merges);
    Guarded<uint8_t> workspace(static_cast<size_t>(prefill_attention_bytes(places, cache.shape.heads, cache.shape.dim)));
    Guarded<PrefillSpan> spans(plan.spans);
    Guarded<uint8_t> wide(static_cast<size_t>(prefill_wide_bytes(cache.layout, plan.spans.empty() ? 0 : division.wide)));
    Guarded<uint16_t> again(out.read());
    Guarded<unsigned> others(std::vector<unsigned>{0});
    for (int run = 0; run < division.runs; ++run) {
      PrefillAttentionArgs args{common, items, 0, merges, 0, workspace.data(), places, division.sm_count};
      if (run > 0) args.common.out = again.data();
      if (!plan.spans.empty()) {
        args.wide = {wide.data(), division.wide};
        MUST(launch_prefill_widen({common.rows, cache.layout, common.keys, common.values, spans, static_cast<int32_t>(plan.spans.size()),
                                   plan.wide_blocks, args.wide}, Stream{}));
      }
      for (int32_t i = 0; i < plan.group_count; ++i) {
        args.item_count = plan.groups[i].items;
        args.merge_count = plan.groups[i].merges;
        MUST(launch_prefill_attention(args, Stream{}));
        args.items += args.item_count;
        args.merges += args.merge_count;
      }
      if (run > 0) MUST(launch(Stream{}, dim3(64), dim3(256), 0, count_others, again.data(), out.data(), count * out_stride, others.data()));
    }
    synchronize();
    EXPECT_EQ(others.read()[0], 0u) << "elements that differ from the first of " << division.runs << " runs";
  }
  const std::vector<uint16_t> all = out.read();
  std::vector<uint16_t> result;
  for (int32_t r = 0; r < count; ++r)
    result.insert(result.end(), all.begin() + r * out_stride, all.begin() + r * out_stride + cache.shape.heads * cache.shape.dim);
  return result;
}

// Attention of one row in float64; prompt: its keys and values are those that a prompt reads.
inline std::vector<double> reference(const Cache& cache, const Row& row, const std::vector<uint16_t>& q_bits, size_t q_at,
                                     bool prompt = false) {
  const Shape& s = cache.shape;
  std::vector<double> out(static_cast<size_t>(s.heads * s.dim), 0.0);
  if (row.sequence < 0) return out;
  const double scale = static_cast<double>(1.0f / std::sqrt(static_cast<float>(s.dim)));
  const bool rounds = prompt && cache.prompts_round();
  const auto read = [&](float element) { return rounds ? from_act(cache.act, to_act(cache.act, element)) : element; };
  for (int32_t h = 0; h < s.heads; ++h) {
    const int32_t kv = h / (s.heads / s.kv_heads);
    std::vector<double> score(static_cast<size_t>(row.position) + 1);
    double top = -INFINITY, sum = 0;
    const int32_t low = first_seen(row.position, cache.window);
    const double cap = static_cast<double>(cache.cap);
    for (int32_t p = low; p <= row.position; ++p) {
      const size_t at = cache.place(static_cast<size_t>(row.sequence), p, kv);
      double dot = 0;
      for (int32_t d = 0; d < s.dim; ++d)
        dot += static_cast<double>(from_act(cache.act, q_bits[q_at + static_cast<size_t>(h * cache.layout.padded_dim + d)])) *
               read(cache.key[at + static_cast<size_t>(d)]);
      score[static_cast<size_t>(p)] = cap > 0 ? cap * std::tanh(dot * scale / cap) : dot * scale;
      top = std::max(top, score[static_cast<size_t>(p)]);
    }
    if (!cache.sinks.empty()) {
      const double sink = static_cast<double>(cache.sinks[static_cast<size_t>(h)]);
      top = std::max(top, sink);
      sum = std::exp(sink - top);
    }
    for (int32_t p = low; p <= row.position; ++p) sum += score[static_cast<size_t>(p)] = std::exp(score[static_cast<size_t>(p)] - top);
    for (int32_t p = low; p <= row.position; ++p) {
      const size_t at = cache.place(static_cast<size_t>(row.sequence), p, kv);
      for (int32_t d = 0; d < s.dim; ++d)
        out[static_cast<size_t>(h * s.dim + d)] += score[static_cast<size_t>(p)] / sum * read(cache.value[at + static_cast<size_t>(d)]);
    }
  }
  return out;
}

// Values are of size 1, weights and results are rounded to the activation type, and the errors of weights average out.
inline Bound bound_of(Act act) { return {act == Act::kF16 ? 0x1p-10 : 0x1p-7, half_step(act)}; }

inline const Shape kShapes[] = {{4, 2, 64, 16},  {8, 8, 64, 32}, {32, 8, 128, 16}, {7, 1, 80, 16},  {6, 2, 96, 32},
                         {20, 1, 32, 16}, {6, 2, 34, 16}, {6, 3, 20, 32},   {4, 2, 256, 16}, {3, 3, 33, 16},
                         {1, 1, 512, 16}, {16, 2, 512, 32}, {16, 1, 320, 16}, {2, 1, 511, 16}, {3, 3, 257, 32}};

// A test of one act and one shape has a name such as f16_dim128_heads32x8, so that a filter can choose some.
using ActAndShape = std::tuple<Act, Shape>;
inline std::string act_and_shape(const ::testing::TestParamInfo<ActAndShape>& info) {
  const auto& [act, shape] = info.param;
  return name(act) + std::string("_dim") + std::to_string(shape.dim) + "_heads" + std::to_string(shape.heads) + "x" + std::to_string(shape.kv_heads);
}

// Compares the rows of results named by `rows` with float64. With more keys the errors of weights average out, so the
// bound is `parts` times narrower.
inline void expect_near(const Cache& cache, const std::vector<Row>& rows, const std::vector<uint16_t>& got,
                 const std::vector<size_t>& which, double parts, const char* what, bool prompt = false) {
  const int64_t q_stride = cache.shape.heads * cache.layout.padded_dim + 8;
  const std::vector<uint16_t> q = queries_of(cache, rows, q_stride);
  const int64_t width = cache.shape.heads * cache.shape.dim;
  Bound bound = bound_of(cache.act);
  bound.abs /= parts;
  for (const size_t r : which) {
    const auto begin = got.begin() + static_cast<int64_t>(r) * width;
    EXPECT_TRUE(near(from_acts(cache.act, std::vector<uint16_t>(begin, begin + width)),
                     reference(cache, rows[r], q, r * static_cast<size_t>(q_stride), prompt), bound))
        << what << ": " << name(cache.act) << " dim " << cache.shape.dim << " heads " << cache.shape.heads << "/"
        << cache.shape.kv_heads << " position " << rows[r].position;
  }
}

}  // namespace mr::cuda::testing
