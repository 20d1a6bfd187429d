// Slots that begin with a history, several samples of a slot in one step, and rollback: all give the result of one
// token a step.
#include "tests/engine_step.h"

namespace mr::cuda::test {
namespace {

constexpr int32_t kPrompt = 37, kCount = 24;

class History : public testing::TestWithParam<bool> {  // whether decode steps are graphs
 protected:
  void SetUp() override {
    device_ = open_device();
    model_ = random_model(device_, desc_of(4, 2, 64), kQ8_0);
    runner_ = std::make_unique<Runner>(model_, config_of(MR_KV_F16), RunnerOptions{GetParam(), GetParam()});
    runner_->settle();
    story_ = tell(*runner_, 3, penalised_params(kPrompt), random_ids(1, kPrompt), table_, kCount);
  }

  const std::vector<int32_t> table_ = range(8, 5);
  std::shared_ptr<Device> device_;
  std::shared_ptr<Model> model_;
  std::unique_ptr<Runner> runner_;
  Story story_;
};

// The history does influence the tokens that the other tests compare.
TEST_P(History, DecidesTheTokens) {
  const Story free = tell(*runner_, 4, params_of(kPrompt), random_ids(1, kPrompt), range(16, 5), kCount);
  EXPECT_NE(story_.ids(0, kPrompt + kCount), free.ids(0, kPrompt + kCount));
}

TEST_P(History, OfAnotherSlotIsContinued) {
  for (int32_t from = kPrompt; from < kPrompt + kCount - 1; ++from) {
    StepMaker maker;
    maker.set(9, penalised_params(kPrompt), story_.ids(0, from));
    maker.sample(maker.feed(9, MR_CLASS_DECODE, from, story_.ids(from, from + 1), table_), 9, from + 1);
    const std::vector<Row> rows = run(*runner_, maker);
    ASSERT_EQ(rows[0], story_.rows[static_cast<size_t>(from + 1 - kPrompt)]) << from;
    // And the step after it, which uses the token that was sampled.
    StepMaker next;
    if (from + 2 >= kPrompt + kCount) continue;
    next.sample(next.feed(9, MR_CLASS_DECODE, from + 1, {-1}, table_), 9, from + 2);
    ASSERT_EQ(run(*runner_, next)[0], story_.rows[static_cast<size_t>(from + 2 - kPrompt)]) << from;
  }
}

TEST_P(History, OfAPromptThatIsCachedInPart) {
  for (const int32_t cached : {1, 15, 16, 17, 32, kPrompt - 1}) {
    StepMaker maker;
    maker.set(9, penalised_params(kPrompt), story_.ids(0, cached));
    const int32_t at = maker.feed(9, MR_CLASS_PREFILL, cached, story_.ids(cached, kPrompt), table_);
    maker.sample(at + kPrompt - cached - 1, 9, kPrompt);
    ASSERT_EQ(run(*runner_, maker)[0], story_.rows[0]) << cached;
  }
}

TEST_P(History, IsReplacedByALaterSetOfTheSameStep) {
  StepMaker maker;
  maker.set(9, params_of(0), random_ids(77, 500));
  maker.set(9, penalised_params(kPrompt), story_.ids(0, kPrompt));
  maker.sample(maker.feed(9, MR_CLASS_DECODE, kPrompt, story_.ids(kPrompt, kPrompt + 1), table_), 9, kPrompt + 1);
  EXPECT_EQ(run(*runner_, maker)[0], story_.rows[1]);
}

// Continuations of one prompt share its computation: each has the prompt as its history and samples the same token's
// logits.
TEST_P(History, OfSlotsThatComputeNothingThemselves) {
  StepMaker maker;
  maker.set(3, penalised_params(kPrompt));
  const int32_t at = maker.feed(3, MR_CLASS_PREFILL, 0, story_.prompt, table_) + kPrompt - 1;
  maker.sample(at, 3, kPrompt);
  maker.set(9, penalised_params(kPrompt), story_.prompt);
  maker.sample(at, 9, kPrompt);
  maker.set(10, penalised_params(kPrompt), story_.ids(0, 1));  // has a shorter history
  maker.sample(at, 10, kPrompt);
  const std::vector<Row> rows = run(*runner_, maker);
  EXPECT_EQ(rows[0], story_.rows[0]);
  EXPECT_EQ(rows[1], story_.rows[0]);
  EXPECT_EQ(rows[2].token, story_.prompt[0]);
  StepMaker next;
  next.sample(next.feed(9, MR_CLASS_DECODE, kPrompt, {-1}, table_), 9, kPrompt + 1);
  EXPECT_EQ(run(*runner_, next)[0], story_.rows[1]);
}

TEST_P(History, OfManySlotsAtOnce) {
  StepMaker maker;
  for (int32_t i = 0; i < 20; ++i) {
    const int32_t from = kPrompt + i;
    maker.set(20 + i, penalised_params(kPrompt), story_.ids(0, from));
    maker.sample(maker.feed(20 + i, MR_CLASS_DECODE, from, story_.ids(from, from + 1), table_), 20 + i, from + 1);
  }
  const std::vector<Row> rows = run(*runner_, maker);
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i], story_.rows[i + 1]) << i;
}

TEST_P(History, IsSeenBelowItsOwnPositionByEachRow) {
  for (const int32_t count : {2, 3, 8, 17}) {
    StepMaker maker;  // slot 3 rolls back to the end of its prompt
    const int32_t at = maker.feed(3, MR_CLASS_DECODE, kPrompt, story_.ids(kPrompt, kPrompt + count), table_);
    for (int32_t i = 0; i < count; ++i) maker.sample(at + i, 3, kPrompt + i + 1);
    const std::vector<Row> rows = run(*runner_, maker);
    for (int32_t i = 0; i < count; ++i)
      ASSERT_EQ(rows[static_cast<size_t>(i)], story_.rows[static_cast<size_t>(i) + 1]) << count << ", row " << i;
    // The last of them is token -1.
    StepMaker next;
    next.sample(next.feed(3, MR_CLASS_DECODE, kPrompt + count, {-1}, table_), 3, kPrompt + count + 1);
    ASSERT_EQ(run(*runner_, next)[0], story_.rows[static_cast<size_t>(count) + 1]) << count;
  }
}

TEST_P(History, ThatWasGuessedWrongIsDropped) {
  std::vector<int32_t> guess = story_.ids(kPrompt, kPrompt + 6);
  guess[3] = (guess[3] + 1) % 509;
  StepMaker maker;
  const int32_t at = maker.feed(3, MR_CLASS_DECODE, kPrompt, guess, table_);
  for (int32_t i = 0; i < 6; ++i) maker.sample(at + i, 3, kPrompt + i + 1);
  const std::vector<Row> rows = run(*runner_, maker);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(rows[i], story_.rows[i + 1]) << i;
  for (int32_t from = kPrompt + 3; from < kPrompt + kCount - 1; ++from) {
    StepMaker next;
    next.sample(next.feed(3, MR_CLASS_DECODE, from, story_.ids(from, from + 1), table_), 3, from + 1);
    ASSERT_EQ(run(*runner_, next)[0], story_.rows[static_cast<size_t>(from + 1 - kPrompt)]) << from;
  }
}

TEST_P(History, BeyondTheRoomOfOneStepIsRefused) {
  StepMaker many;
  for (int32_t round = 0; round < 3; ++round)
    for (int32_t slot = 0; slot < 72; ++slot) many.set(slot, params_of(0), random_ids(5, 1024));
  const Refusal refused = refusal_of([&] { runner_->submit(many.step()); });
  EXPECT_EQ(refused.code, MR_RESOURCE_EXHAUSTED);
  EXPECT_NE(refused.message.find("bytes of slot parameters and histories in one step"), std::string::npos) << refused.message;
  EXPECT_NE(refused.message.find("split the step"), std::string::npos) << refused.message;
  StepMaker next;  // slot 3 is as before
  next.sample(next.feed(3, MR_CLASS_DECODE, kPrompt, story_.ids(kPrompt, kPrompt + 1), table_), 3, kPrompt + 1);
  EXPECT_EQ(run(*runner_, next)[0], story_.rows[1]);
  StepMaker all;
  for (int32_t slot = 0; slot < 72; ++slot) all.set(slot, params_of(0), random_ids(5, 1024));
  EXPECT_TRUE(run(*runner_, all).empty());
}

TEST_P(History, LongerThanTheContextIsRefused) {
  StepMaker maker;
  maker.set(9, params_of(0), random_ids(5, 1025));
  EXPECT_EQ(refusal_of([&] { runner_->submit(maker.step()); }).code, MR_INVALID_ARGUMENT);
}

INSTANTIATE_TEST_SUITE_P(Launches, History, testing::Values(false, true));

}  // namespace
}  // namespace mr::cuda::test
