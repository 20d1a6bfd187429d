// Decode attention, and prefill attention by mma, on the emulated device: heads above 256 dims, whose values prefill divides
// and whose queries decode keeps in shared memory, and a narrow one. Against float64, and bit for bit however the work is
// divided.
#include "tests/attention_fixture.h"

int shared_bytes_of_device = 227 << 10;

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin         ? shared_bytes_of_device
           : attribute == cudaDevAttrMaxSharedMemoryPerMultiprocessor ? shared_bytes_of_device + 1024
                                                                       : 0;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute attribute, int value) {
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize && value > shared_bytes_of_device) return cudaErrorInvalidValue;
  return cudaSuccess;
}

namespace mr::cuda {

// The device here has compute capability 0.0, and so no wgmma.
namespace prefill {
struct Params;
cudaError_t wgmma_supports(const KvLayout&, bool* supported) {
  *supported = false;
  return cudaSuccess;
}
cudaError_t launch_wgmma(const Params&, const Stream&) { return cudaErrorNotSupported; }
}  // namespace prefill
cudaError_t launch_prefill_widen(const PrefillWidenArgs&, const Stream&) { return cudaErrorNotSupported; }

namespace testing {
namespace {

struct Case {
  Shape shape;
  Act act;
  Kv kv;
  int32_t window = 0;
  float cap = 0;
  bool sinks = false;
};

const Case kCases[] = {
    {{1, 1, 512, 16}, Act::kF16, Kv::kAct},           {{8, 1, 512, 32}, Act::kBF16, Kv::kAct},
    {{16, 1, 512, 16}, Act::kBF16, Kv::kF8},          {{4, 2, 320, 16}, Act::kF16, Kv::kF8},
    {{2, 1, 257, 32}, Act::kBF16, Kv::kAct},          {{3, 3, 511, 16}, Act::kF16, Kv::kAct, 0, 2.0f},
    {{2, 1, 512, 16}, Act::kF16, Kv::kAct, 40, 0},    {{9, 1, 384, 32}, Act::kBF16, Kv::kF8, 33, 5.0f},
    {{4, 1, 256, 16}, Act::kF16, Kv::kAct},           {{6, 2, 80, 16}, Act::kBF16, Kv::kF8},
    {{6, 2, 64, 16}, Act::kF16, Kv::kAct, 0, 0, true}, {{5, 1, 128, 16}, Act::kBF16, Kv::kAct, 30, 0, true},
};

struct CaseCache : Cache {
  CaseCache(const Case& c, const std::vector<int32_t>& n)
      : Cache(c.act, c.shape, n, static_cast<uint64_t>(c.shape.dim + c.shape.heads), c.kv) {
    window = c.window;
    cap = c.cap;
    for (int32_t h = 0; c.sinks && h < c.shape.heads; ++h) sinks.push_back(h % 3 == 0 ? -INFINITY : 1.5f * static_cast<float>(h) - 2);
  }
};

void expect_decodes(const Case& c, int32_t length) {
  const CaseCache cache(c, {length, 20});
  std::vector<Row> rows = {{0, length - 1}, {-1, 0}, {1, 0}, {1, 15}, {1, 16}};
  const std::vector<uint16_t> few = attend(cache, rows, {}, {0, 2, PrefillSplit::kByWork, 5});
  expect_near(cache, rows, few, {0, 1, 2, 3, 4}, 1, "decoded");
  for (const int32_t sm_count : {1, 40})
    EXPECT_TRUE(same_bits(attend(cache, rows, {}, {0, 1, PrefillSplit::kByWork, sm_count}).data(), few.data(), few.size())) << sm_count;
  EXPECT_TRUE(same_bits(attend(cache, {rows[0]}, {}).data(), few.data(), few.size() / rows.size())) << "alone";
  for (int32_t i = 0; i < 14; ++i) rows.push_back({1, 1 + i});
  EXPECT_TRUE(same_bits(attend(cache, rows, {}).data(), few.data(), few.size())) << "many rows";
}

TEST(EmulatedDecode, IsFloat64sAndDoesNotSeeHowItIsDivided) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::Message() << c.shape.heads << "/" << c.shape.kv_heads << " heads of " << c.shape.dim);
    expect_decodes(c, 300);
  }
}

// More chunks than a group has.
TEST(EmulatedDecode, MergesGroupsOfWideHeads) { expect_decodes({{2, 1, 512, 16}, Act::kBF16, Kv::kAct}, 4400); }
TEST(EmulatedDecode, AddsSinksAfterTheGroups) { expect_decodes({{2, 1, 64, 16}, Act::kF16, Kv::kAct, 0, 0, true}, 4400); }

// A device that allows a block less memory computes fewer heads a tile.
TEST(EmulatedDecode, IsTheSameWithLessSharedMemory) {
  const Case c{{8, 1, 512, 16}, Act::kBF16, Kv::kAct};
  const CaseCache cache(c, {70});
  const std::vector<Row> rows = rows_at(0, 60, 10);
  std::vector<PrefillTile> tiles;
  cut(c.shape, 0, 10, &tiles);
  const std::vector<uint16_t> decoded = attend(cache, rows, {}), prompt = attend(cache, rows, tiles);
  shared_bytes_of_device = attention_shared_bytes(512);
  EXPECT_EQ(shared_bytes_of_device, 163 << 10);
  EXPECT_TRUE(same_bits(attend(cache, rows, {}).data(), decoded.data(), decoded.size()));
  EXPECT_TRUE(same_bits(attend(cache, rows, tiles).data(), prompt.data(), prompt.size()));
  shared_bytes_of_device = 227 << 10;
}

void expect_prefills(const Case& c, int32_t prefix, int32_t count) {
  const CaseCache cache(c, {prefix + count});
  const std::vector<Row> rows = rows_at(0, prefix, count);
  std::vector<PrefillTile> tiles;
  cut(c.shape, 0, count, &tiles);
  const std::vector<uint16_t> whole = attend(cache, rows, tiles, {0, 1, PrefillSplit::kNever, 1});
  std::vector<size_t> which;
  for (int32_t r = 0; r < count; r += 5) which.push_back(static_cast<size_t>(r));
  expect_near(cache, rows, whole, which, 1, "of a prompt");
  EXPECT_TRUE(same_bits(attend(cache, rows, tiles, {0, 1, PrefillSplit::kAlways, 100}).data(), whole.data(), whole.size())) << "split";
  std::vector<uint16_t> chunks;
  for (int32_t at = 0; at < count; at += 19) {
    const int32_t own = std::min(19, count - at);
    tiles.clear();
    cut(c.shape, 0, own, &tiles);
    const std::vector<uint16_t> part = attend(cache, rows_at(0, prefix + at, own), tiles);
    chunks.insert(chunks.end(), part.begin(), part.end());
  }
  EXPECT_TRUE(same_bits(chunks.data(), whole.data(), whole.size())) << "in chunks";
}

TEST(EmulatedPrefill, IsFloat64sAndDoesNotSeeHowItIsDivided) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::Message() << c.shape.heads << "/" << c.shape.kv_heads << " heads of " << c.shape.dim);
    expect_prefills(c, 0, 45);
    expect_prefills(c, 100, 5);
  }
}

// Pieces are merged in the block, or from the workspace.
TEST(EmulatedPrefill, IsTheSameAcrossCutsOfKeys) {
  expect_prefills({{2, 1, 512, 16}, Act::kF16, Kv::kAct}, 1015, 20);
  expect_prefills({{1, 1, 320, 32}, Act::kBF16, Kv::kF8}, 1020, 10);
  expect_prefills({{2, 1, 512, 16}, Act::kBF16, Kv::kAct, 20}, 1015, 30);
  expect_prefills({{2, 1, 64, 16}, Act::kF16, Kv::kAct, 0, 0, true}, 1015, 20);
}

}  // namespace
}  // namespace testing
}  // namespace mr::cuda
