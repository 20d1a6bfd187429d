// latent_fixture: a paged cache of latents, rows of queries over it through decode or prefill attention, and float64.
#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "kernel_fixture.h"
#include "kernels/attention/latent.h"
#include "kernels/launch.h"
#include "kernels/rows.h"
#include "millrace/engine.h"

namespace mr::cuda::testing {

struct LatentShape {
  int32_t heads, latent, rotated, block_size;
  Act act;
  std::string name() const {
    return std::to_string(heads) + " heads, latent " + std::to_string(latent) + " + " + std::to_string(rotated) + ", blocks of " +
           std::to_string(block_size) + ", " + mr::cuda::testing::name(act);
  }
};

struct LatentQuery {
  int32_t sequence, position;  // sequence -1: padding
};

inline std::vector<LatentQuery> queries_at(int32_t sequence, int32_t position, int32_t count) {
  std::vector<LatentQuery> rows;
  for (int32_t i = 0; i < count; ++i) rows.push_back({sequence, position + i});
  return rows;
}

// LatentCache holds sequences of random latents and keys, each in blocks of its own in shuffled order; all other memory is NaN.
struct LatentCache {
  LatentShape shape;
  KvLayout layout;
  std::vector<int32_t> table, blocks;
  std::vector<float> stored;  // by pool element
  Guarded<uint16_t> keys;

  static size_t pool(const LatentShape& s, const std::vector<int32_t>& lengths) {
    int64_t count = 0;
    for (const int32_t n : lengths) count += (n + s.block_size - 1) / s.block_size;
    return static_cast<size_t>(count * latent_layout(s.act, s.block_size, s.latent, s.rotated).block_elements());
  }
  LatentCache(const LatentShape& s, const std::vector<int32_t>& lengths)
      : shape(s), layout(latent_layout(s.act, s.block_size, s.latent, s.rotated)), stored(pool(s, lengths)), keys(stored.size()) {
    Numbers numbers(static_cast<uint64_t>(s.latent * 131 + s.heads));
    for (const int32_t length : lengths) {
      table.push_back(static_cast<int32_t>(blocks.size()));
      for (int32_t b = 0; b < length; b += s.block_size) blocks.push_back(static_cast<int32_t>(blocks.size()));
    }
    for (size_t i = blocks.size(); i > 1; --i)
      std::swap(blocks[i - 1], blocks[static_cast<size_t>(numbers.below(static_cast<int64_t>(i)))]);
    std::vector<uint16_t> bits(stored.size(), 0xffff);
    for (size_t i = 0; i < lengths.size(); ++i)
      for (int32_t p = 0; p < lengths[i]; ++p)
        for (int32_t d = 0; d < layout.padded_dim; ++d) {
          const size_t at = place(static_cast<int32_t>(i), p) + static_cast<size_t>(d);
          bits[at] = to_act(s.act, d < s.latent + s.rotated ? numbers.normal() : 0.0f);
          stored[at] = from_act(s.act, bits[at]);
        }
    keys.write(bits);
  }
  size_t place(int32_t sequence, int32_t position) const {
    const int64_t block = blocks[static_cast<size_t>(table[static_cast<size_t>(sequence)] + position / layout.block_size)];
    return static_cast<size_t>(block * layout.block_elements() + static_cast<int64_t>(position % layout.block_size) * layout.padded_dim);
  }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape.latent + shape.rotated)); }

  // A query is equal for equal sequence and position, and zero from the end of the rotated part on.
  std::vector<uint16_t> queries(const std::vector<LatentQuery>& rows, int64_t stride) const {
    std::vector<uint16_t> q(rows.size() * static_cast<size_t>(stride), 0);
    for (size_t r = 0; r < rows.size(); ++r) {
      Numbers numbers(static_cast<uint64_t>(rows[r].sequence * 1000003 + rows[r].position));
      for (int32_t h = 0; h < shape.heads; ++h)
        for (int32_t d = 0; d < shape.latent + shape.rotated; ++d)
          q[r * static_cast<size_t>(stride) + static_cast<size_t>(h * layout.padded_dim + d)] = to_act(shape.act, 1.5f * numbers.normal());
    }
    return q;
  }
};

// How the work is divided. No member may change bits.
struct LatentDivision {
  int32_t capacity = 0;  // of decode's workspace; 0: the size that a runner uses
  PrefillSplit split = PrefillSplit::kByWork;
  int32_t sm_count = 7;
};

// Tiles of `count` rows that begin at `row`.
inline void cut_latent(const LatentShape& s, int32_t row, int32_t count, std::vector<PrefillTile>* tiles) {
  const int32_t most = prefill_latent_tile_rows(s.heads);
  for (int32_t at = 0; at < count; at += most) tiles->push_back({row + at, std::min(most, count - at), 0});
}

// Runs decode (tiles empty) or prefill attention over the rows. Returns (rows, heads * latent) of the cache's type.
inline std::vector<uint16_t> attend_latent(const LatentCache& cache, const std::vector<LatentQuery>& rows, std::vector<PrefillTile> tiles,
                                           const LatentDivision& division = {}) {
  const LatentShape& s = cache.shape;
  const int32_t count = static_cast<int32_t>(rows.size());
  const int64_t q_stride = int64_t{s.heads} * cache.layout.padded_dim + 8, out_stride = int64_t{s.heads} * cache.layout.head_dim + 8;
  std::vector<int32_t> slot, position, table, zero(rows.size(), 0);
  int32_t longest = 1, slots = 1;
  for (const LatentQuery& r : rows) {
    slot.push_back(r.sequence);
    position.push_back(r.position);
    table.push_back(r.sequence < 0 ? 0 : cache.table[static_cast<size_t>(r.sequence)]);
    longest = std::max(longest, r.position + 1);
    slots = std::max(slots, r.sequence + 1);
  }
  Guarded<int32_t> dslot(slot), dposition(position), dtable(table), dblocks(cache.blocks), dtoken(zero), dout(zero), dnan_flags(zero);
  Guarded<uint16_t> q(cache.queries(rows, q_stride)), out(static_cast<size_t>(count * out_stride));
  AttentionArgs common{};
  common.rows = Rows{dslot, dposition, dtable, dblocks};
  common.layout = cache.layout;
  common.heads = s.heads;
  common.scale = cache.scale();
  common.q = q.data();
  common.q_stride = q_stride;
  common.out = out.data();
  common.out_stride = out_stride;
  common.out_act = s.act;
  common.keys = cache.keys.data();
  if (tiles.empty()) {
    const int32_t capacity = division.capacity != 0 ? division.capacity : decode_attention_capacity(count, longest);
    Guarded<uint8_t> workspace(static_cast<size_t>(decode_latent_bytes(count, capacity, s.heads, cache.layout.padded_dim)));
    workspace.zero();
    Guarded<int32_t> first(static_cast<size_t>(count) + 1), span(1);
    Guarded<int32_t> history(static_cast<size_t>(longest) * static_cast<size_t>(slots));
    Guarded<SlotFeed> feeds(static_cast<size_t>(slots));
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
    begin.plan_count = 1;
    MUST(launch_begin(begin, Stream{}));
    for (int run = 0; run < 2; ++run)  // the second finds the counters as the first left them
      MUST(launch_decode_latent({common, count, begin.plans[0], workspace.data(), division.sm_count}, Stream{}));
    synchronize();
  } else {
    for (PrefillTile& t : tiles) t.position = rows[static_cast<size_t>(t.row)].position;
    const int32_t places = division.split == PrefillSplit::kAlways ? count * (prefill_piece_of(longest - 1) + 1)
                                                                   : prefill_attention_capacity(count, longest);
    PrefillPlan plan;
    EXPECT_TRUE(plan_prefill(tiles, {prefill_latent_columns(s.heads), division.sm_count, places, division.split}, &plan));
    Guarded<PrefillItem> items(plan.items);
    Guarded<PrefillMerge> merges(plan.merges);
    Guarded<uint8_t> workspace(static_cast<size_t>(prefill_latent_bytes(places, s.heads, cache.layout.padded_dim)));
    PrefillAttentionArgs args{common, items, 0, merges, 0, workspace.data(), places, division.sm_count};
    for (int32_t i = 0; i < plan.group_count; ++i) {
      args.item_count = plan.groups[i].items;
      args.merge_count = plan.groups[i].merges;
      MUST(launch_prefill_latent(args, Stream{}));
      args.items += args.item_count;
      args.merges += args.merge_count;
    }
    synchronize();
  }
  const std::vector<uint16_t> all = out.read();
  std::vector<uint16_t> result;
  for (int32_t r = 0; r < count; ++r) {
    for (int32_t h = 0; h < s.heads; ++h) {
      const auto begin = all.begin() + r * out_stride + h * cache.layout.head_dim;
      result.insert(result.end(), begin, begin + s.latent);
    }
    for (int64_t d = int64_t{s.heads} * cache.layout.head_dim; d < out_stride; ++d)
      EXPECT_EQ(all[static_cast<size_t>(r * out_stride + d)], 0xffff) << "written past the heads of row " << r;
  }
  return result;
}

// Compares the heads `which_heads` of a row with float64: values are of size 1, and weights and results are rounded to the type.
inline void expect_row_near(const LatentCache& cache, const LatentQuery& row, const uint16_t* got,
                            const std::vector<int32_t>& which_heads) {
  const LatentShape& s = cache.shape;
  const std::vector<uint16_t> q = cache.queries({row}, int64_t{s.heads} * cache.layout.padded_dim);
  const Bound bound{s.act == Act::kF16 ? 0x1p-10 : 0x1p-7, half_step(s.act)};
  for (const int32_t h : which_heads) {
    std::vector<double> want(static_cast<size_t>(s.latent), 0.0), weight(static_cast<size_t>(row.position) + 1);
    double top = -INFINITY, sum = 0;
    for (int32_t p = 0; p <= row.position && row.sequence >= 0; ++p) {
      double dot = 0;
      for (int32_t d = 0; d < s.latent + s.rotated; ++d)
        dot += static_cast<double>(from_act(s.act, q[static_cast<size_t>(h * cache.layout.padded_dim + d)])) *
               static_cast<double>(cache.stored[cache.place(row.sequence, p) + static_cast<size_t>(d)]);
      weight[static_cast<size_t>(p)] = dot * static_cast<double>(cache.scale());
      top = std::max(top, weight[static_cast<size_t>(p)]);
    }
    for (double& w : weight) sum += w = std::exp(w - top);
    for (int32_t p = 0; p <= row.position && row.sequence >= 0; ++p)
      for (int32_t d = 0; d < s.latent; ++d)
        want[static_cast<size_t>(d)] += weight[static_cast<size_t>(p)] / sum *
                                        static_cast<double>(cache.stored[cache.place(row.sequence, p) + static_cast<size_t>(d)]);
    const std::vector<uint16_t> bits(got + h * s.latent, got + (h + 1) * s.latent);
    EXPECT_TRUE(near(from_acts(s.act, bits), want, bound)) << s.name() << ": head " << h << " at position " << row.position;
  }
}

}  // namespace mr::cuda::testing
