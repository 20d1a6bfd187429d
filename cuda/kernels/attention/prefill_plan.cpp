#include "kernels/attention/prefill_plan.h"

#include <algorithm>

namespace mr::cuda {
namespace {

// A workspace has at least this many slots, because fewer are not worth splitting with: 128 rows after 120 000 keys
// have 3 968 partial results. kUsualRows: rows of a usual tile, which must be splittable after the longest history.
constexpr int64_t kLeastPlaces = 4096, kUsualRows = 32;
constexpr int32_t kBlocksAnSm = 2;  // of the kernel, for the usual head widths

int32_t end_of(const PrefillTile& t) { return t.position + t.count; }
int32_t pieces_of(const PrefillTile& t) { return prefill_piece_of(end_of(t) - 1) + 1; }

// Draft is an item before it is sorted.
struct Draft {
  PrefillItem item;
  int32_t group, keys;  // keys: those that its blocks walk over
};

// Seen is the keys [low, end) that the rows of a segment read.
struct Seen {
  int32_t row, low, end;
};

// Tiles begin at multiples of this (kernels of 256 dims have shorter ones). A split tile reads a tile of keys of every piece.
constexpr int32_t kTileKeys = 128;
int32_t first_key(const PrefillTile& t, bool split, int32_t window) {
  return split || window == 0 ? 0 : std::max(t.position - window + 1, 0) / kTileKeys * kTileKeys;
}

// Returns whether it is faster to widen `blocks` KV blocks ahead than in each block of the attention kernel. Times are those of an
// H200. There each key of 128 dims that a block walks over took 19 to 21.5 ns longer with 8 bits than with 16 in prompts of 512 to 16384
// tokens, 20.8 in one of 4096. An element of a key and one of a value move 6 bytes together, at 4 TB/s (128 rows after 100 000 keys), and
// are read again at the speed of a cache of 16 bits. Of 512 tokens the launch took 2.5 us, so widening ahead pays from about 130 tokens.
bool widening_pays(const std::vector<Draft>& drafts, int64_t blocks, const PrefillWork& work) {
  const PrefillWide& w = work.wide;
  int64_t longest = 0, all = 0;
  for (const Draft& draft : drafts) {
    const int64_t keys = w.window == 0 ? draft.keys : std::min(draft.keys, w.window + draft.item.count);
    longest = std::max(longest, keys);
    all += keys;
  }
  constexpr double kLaunchNs = 2500, kBytesANs = 4000, kNsAnElement = 20.8 / 128;
  const double again = static_cast<double>(std::max(longest, all * work.columns / work.sm_count) * wgmma_width(w.padded_dim)) * kNsAnElement;
  return again > kLaunchNs + static_cast<double>(blocks * w.block_size * w.kv_heads * w.padded_dim) * 6 / kBytesANs;
}

// Plans the spans if their blocks fit and widening pays.
void plan_spans(const std::vector<Seen>& segments, const std::vector<Draft>& drafts, const PrefillWork& work, PrefillPlan* plan) {
  const int32_t block_size = work.wide.block_size;
  const auto blocks_of = [&](const Seen& s) { return (s.end - 1) / block_size + 1 - s.low / block_size; };
  int64_t blocks = 0;
  for (const Seen& s : segments) blocks += blocks_of(s);
  if (blocks > work.wide.blocks || (!work.wide.always && !widening_pays(drafts, blocks, work))) return;
  for (const Seen& s : segments) {
    plan->spans.push_back({s.row, s.low / block_size, blocks_of(s), plan->wide_blocks});
    plan->wide_blocks += blocks_of(s);
  }
}

}  // namespace

int32_t prefill_attention_capacity(int32_t tokens, int32_t positions) {
  const int64_t pieces = positions < 1 ? 1 : prefill_piece_of(positions - 1) + 1;
  if (pieces == 1) return 0;
  return static_cast<int32_t>(std::min(std::max({int64_t{tokens}, kLeastPlaces, kUsualRows * pieces}), tokens * pieces));
}

bool plan_prefill(const std::vector<PrefillTile>& tiles, const PrefillWork& work, PrefillPlan* plan) {
  plan->items.clear();
  plan->merges.clear();
  plan->group_count = 0;
  plan->spans.clear();
  plan->wide_blocks = 0;
  // Every tile of several pieces may end up unsplit in the first group.
  int64_t keys = 0, used[kMostPrefillGroups] = {};
  for (const PrefillTile& t : tiles) {
    keys += end_of(t);
    if (pieces_of(t) > 1) used[0] += t.count;
  }
  if (used[0] > work.capacity) return false;
  // Twice the keys that a block would have if all blocks had the same.
  const int64_t blocks = int64_t{work.sm_count} * kBlocksAnSm, fair = 2 * keys * work.columns / blocks;

  std::vector<Draft> drafts;
  std::vector<Seen> segments;
  int32_t segment = 0;  // of the tile before
  int32_t group = 0;  // of the next split tile, unless it is full
  int32_t next[kMostPrefillGroups] = {}, merges[kMostPrefillGroups] = {};
  for (const PrefillTile& t : tiles) {
    const int32_t pieces = pieces_of(t);
    const int64_t all = int64_t{t.count} * pieces;
    bool split = pieces > 1 && all <= work.capacity &&
                 (work.split == PrefillSplit::kAlways || (work.split == PrefillSplit::kByWork && end_of(t) > fair));
    if (split) {
      const auto fits = [&] { return used[group] + all - (group == 0 ? t.count : 0) <= work.capacity; };
      if (!fits() && group + 1 < kMostPrefillGroups) ++group;
      split = fits();
    }
    const int32_t low = first_key(t, split, work.wide.window);
    if (segments.empty() || t.segment != segment) segments.push_back({t.row, low, 0});
    segment = t.segment;
    segments.back().low = std::min(segments.back().low, low);
    segments.back().end = end_of(t);
    if (!split) {
      drafts.push_back({{t.row, t.count, -1, pieces > 1 ? next[0] : -1, t.position}, 0, end_of(t)});
      if (pieces > 1) next[0] += t.count;
      continue;
    }
    used[group] += all - (group == 0 ? t.count : 0);
    merges[group] += t.count;
    for (int32_t i = 0; i < t.count; ++i) plan->merges.push_back({t.row + i, next[group] + i, t.count});
    for (int32_t piece = 0; piece < pieces; ++piece, next[group] += t.count)
      drafts.push_back({{t.row, t.count, piece, next[group], t.position}, group,
                        std::min(end_of(t), prefill_piece_begin(piece + 1)) - prefill_piece_begin(piece)});
  }
  std::stable_sort(drafts.begin(), drafts.end(), [](const Draft& a, const Draft& b) {
    return a.group != b.group ? a.group < b.group : a.keys > b.keys;
  });
  if (work.wide.blocks > 0) plan_spans(segments, drafts, work, plan);
  int32_t before = -1;
  for (const Draft& draft : drafts) {
    if (draft.group != before) plan->groups[plan->group_count++] = {0, merges[draft.group]};
    before = draft.group;
    ++plan->groups[plan->group_count - 1].items;
    plan->items.push_back(draft.item);
    if (plan->spans.empty()) continue;
    const auto after = std::upper_bound(plan->spans.begin(), plan->spans.end(), draft.item.row,
                                        [](int32_t row, const PrefillSpan& span) { return row < span.row; });
    plan->items.back().wide = (after - 1)->place - (after - 1)->first;
  }
  return true;
}

}  // namespace mr::cuda
