// Masks with graphs and without, early and late, give the same tokens.
#include <algorithm>

#include "tests/engine_step.h"

namespace mr::cuda::test {
namespace {

constexpr int32_t kVocab = 509, kWords = (kVocab + 31) / 32;

// Returns a mask that allows each `step`th token from `first` on.
std::vector<uint32_t> mask_of(int32_t first, int32_t step) {
  std::vector<uint32_t> mask(kWords);
  for (int32_t id = first; id < kVocab; id += step) mask[static_cast<size_t>(id / 32)] |= 1u << (id % 32);
  return mask;
}

std::vector<uint32_t> joined(const std::vector<std::vector<uint32_t>>& masks) {
  std::vector<uint32_t> all;
  for (const auto& mask : masks) all.insert(all.end(), mask.begin(), mask.end());
  return all;
}

struct Way {
  const char* name;
  RunnerOptions options;
  bool late;
};

constexpr Way kWays[] = {{"launched early", {false, false}, false},    {"launched late", {false, false}, true},
                         {"dependent early", {false, true}, false},    {"dependent late", {false, true}, true},
                         {"graphs early", {true, true}, false},        {"graphs late", {true, true}, true}};

class Masks : public testing::Test {
 protected:
  Masks() : device_(open_device()), model_(random_model(device_, desc_of(4, 2, 64), kQ8_0)) {}

  std::unique_ptr<Runner> runner_of(RunnerOptions options) const {
    auto runner = std::make_unique<Runner>(model_, config_of(MR_KV_F16), options);
    runner->settle();
    return runner;
  }
  // Runs a step with these masks, passed early or late.
  static std::vector<Row> run_masked(Runner& runner, StepMaker& maker, const std::vector<uint32_t>& masks, bool late) {
    if (!late) {
      maker.masks(masks);
      return run(runner, maker);
    }
    maker.late(static_cast<int64_t>(masks.size()));
    runner.submit(maker.step());
    runner.masks(masks.data(), static_cast<int64_t>(masks.size()));
    return collect(runner);
  }

  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Model> model_;
};

// Slots with a mask of their own, slots that share one and slots without: a prompt each, then steps of decode rows.
std::vector<Row> chat(Runner& runner, bool late, int32_t slots, int32_t steps) {
  std::vector<Row> all, rows;
  for (int32_t round = 0; round <= steps; ++round) {
    StepMaker maker;
    std::vector<std::vector<uint32_t>> masks{mask_of(round % 5, 3)};
    const auto offset = [&](int32_t slot) {
      if (slot % 4 == 1) return -1;
      if (slot % 4 == 2) return 0;
      masks.push_back(mask_of((slot + round) % 11, 11));
      return static_cast<int32_t>(masks.size() - 1) * kWords;
    };
    for (int32_t slot = 0; slot < slots; ++slot) {
      const int32_t length = 3 + slot % 20;
      if (round == 0) maker.set(slot, slot % 3 == 0 ? penalised_params(length) : params_of(length, 0.9f));
      const std::vector<int32_t> ids = round == 0 ? random_ids(static_cast<uint32_t>(slot), length) : std::vector<int32_t>{-1};
      const int32_t first = round == 0 ? 0 : length + round - 1;
      const int32_t at = maker.feed(slot, round == 0 ? MR_CLASS_PREFILL : MR_CLASS_DECODE, first, ids, range(slot * 3, 3));
      maker.sample(at + static_cast<int32_t>(ids.size()) - 1, slot, first + static_cast<int32_t>(ids.size()), offset(slot));
    }
    const std::vector<uint32_t> words = joined(masks);
    if (late) {
      maker.late(static_cast<int64_t>(words.size()));
    } else {
      maker.masks(words);
    }
    runner.submit(maker.step());
    if (late) runner.masks(words.data(), static_cast<int64_t>(words.size()));
    rows = collect(runner);
    for (int32_t slot = 0; slot < slots; ++slot) {
      const Row& row = rows[static_cast<size_t>(slot)];
      EXPECT_EQ(row.status, MR_ROW_OK);
      if (slot % 4 == 2) {
        EXPECT_EQ(row.token % 3, (round % 5) % 3) << "slot " << slot << ", round " << round;
      } else if (slot % 4 != 1) {
        EXPECT_EQ(row.token % 11, (slot + round) % 11) << "slot " << slot << ", round " << round;
      }
    }
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

TEST_F(Masks, GiveTheSameHoweverAStepIsRun) {
  for (const int32_t slots : {1, 2, 5, 40}) {
    const std::vector<Row> want = chat(*runner_of(kWays[0].options), false, slots, 6);
    for (const Way& way : kWays) {
      const std::vector<Row> got = chat(*runner_of(way.options), way.late, slots, 6);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(got[i], want[i]) << way.name << ", " << slots << " slots, row " << i;
    }
  }
}

// More rows than logits are kept for at once.
TEST_F(Masks, OfAStepWithManyRowsMayComeLate) {
  const std::vector<int32_t> prompt = random_ids(9, 400);
  std::vector<std::vector<Row>> outcomes;
  for (const Way& way : kWays) {
    const auto runner = runner_of(way.options);
    StepMaker maker;
    maker.set(2, params_of(400, 0.7f));
    const int32_t at = maker.feed(2, MR_CLASS_PREFILL, 0, prompt, range(0, 25));
    maker.sample(at + 399, 2, 400, kWords);
    for (int32_t i = 0; i + 1 < 400; ++i) maker.score(at + i, prompt[static_cast<size_t>(i) + 1]);
    outcomes.push_back(run_masked(*runner, maker, joined({mask_of(0, 2), mask_of(1, 2)}), way.late));
    EXPECT_EQ(outcomes.back()[0].token % 2, 1);
    ASSERT_EQ(outcomes.back().size(), 400u);
    for (size_t i = 0; i < 400; ++i) ASSERT_EQ(outcomes.back()[i], outcomes[0][i]) << way.name << ", row " << i;
  }
}

TEST_F(Masks, OfTheStepBeforeAreForgotten) {
  const auto runner = runner_of({});
  const Story free = tell(*runner, 1, params_of(5), random_ids(4, 5), range(0, 2), 3);
  StepMaker masked;
  masked.set(1, params_of(5));
  masked.sample(masked.feed(1, MR_CLASS_PREFILL, 0, free.ids(0, 5), range(0, 2)) + 4, 1, 5, 0);
  const Row row = run_masked(*runner, masked, mask_of((free.rows[0].token + 1) % 3, 3), false)[0];
  EXPECT_NE(row.token, free.rows[0].token);
  const Story again = tell(*runner, 1, params_of(5), random_ids(4, 5), range(0, 2), 3);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(again.rows[i], free.rows[i]) << i;
}

TEST_F(Masks, WithoutATokenEmptyTheRow) {
  for (const Way& way : kWays) {
    const auto runner = runner_of(way.options);
    StepMaker maker;
    maker.set(1, params_of(5));
    maker.sample(maker.feed(1, MR_CLASS_PREFILL, 0, random_ids(4, 5), range(0, 2)) + 4, 1, 5, 0);
    EXPECT_EQ(run_masked(*runner, maker, std::vector<uint32_t>(kWords), way.late)[0].status, MR_ROW_EMPTY) << way.name;
  }
}

class LateMasks : public Masks, public testing::WithParamInterface<bool> {  // whether decode steps are graphs
 protected:
  LateMasks()
      : runner_(runner_of({GetParam(), GetParam()})), story_(tell(*runner_, 1, params_of(5), random_ids(4, 5), table_, 2)) {}

  // Decodes slot 1 at a position, with a late mask.
  StepMaker late_step(int32_t position, int32_t token) const {
    StepMaker maker;
    maker.sample(maker.feed(1, MR_CLASS_DECODE, position, {token}, table_), 1, position + 1, 0);
    maker.late(kWords);
    return maker;
  }

  const std::vector<int32_t> table_ = range(4, 2), own_ = range(8, 2);
  const std::unique_ptr<Runner> runner_;
  const Story story_;
  const std::vector<uint32_t> all_ = mask_of(0, 1);
};

TEST_P(LateMasks, AreWaitedFor) {
  Runner& runner = *runner_;
  EXPECT_EQ(refusal_of([&] { runner.masks(all_.data(), kWords); }).code, MR_FAILED_PRECONDITION);
  const StepMaker step = late_step(5, story_.rows[0].token);
  runner.submit(step.step());
  EXPECT_EQ(refusal_of([&] { runner.submit(step.step()); }).code, MR_FAILED_PRECONDITION);
  EXPECT_EQ(refusal_of([&] { (void)collect(runner, 1'000'000); }).code, MR_DEADLINE_EXCEEDED);
  for (const int64_t words : {0, kWords - 1, kWords + 1}) {
    const std::vector<uint32_t> other(static_cast<size_t>(kWords) + 1, ~0u);
    EXPECT_EQ(refusal_of([&] { runner.masks(other.data(), words); }).code, MR_INVALID_ARGUMENT) << words;
  }
  EXPECT_EQ(refusal_of([&] { runner.masks(nullptr, kWords); }).code, MR_INVALID_ARGUMENT);
  mr_progress progress{};
  runner.progress(&progress);
  EXPECT_EQ(progress.submitted, progress.completed + 1);
  EXPECT_EQ(refusal_of([&] { (void)collect(runner, 0); }).code, MR_DEADLINE_EXCEEDED);
  runner.masks(all_.data(), kWords);
  EXPECT_EQ(collect(runner)[0], story_.rows[1]);
  EXPECT_EQ(refusal_of([&] { runner.masks(all_.data(), kWords); }).code, MR_FAILED_PRECONDITION);
}

TEST_P(LateMasks, AreCopiedBeforeTheCallReturns) {
  const StepMaker step = late_step(5, story_.rows[0].token);
  runner_->submit(step.step());
  std::vector<uint32_t> given = all_;
  runner_->masks(given.data(), kWords);
  std::fill(given.begin(), given.end(), 0u);
  EXPECT_EQ(collect(*runner_)[0], story_.rows[1]);
}

TEST_P(LateMasks, LetTheStepsAroundThemBeInFlight) {
  Runner& runner = *runner_;
  StepMaker first;  // of another slot
  first.set(7, params_of(6));
  first.sample(first.feed(7, MR_CLASS_PREFILL, 0, random_ids(8, 6), own_) + 5, 7, 6);
  runner.submit(first.step());
  runner.submit(late_step(5, story_.rows[0].token).step());
  EXPECT_EQ(collect(runner)[0].status, MR_ROW_OK);  // while the second waits for masks
  EXPECT_EQ(refusal_of([&] { (void)collect(runner, 1000); }).code, MR_DEADLINE_EXCEEDED);
  runner.masks(all_.data(), kWords);
  StepMaker behind;  // uses the late step's sample, not the one without masks
  behind.sample(behind.feed(1, MR_CLASS_DECODE, 6, {-1}, table_), 1, 7);
  runner.submit(behind.step());
  const Row late = collect(runner)[0], last = collect(runner)[0];
  EXPECT_EQ(late, story_.rows[1]);
  const Story whole = tell(runner, 1, params_of(5), random_ids(4, 5), table_, 3);
  EXPECT_EQ(last, whole.rows[2]);
}

TEST_P(LateMasks, AreNeverThereWhenTheRunnerIsDestroyed) {
  auto other = runner_of({GetParam(), GetParam()});
  const Story story = tell(*other, 1, params_of(5), random_ids(4, 5), table_, 1);
  other->submit(late_step(5, story.rows[0].token).step());
  other.reset();
  EXPECT_EQ(device_->runners.load(), 1);
}

TEST_P(LateMasks, LeaveAFaultedRowItsFault) {
  runner_->fault(MR_FAULT_NAN_LOGITS, 0, 0);
  runner_->submit(late_step(5, story_.rows[0].token).step());
  runner_->masks(all_.data(), kWords);
  EXPECT_EQ(collect(*runner_)[0].status, MR_ROW_NAN);
}

TEST_P(LateMasks, OfASecondStepDoNotMeetTheFirstOnes) {
  Runner& runner = *runner_;
  for (int32_t round = 0; round < 10; ++round) {
    const int32_t third = round % 3;
    const StepMaker step = late_step(5, story_.rows[0].token);
    runner.submit(step.step());
    const std::vector<uint32_t> mask = mask_of(third, 3);
    runner.masks(mask.data(), kWords);
    EXPECT_EQ(collect(runner)[0].token % 3, third) << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Launches, LateMasks, testing::Values(false, true));

}  // namespace
}  // namespace mr::cuda::test
