// The plan of prefill attention: every row's pieces exactly once, in workspace slots of their own, within the capacity.
#include "kernels/attention/prefill_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace mr::cuda {
namespace {

TEST(PrefillPieces, CoverPositionsInOrder) {
  EXPECT_EQ(prefill_piece_begin(0), 0);
  for (int32_t piece = 0; piece < 1030; ++piece) {
    EXPECT_LT(prefill_piece_begin(piece), prefill_piece_begin(piece + 1));
    EXPECT_EQ(prefill_piece_of(prefill_piece_begin(piece)), piece);
    EXPECT_EQ(prefill_piece_of(prefill_piece_begin(piece + 1) - 1), piece);
  }
  EXPECT_EQ(prefill_piece_of((1 << 21) - 1), 513);
}

// Checks that a plan computes every piece of every row once, and merges rows of split tiles and no others.
void check(const std::vector<PrefillTile>& tiles, const PrefillWork& work, const PrefillPlan& plan) {
  std::map<int32_t, PrefillTile> by_row;
  for (const PrefillTile& t : tiles) by_row[t.row] = t;
  std::set<int32_t> places;  // workspace slots of one group
  std::set<std::pair<int32_t, int32_t>> done;  // (row, piece)
  std::map<std::pair<int32_t, int32_t>, int32_t> place_of;
  std::set<int32_t> merged;
  std::map<int32_t, int32_t> group_of;  // by row
  int32_t before = INT32_MAX, group = -1, left = 0;
  for (const PrefillItem& item : plan.items) {
    while (left == 0) {
      ASSERT_LT(++group, plan.group_count);
      left = plan.groups[group].items;
      places.clear();
      before = INT32_MAX;
    }
    --left;
    if (item.piece < 0) {
      ASSERT_EQ(group, 0);
    } else {
      for (int32_t i = 0; i < item.count; ++i) group_of[item.row + i] = group;
    }
    ASSERT_EQ(by_row.count(item.row), 1u);
    const PrefillTile& t = by_row[item.row];
    ASSERT_EQ(item.count, t.count);
    const int32_t end = t.position + t.count, pieces = prefill_piece_of(end - 1) + 1;
    ASSERT_LT(item.piece, pieces);
    const int32_t first = std::max(item.piece, 0), last = item.piece < 0 ? pieces - 1 : item.piece;
    for (int32_t piece = first; piece <= last; ++piece) EXPECT_TRUE(done.insert({item.row, piece}).second);
    if (pieces > 1) {
      for (int32_t i = 0; i < item.count; ++i) {
        EXPECT_TRUE(places.insert(item.place + i).second) << "two partial results in one place";
        EXPECT_GE(item.place + i, 0);
        EXPECT_LT(item.place + i, work.capacity);
        if (item.piece >= 0) place_of[{item.row + i, item.piece}] = item.place + i;
      }
    }
    if (item.piece >= 0) merged.insert(item.row);
    const int32_t keys =
        item.piece < 0 ? end : std::min(end, prefill_piece_begin(item.piece + 1)) - prefill_piece_begin(item.piece);
    EXPECT_LE(keys, before) << "longest first";
    before = keys;
  }
  size_t all = 0, rows = 0;
  for (const PrefillTile& t : tiles) {
    all += static_cast<size_t>(prefill_piece_of(t.position + t.count - 1) + 1);
    if (merged.count(t.row) != 0) rows += static_cast<size_t>(t.count);
  }
  EXPECT_EQ(done.size(), all);
  EXPECT_EQ(plan.merges.size(), rows);
  for (const PrefillMerge& m : plan.merges)
    for (auto it = place_of.lower_bound({m.row, 0}); it != place_of.end() && it->first.first == m.row; ++it) {
      EXPECT_EQ(it->second, m.place + it->first.second * m.stride);
    }
  EXPECT_EQ(group + 1, plan.group_count);
  EXPECT_LE(plan.items.size(), tiles.size() + static_cast<size_t>(kMostPrefillGroups) * static_cast<size_t>(work.capacity));
  size_t merge = 0;
  for (int32_t g = 0; g < plan.group_count; ++g)
    for (int32_t i = 0; i < plan.groups[g].merges; ++i, ++merge) {
      ASSERT_LT(merge, plan.merges.size());
      EXPECT_EQ(group_of[plan.merges[merge].row], g);
    }
  EXPECT_EQ(merge, plan.merges.size());
}

std::vector<PrefillTile> tiles_of(int32_t position, int32_t rows, int32_t row = 0, int32_t most = 32) {
  std::vector<PrefillTile> tiles;
  for (int32_t at = 0; at < rows; at += most) tiles.push_back({row + at, std::min(most, rows - at), position + at});
  return tiles;
}

TEST(PrefillPlan, FoldsPromptsThatFillTheDeviceAndSplitsFewRowsBehindAPrefix) {
  const PrefillWork work{8, 132, prefill_attention_capacity(4096, 200000)};
  PrefillPlan plan;
  for (const int32_t length : {1, 512, 1024, 2048, 4096}) {
    const std::vector<PrefillTile> tiles = tiles_of(0, length);
    ASSERT_TRUE(plan_prefill(tiles, work, &plan));
    check(tiles, work, plan);
    EXPECT_TRUE(plan.merges.empty()) << length;
    EXPECT_EQ(plan.items.size(), tiles.size());
  }
  const std::pair<int32_t, int32_t> turns[] = {{4000, 60}, {100000, 32}, {2048, 1}, {60000, 100}, {100000, 300}};
  for (const auto& [position, rows] : turns) {
    const std::vector<PrefillTile> tiles = tiles_of(position, rows);
    ASSERT_TRUE(plan_prefill(tiles, work, &plan));
    check(tiles, work, plan);
    EXPECT_EQ(plan.merges.size(), static_cast<size_t>(rows)) << position;
  }
  // A few rows after a long prefix together with a long prompt: the former are split, the latter is not.
  std::vector<PrefillTile> tiles = tiles_of(0, 1500);
  const std::vector<PrefillTile> more = tiles_of(50000, 32, 1500);
  tiles.insert(tiles.end(), more.begin(), more.end());
  ASSERT_TRUE(plan_prefill(tiles, work, &plan));
  check(tiles, work, plan);
  EXPECT_EQ(plan.merges.size(), 32u);
}

TEST(PrefillPlan, TakesMoreGroupsWhereThereAreFewPlacesAndRefusesTooFew) {
  const std::vector<PrefillTile> tiles = tiles_of(5000, 192);  // six tiles
  const int32_t pieces = prefill_piece_of(5191) + 1;
  ASSERT_EQ(pieces, 4);
  PrefillPlan plan;
  // From two tiles a group on, the groups suffice.
  for (int32_t capacity = 2 * 32 * pieces; capacity <= 192 * pieces; ++capacity) {
    const PrefillWork work{8, 132, capacity};
    ASSERT_TRUE(plan_prefill(tiles, work, &plan));
    check(tiles, work, plan);
    const int32_t first = (capacity - 192) / (32 * (pieces - 1)), a_group = capacity / (32 * pieces);
    const int32_t later = (6 - first + a_group - 1) / a_group;
    EXPECT_EQ(plan.merges.size(), 192u) << capacity;
    EXPECT_EQ(plan.group_count, later + (first > 0 ? 1 : 0)) << capacity;
  }
  EXPECT_FALSE(plan_prefill(tiles, {8, 132, 191}, &plan));
  // A tile that exceeds all slots is not split, and neither are more tiles than all groups hold.
  ASSERT_TRUE(plan_prefill(tiles_of(100000, 32), {8, 132, 32 * 26}, &plan));
  EXPECT_TRUE(plan.merges.empty());
  const std::vector<PrefillTile> many = tiles_of(100000, 320);
  const PrefillWork work{1, 132, 32 * 27 + 288, PrefillSplit::kAlways};
  ASSERT_TRUE(plan_prefill(many, work, &plan));
  check(many, work, plan);
  EXPECT_EQ(plan.merges.size(), 128u);  // one tile a group
}

TEST(PrefillPlan, FitsTheCapacityOfEveryRunner) {
  uint64_t state = 7;
  const auto below = [&state](int64_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int32_t>(static_cast<int64_t>(state >> 33) % n);
  };
  PrefillPlan plan;
  for (int i = 0; i < 1000; ++i) {
    const int32_t tokens = 1 + below(i % 3 == 0 ? 40 : 3000), positions = 1 + below(i % 2 == 0 ? 6000 : 1 << 21);
    std::vector<PrefillTile> tiles;
    for (int32_t row = 0; row < tokens;) {
      const int32_t rows = std::min({1 + below(600), tokens - row, positions});
      const std::vector<PrefillTile> own = tiles_of(below(positions - rows + 1), rows, row, 1 + below(128));
      tiles.insert(tiles.end(), own.begin(), own.end());
      row += rows;
    }
    const PrefillWork work{1 + below(200), 1 + below(200), prefill_attention_capacity(tokens, positions),
                           static_cast<PrefillSplit>(below(3))};
    ASSERT_TRUE(plan_prefill(tiles, work, &plan)) << tokens << " rows of at most " << positions;
    check(tiles, work, plan);
    if (work.split == PrefillSplit::kNever) {
      EXPECT_TRUE(plan.merges.empty());
    }
  }
}

}  // namespace
}  // namespace mr::cuda
