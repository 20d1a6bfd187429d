// Device memory: contexts, buffers, the pool, and its reports.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>

#include "cpu/blake3.h"
#include "src/nvml.h"
#include "tests/engine_fixture.h"

namespace mr::cuda::test {
namespace {

mr_device_info info_of(const Device& device) {
  mr_device_info info{};
  device.info(&info);
  return info;
}

std::vector<uint8_t> pattern(uint64_t size, uint32_t seed) {
  std::vector<uint8_t> bytes(size);
  uint64_t state = seed;
  for (uint8_t& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<uint8_t>(state >> 56);
  }
  return bytes;
}

// Returns the code of the Error that f throws; MR_OK if it throws none.
template <class F>
int32_t code_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error.code;
  }
  return MR_OK;
}

struct FreeBytes {
  long long device;     // free, once the pool has given up its blocks
  long long host_used;  // resident pages of this process
};

FreeBytes free_bytes(const Device& device) {
  device.ledger.trim();
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  long long size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return {static_cast<long long>(free), resident * sysconf(_SC_PAGESIZE)};
}

TEST(Buffer, KeepsBytesOfEverySize) {
  const auto device = open_device();
  for (const uint64_t size : {1ull, 2ull, 255ull, 4097ull, 1ull << 20, (4ull << 20) + 1, (8ull << 20) - 1, 1ull << 30}) {
    const std::vector<uint8_t> bytes = pattern(size, static_cast<uint32_t>(size));
    Buffer buffer(device, size, MR_PURPOSE_STAGING);
    buffer.write(0, bytes.data(), size);
    std::vector<uint8_t> got(size);
    buffer.read(0, got.data(), size);
    ASSERT_TRUE(got == bytes) << size;
    Buffer other(device, size, MR_PURPOSE_STAGING);
    other.copy_from(0, buffer, 0, size);
    uint8_t one[32], two[32], want[32];
    buffer.digest(0, size, one);
    other.digest(0, size, two);
    mr::blake3(cpu::detect(), bytes.data(), size, want);
    ASSERT_EQ(std::memcmp(one, want, 32), 0) << size;
    ASSERT_EQ(std::memcmp(two, want, 32), 0) << size;
    buffer.digest(1, size - 1, one);
    mr::blake3(cpu::detect(), bytes.data() + 1, size - 1, want);
    ASSERT_EQ(std::memcmp(one, want, 32), 0) << size << ", unaligned";
    buffer.fill(size / 2, 0x5a, size - size / 2);
    buffer.read(size - 1, got.data(), 1);
    ASSERT_EQ(got[0], 0x5a);
  }
  EXPECT_EQ(info_of(*device).live_buffers, 0u);
}

TEST(Buffer, RefusesWhatLiesOutside) {
  const auto device = open_device();
  Buffer buffer(device, 100, MR_PURPOSE_KV);
  uint8_t byte = 0;
  EXPECT_EQ(code_of([&] { buffer.write(100, &byte, 1); }), MR_OUT_OF_RANGE);
  EXPECT_EQ(code_of([&] { buffer.read(UINT64_MAX, &byte, 2); }), MR_OUT_OF_RANGE);
  EXPECT_EQ(code_of([&] { buffer.fill(1, 0, UINT64_MAX); }), MR_OUT_OF_RANGE);
  EXPECT_EQ(code_of([&] { buffer.copy_from(1, buffer, 0, 100); }), MR_OUT_OF_RANGE);
  EXPECT_EQ(code_of([&] { buffer.write(100, &byte, 0); }), MR_OK);
}

TEST(Buffer, TakesSeveralCallersAtOnce) {
  const auto device = open_device();
  constexpr uint64_t kSize = 24ull << 20;
  constexpr int kThreads = 12;  // more than there are lanes
  Buffer buffer(device, kSize * kThreads, MR_PURPOSE_STAGING);
  std::vector<std::thread> threads;
  std::vector<int> good(kThreads, 0);
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      const std::vector<uint8_t> bytes = pattern(kSize, static_cast<uint32_t>(i));
      const uint64_t at = kSize * static_cast<uint64_t>(i);
      buffer.write(at, bytes.data(), kSize);
      std::vector<uint8_t> got(kSize);
      buffer.read(at, got.data(), kSize);
      good[static_cast<size_t>(i)] = got == bytes ? 1 : 0;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::count(good.begin(), good.end(), 1), kThreads);
}

TEST(Buffer, TakesMemoryOfItsOwnFromSeveralCallersAtOnce) {
  const auto device = open_device();
  constexpr uint64_t kPiece = 1ull << 20;
  constexpr int kThreads = 20, kPieces = 32;
  Buffer buffer(device, kPiece * kThreads * kPieces, MR_PURPOSE_STAGING);
  const std::vector<uint8_t> bytes = pattern(buffer.size(), 7);
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      void* const memory = device->transfers.host_alloc(kPiece);
      for (uint64_t n = 0; n < kPieces; ++n) {
        const uint64_t at = (n * kThreads + i) * kPiece;
        std::memcpy(memory, bytes.data() + at, kPiece);
        buffer.write(at, memory, kPiece);
      }
      device->transfers.host_free(memory);
    });
  for (std::thread& thread : threads) thread.join();
  std::vector<uint8_t> got(buffer.size());
  buffer.read(0, got.data(), got.size());
  EXPECT_TRUE(got == bytes);
  uint8_t other = 0;
  EXPECT_EQ(code_of([&] { device->transfers.host_free(&other); }), MR_INVALID_ARGUMENT);
}

TEST(Context, SeveralDevicesOfOneGpuLiveBesideEachOther) {
  const auto first = open_device(1u << 30), second = open_device(1u << 30);
  Buffer one(first, 1000, MR_PURPOSE_STAGING), two(second, 1000, MR_PURPOSE_STAGING);
  one.fill(0, 1, 1000);
  two.fill(0, 2, 1000);
  uint8_t byte = 0;
  one.read(999, &byte, 1);
  EXPECT_EQ(byte, 1);
  two.read(999, &byte, 1);
  EXPECT_EQ(byte, 2);
  EXPECT_EQ(info_of(*first).bytes_used[MR_PURPOSE_STAGING], 1000u);
  EXPECT_EQ(code_of([&] { first->check_idle(); }), MR_FAILED_PRECONDITION);
}

TEST(Pool, ServesTheSameSizeWithoutTheDriver) {
  const auto device = open_device();
  { Buffer first(device, 3 << 20, MR_PURPOSE_STAGING); }
  const uint64_t misses = info_of(*device).pool_misses;
  constexpr int kRounds = 10'000;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kRounds; ++i) const Memory again = device->ledger.allocate(3 << 20, MR_PURPOSE_STAGING);
  const double pooled = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / kRounds;
  EXPECT_EQ(info_of(*device).pool_misses, misses);
  EXPECT_GE(info_of(*device).pool_hits, static_cast<uint64_t>(kRounds));
  const auto driver_begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 100; ++i) {
    void* memory = nullptr;
    CUDA_CHECK(cudaMalloc(&memory, 3 << 20));
    CUDA_CHECK(cudaFree(memory));
  }
  const double driver = std::chrono::duration<double>(std::chrono::steady_clock::now() - driver_begin).count() / 100;
  std::printf("  allocation and free of 3 MiB: pool %.2f us, cudaMalloc %.2f us\n", pooled * 1e6, driver * 1e6);
  EXPECT_LT(pooled, driver);
}

TEST(Pool, LeavesFreeMemoryWhereItWas) {
  const auto device = open_device();
  { Buffer first(device, 64 << 20, MR_PURPOSE_STAGING); }
  const FreeBytes before = free_bytes(*device);
  std::mt19937 random(3);
  for (int i = 0; i < 10'000; ++i) const Memory memory = device->ledger.allocate(1 + random() % (8 << 20), MR_PURPOSE_KV);
  EXPECT_EQ(free_bytes(*device).device, before.device);
}

TEST(Pool, LeavesFreeMemoryWhereItWasWithoutKeepingBlocks) {
  const auto device = open_device(uint64_t{4} << 30, UINT64_MAX);
  const FreeBytes before = free_bytes(*device);
  std::mt19937 random(3);
  for (int i = 0; i < 10'000; ++i) {
    const Memory one = device->ledger.allocate(1 + random() % (8 << 20), MR_PURPOSE_KV);
    const Memory two = device->ledger.allocate(1 + random() % (1 << 12), MR_PURPOSE_STAGING);
  }
  EXPECT_EQ(info_of(*device).pool_hits, 0u);
  EXPECT_EQ(free_bytes(*device).device, before.device);
}

TEST(Ledger, RefusesWithNumbersAndStaysUsable) {
  const auto device = open_device(1 << 20);
  const Memory most = device->ledger.allocate((1 << 20) - 100, MR_PURPOSE_WEIGHTS);
  try {
    (void)device->ledger.allocate(101, MR_PURPOSE_KV);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code, MR_RESOURCE_EXHAUSTED);
    EXPECT_NE(error.message.find("101 bytes"), std::string::npos);
    EXPECT_NE(error.message.find("100 of 1048576"), std::string::npos);
  }
  EXPECT_EQ(device->ledger.allocate(100, MR_PURPOSE_KV).size(), 100u);
}

TEST(Ledger, TurnsTheDriversRefusalIntoResourceExhausted) {
  const auto device = open_device();
  Ledger beyond(device->index, uint64_t{1} << 45, 0);
  EXPECT_EQ(code_of([&] { (void)beyond.allocate(uint64_t{1} << 44, MR_PURPOSE_KV); }), MR_RESOURCE_EXHAUSTED);
  Buffer buffer(device, 1000, MR_PURPOSE_KV);
  uint8_t byte = 1;
  buffer.read(0, &byte, 1);
  EXPECT_EQ(byte, 0);
}

TEST(Ledger, ReportsWhatTheDriverHasButForAMargin) {
  const auto device = open_device(0);
  const mr_device_info info = info_of(*device), beyond = info_of(*open_device(uint64_t{1} << 45));
  EXPECT_EQ(info.bytes_free, info.bytes_total);
  char pci[32];
  CUDA_CHECK(cudaDeviceGetPCIBusId(pci, sizeof pci, device->index));
  const Readings readings = read_nvml(pci);
  if (readings.problem[0] != 0) GTEST_SKIP() << readings.problem;
  const double total = static_cast<double>(readings.bytes_total), margin = std::max(0x1p29, total / 64);
  EXPECT_NEAR(static_cast<double>(info.bytes_total), static_cast<double>(readings.bytes_free) - margin, 0.02 * total);
  EXPECT_NEAR(static_cast<double>(beyond.bytes_total), static_cast<double>(info.bytes_total), 0.02 * total);
}

TEST(Health, ReadingsAgreeWithTheRuntime) {
  const auto device = open_device();
  const mr_device_info info = info_of(*device);
  char pci[32];
  CUDA_CHECK(cudaDeviceGetPCIBusId(pci, sizeof pci, device->index));
  const Readings readings = read_nvml(pci);
  if (readings.problem[0] != 0) GTEST_SKIP() << readings.problem;
  EXPECT_GT(info.temperature_c, 0);
  EXPECT_GT(info.power_mw, 0);
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  const double slack = 0.02 * static_cast<double>(total);
  EXPECT_NEAR(static_cast<double>(total), static_cast<double>(readings.bytes_total), slack);
  EXPECT_NEAR(static_cast<double>(free), static_cast<double>(readings.bytes_free), slack);
}

// Memory that other processes use is subtracted from the free bytes, and named in a refusal.
TEST(Health, SeesWhatIsTakenBesideTheLedger) {
  const auto device = open_device(0);
  const mr_device_info before = info_of(*device);
  ASSERT_NE(before.physical_free, UINT64_MAX);
  const uint64_t taken = (before.physical_free - before.bytes_free) + (uint64_t{2} << 30);  // the margin and more
  void* theirs = nullptr;
  if (cudaMalloc(&theirs, taken) != cudaSuccess) GTEST_SKIP() << "the GPU has too little free memory";
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // the driver is queried once a second
  const mr_device_info after = info_of(*device);
  EXPECT_LE(after.physical_free, before.physical_free - taken + (64 << 20));
  EXPECT_LE(after.bytes_free, before.bytes_free - (uint64_t{1} << 30));
  EXPECT_EQ(after.bytes_total, before.bytes_total);
  try {
    (void)device->ledger.allocate(after.bytes_total, MR_PURPOSE_WEIGHTS);
    ADD_FAILURE() << "the driver gave what another holds";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, MR_RESOURCE_EXHAUSTED);
    for (const char* said : {"free by the ledger", "free on the device", "held by others or the driver", "the driver refuses"})
      EXPECT_NE(error.message.find(said), std::string::npos) << error.message;
    std::printf("  %s\n", error.message.c_str());
  }
  CUDA_CHECK(cudaFree(theirs));
}

// Bytes that this ledger allocates and frees count at once, however old the readings are.
TEST(Health, CountsItsOwnBytesAtOnce) {
  const auto device = open_device(0, UINT64_MAX);
  const uint64_t before = info_of(*device).bytes_free;
  {
    const Memory most = device->ledger.allocate(before / 2, MR_PURPOSE_WEIGHTS);
    EXPECT_EQ(info_of(*device).bytes_free, before - before / 2);
  }
  EXPECT_EQ(info_of(*device).bytes_free, before);
}

TEST(Health, DescribesAnErrorWithoutAnXidWhereNoneWasReported) {
  const std::string text = open_device()->describe(cudaErrorLaunchFailure);
  EXPECT_EQ(text, "cudaErrorLaunchFailure (unspecified launch failure)");
}

// The driver's memory for graphs and kernel code is not in the ledger: Device leaves 512 MiB and more for it.
TEST(Model, GraphsOfAWholeModelTakeLittleOfTheMargin) {
  const auto device = open_device();
  UniformShape desc = desc_of(4, 2, 64);
  desc.layers = 96;
  const auto model = random_model(device, desc, kQ8_0);
  mr_runner_config config = config_of(MR_KV_F16);
  config.max_sequences = config.max_batched_tokens = config.max_sample_rows = 256;
  const auto used = [&](bool graphs) {
    const FreeBytes before = free_bytes(*device);
    Runner runner(model, config, {graphs, true});
    runner.settle();
    return before.device - free_bytes(*device).device;
  };
  const long long plain = used(false), bytes = used(true) - plain;  // first, because the driver keeps its allocations
  std::printf("  graphs of %d layers for batches to 256: %lld bytes of device memory\n", desc.layers, bytes);
  EXPECT_LE(bytes, 256 << 20);
}

TEST(Model, LoadsAndUnloadsAThousandTimesWithoutALoss) {
  const auto device = open_device();
  const UniformShape desc = desc_of(4, 2, 64);
  const std::vector<TensorBytes> tensors = random_tensors(desc, kQ8_0);
  mr_runner_config config = config_of(MR_KV_F16);
  config.max_batched_tokens = 8;  // few buckets
  config.max_sample_rows = 2;
  const auto cycle = [&] {
    const auto model = bound_model(device, desc, tensors);
    const Runner runner(model, config);
  };
  // The driver reuses its allocations of the first cycles.
  for (int i = 0; i < 20; ++i) cycle();
  const FreeBytes before = free_bytes(*device);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 1000; ++i) cycle();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const FreeBytes after = free_bytes(*device);
  std::printf("  1000 loads and unloads in %.1f s: device %+lld bytes free, host %+lld bytes resident\n", seconds,
              after.device - before.device, after.host_used - before.host_used);
  EXPECT_GE(after.device, before.device);
  EXPECT_LE(after.host_used, before.host_used + (16 << 20));
}

TEST(Model, FlippedBitChangesItsDigestAlone) {
  const auto device = open_device();
  const auto model = random_model(device, desc_of(4, 2, 64), kF16);
  uint8_t before[2][32], after[2][32];
  for (int i = 0; i < 2; ++i) model->digest(5 + i, before[i]);
  model->flip_bit(5, 12345);
  for (int i = 0; i < 2; ++i) model->digest(5 + i, after[i]);
  EXPECT_NE(std::memcmp(before[0], after[0], 32), 0);
  EXPECT_EQ(std::memcmp(before[1], after[1], 32), 0);
  model->flip_bit(5, 12345);
  model->digest(5, after[0]);
  EXPECT_EQ(std::memcmp(before[0], after[0], 32), 0);
}

}  // namespace
}  // namespace mr::cuda::test
