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
  int32_t before = -1;
  for (const Draft& draft : drafts) {
    if (draft.group != before) plan->groups[plan->group_count++] = {0, merges[draft.group]};
    before = draft.group;
    ++plan->groups[plan->group_count - 1].items;
    plan->items.push_back(draft.item);
  }
  return true;
}

}  // namespace mr::cuda
