// Driver calls that fail, one by one, in every ABI call that makes them: each failure ends one call with a code, the
// next call succeeds, and ledger, driver and live handles agree.
#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#define MILLRACE_SOURCES "of a test"
#include "src/api.cpp"  // the table itself, over the objects that this program links

#include "tests/engine_fixture.h"
#include "tests/interpose/allocations.h"

namespace mr::cuda::test {
namespace {

constexpr int kOutOfMemory = 2, kBroken = 304;  // CUresults; the second is CUDA_ERROR_OPERATING_SYSTEM
constexpr uint64_t kSize = (uint64_t{9} << 20) + 5;

const mr_api* const api = mr_engine_api(MR_ABI_MAJOR, nullptr);

struct Outcome {
  int32_t code = MR_OK;
  int64_t native = 0;
  std::string message;
};

Outcome outcome(mr_error* error) {
  const Outcome out{api->error_code(error), api->error_native(error), api->error_message(error)};
  api->error_destroy(error);
  return out;
}

#define OK(call)                                         \
  do {                                                   \
    const Outcome call_made = outcome(call);             \
    ASSERT_EQ(call_made.code, MR_OK) << call_made.message; \
  } while (0)

// Books are the counters that must be unchanged after a failed call.
struct Books {
  uint64_t used[MR_PURPOSE_COUNT], free, live;
  bool operator==(const Books& other) const { return std::memcmp(this, &other, sizeof other) == 0; }
};

class DriverFaults : public testing::Test {
 protected:
  void SetUp() override {
    mr_device_options options{};
    options.struct_size = sizeof options;
    options.bytes_limit = uint64_t{2} << 30;
    options.pool_limit = UINT64_MAX;  // every block is allocated from the driver and freed to it
    OK(api->device_open(&options, &device_));
    OK(api->buffer_alloc(device_, kSize, MR_PURPOSE_STAGING, &a_));
    OK(api->buffer_alloc(device_, kSize, MR_PURPOSE_KV, &b_));
    // Make the allocations that are kept after the first use.
    mr_digest digest;
    OK(api->buffer_digest(a_, 0, kSize, &digest));
    std::vector<uint8_t> bytes(kSize);
    OK(api->buffer_write(a_, 0, bytes.data(), kSize));
  }
  void TearDown() override {
    for (int kind = 0; kind < MR_DRIVER_KINDS; ++kind) mr_driver_fail(kind, 0, 0, 0);
    OK(api->buffer_free(a_));
    OK(api->buffer_free(b_));
    OK(api->device_close(device_));
  }

  Books books() const {
    mr_device_info info{};
    info.struct_size = sizeof info;
    EXPECT_EQ(outcome(api->device_info(device_, &info)).code, MR_OK);
    Books out{};
    std::memcpy(out.used, info.bytes_used, sizeof out.used);
    out.free = info.bytes_free;
    out.live = info.live_buffers;
    return out;
  }

  // Makes each driver call of a kind within `call` fail once, `times` in a row, until none is left. `undo`
  // releases what a successful call has made. If `spared`, a call may succeed without the part that failed.
  void fail_each(int kind, const std::function<mr_error*()>& call, const std::function<void()>& undo = {},
                 unsigned long times = 1, int result = kBroken, bool spared = false) {
    const Books before = books();
    const unsigned long device_bytes = mr_device_bytes();
    for (unsigned long skip = 0;; ++skip) {
      const unsigned long failed = mr_driver_failed(kind);
      mr_driver_fail(kind, skip, times, result);
      const Outcome made = outcome(call());
      mr_driver_fail(kind, 0, 0, 0);
      if (made.code == MR_OK && undo) undo();
      ASSERT_TRUE(books() == before) << "kind " << kind << ", call " << skip;
      ASSERT_EQ(mr_device_bytes(), device_bytes) << "kind " << kind << ", call " << skip;
      if (mr_driver_failed(kind) == failed) {
        ASSERT_EQ(made.code, MR_OK) << made.message;
        ASSERT_GT(skip, 0u) << "it asks nothing of the driver";
        return;
      }
      if (made.code == MR_OK && spared) continue;
      ASSERT_EQ(made.code, result == kOutOfMemory ? MR_RESOURCE_EXHAUSTED : MR_INTERNAL) << made.message;
      ASSERT_NE(made.native, 0) << made.message;
      ASSERT_NE(made.message, "");
      OK(call());
      if (undo) undo();
      ASSERT_TRUE(books() == before);
      ASSERT_EQ(mr_device_bytes(), device_bytes);
    }
  }

  mr_device* device_ = nullptr;
  mr_buffer *a_ = nullptr, *b_ = nullptr;
};

TEST_F(DriverFaults, OfAnAllocation) {
  mr_buffer* made = nullptr;
  const auto call = [&] { return api->buffer_alloc(device_, kSize, MR_PURPOSE_WEIGHTS, &made); };
  const auto undo = [&] { OK(api->buffer_free(made)); };
  fail_each(MR_DRIVER_ALLOC, call, undo);
  fail_each(MR_DRIVER_ALLOC, call, undo, 2, kOutOfMemory);  // it retries once
  fail_each(MR_DRIVER_FILL, call, undo);
  fail_each(MR_DRIVER_WAIT, call, undo);
  mr_driver_fail(MR_DRIVER_ALLOC, 0, 2, kOutOfMemory);
  const Outcome refused = outcome(call());
  for (const char* said : {"9437189 bytes of weights asked", "free by the ledger", "free on the device", "held by others"})
    EXPECT_NE(refused.message.find(said), std::string::npos) << refused.message;
}

TEST_F(DriverFaults, OfAFreeLeaveTheBufferAlive) {
  const Books before = books();
  const unsigned long bytes = mr_device_bytes();
  mr_buffer* buffer = nullptr;
  OK(api->buffer_alloc(device_, kSize, MR_PURPOSE_WEIGHTS, &buffer));
  const Books with = books();
  const unsigned long more = mr_device_bytes();
  for (uint8_t round = 1; round <= 3; ++round) {
    mr_driver_fail(MR_DRIVER_FREE, 0, 1, kBroken);
    const Outcome refused = outcome(api->buffer_free(buffer));
    EXPECT_EQ(refused.code, MR_INTERNAL) << refused.message;
    EXPECT_EQ(refused.native, kBroken);
    EXPECT_TRUE(books() == with);
    EXPECT_EQ(mr_device_bytes(), more);
    uint8_t byte = 0;
    OK(api->buffer_fill(buffer, 0, round, kSize));
    OK(api->buffer_read(buffer, kSize - 1, &byte, 1));
    EXPECT_EQ(byte, round);
  }
  OK(api->buffer_free(buffer));
  EXPECT_EQ(outcome(api->buffer_free(buffer)).code, MR_FAILED_PRECONDITION);
  EXPECT_TRUE(books() == before);
  EXPECT_EQ(mr_device_bytes(), bytes);
  mr_device_info info{};
  info.struct_size = sizeof info;
  OK(api->device_info(device_, &info));
  EXPECT_EQ(info.failed_frees, 3u);
}

TEST_F(DriverFaults, OfAWrite) {
  const std::vector<uint8_t> bytes(kSize, 7);
  const auto call = [&] { return api->buffer_write(a_, 0, bytes.data(), kSize); };
  fail_each(MR_DRIVER_COPY, call);
  fail_each(MR_DRIVER_EVENT_RECORD, call);
  fail_each(MR_DRIVER_WAIT, call);
  void* memory = nullptr;
  OK(api->host_alloc(device_, kSize, &memory));
  std::memset(memory, 9, kSize);
  const auto direct = [&] { return api->buffer_write(a_, 0, memory, kSize); };
  fail_each(MR_DRIVER_COPY, direct);
  fail_each(MR_DRIVER_EVENT_RECORD, direct);
  const auto brief = [&] { return api->buffer_write(a_, 5, memory, 4096); };
  for (const int kind : {MR_DRIVER_COPY, MR_DRIVER_EVENT_RECORD}) fail_each(kind, brief);
  uint8_t byte = 0;
  OK(api->buffer_read(a_, kSize - 1, &byte, 1));
  EXPECT_EQ(byte, 9);
  OK(api->host_free(device_, memory));
}

TEST_F(DriverFaults, OfARead) {
  std::vector<uint8_t> bytes(kSize);
  const auto call = [&] { return api->buffer_read(a_, 0, bytes.data(), kSize); };
  for (const int kind : {MR_DRIVER_COPY, MR_DRIVER_EVENT_RECORD, MR_DRIVER_WAIT}) fail_each(kind, call);
  void* memory = nullptr;
  OK(api->host_alloc(device_, kSize, &memory));
  const auto direct = [&] { return api->buffer_read(a_, 0, memory, kSize); };
  for (const int kind : {MR_DRIVER_COPY, MR_DRIVER_EVENT_RECORD}) fail_each(kind, direct);
  const auto brief = [&] { return api->buffer_read(a_, 5, memory, 4096); };
  for (const int kind : {MR_DRIVER_COPY, MR_DRIVER_EVENT_RECORD}) fail_each(kind, brief);
  OK(api->host_free(device_, memory));
}

// Its kernels have ended when it fails, so the caller may reuse its outputs.
TEST_F(DriverFaults, OfAnOperation) {
  constexpr int64_t kSide = 4096;
  constexpr uint64_t kBytes = uint64_t{kSide} * kSide * sizeof(float);
  mr_buffer *a = nullptr, *b = nullptr, *out = nullptr, *other = nullptr;
  for (mr_buffer** operand : {&a, &b, &out, &other}) OK(api->buffer_alloc(device_, kBytes, MR_PURPOSE_WORKSPACE, operand));
  mr_op_args args{};
  args.struct_size = sizeof args;
  args.rows = args.cols = args.inner = kSide;
  args.batch = 1;
  args.a = a;
  args.b = b;
  args.out = out;
  const auto call = [&] { return api->op_run(device_, &args, nullptr); };
  for (const int32_t op : {MR_OP_MATMUL, MR_OP_MATMUL_F16}) {
    args.op = op;
    for (const int kind : {MR_DRIVER_EVENT_RECORD, MR_DRIVER_WAIT}) fail_each(kind, call);
    mr_driver_fail(MR_DRIVER_EVENT_RECORD, 1, 1, kBroken);  // the event after the kernels
    EXPECT_EQ(outcome(call()).code, MR_INTERNAL);
    OK(api->buffer_fill(out, 0, 7, kBytes));
    args.out = other;
    OK(call());  // waits for what may still run
    args.out = out;
    std::vector<uint8_t> bytes(kBytes);
    OK(api->buffer_read(out, 0, bytes.data(), kBytes));
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), uint8_t{7}), static_cast<int64_t>(kBytes));
  }
  for (mr_buffer* operand : {a, b, out, other}) OK(api->buffer_free(operand));
}

TEST_F(DriverFaults, OfACopy) {
  const auto call = [&] { return api->buffer_copy(a_, 0, b_, 0, kSize); };
  const auto overlapping = [&] { return api->buffer_copy(a_, 1, a_, 0, kSize - 1); };
  for (const int kind : {MR_DRIVER_COPY, MR_DRIVER_WAIT}) {
    fail_each(kind, call);
    fail_each(kind, overlapping);
  }
  fail_each(MR_DRIVER_ALLOC, overlapping);
}

TEST_F(DriverFaults, OfAFill) {
  const auto call = [&] { return api->buffer_fill(a_, 3, 0x5a, kSize - 3); };
  for (const int kind : {MR_DRIVER_FILL, MR_DRIVER_WAIT}) fail_each(kind, call);
}

TEST_F(DriverFaults, OfADigest) {
  mr_digest first{}, digest{};
  OK(api->buffer_digest(a_, 0, kSize, &first));
  for (const uint64_t offset : {0, 1}) {  // where it lies, and by way of aligned memory
    const auto call = [&] { return api->buffer_digest(a_, offset, kSize - offset, &digest); };
    for (const int kind : {MR_DRIVER_COPY, MR_DRIVER_EVENT_RECORD}) fail_each(kind, call);
  }
  OK(api->buffer_digest(a_, 0, kSize, &digest));
  EXPECT_EQ(std::memcmp(first.bytes, digest.bytes, sizeof first.bytes), 0);
}

TEST_F(DriverFaults, OfHostMemory) {
  constexpr uint64_t kLarge = uint64_t{300} << 20;  // more than is retained
  void* memory = nullptr;
  const auto take = [&] { return api->host_alloc(device_, kLarge, &memory); };
  const auto give = [&] { OK(api->host_free(device_, memory)); };
  fail_each(MR_DRIVER_HOST_ALLOC, take, give);
  fail_each(MR_DRIVER_HOST_ALLOC, take, give, 2, kOutOfMemory);
  OK(take());
  mr_driver_fail(MR_DRIVER_HOST_FREE, 0, 1, kBroken);
  EXPECT_EQ(outcome(api->host_free(device_, memory)).code, MR_INTERNAL);
  std::memset(memory, 3, kLarge);
  OK(api->buffer_write(a_, 0, memory, kSize));
  OK(api->host_free(device_, memory));
  EXPECT_EQ(outcome(api->host_free(device_, memory)).code, MR_INVALID_ARGUMENT);
  mr_device_info info{};
  info.struct_size = sizeof info;
  OK(api->device_info(device_, &info));
  EXPECT_EQ(info.failed_frees, 1u);
}

// A pool whose blocks the driver refuses to free.
TEST(LedgerFaults, OfAPoolKeepItsBlocksCountedUntilTheyAreTaken) {
  const auto device = open_device(uint64_t{64} << 20);
  Ledger& ledger = device->ledger;
  const unsigned long bytes = mr_device_bytes();
  for (const uint64_t size : {4, 6, 8}) { const Memory memory = ledger.allocate(size << 20, MR_PURPOSE_STAGING); }
  ASSERT_EQ(ledger.counts().pooled, uint64_t{18} << 20);
  mr_driver_fail(MR_DRIVER_FREE, 1, 2, kBroken);
  ledger.trim();
  const LedgerCounts refused = ledger.counts();
  EXPECT_EQ(refused.pooled, uint64_t{14} << 20);
  EXPECT_EQ(refused.stuck, refused.pooled);
  EXPECT_EQ(refused.held, refused.pooled);
  EXPECT_EQ(refused.free(), refused.total - refused.stuck);
  EXPECT_EQ(refused.failed_frees, 2u);
  EXPECT_EQ(mr_device_bytes() - bytes, refused.held);
  {  // which offers them again, because they are in its way
    const Memory most = ledger.allocate(uint64_t{60} << 20, MR_PURPOSE_KV);
    EXPECT_EQ(ledger.counts().stuck, 0u);
    EXPECT_EQ(mr_device_bytes() - bytes, ledger.counts().held);
  }
  ledger.trim();
  EXPECT_EQ(ledger.counts().held, 0u);
  EXPECT_EQ(mr_device_bytes(), bytes);
}

TEST(LedgerFaults, OfMemoryWithoutAnOwnerStayCountedUntilItIsTaken) {
  const auto device = open_device(uint64_t{64} << 20, UINT64_MAX);
  Ledger& ledger = device->ledger;
  const unsigned long bytes = mr_device_bytes();
  mr_driver_fail(MR_DRIVER_FREE, 0, 1, kBroken);
  { const Memory weights = ledger.allocate(uint64_t{40} << 20, MR_PURPOSE_WEIGHTS); }
  EXPECT_EQ(ledger.counts().used[MR_PURPOSE_WEIGHTS], uint64_t{40} << 20);
  EXPECT_EQ(ledger.counts().failed_frees, 1u);
  EXPECT_EQ(mr_device_bytes() - bytes, ledger.counts().held);
  { const Memory more = ledger.allocate(uint64_t{50} << 20, MR_PURPOSE_KV); }  // offers it again
  EXPECT_EQ(ledger.counts().used[MR_PURPOSE_WEIGHTS], 0u);
  EXPECT_EQ(mr_device_bytes(), bytes);
}

}  // namespace
}  // namespace mr::cuda::test
