// Copies in groups have the effect of copies one after another, in whatever order the copies of a group run.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>

#include "src/copy_groups.h"

namespace mr::cuda::test {
namespace {

using Place = std::pair<bool, int32_t>;  // whether in host memory, which block

StepPlan::PreOp op_of(int32_t kind, int32_t src, int32_t dst) {
  StepPlan::PreOp op{};
  op.kind = kind;
  op.src = src;
  op.dst = dst;
  return op;
}

void carry_out(const StepPlan::PreOp& op, std::map<Place, int32_t>& blocks) {
  blocks[{op.kind == MR_PRE_BLOCK_OUT, op.dst}] = blocks[{op.kind == MR_PRE_BLOCK_IN, op.src}];
}

std::map<Place, int32_t> fresh() {
  std::map<Place, int32_t> blocks;
  for (int32_t i = 0; i < 64; ++i) {
    blocks[{false, i}] = i + 1;
    blocks[{true, i}] = -i - 1;
  }
  return blocks;
}

TEST(CopyGroups, LeaveWhatTheirOrderLeaves) {
  std::mt19937 random(3);
  CopyGroups groups;
  for (int round = 0; round < 2000; ++round) {
    const int32_t count = static_cast<int32_t>(random() % 40), range = 2 + static_cast<int32_t>(random() % 62);
    std::vector<StepPlan::PreOp> ops;
    std::map<Place, int32_t> want = fresh(), got = fresh();
    groups.clear();
    for (int32_t i = 0; i < count; ++i) {
      const int32_t kind = MR_PRE_BLOCK_COPY + static_cast<int32_t>(random() % 3);
      const int32_t src = static_cast<int32_t>(random()) & 63, dst = static_cast<int32_t>(random()) & 63;
      ops.push_back(op_of(kind, src % range, dst % range));
      if (kind == MR_PRE_BLOCK_COPY && ops.back().src == ops.back().dst) ops.back().dst = (ops.back().src + 1) % range;
      groups.add(ops.back());
      carry_out(ops.back(), want);
    }
    int32_t first = 0;
    for (const int32_t end : groups.ends()) {
      ASSERT_GT(end, first);
      std::shuffle(ops.begin() + first, ops.begin() + end, random);
      first = end;
    }
    ASSERT_EQ(first, count);
    for (const auto& op : ops) carry_out(op, got);
    ASSERT_EQ(got, want) << "round " << round;
  }
}

TEST(CopyGroups, AreOneWhereNothingMeets) {
  CopyGroups groups;
  for (int32_t i = 0; i < 100; ++i) {
    groups.add(op_of(MR_PRE_BLOCK_OUT, i, i));
    groups.add(op_of(MR_PRE_BLOCK_IN, 100 + i, 100 + i));
  }
  for (int32_t i = 0; i < 10; ++i) groups.add(op_of(MR_PRE_BLOCK_COPY, 0, 200 + i));  // all copy the same block
  EXPECT_EQ(groups.ends(), std::vector<int32_t>{210});
}

TEST(CopyGroups, KeepStatesOfTheHostApart) {
  CopyGroups groups;
  groups.add(op_of(MR_PRE_STATE_OUT, 1, 1));
  groups.add(op_of(MR_PRE_STATE_OUT, 2, 2));
  groups.add(op_of(MR_PRE_STATE_IN, 1, 3));  // reads what the first one writes
  groups.add(op_of(MR_PRE_STATE_OUT, 3, 2));
  groups.add(op_of(MR_PRE_STATE_IN, 5, 4));
  EXPECT_EQ(groups.ends(), (std::vector<int32_t>{2, 3, 5}));
}

TEST(CopyGroups, BeginAnewWhereABlockIsWrittenThatWasRead) {
  CopyGroups groups;
  groups.add(op_of(MR_PRE_BLOCK_OUT, 1, 1));
  groups.add(op_of(MR_PRE_BLOCK_IN, 0, 1));
  groups.add(op_of(MR_PRE_BLOCK_COPY, 1, 2));
  groups.add(op_of(MR_PRE_BLOCK_COPY, 3, 2));
  EXPECT_EQ(groups.ends(), (std::vector<int32_t>{1, 2, 3, 4}));
  groups.clear();
  EXPECT_TRUE(groups.ends().empty());
}

}  // namespace
}  // namespace mr::cuda::test
