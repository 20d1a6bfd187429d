// The plan of prefill attention: every row's pieces exactly once, in workspace slots of their own, within the capacity; and the blocks
// that are widened ahead.
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

// Checks that the spans lie one after another, and that each item finds the blocks that its tiles of keys read in the span of its segment.
void check_spans(const std::vector<PrefillTile>& tiles, const PrefillWork& work, const PrefillPlan& plan) {
  const int32_t size = work.wide.block_size;
  int32_t used = 0;
  for (const PrefillSpan& span : plan.spans) {
    EXPECT_EQ(span.place, used);
    EXPECT_GE(span.first, 0);
    used += span.count;
  }
  EXPECT_EQ(used, plan.wide_blocks);
  EXPECT_LE(used, work.wide.blocks);
  std::map<int32_t, int32_t> segment_of;  // by row
  for (const PrefillTile& t : tiles) segment_of[t.row] = t.segment;
  for (const PrefillItem& item : plan.items) {
    if (plan.spans.empty()) break;
    const int32_t end = item.position + item.count, window = work.wide.window;
    const int32_t low = window == 0 || item.piece >= 0 ? 0 : std::max(item.position - window + 1, 0) / 128 * 128;
    size_t of = 0;
    while (of < plan.spans.size() && segment_of[plan.spans[of].row] != segment_of[item.row]) ++of;
    ASSERT_LT(of, plan.spans.size());
    const PrefillSpan& span = plan.spans[of];
    EXPECT_EQ(item.wide, span.place - span.first);
    EXPECT_LE(span.first, low / size);
    EXPECT_GE(span.first + span.count, (end - 1) / size + 1);
  }
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
  check_spans(tiles, work, plan);
}

std::vector<PrefillTile> tiles_of(int32_t position, int32_t rows, int32_t row = 0, int32_t most = 32) {
  std::vector<PrefillTile> tiles;
  for (int32_t at = 0; at < rows; at += most) tiles.push_back({row + at, std::min(most, rows - at), position + at, row});
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

// Blocks are widened ahead where several tiles, or too few blocks of the kernel, would widen them. The rows are those of an 8B model.
TEST(PrefillPlan, WidensBlocksAheadIfThatIsFaster) {
  PrefillWork work{8, 132, prefill_attention_capacity(4096, 200000), PrefillSplit::kByWork, {8192, 16, 8, 128}};
  PrefillPlan plan;
  const auto blocks_of = [&](int32_t position, int32_t rows) {
    const std::vector<PrefillTile> tiles = tiles_of(position, rows);
    EXPECT_TRUE(plan_prefill(tiles, work, &plan));
    check(tiles, work, plan);
    return plan.wide_blocks;
  };
  EXPECT_EQ(blocks_of(0, 4096), 256);
  EXPECT_EQ(blocks_of(0, 512), 32);
  EXPECT_EQ(blocks_of(2000, 60), 129);
  EXPECT_EQ(blocks_of(100000, 128), 6258);
  EXPECT_EQ(blocks_of(100000, 32), 0) << "the keys are widened once anyway, and stay in shared memory";
  EXPECT_EQ(blocks_of(0, 120), 0) << "a launch takes longer";
  EXPECT_EQ(blocks_of(0, 140), 9);
  // Neighbours whose rows and positions follow one another are two sequences.
  std::vector<PrefillTile> tiles = tiles_of(0, 1024), more = tiles_of(1024, 1000, 1024);
  tiles.insert(tiles.end(), more.begin(), more.end());
  ASSERT_TRUE(plan_prefill(tiles, work, &plan));
  check(tiles, work, plan);
  ASSERT_EQ(plan.spans.size(), 2u);
  EXPECT_EQ(plan.wide_blocks, 64 + 127);
  EXPECT_EQ(plan.items.back().wide, plan.items.back().row < 1024 ? 0 : 64);
  work.wide.window = 1024;
  EXPECT_EQ(blocks_of(8192, 4096), 256 + 64);
  work.wide.window = 0;
  work.wide.blocks = 255;
  EXPECT_EQ(blocks_of(0, 4096), 0) << "no room";
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
                           static_cast<PrefillSplit>(below(3)),
                           {below(1 << 18), 16 << below(2), 1 + below(8), 64, below(2) * below(3000), below(2) == 0}};
    ASSERT_TRUE(plan_prefill(tiles, work, &plan)) << tokens << " rows of at most " << positions;
    check(tiles, work, plan);
    if (work.split == PrefillSplit::kNever) {
      EXPECT_TRUE(plan.merges.empty());
    }
  }
}

}  // namespace
}  // namespace mr::cuda
