// Two GPUs in one process, each opened alone and together with the other, with memory, models and steps of its own.
#include <unistd.h>

#include <cstdio>
#include <thread>

#include "kernels/elementwise.h"
#include "tests/engine_fixture.h"

#define MILLRACE_SOURCES "of a test"
#include "src/api.cpp"  // the table itself, over the objects that this program links

namespace mr::cuda::test {
namespace {

bool two_gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count >= 2;
}

#define NEEDS_TWO_GPUS() \
  if (!two_gpus()) GTEST_SKIP() << "there is one GPU here: these tests need two"

std::shared_ptr<Device> open_at(int32_t index) {
  mr_device_options options{};
  options.struct_size = sizeof options;
  options.index = index;
  options.bytes_limit = uint64_t{4} << 30;
  return std::make_shared<Device>(options);
}

std::vector<Request> requests() { return {{3, std::vector<int32_t>{5, 6, 7, 8, 9, 10, 11}, 4, 20}}; }

// Returns the device of an address, as the driver reports it.
int device_of(const void* data) {
  cudaPointerAttributes attributes{};
  CUDA_CHECK(cudaPointerGetAttributes(&attributes, data));
  return attributes.device;
}

TEST(TwoDevices, TheSecondIsOpenedByItself) {
  NEEDS_TWO_GPUS();
  const auto second = open_at(1);
  EXPECT_EQ(second->index, 1);
  Buffer buffer(second, 1 << 20, MR_PURPOSE_STAGING);
  EXPECT_EQ(device_of(buffer.data()), 1);
  const auto model = random_model(second, desc_of(4, 2, 64), kQ8_0);
  Runner runner(model, config_of(MR_KV_F16));
  EXPECT_FALSE(play(runner, requests())[0].bits.empty());
}

TEST(TwoDevices, HoldBytesApart) {
  NEEDS_TWO_GPUS();
  const auto first = open_at(0), second = open_at(1);
  Buffer one(first, 5 << 20, MR_PURPOSE_STAGING), two(second, 5 << 20, MR_PURPOSE_STAGING);
  EXPECT_EQ(device_of(one.data()), 0);
  EXPECT_EQ(device_of(two.data()), 1);
  one.fill(0, 1, one.size());
  two.fill(0, 2, two.size());
  std::thread beside([&] {  // a new thread starts with the first GPU as current
    uint8_t byte = 0;
    two.read(two.size() - 1, &byte, 1);
    EXPECT_EQ(byte, 2);
  });
  beside.join();
  uint8_t byte = 0, digests[2][32];
  one.read(one.size() - 1, &byte, 1);
  EXPECT_EQ(byte, 1);
  one.digest(0, one.size(), digests[0]);
  two.digest(0, two.size(), digests[1]);
  EXPECT_NE(std::memcmp(digests[0], digests[1], 32), 0);
  mr_device_info info{};
  second->info(&info);
  EXPECT_EQ(info.bytes_used[MR_PURPOSE_STAGING], two.size());
}

TEST(TwoDevices, CopyNothingToEachOther) {
  NEEDS_TWO_GPUS();
  const mr_api* const api = mr_engine_api(MR_ABI_MAJOR, nullptr);
  mr_device* devices[2] = {};
  mr_buffer* buffers[2] = {};
  for (int32_t i = 0; i < 2; ++i) {
    mr_device_options options{};
    options.struct_size = sizeof options;
    options.index = i;
    options.bytes_limit = uint64_t{1} << 30;
    ASSERT_EQ(api->device_open(&options, &devices[i]), nullptr);
    ASSERT_EQ(api->buffer_alloc(devices[i], 1000, MR_PURPOSE_STAGING, &buffers[i]), nullptr);
  }
  mr_error* const refused = api->buffer_copy(buffers[1], 0, buffers[0], 0, 1000);
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(api->error_code(refused), MR_INVALID_ARGUMENT);
  const std::string message = api->error_message(refused);
  EXPECT_LT(message.find("cuda:1"), message.find("cuda:0")) << message;
  EXPECT_NE(message.find("cuda:0"), std::string::npos) << message;
  api->error_destroy(refused);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(api->buffer_free(buffers[i]), nullptr);
    EXPECT_EQ(api->device_close(devices[i]), nullptr);
  }
}

TEST(TwoDevices, RunStepsAtOnceAndOneGoesOnWhenTheOtherCloses) {
  NEEDS_TWO_GPUS();
  const auto second = open_at(1);
  const auto model = random_model(second, desc_of(4, 2, 64), kQ8_0);
  Runner runner(model, config_of(MR_KV_F16));
  const Output alone = play(runner, requests())[0];
  {
    const auto first = open_at(0);
    const auto other = random_model(first, desc_of(4, 2, 64), kQ8_0);
    Runner beside(other, config_of(MR_KV_F16));
    std::vector<Output> theirs;
    std::thread thread([&] {
      for (int i = 0; i < 20; ++i) theirs.push_back(play(beside, requests())[0]);
    });
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(play(runner, requests())[0] == alone) << i;
    thread.join();
    for (const Output& output : theirs) EXPECT_TRUE(output == theirs[0]);
  }
  EXPECT_TRUE(play(runner, requests())[0] == alone);
}

// A process that has used a GPU cannot fork one that does, so each of these tests re-executes itself.
class TwoDevicesDeathTest : public testing::Test {
 protected:
  TwoDevicesDeathTest() { testing::GTEST_FLAG(death_test_style) = "threadsafe"; }
};

// If a kernel reads an invalid address, the driver destroys the process's contexts on every GPU. So a worker whose GPUs
// hold models together ends with any of them. Other processes continue, on the other GPU and on the same one.
TEST_F(TwoDevicesDeathTest, OthersServeWhileAProcessLosesOne) {
  NEEDS_TWO_GPUS();
  const auto first = open_at(0);
  const auto model = random_model(first, desc_of(4, 2, 64), kQ8_0);
  Runner runner(model, config_of(MR_KV_F16));
  const Output before = play(runner, requests())[0];
  const auto lose_one = [] {
    const auto lost = open_at(1);
    mr_device_info info{};
    lost->info(&info);
    lost->enter();
    (void)launch_to_act({nullptr, nullptr, Act::kF16, 4}, Stream{});
    (void)cudaDeviceSynchronize();
    try {
      lost->info(&info);
    } catch (const Error& e) {
      std::fprintf(stderr, "%s\n", e.message.c_str());
      _exit(0);
    }
    _exit(2);
  };
  EXPECT_EXIT(lose_one(), testing::ExitedWithCode(0), "the GPU is lost");
  EXPECT_TRUE(play(runner, requests())[0] == before);
  const auto second = open_at(1);
  const auto other = random_model(second, desc_of(4, 2, 64), kQ8_0);
  Runner beside(other, config_of(MR_KV_F16));
  EXPECT_FALSE(play(beside, requests())[0].bits.empty());
}

}  // namespace
}  // namespace mr::cuda::test
