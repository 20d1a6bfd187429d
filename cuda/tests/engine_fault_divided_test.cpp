// Models that several GPUs hold together, if one GPU fails: the driver refuses it a launch, or it is lost. The other
// GPUs, which wait for it, end, and every later call returns an error that names the cause.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "kernels/elementwise.h"
#include "tests/engine_step.h"
#include "tests/engine_together.h"
#include "tests/interpose/allocations.h"

namespace mr::cuda::test {
namespace {

constexpr int kBroken = 304;  // CUDA_ERROR_OPERATING_SYSTEM
constexpr int32_t kWords = (509 + 31) / 32;
constexpr unsigned kMostSeconds = 55, kMostSecondsOfAChild = 40;  // then the process is killed, so that a deadlock fails the test

std::string name_of(int32_t gpu) { return "cuda:" + std::to_string(gpu); }

std::string case_of(const testing::TestParamInfo<int32_t>& info) { return "Cuda" + std::to_string(info.param); }

class DividedFaults : public testing::TestWithParam<int32_t> {  // the GPU whose launches are refused
 protected:
  void SetUp() override {
    NEEDS_TWO_GPUS();
    (void)alarm(kMostSeconds);
    device_ = open_together({0, 1});
    model_ = random_model(device_, desc_of(4, 2, 64), kQ8_0);
    runner_ = new_runner(false);
  }
  void TearDown() override {
    forgive();
    (void)alarm(0);
  }

  // Returns a runner that has played a story in slot 1.
  std::unique_ptr<Runner> new_runner(bool graphs) {
    auto runner = std::make_unique<Runner>(model_, config_of(MR_KV_F16), RunnerOptions{graphs, true});
    story_ = tell(*runner, 1, params_of(5), random_ids(4, 5), table_, 2);
    return runner;
  }
  // Repeats the story's second token; with a mask of step_masks that allows all, or without one.
  StepMaker again(bool late = false) const {
    StepMaker maker;
    maker.sample(maker.feed(1, MR_CLASS_DECODE, 5, story_.ids(5, 6), table_), 1, 6, late ? 0 : -1);
    if (late) maker.late(kWords);
    return maker;
  }
  static void refuse(unsigned long skip) {
    mr_driver_fail_on(GetParam());
    mr_driver_fail(MR_DRIVER_LAUNCH, skip, 1, kBroken);
  }
  static void forgive() {
    mr_driver_fail(MR_DRIVER_LAUNCH, 0, 0, 0);
    mr_driver_fail_on(-1);
  }
  void expect_broken(Runner& runner, const Refusal& first) const {
    EXPECT_EQ(first.code, MR_INTERNAL) << first.message;
    EXPECT_NE(first.message.find("on " + name_of(GetParam())), std::string::npos) << first.message;
    EXPECT_EQ(first.message.find("lost"), std::string::npos) << first.message;
    EXPECT_NE(first.message.find("destroy the runner"), std::string::npos) << first.message;
    const std::vector<uint32_t> all(kWords, ~0u);
    for (const Refusal& later : {refusal_of([&] { runner.submit(again().step()); }), refusal_of([&] { (void)collect(runner); }),
                                 refusal_of([&] { runner.masks(all.data(), kWords); })}) {
      EXPECT_EQ(later.code, MR_INTERNAL);
      EXPECT_EQ(later.message, first.message);
    }
  }
  void expect_others_go_on() {
    EXPECT_EQ(run(*runner_, again())[0], story_.rows[1]);
    const Story before = story_;
    EXPECT_EQ(run(*new_runner(false), again())[0], before.rows[1]);
  }

  const std::vector<int32_t> table_ = range(4, 2);
  std::shared_ptr<Device> device_;
  std::shared_ptr<Model> model_;
  std::unique_ptr<Runner> runner_;
  Story story_;
};

// Every third launch of a step, alternately before and after a gather. The step before has ended by then, and is still
// collected.
TEST_P(DividedFaults, OfALaunchOnOneEndTheStepOnAll) {
  int refusals = 0;
  for (unsigned long skip = 0;; skip += 3) {
    const auto runner = new_runner(false);
    runner->submit(again().step());
    const unsigned long failed = mr_driver_failed(MR_DRIVER_LAUNCH);
    refuse(skip);
    const Refusal refused = refusal_of([&] { runner->submit(again().step()); });
    forgive();
    EXPECT_EQ(collect(*runner)[0], story_.rows[1]) << skip;
    if (mr_driver_failed(MR_DRIVER_LAUNCH) == failed) {
      EXPECT_EQ(refused.code, MR_OK) << refused.message;
      EXPECT_EQ(collect(*runner)[0], story_.rows[1]);
      break;
    }
    expect_broken(*runner, refused);
    ++refusals;
  }
  EXPECT_GE(refusals, 6);
  expect_others_go_on();
}

// The last GPU gets its graph first: if that is refused no GPU has begun, and the step may be repeated.
TEST_P(DividedFaults, OfAGraphOnOneEndTheStepOnAll) {
  const auto runner = new_runner(true);
  refuse(0);
  const Refusal refused = refusal_of([&] { runner->submit(again().step()); });
  forgive();
  if (GetParam() == 1) {
    EXPECT_EQ(refused.code, MR_ABORTED) << refused.message;
    EXPECT_NE(refused.message.find("on cuda:1"), std::string::npos) << refused.message;
    EXPECT_EQ(run(*runner, again())[0], story_.rows[1]);
  } else {
    expect_broken(*runner, refused);
  }
  expect_others_go_on();
}

TEST_P(DividedFaults, BehindMasksEndTheStepOnAll) {
  const auto runner = new_runner(false);
  const std::vector<uint32_t> all(kWords, ~0u);
  runner->submit(again(true).step());
  refuse(0);
  const Refusal refused = refusal_of([&] { runner->masks(all.data(), kWords); });
  forgive();
  expect_broken(*runner, refused);
  expect_others_go_on();
}

INSTANTIATE_TEST_SUITE_P(On, DividedFaults, testing::Values(0, 1), case_of);

// Loses a GPU with a kernel that reads an invalid address. It must not run while steps are queued: the driver may load
// the kernel now (turn.h).
void lose(const Device& device) {
  const SlowCall alone(slow_calls());
  device.enter();
  (void)launch_to_act({nullptr, nullptr, Act::kF16, 4}, Stream{});
}

// Makes the driver load the kernel of lose(). While another kernel runs on the GPU the driver would wait for that one.
void load_what_loses(const Device& device) {
  const SlowCall alone(slow_calls());
  device.enter();
  float* memory = nullptr;
  CUDA_CHECK(cudaMalloc(&memory, 8 * sizeof(float)));
  CUDA_CHECK(launch_to_act({memory, memory + 4, Act::kF16, 4}, Stream{}));
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaFree(memory));
}

struct Together {
  explicit Together(RunnerOptions options)
      : device(open_together({0, 1})), model(random_model(device, desc_of(4, 2, 64), kQ8_0)),
        runner(std::make_unique<Runner>(model, config_of(MR_KV_F16), options)) {}

  std::shared_ptr<Device> device;
  std::shared_ptr<Model> model;
  std::unique_ptr<Runner> runner;
};

StepMaker prompt() {
  StepMaker maker;
  maker.set(1, params_of(5));
  maker.sample(maker.feed(1, MR_CLASS_PREFILL, 0, random_ids(4, 5), range(4, 2)) + 4, 1, 5);
  return maker;
}

// Ends the process; with 0 if the call that met the loss failed, later ones fail with the same error, and everything is
// released.
[[noreturn]] void end_of(Together& together, const Refusal& met) {
  std::fprintf(stderr, "%s\n", met.message.c_str());
  if (met.code != MR_INTERNAL) _exit(2);
  for (const Refusal& later : {refusal_of([&] { together.runner->submit(prompt().step()); }),
                               refusal_of([&] { (void)collect(*together.runner); })}) {
    std::fprintf(stderr, "later: %s\n", later.message.c_str());
    if (later.code != MR_INTERNAL || later.message != met.message) _exit(3);
  }
  mr_device_info info{};
  info.struct_size = sizeof info;
  const Refusal lost = refusal_of([&] { together.device->info(&info); });
  std::fprintf(stderr, "device: %s\n", lost.message.c_str());
  if (lost.code != MR_INTERNAL) _exit(4);
  together.runner.reset();
  together.model.reset();
  together.device.reset();
  std::fprintf(stderr, "all is given back\n");
  _exit(0);
}

// Loses a GPU while a step has ended on the second GPU and still runs on the first.
void lose_while_waiting(int32_t gpu) {
  (void)alarm(kMostSecondsOfAChild);
  Together together({false, true});
  load_what_loses(together.device->rank(gpu));
  together.runner->fault(MR_FAULT_HANG_STEP, 0, 2'000'000'000);
  together.runner->submit(prompt().step());
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  lose(together.device->rank(gpu));
  end_of(together, refusal_of([&] { (void)collect(*together.runner); }));
}

// Loses the GPU from another thread while steps with gathers follow one another.
void lose_while_playing(int32_t gpu) {
  (void)alarm(kMostSecondsOfAChild);
  Together together({});
  std::thread loser([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    lose(together.device->rank(gpu));
  });
  Refusal met;
  while (met.code == MR_OK) met = refusal_of([&] { (void)play(*together.runner, {{3, random_ids(9, 40), 8, 20}}); });
  loser.join();
  end_of(together, met);
}

// A process that has used a GPU cannot fork one that does, so each of these tests re-executes itself.
class LostRankDeathTest : public testing::TestWithParam<int32_t> {  // the GPU that is lost
 protected:
  LostRankDeathTest() { testing::GTEST_FLAG(death_test_style) = "threadsafe"; }
  void SetUp() override {
    NEEDS_TWO_GPUS();
    (void)alarm(kMostSeconds);
  }
  void TearDown() override { (void)alarm(0); }
  static std::string told() { return "lost: .*" + name_of(GetParam()) + ".*all is given back"; }
};

TEST_P(LostRankDeathTest, EndsTheCallThatWaitsAndIsNamed) {
  EXPECT_EXIT(lose_while_waiting(GetParam()), testing::ExitedWithCode(0), told());
}

TEST_P(LostRankDeathTest, EndsStepsThatArePlayedAndIsNamed) {
  EXPECT_EXIT(lose_while_playing(GetParam()), testing::ExitedWithCode(0), told());
}

INSTANTIATE_TEST_SUITE_P(Of, LostRankDeathTest, testing::Values(0, 1), case_of);

}  // namespace
}  // namespace mr::cuda::test
