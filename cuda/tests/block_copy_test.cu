// Copies of whole blocks: between pools of planes far apart and blocks of one piece, in device memory and in pinned host memory.
#include <cstring>
#include <random>

#include "kernels/block_copy.h"
#include "kernel_fixture.h"

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

// Copies blocks of a pool to the host, in reverse order, and from there to another pool: this gives the first pool again, block
// by block reversed.
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
    out.push_back({pool.data() + b * plane_bytes, between, stride, plane_bytes});
    in.push_back({away + b * block_bytes, other.data() + b * plane_bytes, plane_bytes, stride});
  }
  Guarded<BlockCopy> device_out(out), device_in(in);
  MUST(launch_block_copies({device_out, blocks, planes, plane_bytes}, Stream{}));
  MUST(launch_block_copies({device_in, blocks, planes, plane_bytes}, Stream{}));
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

TEST(BlockCopies, OfNothingAreNone) {
  EXPECT_EQ(launch_block_copies({nullptr, 0, 2, 1024}, Stream{}), cudaSuccess);
  EXPECT_EQ(launch_block_copies({nullptr, 1, 0, 1024}, Stream{}), cudaSuccess);
  EXPECT_EQ(launch_block_copies({nullptr, 1, 2, 1000}, Stream{}), cudaErrorInvalidValue);
  EXPECT_EQ(launch_block_copies({nullptr, 65536, 2, 1024}, Stream{}), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace mr::cuda::testing
