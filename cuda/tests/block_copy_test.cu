// Copies of whole blocks between pools, whose planes are far apart, and contiguous blocks, in device memory and in
// pinned host memory.
#include <cstring>
#include <random>

#include "kernel_fixture.h"
#include "kernels/block_copy.h"

namespace mr::cuda::testing {
namespace {

struct HostBytes {
  explicit HostBytes(size_t size) { MUST(cudaHostAlloc(&data, size, cudaHostAllocPortable)); }
  ~HostBytes() { cudaFreeHost(data); }
  HostBytes(const HostBytes&) = delete;
  HostBytes& operator=(const HostBytes&) = delete;
  void* data = nullptr;
};

std::vector<uint8_t> random_bytes(size_t count) {
  std::mt19937 random(5);
  std::vector<uint8_t> bytes(count);
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
  return bytes;
}

// Copies blocks of a pool to the host in reverse order, and from there to another pool, which then is the first pool
// with its blocks reversed.
void round_trip(int32_t blocks, int32_t planes, int64_t plane_bytes) {
  SCOPED_TRACE(::testing::Message() << blocks << " blocks of " << planes << " planes of " << plane_bytes << " bytes");
  const int64_t stride = blocks * plane_bytes, block_bytes = planes * plane_bytes;
  const std::vector<uint8_t> content = random_bytes(static_cast<size_t>(blocks * block_bytes));
  Guarded<uint8_t> pool(content), other(content.size());
  const HostBytes host(content.size());
  std::memset(host.data, 0x33, content.size());
  uint8_t* const away = static_cast<uint8_t*>(host.data);
  std::vector<BlockCopy> out, in;
  for (int32_t b = 0; b < blocks; ++b) {
    uint8_t* const between = away + (blocks - 1 - b) * block_bytes;
    out.push_back({{pool.data(), b}, {between, -1}});
    in.push_back({{away + b * block_bytes, -1}, {other.data(), b}});
  }
  Guarded<BlockCopy> device_out(out), device_in(in);
  const BlockGroup group{planes, plane_bytes, 0, stride, 0};
  MUST(launch_block_copies({device_out, blocks, group}, Stream{}));
  MUST(launch_block_copies({device_in, blocks, group}, Stream{}));
  synchronize();
  const std::vector<uint8_t> got = other.read();
  for (int32_t b = 0; b < blocks; ++b)
    for (int32_t p = 0; p < planes; ++p) {
      const uint8_t* const want = content.data() + p * stride + (blocks - 1 - b) * plane_bytes;
      const size_t size = static_cast<size_t>(plane_bytes);
      ASSERT_EQ(std::memcmp(got.data() + p * stride + b * plane_bytes, want, size), 0) << b << ", " << p;
      ASSERT_EQ(std::memcmp(away + b * block_bytes + p * plane_bytes, want, size), 0) << b << ", " << p;
    }
}

TEST(BlockCopies, GoThereAndBack) {
  for (const int64_t plane_bytes : {16, 1024, 16368, 16384, 16400, 32768, 65552})
    for (const int32_t planes : {1, 2, 7}) round_trip(3, planes, plane_bytes);
  round_trip(1, 64, 32768);
  round_trip(300, 2, 1040);
}

// Fills `count` bytes, a multiple of 16, with one value; counts bytes that differ.
__global__ void fill_bytes(uint8_t* bytes, int64_t count, uint8_t with) {
  const uint32_t four = with * 0x01010101u;
  const int64_t step = int64_t{16} * gridDim.x * blockDim.x;
  for (int64_t i = 16 * (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x); i < count; i += step)
    *reinterpret_cast<uint4*>(bytes + i) = make_uint4(four, four, four, four);
}
__global__ void count_others(const uint8_t* bytes, int64_t count, uint8_t than, unsigned long long* others) {
  const int64_t step = int64_t{16} * gridDim.x * blockDim.x;
  unsigned long long own = 0;
  for (int64_t i = 16 * (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x); i < count; i += step) {
    const uint4 v = *reinterpret_cast<const uint4*>(bytes + i);
    const uint32_t words[] = {v.x, v.y, v.z, v.w};
    for (const uint32_t word : words)
      for (int bit = 0; bit < 32; bit += 8) own += (word >> bit & 0xff) != than;
  }
  if (own > 0) atomicAdd(others, own);
}

// Two planes more than 4 GiB apart, and blocks on both sides of 2 GiB and of 4 GiB in each. If a stride loses its upper
// half, the copy goes to other bytes of the pool, which are blank and must stay blank.
TEST(BlockCopies, ReachBeyond4GiB) {
  constexpr uint8_t kBlank = 0x6b;
  constexpr int32_t kPlanes = 2;
  constexpr int64_t kGiB = int64_t{1} << 30, kPlaneBytes = 65552, kBlockBytes = kPlanes * kPlaneBytes;
  constexpr int64_t kPlaneRoom = kGiB / 2 * 9, kStride = kPlaneRoom + 272, kPoolBytes = kStride + kPlaneRoom;
  void* memory = nullptr;
  const cudaError_t allocated = cudaMalloc(&memory, static_cast<size_t>(kPoolBytes));
  if (allocated == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    GTEST_SKIP() << "this GPU has no " << kPoolBytes << " bytes free for a pool";
  }
  MUST(allocated);
  uint8_t* const pool = static_cast<uint8_t*>(memory);
  const auto blank = [&] {
    fill_bytes<<<4096, 256>>>(pool, kPoolBytes, kBlank);
    MUST(cudaGetLastError());
  };
  const auto expect_plane = [&](const uint8_t* at, const uint8_t* want, const char* what) {
    std::vector<uint8_t> got(static_cast<size_t>(kPlaneBytes));
    MUST(cudaMemcpy(got.data(), at, got.size(), cudaMemcpyDeviceToHost));
    EXPECT_EQ(std::memcmp(got.data(), want, got.size()), 0) << what << ", " << at - pool << " bytes into the pool";
  };

  // Offsets of blocks in a plane.
  const int64_t places[] = {0,
                            2 * kGiB - 2 * kPlaneBytes,
                            2 * kGiB - 16,
                            2 * kGiB + kPlaneBytes,
                            4 * kGiB - kPlaneBytes,
                            4 * kGiB,
                            4 * kGiB + 3 * kPlaneBytes,
                            kPlaneRoom - kPlaneBytes};
  constexpr int32_t kBlocks = static_cast<int32_t>(std::size(places));
  const std::vector<uint8_t> content = random_bytes(static_cast<size_t>(kBlocks * kBlockBytes));
  Guarded<uint8_t> piece(content), back(content.size());
  std::vector<BlockCopy> in, out;
  for (int32_t b = 0; b < kBlocks; ++b) {
    in.push_back({{piece.data() + b * kBlockBytes, -1}, {pool + places[b], 0}});
    out.push_back({{pool + places[b], 0}, {back.data() + b * kBlockBytes, -1}});
  }
  Guarded<BlockCopy> device_in(in), device_out(out);
  blank();
  const BlockGroup group{kPlanes, kPlaneBytes, 0, kStride, 0};
  MUST(launch_block_copies({device_in, kBlocks, group}, Stream{}));
  MUST(launch_block_copies({device_out, kBlocks, group}, Stream{}));
  synchronize();
  EXPECT_TRUE(back.read() == content) << "there and back";
  for (int32_t b = 0; b < kBlocks; ++b)
    for (int32_t p = 0; p < kPlanes; ++p) {
      uint8_t* const at = pool + p * kStride + places[b];
      expect_plane(at, content.data() + b * kBlockBytes + p * kPlaneBytes, "into the pool");
      MUST(cudaMemset(at, kBlank, static_cast<size_t>(kPlaneBytes)));
    }
  Guarded<unsigned long long> others(1);
  others.zero();
  count_others<<<4096, 256>>>(pool, kPoolBytes, kBlank, others);
  MUST(cudaGetLastError());
  EXPECT_EQ(others.read()[0], 0u) << "bytes beside the blocks were written";

  // From one side of 4 GiB to the other.
  blank();
  Guarded<BlockCopy> across(std::vector<BlockCopy>{{{pool + places[0], 0}, {pool + places[5], 0}}});
  MUST(launch_block_copies({device_in, 1, group}, Stream{}));
  MUST(launch_block_copies({across, 1, group}, Stream{}));
  synchronize();
  for (int32_t p = 0; p < kPlanes; ++p) expect_plane(pool + p * kStride + places[5], content.data() + p * kPlaneBytes, "within the pool");
  MUST(cudaFree(memory));
}

TEST(BlockCopies, OfNothingAreNone) {
  EXPECT_EQ(launch_block_copies({nullptr, 0, {2, 1024, 0, 0, 0}}, Stream{}), cudaSuccess);
  EXPECT_EQ(launch_block_copies({nullptr, 1, {0, 1024, 0, 0, 0}}, Stream{}), cudaSuccess);
  EXPECT_EQ(launch_block_copies({nullptr, 1, {2, 1000, 0, 0, 0}}, Stream{}), cudaErrorInvalidValue);
  EXPECT_EQ(launch_block_copies({nullptr, 65536, {2, 1024, 0, 0, 0}}, Stream{}), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace mr::cuda::testing
