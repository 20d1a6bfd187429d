#include "kernels/prefill_plan.h"

#include <algorithm>

namespace mr::cuda {
namespace {

// Places below which a workspace is not worth splitting with: 64 rows behind 128 000 keys have 4 096 partial results.
constexpr int64_t kLeastPlaces = 4096;
constexpr int32_t kBlocksAnSm = 2;  // of the kernel, at the usual widths of heads

int32_t end_of(const PrefillTile& t) { return t.position + t.count; }
int32_t pieces_of(const PrefillTile& t) { return prefill_piece_of(end_of(t) - 1) + 1; }

// Keys that an item's blocks walk over.
struct Load {
  int32_t keys, index;  // index: of the item
};

}  // namespace

int32_t prefill_attention_capacity(int32_t tokens, int32_t positions) {
  const int64_t pieces = positions < 1 ? 1 : prefill_piece_of(positions - 1) + 1;
  if (pieces == 1) return 0;
  return static_cast<int32_t>(std::min(std::max<int64_t>(tokens, kLeastPlaces), tokens * pieces));
}

bool plan_prefill(const std::vector<PrefillTile>& tiles, const PrefillWork& work, PrefillPlan* plan) {
  plan->items.clear();
  plan->merges.clear();
  int64_t keys = 0, places = 0;  // places: of tiles that are not split, before those of split ones
  for (const PrefillTile& t : tiles) {
    keys += end_of(t);
    if (pieces_of(t) > 1) places += t.count;
  }
  if (places > work.capacity) return false;
  // What a block would take if all blocks had the same, twice: in keys.
  const int64_t blocks = int64_t{work.sm_count} * kBlocksAnSm, fair = 2 * keys * work.columns / blocks;

  std::vector<Load> loads;
  std::vector<PrefillItem> items;
  int64_t more = work.capacity - places;  // places that splits may still take
  int32_t next = 0;
  for (const PrefillTile& t : tiles) {
    const int32_t pieces = pieces_of(t);
    const int64_t extra = int64_t{t.count} * (pieces - 1);
    const bool wanted = work.split == PrefillSplit::kAlways || (work.split == PrefillSplit::kByWork && end_of(t) > fair);
    const bool split = pieces > 1 && wanted && extra <= more;
    if (split) {
      more -= extra;
      for (int32_t i = 0; i < t.count; ++i) plan->merges.push_back({t.row + i, next + i, t.count});
      for (int32_t piece = 0; piece < pieces; ++piece, next += t.count) {
        const int32_t begin = prefill_piece_begin(piece);
        loads.push_back({std::min(end_of(t), prefill_piece_begin(piece + 1)) - begin, static_cast<int32_t>(items.size())});
        items.push_back({t.row, t.count, piece, next});
      }
    } else {
      loads.push_back({end_of(t), static_cast<int32_t>(items.size())});
      items.push_back({t.row, t.count, -1, pieces > 1 ? next : -1});
      if (pieces > 1) next += t.count;
    }
  }
  std::stable_sort(loads.begin(), loads.end(), [](const Load& a, const Load& b) { return a.keys > b.keys; });
  for (const Load& load : loads) plan->items.push_back(items[static_cast<size_t>(load.index)]);
  return true;
}

}  // namespace mr::cuda
