// memory_blocks: KV blocks copied to host memory and back: by one kernel for all of them, as a step does it; by a
// strided driver copy for each block; and as one contiguous copy of the same size, which is the rate of the link.
// Prints lines
//
//   blocks WAY COUNT BLOCK_BYTES KERNEL COPIES ROOF    bytes a second; WAY is out or in
//
//   cuda_bench_memory_blocks [--device 0] [--layers 32] [--plane 32768]
//
// A block has two planes a layer, of --plane bytes each (16 tokens of 8 heads of 128 dims of 2 bytes), in a pool of
// 4096 blocks.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/block_copy.h"
#include "src/device.h"
#include "src/error.h"
#include "src/handles.h"

namespace {

using namespace mr::cuda;

constexpr int64_t kPool = 4096;  // blocks

// Returns bytes a second of what `queue` puts on the stream: the median of some runs, by events.
template <class Queue>
double rate_of(cudaStream_t stream, double bytes, Queue queue) {
  const EventHandle begin(cudaEventDefault), end(cudaEventDefault);
  std::vector<double> rates;
  for (int run = 0; run < 12; ++run) {
    CUDA_CHECK(cudaEventRecord(begin, stream));
    queue();
    CUDA_CHECK(cudaEventRecord(end, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    float milliseconds = 0;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    if (run > 1) rates.push_back(bytes / (static_cast<double>(milliseconds) * 1e-3));
  }
  std::nth_element(rates.begin(), rates.begin() + 5, rates.end());
  return rates[5];
}

void measure(Device& device, cudaStream_t stream, uint8_t* pool, uint8_t* host, int32_t count, int32_t planes, int64_t plane) {
  const int64_t stride = kPool * plane, block = planes * plane;
  const double bytes = static_cast<double>(count) * static_cast<double>(block);
  for (const bool out : {true, false}) {
    std::vector<BlockCopy> copies;
    for (int64_t i = 0; i < count; ++i) {
      const BlockSide near{pool, i * 2654435761 % kPool}, far{host + i * block, -1};  // scattered blocks
      copies.push_back(out ? BlockCopy{near, far} : BlockCopy{far, near});
    }
    const Memory list = device.ledger.allocate(copies.size() * sizeof(BlockCopy), MR_PURPOSE_WORKSPACE);
    device.transfers.upload(list.data(), copies.data(), copies.size() * sizeof(BlockCopy));
    const double kernel = rate_of(stream, bytes, [&] {
      CUDA_CHECK(launch_block_copies({list.as<BlockCopy>(), count, {planes, plane, 0, stride, 0}}, {stream, false}));
    });
    const double each = rate_of(stream, bytes, [&] {
      for (const BlockCopy& copy : copies) {
        const BlockSide &near = out ? copy.src : copy.dst, &far = out ? copy.dst : copy.src;
        uint8_t* const in_pool = near.base + near.block * plane;
        const size_t pool_stride = static_cast<size_t>(stride), host_stride = static_cast<size_t>(plane);
        CUDA_CHECK(cudaMemcpy2DAsync(out ? far.base : in_pool, out ? host_stride : pool_stride, out ? in_pool : far.base,
                                     out ? pool_stride : host_stride, static_cast<size_t>(plane), static_cast<size_t>(planes),
                                     out ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, stream));
      }
    });
    const double roof = rate_of(stream, bytes, [&] {
      const size_t size = static_cast<size_t>(count) * static_cast<size_t>(block);
      if (out) CUDA_CHECK(cudaMemcpyAsync(host, pool, size, cudaMemcpyDeviceToHost, stream));
      else CUDA_CHECK(cudaMemcpyAsync(pool, host, size, cudaMemcpyHostToDevice, stream));
    });
    std::printf("blocks %s %d %lld %.0f %.0f %.0f\n", out ? "out" : "in", count, static_cast<long long>(block), kernel, each, roof);
  }
}

void run(int32_t index, int32_t layers, int64_t plane) {
  mr_device_options options{};
  options.struct_size = sizeof options;
  options.index = index;
  const auto device = std::make_unique<Device>(options);
  device->enter();
  constexpr int32_t kMost = 256;
  const int32_t planes = 2 * layers;
  const Memory pool = device->ledger.allocate(static_cast<uint64_t>(kPool * planes * plane), MR_PURPOSE_KV);
  const Pinned host(static_cast<uint64_t>(kMost) * static_cast<uint64_t>(planes * plane));
  std::memset(host.data(), 0x5a, host.size());
  const StreamHandle stream(device->priority_high);
  for (int32_t count = 1; count <= kMost; count *= 4) measure(*device, stream, pool.data(), host.data(), count, planes, plane);
}

}  // namespace

int main(int argc, char** argv) {
  int32_t index = 0, layers = 32;
  int64_t plane = 32768;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--device") index = std::atoi(argv[i + 1]);
    if (flag == "--layers") layers = std::atoi(argv[i + 1]);
    if (flag == "--plane") plane = std::atoll(argv[i + 1]);
  }
  if (argc % 2 == 0 || index < 0 || layers < 1 || layers > 128 || plane < 1024 || plane > 1 << 19 || plane % 16 != 0) {
    std::fprintf(stderr, "usage: %s [--device N] [--layers 1..128] [--plane 1024..524288]\n", argv[0]);
    return 2;
  }
  try {
    run(index, layers, plane);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.message.c_str());
    return 1;
  }
  return 0;
}
