// What the engine reports of a GPU that failed. The failures are real, each in a process of its own, in which no later
// call works.
#include <unistd.h>

#include <cstdio>
#include <vector>

#include "kernels/elementwise.h"
#include "tests/engine_fixture.h"

namespace mr::cuda::test {
namespace {

// Runs a kernel that reads an invalid address.
void lose_the_gpu() {
  (void)launch_to_act({nullptr, nullptr, Act::kF16, 4}, Stream{});
  (void)cudaDeviceSynchronize();
}

// Ends the process with the code of the error of call(), and prints its message to stderr; with 0 if it does not fail.
template <class F>
[[noreturn]] void exit_of(F&& call) {
  int code = 0;
  try {
    call();
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.message.c_str());
    code = e.code;
  }
  _exit(code);
}

// A process that has used the GPU cannot fork one that does, so the test re-executes itself.
class LostGpuDeathTest : public testing::Test {
 protected:
  LostGpuDeathTest() { testing::GTEST_FLAG(death_test_style) = "threadsafe"; }
};

TEST_F(LostGpuDeathTest, IsToldByItsDescription) {
  const auto lose = [] {
    const auto device = open_device();
    mr_device_info info{};
    device->info(&info);
    lose_the_gpu();
    exit_of([&] { device->info(&info); });
  };
  EXPECT_EXIT(lose(), testing::ExitedWithCode(MR_INTERNAL), "the GPU is lost: cudaErrorIllegalAddress");
}

TEST_F(LostGpuDeathTest, FailsTheStepThatMeetsIt) {
  const auto lose = [] {
    const auto device = open_device();
    const auto model = random_model(device, desc_of(4, 2, 64), kQ8_0);
    Runner runner(model, config_of(MR_KV_F16), {});
    lose_the_gpu();
    exit_of([&] { (void)play(runner, {{0, std::vector<int32_t>{1, 2, 3}, 3, 2}}); });
  };
  EXPECT_EXIT(lose(), testing::ExitedWithCode(MR_INTERNAL), "cudaErrorIllegalAddress");
}

}  // namespace
}  // namespace mr::cuda::test
