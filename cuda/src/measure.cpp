#include "src/measure.h"

#include <algorithm>

#include "src/error.h"
#include "src/measure_kernels.h"

namespace mr::cuda {
namespace {

constexpr uint64_t kRead = uint64_t{4} << 30, kLeastRead = uint64_t{64} << 20;  // bytes: far above any cache, or what there is

// Runs pass(), which gives the units it did, until duration_ns of device time have passed, after one that is not counted.
template <class Pass>
double rate_of(uint64_t duration_ns, Pass pass) {
  const StreamHandle stream(0);
  const EventHandle begin(cudaEventDefault), end(cudaEventDefault);
  double units = 0, seconds = 0;
  for (bool warm = false; !warm || seconds * 1e9 < static_cast<double>(duration_ns); warm = true) {
    CUDA_CHECK(cudaEventRecord(begin, stream));
    const double done = pass(static_cast<cudaStream_t>(stream));
    CUDA_CHECK(cudaEventRecord(end, stream));
    CUDA_CHECK(cudaEventSynchronize(end));
    float milliseconds = 0;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    if (!warm) continue;
    units += done;
    seconds += static_cast<double>(milliseconds) * 1e-3;
  }
  return units / seconds;
}

double measure_alone(Device& device, int32_t what, uint64_t duration_ns) {
  constexpr uint64_t kLeast = 1'000'000, kMost = 60'000'000'000;
  if (duration_ns < kLeast || duration_ns > kMost)
    fail(MR_INVALID_ARGUMENT, "duration is %llu ns: want 1 ms to 60 s", static_cast<unsigned long long>(duration_ns));
  device.enter();
  const int sms = device.properties.multiProcessorCount;
  const Memory sink = device.ledger.allocate(256, MR_PURPOSE_WORKSPACE);
  double done = 0;
  switch (what) {
    case MR_MEASURE_READ_BYTES: {
      const LedgerCounts counts = device.ledger.counts();
      uint64_t free = counts.total;
      for (const uint64_t used : counts.used) free -= used;
      const uint64_t bytes = std::max(kLeastRead, std::min(kRead, free / 2) >> 20 << 20);
      const Memory data = device.ledger.allocate(bytes, MR_PURPOSE_WORKSPACE);
      device.transfers.fill(data.data(), 0x5a, bytes);
      return rate_of(duration_ns, [&](cudaStream_t stream) {
        CUDA_CHECK(launch_read_stream(data.data(), bytes, sms, sink.as<uint32_t>(), stream));
        return static_cast<double>(bytes);
      });
    }
    case MR_MEASURE_INT8_OPS:
      return rate_of(duration_ns, [&](cudaStream_t stream) {
        CUDA_CHECK(launch_int8_rounds(4096, sms, sink.as<int32_t>(), &done, stream));
        return done;
      });
    case MR_MEASURE_F32_OPS:
      return rate_of(duration_ns, [&](cudaStream_t stream) {
        CUDA_CHECK(launch_f32_rounds(16384, sms, sink.as<float>(), &done, stream));
        return done;
      });
    case MR_MEASURE_BF16_OPS:
      return rate_of(duration_ns, [&](cudaStream_t stream) {
        CUDA_CHECK(launch_bf16_rounds(8192, sms, sink.as<float>(), &done, stream));
        return done;
      });
    default: fail(MR_INVALID_ARGUMENT, "measure is %d: want 0 to %d", what, MR_MEASURE_BF16_OPS);
  }
}

}  // namespace

double measure_roof(Device& device, int32_t what, uint64_t duration_ns) {
  double rate = 0;
  for (int32_t rank = 0; rank < device.ranks(); ++rank) rate += measure_alone(device.rank(rank), what, duration_ns);
  return rate;
}

}  // namespace mr::cuda
