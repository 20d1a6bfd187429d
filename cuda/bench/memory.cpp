// memory: the driver's own memory operations, and the ledger's pool without the ABI. millrace-bench memory runs this
// program and compares the engine with it. Prints lines of words:
//
//   gpu BUS                     the GPU's address on the PCI bus
//   peak RATE                   bytes a second: twice the memory clock times the width of the memory bus
//   allocate SIZE DRIVER POOL   microseconds of cudaMalloc and cudaFree, and of the same from the pool; nothing is
//                               zeroed
//   copy WAY SIZE RATE          bytes a second of cudaMemcpyAsync and the wait for it; h2d and d2h with pinned memory,
//                               d2d with bytes read and written counted together
//
//   cuda_bench_memory [--device 0] [--largest 1073741824]
//
// Each figure is the median of groups of calls; a group lasts a millisecond, or one call.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "src/device.h"
#include "src/error.h"
#include "src/handles.h"

namespace {

using namespace mr::cuda;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Seconds of one call.
template <class Call>
double median_of(Call call) {
  constexpr double kGroup = 1e-3, kEnough = 0.2;  // seconds
  constexpr size_t kLeast = 5, kMost = 1000;      // groups
  call();                                         // one-time work
  Clock::time_point begin = Clock::now();
  call();
  const int calls = static_cast<int>(std::clamp(kGroup / std::max(seconds_since(begin), 1e-9), 1.0, 1e5));
  std::vector<double> each;
  const Clock::time_point first = Clock::now();
  while (each.size() < kLeast || (each.size() < kMost && seconds_since(first) < kEnough)) {
    begin = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    each.push_back(seconds_since(begin) / calls);
  }
  std::nth_element(each.begin(), each.begin() + static_cast<std::ptrdiff_t>(each.size() / 2), each.end());
  return each[each.size() / 2];
}

// Block is device memory directly from the driver.
class Block {
 public:
  explicit Block(uint64_t bytes) { CUDA_CHECK(cudaMalloc(&data_, bytes)); }
  ~Block() { (void)cudaFree(data_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

void describe(const Device& device) {
  char bus[32] = {};
  int clock = 0, width = 0;  // kHz, bits
  CUDA_CHECK(cudaDeviceGetPCIBusId(bus, sizeof bus, device.index));
  CUDA_CHECK(cudaDeviceGetAttribute(&clock, cudaDevAttrMemoryClockRate, device.index));
  CUDA_CHECK(cudaDeviceGetAttribute(&width, cudaDevAttrGlobalMemoryBusWidth, device.index));
  std::printf("gpu %s\npeak %.0f\n", bus, 2.0 * clock * 1e3 * width / 8);
}

void allocate(const Device& device, uint64_t size) {
  const double driver = median_of([&] { const Block block(size); });
  const double pool = median_of([&] { const Memory memory = device.ledger.allocate(size, MR_PURPOSE_STAGING); });
  device.ledger.trim();
  std::printf("allocate %llu %.4f %.4f\n", static_cast<unsigned long long>(size), driver * 1e6, pool * 1e6);
}

void copy(uint64_t size) {
  const StreamHandle stream(0);
  const Pinned host(size);
  const Block from(size), to(size);
  std::fill_n(host.data(), size, uint8_t{0x5a});
  const auto rate = [&](const char* way, void* dst, const void* src, cudaMemcpyKind kind, double bytes) {
    const double seconds = median_of([&] {
      CUDA_CHECK(cudaMemcpyAsync(dst, src, size, kind, stream));
      CUDA_CHECK(cudaStreamSynchronize(stream));
    });
    std::printf("copy %s %llu %.0f\n", way, static_cast<unsigned long long>(size), bytes / seconds);
  };
  const double bytes = static_cast<double>(size);
  rate("h2d", from.data(), host.data(), cudaMemcpyHostToDevice, bytes);
  rate("d2h", host.data(), from.data(), cudaMemcpyDeviceToHost, bytes);
  rate("d2d", to.data(), from.data(), cudaMemcpyDeviceToDevice, 2 * bytes);
}

void run(int32_t index, uint64_t largest) {
  mr_device_options options{};
  options.struct_size = sizeof options;
  options.index = index;
  const auto device = std::make_unique<Device>(options);
  device->enter();
  describe(*device);
  for (const uint64_t size : {uint64_t{4} << 10, uint64_t{1} << 20, uint64_t{64} << 20, uint64_t{1} << 30})
    if (size <= largest) allocate(*device, size);
  for (uint64_t size = 1 << 10; size <= largest; size *= 4) copy(size);
}

}  // namespace

int main(int argc, char** argv) {
  int32_t index = 0;
  uint64_t largest = uint64_t{1} << 30;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--device") index = std::atoi(argv[i + 1]);
    if (flag == "--largest") largest = std::strtoull(argv[i + 1], nullptr, 10);
  }
  if (argc % 2 == 0 || index < 0 || largest < 1 << 10 || largest > uint64_t{1} << 36) {
    std::fprintf(stderr, "usage: %s [--device N] [--largest BYTES]\n", argv[0]);
    return 2;
  }
  try {
    run(index, largest);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.message.c_str());
    return 1;
  }
  return 0;
}
