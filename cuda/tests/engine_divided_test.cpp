// Models that several GPUs hold together: the bits of one GPU, for whole and uneven parts, and refusals.
#include <algorithm>
#include <atomic>
#include <string>
#include <thread>

#include "src/forward.h"
#include "tests/engine_together.h"

namespace mr::cuda::test {
namespace {

class DividedAmong : public testing::TestWithParam<std::vector<int32_t>> {  // indices of GPUs
 protected:
  void SetUp() override {
    if (gpus() < ranks()) GTEST_SKIP() << "GPUs here: " << gpus() << "; this test needs " << ranks();
  }
  static int32_t ranks() { return static_cast<int32_t>(GetParam().size()); }
  static void expect_bits_of_one(const UniformShape& desc, int32_t type, int32_t kv_type, RunnerOptions options = {}) {
    const std::vector<TensorBytes> tensors = random_tensors(desc, type);
    const auto one = open_device(), all = open_together(GetParam());
    const auto alone = bound_model(one, desc, tensors), divided = bound_model(all, desc, tensors);
    for (const int32_t count : {1, 9, 70}) {
      Runner first(alone, config_of(kv_type), options), second(divided, config_of(kv_type), options);
      const std::vector<Output> want = play(first, requests(count, desc.vocab)), got = play(second, requests(count, desc.vocab));
      ASSERT_EQ(want.size(), got.size());
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_FALSE(want[i].bits.empty());
        EXPECT_TRUE(want[i] == got[i]) << "request " << i << " of " << count << ", type " << type << ", cache " << kv_type;
      }
    }
  }
};

TEST_P(DividedAmong, GiveTheBitsOfOneGpu) {
  for (const int32_t kv : {MR_KV_F16, MR_KV_BF16, MR_KV_F8}) expect_bits_of_one(desc_of(2 * ranks(), ranks(), 64), kQ8_0, kv);
  expect_bits_of_one(desc_of(8, 8, 32), kF16, MR_KV_F16);
  expect_bits_of_one(desc_of(7 * ranks(), ranks(), 64), kF32, MR_KV_BF16);
}

TEST_P(DividedAmong, GiveThemLaunchByLaunchToo) {
  RunnerOptions plain;
  plain.graphs = false;
  expect_bits_of_one(desc_of(2 * ranks(), ranks(), 64), kQ8_0, MR_KV_BF16, plain);
  plain.dependent = false;
  expect_bits_of_one(desc_of(2 * ranks(), ranks(), 64), kQ8_0, MR_KV_BF16, plain);
}

TEST_P(DividedAmong, GiveThemWithWhatModelsMayHave) {
  UniformShape desc = desc_of(3 * ranks(), ranks(), 80);
  desc.qkv_bias = desc.o_bias = desc.qk_norm = desc.tied_head = 1;
  desc.ffn = 800;   // parts of 400, or of 192 and 208: whole panels, no whole units
  desc.vocab = 517; // the last part is ragged
  expect_bits_of_one(desc, kQ8_0, MR_KV_BF16);
  desc.hidden = 288;
  desc.vocab = 16 * ranks() + 1;
  desc.tied_head = 0;
  expect_bits_of_one(desc, kF16, MR_KV_BF16);
  UniformShape narrow = desc_of(ranks(), ranks(), 15);  // parts of 30 bytes of attention's rows
  narrow.rope_dims = 14;
  expect_bits_of_one(narrow, kF16, MR_KV_F16);
}

TEST_P(DividedAmong, AreRefusedByNameWhereTheyCannotBe) {
  const auto device = open_together(GetParam());
  const std::string among = std::to_string(ranks()) + " GPUs";
  const auto refused = [&](const UniformShape& desc, const std::string& part) {
    try {
      Model model(device, description_of(desc));
      ADD_FAILURE() << part;
    } catch (const Error& e) {
      EXPECT_EQ(e.code, MR_UNIMPLEMENTED);
      EXPECT_NE(e.message.find(part), std::string::npos) << e.message;
      EXPECT_NE(e.message.find(among), std::string::npos) << e.message;
    }
  };
  const int32_t half = ranks() / 2;
  refused(desc_of(2 * ranks(), half, 64), "has " + std::to_string(half) + " kv_heads");
  UniformShape desc = desc_of(2 * ranks(), ranks(), 64);
  desc.vocab = 16 * (ranks() - 1);
  refused(desc, "vocab is " + std::to_string(desc.vocab));
  EXPECT_EQ(device->models.load(), 0);
}

INSTANTIATE_TEST_SUITE_P(Of, DividedAmong, testing::Values(std::vector<int32_t>{0, 1}, std::vector<int32_t>{0, 1, 2, 3}),
                         [](const auto& info) { return std::to_string(info.param.size()) + "Gpus"; });

TEST(DividedModels, HoldAsManyBytesAsTheySay) {
  NEEDS_TWO_GPUS();
  const auto device = open_together({0, 1});
  mr_device_info before{}, after{};
  device->info(&before);
  EXPECT_EQ(before.devices, 2);
  EXPECT_LE(before.bytes_total, uint64_t{8} << 30);
  const UniformShape desc = desc_of(4, 2, 64);
  const std::vector<TensorBytes> tensors = random_tensors(desc, kQ8_0);
  uint64_t said = 0;
  for (const TensorBytes& t : tensors) said += Model::resident_size(*device, t.desc);
  {
    const auto model = bound_model(device, desc, tensors);
    device->info(&after);
    EXPECT_EQ(after.bytes_used[MR_PURPOSE_WEIGHTS], said);
    for (int32_t rank = 0; rank < 2; ++rank) EXPECT_GT(device->rank(rank).ledger.counts().used[MR_PURPOSE_WEIGHTS], said / 3);
    mr_runner_config config = config_of(MR_KV_BF16);
    mr_runner_cost cost{};
    Runner::cost(*model, config, &cost);
    Runner runner(model, config);
    device->info(&after);
    EXPECT_EQ(after.bytes_used[MR_PURPOSE_KV], cost.kv_bytes);
    EXPECT_EQ(after.bytes_used[MR_PURPOSE_WORKSPACE], cost.workspace_bytes);
  }
  device->info(&after);
  for (int32_t purpose = 0; purpose < MR_PURPOSE_COUNT; ++purpose) EXPECT_EQ(after.bytes_used[purpose], 0u);
}

TEST(DividedModels, AreDigestedAsTheirFiles) {
  NEEDS_TWO_GPUS();
  UniformShape desc = desc_of(4, 2, 64);
  desc.qkv_bias = 1;
  const std::vector<TensorBytes> tensors = random_tensors(desc, kQ8_0);
  const auto one = open_device(), two = open_together({0, 1});
  const auto alone = bound_model(one, desc, tensors), divided = bound_model(two, desc, tensors);
  for (int32_t i = 0; i < static_cast<int32_t>(tensors.size()); ++i) {
    uint8_t want[32], got[32];
    alone->digest(i, want);
    divided->digest(i, got);
    EXPECT_TRUE(std::equal(want, want + 32, got)) << "tensor " << i << ", role " << tensors[static_cast<size_t>(i)].desc.role;
    // Flips the first and the last resident bit, on the first rank and on the last.
    const uint64_t bits = 8 * Model::resident_size(*two, tensors[static_cast<size_t>(i)].desc);
    for (const uint64_t bit : {uint64_t{0}, bits - 1}) {
      divided->flip_bit(i, bit);
      divided->digest(i, got);
      const bool padding = bit != 0 && std::equal(want, want + 32, got);  // padding rows and columns are in no file
      EXPECT_TRUE(padding || !std::equal(want, want + 32, got)) << "tensor " << i << ", bit " << bit;
      divided->flip_bit(i, bit);
      divided->digest(i, got);
      EXPECT_TRUE(std::equal(want, want + 32, got)) << "tensor " << i << ", bit " << bit << " back";
    }
    EXPECT_THROW(divided->flip_bit(i, bits), Error);
  }
}

TEST(DividedModels, NoticeDamageToEitherCopyOfWhatAllHold) {
  NEEDS_TWO_GPUS();
  const UniformShape desc = desc_of(4, 2, 64);
  const std::vector<TensorBytes> tensors = random_tensors(desc, kQ8_0);
  const auto device = open_together({0, 1});
  const auto model = bound_model(device, desc, tensors);
  for (int32_t i = 0; i < static_cast<int32_t>(tensors.size()); ++i) {
    if (tensors[static_cast<size_t>(i)].desc.role != MR_ROLE_EMBEDDING) continue;
    const uint64_t half = 8 * Model::resident_size(*device, tensors[static_cast<size_t>(i)].desc) / 2;
    uint8_t want[32], got[32];
    model->digest(i, want);
    for (const uint64_t bit : {uint64_t{3}, half + 3}) {
      model->flip_bit(i, bit);
      model->digest(i, got);
      EXPECT_FALSE(std::equal(want, want + 32, got)) << bit;
      model->flip_bit(i, bit);
    }
  }
}

TEST(DividedModels, AreRefusedGpusThatCannotHoldThem) {
  NEEDS_TWO_GPUS();
  const auto refused = [](const std::vector<int32_t>& indices, int32_t code, const char* part) {
    try {
      (void)open_together(indices);
      ADD_FAILURE() << part;
    } catch (const Error& e) {
      EXPECT_EQ(e.code, code) << e.message;
      EXPECT_NE(e.message.find(part), std::string::npos) << e.message;
    }
  };
  refused({0, 0}, MR_INVALID_ARGUMENT, "GPU 0 is named twice");
  refused({0, 1, 1}, MR_INVALID_ARGUMENT, "GPU 1 is named twice");
  refused({0, 99}, MR_NOT_FOUND, "device index is 99");
  refused({0, 1, 2, 3, 4, 5, 6, 7, 8}, MR_UNIMPLEMENTED, "other_count is 8");
}

// And after a reload with the GPUs in the other order.
TEST(DividedModels, GiveTheSameFromRunToRun) {
  NEEDS_TWO_GPUS();
  const auto device = open_together({0, 1}), turned = open_together({1, 0});
  const UniformShape desc = desc_of(4, 2, 64);
  const auto model = random_model(device, desc, kQ8_0), other = random_model(turned, desc, kQ8_0);
  Runner first(model, config_of(MR_KV_BF16)), second(other, config_of(MR_KV_BF16));
  const std::vector<Output> want = play(first, requests(40, desc.vocab));
  for (int i = 0; i < 10; ++i) {
    const std::vector<Output> again = play(i % 2 == 0 ? first : second, requests(40, desc.vocab));
    for (size_t k = 0; k < want.size(); ++k) EXPECT_TRUE(want[k] == again[k]) << "run " << i << ", request " << k;
  }
}

// Each GEMM fills the GPUs, so steps of two models that began in different orders on them would deadlock. At the same
// time the driver allocates and frees memory.
TEST(DividedModels, RunBesideEachOther) {
  NEEDS_TWO_GPUS();
  const auto device = open_together({0, 1});
  UniformShape desc = desc_of(16, 4, 128);
  desc.hidden = 2048;
  desc.ffn = 8192;
  const std::vector<TensorBytes> tensors = random_tensors(desc, kQ8_0);
  const auto one = bound_model(device, desc, tensors), other = bound_model(device, desc, tensors);
  Runner first(one, config_of(MR_KV_BF16)), second(other, config_of(MR_KV_BF16));
  const std::vector<Output> want = play(first, requests(20, desc.vocab));
  std::atomic<bool> over{false};
  std::thread memory([&] {
    for (uint64_t i = 0; !over.load(); ++i) {
      Memory block = device->rank(static_cast<int32_t>(i % 2)).ledger.allocate((uint64_t{1} + i % 7) << 24, MR_PURPOSE_STAGING);
      const Pinned pinned(uint64_t{1} << 20);
      block = Memory();
      for (int32_t r = 0; r < 2; ++r) device->rank(r).ledger.trim();
    }
  });
  const auto repeat = [&](Runner& runner) {
    for (int i = 0; i < 8; ++i) {
      const std::vector<Output> got = play(runner, requests(20, desc.vocab));
      for (size_t k = 0; k < want.size(); ++k) EXPECT_TRUE(got[k] == want[k]) << "run " << i << ", request " << k;
    }
  };
  std::thread beside([&] { repeat(second); });
  repeat(first);
  beside.join();
  over.store(true);
  memory.join();
}

}  // namespace
}  // namespace mr::cuda::test
