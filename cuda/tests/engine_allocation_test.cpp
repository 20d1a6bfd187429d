// Once its runner exists, a model serves without asking the driver for memory.
#include <thread>

#include "tests/engine_fixture.h"
#include "tests/interpose/allocations.h"

namespace mr::cuda::test {
namespace {

std::vector<int32_t> numbers(uint32_t seed, int32_t count) {
  std::mt19937 random(seed);
  std::vector<int32_t> out(static_cast<size_t>(count));
  for (int32_t& v : out) v = static_cast<int32_t>(random() % 509);
  return out;
}

TEST(Allocations, AreCounted) {
  const auto device = open_device();
  const unsigned long before = mr_allocations();
  const Memory memory = device->ledger.allocate(5 << 20, MR_PURPOSE_KV);
  EXPECT_EQ(mr_allocations(), before + 1);
  const Pinned pinned(1 << 20);
  EXPECT_EQ(mr_allocations(), before + 2);
  void* plain = nullptr;
  CUDA_CHECK(cudaMalloc(&plain, 1 << 20));
  EXPECT_EQ(mr_allocations(), before + 3);
  CUDA_CHECK(cudaFree(plain));
}

TEST(Allocations, OfHostMemoryGivenBackAreKeptUpToALimit) {
  const auto device = open_device();
  std::vector<void*> given;
  const auto take = [&](uint64_t size) { given.push_back(device->transfers.host_alloc(size)); };
  const auto give_back = [&] {
    for (void* memory : given) device->transfers.host_free(memory);
    given.clear();
  };
  constexpr uint64_t kPart = 64 << 20;  // a quarter of the retained memory
  for (int i = 0; i < 5; ++i) take(kPart);
  give_back();
  const unsigned long before = mr_allocations();
  for (int i = 0; i < 4; ++i) take(kPart);
  EXPECT_EQ(mr_allocations(), before);
  take(kPart);
  EXPECT_EQ(mr_allocations(), before + 1);
  give_back();
}

TEST(Allocations, HaveHappenedWhenTheModelIsReady) {
  for (const int32_t kv : {MR_KV_F16, MR_KV_BF16}) {
    const auto device = open_device();
    const auto model = random_model(device, desc_of(8, 2, 128), kQ8_0);
    uint8_t digest[32];
    const auto verify = [&] {
      for (int32_t tensor = 0; tensor < 10; ++tensor) model->digest(tensor, digest);
    };
    verify();
    Runner runner(model, config_of(kv));
    const unsigned long ready = mr_allocations();  // graphs are still being made
    // Prompts whole and in chunks, decode steps with graphs of every size, and a digest of the resident bytes.
    (void)play(runner, {{3, numbers(1, 70), 70, 12}});
    (void)play(runner, {{3, numbers(1, 70), 7, 30}, {9, numbers(5, 31), 9, 20}});
    std::thread beside([&] {
      device->enter();
      verify();
    });
    for (const int32_t strangers : {7, 23, 63}) {
      std::vector<Request> requests;
      for (int32_t i = 0; i <= strangers; ++i)
        requests.push_back({i, numbers(100 + static_cast<uint32_t>(i), 3 + i % 60), 16, 6 + i % 9, 5, 1.0f});
      (void)play(runner, requests);
    }
    beside.join();
    runner.settle();  // all graphs are made
    (void)play(runner, {{3, numbers(1, 70), 70, 12}});
    EXPECT_EQ(mr_allocations(), ready);
  }
}

}  // namespace
}  // namespace mr::cuda::test
