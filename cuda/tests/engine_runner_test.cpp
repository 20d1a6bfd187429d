// Steps give the same bits whatever the batch, the chunks, graphs or programmatic launches.
#include "tests/engine_fixture.h"

namespace mr::cuda::test {
namespace {

std::vector<int32_t> numbers(uint32_t seed, int32_t count) {
  std::mt19937 random(seed);
  std::vector<int32_t> out(static_cast<size_t>(count));
  for (int32_t& v : out) v = static_cast<int32_t>(random() % 509);
  return out;
}

Request request(int32_t chunk) { return {3, numbers(1, 70), chunk, 12}; }

// Returns the first index at which two outputs differ; prompt scores come first. -1: none.
int64_t difference(const Output& a, const Output& b) {
  for (size_t i = 0; i < std::max(a.bits.size(), b.bits.size()); ++i)
    if (i >= a.bits.size() || i >= b.bits.size() || a.bits[i] != b.bits[i]) return static_cast<int64_t>(i / 2);
  return -1;
}

struct Case {
  int32_t heads, kv_heads, head_dim, type, kv_type;
};

class Sameness : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const Case& c = GetParam();
    device_ = open_device();
    model_ = random_model(device_, desc_of(c.heads, c.kv_heads, c.head_dim), c.type);
  }
  Output alone(RunnerOptions options, int32_t chunk) {
    Runner runner(model_, config_of(GetParam().kv_type), options);
    runner.settle();
    return play(runner, {request(chunk)})[0];
  }
  std::shared_ptr<Device> device_;
  std::shared_ptr<Model> model_;
};

TEST_P(Sameness, OfPlainAndProgrammaticLaunches) {
  const Output plain = alone({false, false}, 70);
  EXPECT_EQ(difference(plain, alone({false, true}, 70)), -1);
}

TEST_P(Sameness, OfGraphsAndLaunches) {
  const Output plain = alone({false, false}, 70);
  EXPECT_EQ(difference(plain, alone({true, false}, 70)), -1);
  EXPECT_EQ(difference(plain, alone({true, true}, 70)), -1);
}

TEST_P(Sameness, OfChunks) {
  const Output whole = alone({false, false}, 70);
  for (const int32_t chunk : {64, 33, 16, 7, 1}) EXPECT_EQ(difference(whole, alone({false, false}, chunk)), -1) << chunk;
}

TEST_P(Sameness, OfCompany) {
  const Output whole = alone({true, true}, 70);
  for (const int32_t strangers : {7, 63}) {
    std::vector<Request> requests{request(70)};
    for (int32_t i = 0; i < strangers; ++i)
      requests.push_back({i < 3 ? i : i + 1, numbers(100 + static_cast<uint32_t>(i), 3 + i % 11), 5, 6 + i % 9, 5, 1.0f});
    Runner runner(model_, config_of(GetParam().kv_type), {});
    if (strangers == 7) runner.settle();  // 63 run while graphs are being made
    EXPECT_EQ(difference(whole, play(runner, requests)[0]), -1) << strangers;
  }
}

TEST_P(Sameness, OfRepetitions) {
  Runner runner(model_, config_of(GetParam().kv_type), {});
  const Output first = play(runner, {request(70)})[0];
  for (int i = 0; i < 100; ++i) ASSERT_EQ(difference(first, play(runner, {request(70)})[0]), -1) << i;
}

TEST_P(Sameness, OfFreeMemoryAfterSteps) {
  mr_device_info before{}, after{};
  size_t free_before = 0, free_after = 0, total = 0;
  Runner runner(model_, config_of(GetParam().kv_type), {});
  runner.settle();
  (void)play(runner, {request(70)});
  device_->info(&before);
  CUDA_CHECK(cudaMemGetInfo(&free_before, &total));
  for (const int32_t chunk : {70, 7, 1}) (void)play(runner, {request(chunk), {9, numbers(5, 31), 9, 20}});
  device_->info(&after);
  CUDA_CHECK(cudaMemGetInfo(&free_after, &total));
  EXPECT_EQ(before.pool_misses, after.pool_misses);
  EXPECT_EQ(free_before, free_after);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Sameness,
                         testing::Values(Case{4, 2, 64, kQ8_0, MR_KV_F16}, Case{4, 2, 64, kF16, MR_KV_F16},
                                         Case{4, 4, 64, kQ8_0, MR_KV_BF16}, Case{8, 2, 128, kQ8_0, MR_KV_F16},
                                         Case{8, 1, 32, kF32, MR_KV_BF16}, Case{2, 2, 80, kF16, MR_KV_F16},
                                         Case{6, 2, 256, kQ8_0, MR_KV_BF16}, Case{8, 2, 128, kQ8_0, MR_KV_F8},
                                         Case{2, 2, 80, kF16, MR_KV_F8}));

}  // namespace
}  // namespace mr::cuda::test
