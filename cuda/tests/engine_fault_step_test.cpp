// Driver calls that fail during a step: host memory for its blocks, and masks, early and late.
#include "tests/engine_step.h"
#include "tests/interpose/allocations.h"

namespace mr::cuda::test {
namespace {

constexpr int kOutOfMemory = 2, kBroken = 304;  // CUresults; the second is CUDA_ERROR_OPERATING_SYSTEM
constexpr int32_t kWords = (509 + 31) / 32;

class StepFaults : public testing::TestWithParam<bool> {  // whether decode steps are graphs
 protected:
  StepFaults() : device_(open_device()), model_(random_model(device_, desc_of(4, 2, 64), kQ8_0)), runner_(new_runner()),
                 story_(tell(*runner_, 1, params_of(5), random_ids(4, 5), table_, 2)) {}
  void TearDown() override {
    for (int kind = 0; kind < MR_DRIVER_KINDS; ++kind) mr_driver_fail(kind, 0, 0, 0);
  }

  std::unique_ptr<Runner> new_runner() const {
    mr_runner_config config = config_of(MR_KV_F16);
    config.host_blocks = 10000;
    auto runner = std::make_unique<Runner>(model_, config, RunnerOptions{GetParam(), true});
    runner->settle();
    return runner;
  }
  // The story's second token again, with a mask that allows all: the step's own, or of step_masks.
  StepMaker masked(bool late) const {
    StepMaker maker;
    maker.sample(maker.feed(1, MR_CLASS_DECODE, 5, story_.ids(5, 6), table_), 1, 6, 0);
    if (late) {
      maker.late(kWords);
    } else {
      maker.masks(all_);
    }
    return maker;
  }

  const std::vector<int32_t> table_ = range(4, 2);
  const std::vector<uint32_t> all_ = std::vector<uint32_t>(kWords, ~0u);
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Model> model_;
  std::unique_ptr<Runner> runner_;
  const Story story_;
};

TEST_P(StepFaults, OfHostMemoryForBlocksChangeNothing) {
  StepMaker out;
  out.set(1, params_of(0));
  out.block(MR_PRE_BLOCK_OUT, 4, 9999);
  for (const int result : {kOutOfMemory, kBroken}) {
    mr_driver_fail(MR_DRIVER_HOST_ALLOC, 0, 1, result);
    const Refusal refused = refusal_of([&] { runner_->submit(out.step()); });
    EXPECT_EQ(refused.code, MR_RESOURCE_EXHAUSTED) << refused.message;
    EXPECT_NE(refused.message.find("host memory for blocks"), std::string::npos) << refused.message;
  }
  EXPECT_EQ(run(*runner_, masked(false))[0], story_.rows[1]) << "slot 1 was set anew";
  const unsigned long before = mr_allocations();
  (void)run(*runner_, out);
  EXPECT_EQ(mr_allocations(), before + 1);
  (void)run(*runner_, out);
  StepMaker neighbour;
  neighbour.block(MR_PRE_BLOCK_OUT, 4, 9998);
  neighbour.block(MR_PRE_BLOCK_IN, 9999, 5);
  (void)run(*runner_, neighbour);
  EXPECT_EQ(mr_allocations(), before + 1) << "a piece holds many blocks";
}

TEST_P(StepFaults, OfMasksThatAreThereEndTheStepAlone) {
  for (const int kind : {MR_DRIVER_COPY, MR_DRIVER_EVENT_RECORD}) {
    for (unsigned long skip = 0;; ++skip) {
      const unsigned long failed = mr_driver_failed(kind);
      mr_driver_fail(kind, skip, 1, kBroken);
      const Refusal refused = refusal_of([&] { runner_->submit(masked(false).step()); });
      mr_driver_fail(kind, 0, 0, 0);
      if (refused.code != MR_OK) {
        EXPECT_EQ(refused.code, MR_ABORTED) << refused.message;
        runner_->submit(masked(false).step());
      }
      EXPECT_EQ(collect(*runner_)[0], story_.rows[1]);
      if (mr_driver_failed(kind) == failed) break;
    }
  }
}

TEST_P(StepFaults, OfAStepThatWillWaitEndItAlone) {
  int aborted = 0;
  for (const int kind : {MR_DRIVER_COPY, MR_DRIVER_FILL, MR_DRIVER_EVENT_RECORD}) {
    for (unsigned long skip = 0;; ++skip) {
      const unsigned long failed = mr_driver_failed(kind);
      mr_driver_fail(kind, skip, 1, kBroken);
      const Refusal refused = refusal_of([&] { runner_->submit(masked(true).step()); });
      mr_driver_fail(kind, 0, 0, 0);
      if (refused.code != MR_OK) {
        EXPECT_EQ(refused.code, MR_ABORTED) << refused.message;
        EXPECT_EQ(refusal_of([&] { runner_->masks(all_.data(), kWords); }).code, MR_FAILED_PRECONDITION);
        runner_->submit(masked(true).step());
        ++aborted;
      }
      runner_->masks(all_.data(), kWords);
      EXPECT_EQ(collect(*runner_)[0], story_.rows[1]);
      if (mr_driver_failed(kind) == failed) break;
    }
  }
  EXPECT_GE(aborted, 3);  // the input's copy, the jobs' fill, and the event before them
}

TEST_P(StepFaults, OfLateMasksAreTriedTwice) {
  int spared = 0;
  for (const int kind : {MR_DRIVER_COPY, MR_DRIVER_EVENT_RECORD}) {
    for (unsigned long skip = 0;; ++skip) {
      const unsigned long failed = mr_driver_failed(kind);
      runner_->submit(masked(true).step());
      mr_driver_fail(kind, skip, 1, kBroken);
      const Refusal refused = refusal_of([&] { runner_->masks(all_.data(), kWords); });
      mr_driver_fail(kind, 0, 0, 0);
      ASSERT_EQ(refused.code, MR_OK) << refused.message;
      EXPECT_EQ(collect(*runner_)[0], story_.rows[1]);
      if (mr_driver_failed(kind) == failed) break;
      ++spared;
    }
  }
  EXPECT_GE(spared, 5);  // masks, jobs and rows; the events before and after
}

TEST_P(StepFaults, OfLateMasksThatLastBreakTheRunnerAlone) {
  for (unsigned long skip = 0; skip < 3; ++skip) {
    auto runner = new_runner();
    (void)tell(*runner, 1, params_of(5), random_ids(4, 5), table_, 2);
    runner->submit(masked(true).step());
    mr_driver_fail(MR_DRIVER_COPY, skip, 1'000'000, kBroken);
    const Refusal lost = refusal_of([&] { runner->masks(all_.data(), kWords); });
    mr_driver_fail(MR_DRIVER_COPY, 0, 0, 0);
    EXPECT_EQ(lost.code, MR_INTERNAL) << lost.message;
    EXPECT_NE(lost.message.find("destroy the runner"), std::string::npos) << lost.message;
    EXPECT_EQ(refusal_of([&] { runner->masks(all_.data(), kWords); }).code, MR_INTERNAL);
    EXPECT_EQ(refusal_of([&] { (void)collect(*runner); }).code, MR_INTERNAL);
    EXPECT_EQ(refusal_of([&] { runner->submit(masked(false).step()); }).code, MR_INTERNAL);
  }
  EXPECT_EQ(run(*runner_, masked(false))[0], story_.rows[1]);
}

// A step in flight, followed by masks that are lost, ends and is still collected.
TEST_P(StepFaults, OfLateMasksLeaveTheStepBefore) {
  runner_->submit(masked(false).step());
  runner_->submit(masked(true).step());
  mr_driver_fail(MR_DRIVER_COPY, 0, 1'000'000, kBroken);
  EXPECT_EQ(refusal_of([&] { runner_->masks(all_.data(), kWords); }).code, MR_INTERNAL);
  mr_driver_fail(MR_DRIVER_COPY, 0, 0, 0);
  EXPECT_EQ(collect(*runner_)[0], story_.rows[1]);
  EXPECT_EQ(refusal_of([&] { (void)collect(*runner_); }).code, MR_INTERNAL);
}

INSTANTIATE_TEST_SUITE_P(Launches, StepFaults, testing::Values(false, true));

}  // namespace
}  // namespace mr::cuda::test
