// The segments of a step form a chain for each slot, whatever their classes and their order.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <utility>
#include <vector>

#include "src/step_chains.h"

namespace mr::cuda::test {
namespace {

mr_segment segment_of(int32_t slot, int32_t kernel_class, int32_t first_position, int32_t count, int32_t from, int32_t to) {
  mr_segment s{};
  s.slot = slot;
  s.kernel_class = kernel_class;
  s.first_position = first_position;
  s.count = count;
  s.state_from = from;
  s.state_to = to;
  return s;
}

// Arrays with one element too many, which must keep its value.
struct Packed {
  std::vector<StateChain> chains;
  std::vector<StateSegment> segments;
  std::vector<int32_t> chain_of, segment_of;

  Packed(StepChains& packer, const std::vector<mr_segment>& plan, int32_t chain_count, int32_t rows)
      : chains(static_cast<size_t>(chain_count) + 1, {77, 77}), segments(static_cast<size_t>(chain_count) + 1, {77, 77, 77, 77}),
        chain_of(static_cast<size_t>(rows) + 1, 77), segment_of(static_cast<size_t>(rows) + 1, 77) {
    packer.pack(plan, chain_count, rows, {chains.data(), segments.data(), chain_of.data(), segment_of.data()});
  }
};

void expect_segment(const StateSegment& got, int32_t first_row, int32_t count, int32_t from, int32_t to) {
  EXPECT_EQ(got.first_row, first_row);
  EXPECT_EQ(got.count, count);
  EXPECT_EQ(got.from, from);
  EXPECT_EQ(got.to, to);
}

TEST(StepChains, FollowTheirSlotThroughBothClasses) {
  // Slot 5 has a prefill segment, then decode segments of one and of two rows; slot 2 begins a text between them.
  const std::vector<mr_segment> plan = {
      segment_of(5, MR_CLASS_PREFILL, 16, 3, 5, 9), segment_of(2, MR_CLASS_PREFILL, 0, 2, 2, 2),
      segment_of(5, MR_CLASS_DECODE, 19, 1, 9, 5),  segment_of(5, MR_CLASS_DECODE, 20, 2, 5, 5),
  };
  StepChains packer;
  const Packed p(packer, plan, 4, 8);
  ASSERT_EQ(p.chains[0].first_segment, 0);
  ASSERT_EQ(p.chains[0].segments, 1);
  ASSERT_EQ(p.chains[1].first_segment, 1);
  ASSERT_EQ(p.chains[1].segments, 3);
  expect_segment(p.segments[0], 6, 2, -1, 2);  // zeros at position 0
  expect_segment(p.segments[1], 3, 3, 5, 9);
  expect_segment(p.segments[2], 0, 1, 9, 5);
  expect_segment(p.segments[3], 1, 2, 5, 5);
  EXPECT_EQ(p.chain_of, (std::vector<int32_t>{1, 1, 1, 1, 1, 1, 0, 0, 77}));
  EXPECT_EQ(p.segment_of, (std::vector<int32_t>{2, 3, 3, 1, 1, 1, 0, 0, 77}));
}

TEST(StepChains, LeaveTheRestAsPadding) {
  StepChains packer;
  const Packed p(packer, {segment_of(3, MR_CLASS_DECODE, 7, 1, 3, 3)}, 4, 4);
  EXPECT_EQ(p.chains[0].segments, 1);
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(p.chains[i].segments, 0) << i;
  EXPECT_EQ(p.chains[4].segments, 77) << "written after the last chain";
  EXPECT_EQ(p.segments[4].count, 77) << "written after the last segment";
  EXPECT_EQ(p.chain_of, (std::vector<int32_t>{0, -1, -1, -1, 77}));
  const Packed none(packer, {}, 2, 3);
  EXPECT_EQ(none.chains[0].segments, 0);
  EXPECT_EQ(none.chain_of, (std::vector<int32_t>{-1, -1, -1, 77}));
}

// A walk along the chains meets every row once, and the positions of each slot in their order.
TEST(StepChains, MeetEveryPositionOnce) {
  std::mt19937 random(7);
  StepChains packer;
  for (int round = 0; round < 500; ++round) {
    const int32_t slots = 1 + static_cast<int32_t>(random() % 6);
    std::vector<mr_segment> plan;
    std::map<int32_t, int32_t> length, state, begin;
    int32_t rows = 0;
    for (int32_t n = static_cast<int32_t>(random() % 12); n > 0; --n) {
      const int32_t slot = static_cast<int32_t>(random() % static_cast<uint32_t>(slots)), count = 1 + static_cast<int32_t>(random() % 4);
      if (length.count(slot) == 0) {
        begin[slot] = length[slot] = static_cast<int32_t>(random() % 2) * 10;
        state[slot] = slot;
      }
      const int32_t to = static_cast<int32_t>(random() % 2) == 0 ? slot : 100 + static_cast<int32_t>(plan.size());
      plan.push_back(segment_of(slot, static_cast<int32_t>(random() % 2), length[slot], count, state[slot], to));
      length[slot] += count;
      state[slot] = to;
      rows += count;
    }
    // The position and the slot of each row, decode segments first.
    std::vector<std::pair<int32_t, int32_t>> place;
    for (const int32_t kernel_class : {MR_CLASS_DECODE, MR_CLASS_PREFILL})
      for (const mr_segment& s : plan)
        for (int32_t i = 0; s.kernel_class == kernel_class && i < s.count; ++i) place.emplace_back(s.slot, s.first_position + i);
    const int32_t padding = static_cast<int32_t>(random() % 3), chain_count = static_cast<int32_t>(plan.size()) + padding;
    const Packed p(packer, plan, chain_count, rows + padding);
    int32_t met = 0, chains = 0;
    for (int32_t c = 0; c < chain_count; ++c) {
      const StateChain& chain = p.chains[static_cast<size_t>(c)];
      if (chain.segments == 0) continue;
      ++chains;
      const int32_t slot = place[static_cast<size_t>(p.segments[static_cast<size_t>(chain.first_segment)].first_row)].first;
      int32_t position = begin[slot], from = position == 0 ? -1 : slot;
      for (int32_t i = chain.first_segment; i < chain.first_segment + chain.segments; ++i) {
        const StateSegment& s = p.segments[static_cast<size_t>(i)];
        ASSERT_EQ(s.from, from);
        for (int32_t row = s.first_row; row < s.first_row + s.count; ++row, ++met) {
          ASSERT_EQ(place[static_cast<size_t>(row)], std::make_pair(slot, position++));
          ASSERT_EQ(p.chain_of[static_cast<size_t>(row)], c);
          ASSERT_EQ(p.segment_of[static_cast<size_t>(row)], i);
        }
        from = s.to;
      }
      ASSERT_EQ(position, length[slot]);
      ASSERT_EQ(from, state[slot]);
    }
    ASSERT_EQ(met, rows);
    ASSERT_EQ(chains, static_cast<int32_t>(length.size()));
    for (int32_t row = rows; row < rows + padding; ++row) ASSERT_EQ(p.chain_of[static_cast<size_t>(row)], -1);
  }
}

}  // namespace
}  // namespace mr::cuda::test
