#include "roofs.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "caches.h"
#include "error.h"
#include "measure.h"

namespace mr::cpu {
namespace {

using Clock = std::chrono::steady_clock;

// Calls work() on every thread until duration_ns have passed; work gives the units it did. The threads' rates are added.
template <class Work>
double sum_of_rates(Device& device, uint64_t duration_ns, Work work) {
  std::vector<double> rates(static_cast<size_t>(device.threads.size()));
  device.threads.run_each([&](int thread) {
    const auto begin = Clock::now(), end = begin + std::chrono::nanoseconds(duration_ns);
    double units = 0;
    Clock::time_point now;
    do {
      units += work(thread);
      now = Clock::now();
    } while (now < end);
    rates[static_cast<size_t>(thread)] = units / std::chrono::duration<double>(now - begin).count();
  });
  double sum = 0;
  for (const double rate : rates) sum += rate;
  return sum;
}

double measure_read(Device& device, uint64_t duration_ns) {
  constexpr uint64_t kLeast = uint64_t{256} << 20, kPage = 4096;
  const uint64_t threads = static_cast<uint64_t>(device.threads.size());
  // It uses at most half of the free memory, also if caches are large, because others need memory at the same time.
  const uint64_t cached = last_level_cache_bytes(allowed_processors());
  const uint64_t wanted = std::max(kLeast, std::min(cached * 8, device.ledger.counts().free() / 2));
  const uint64_t slice = (wanted / threads + kPage - 1) / kPage * kPage;
  const Memory memory = device.ledger.allocate(slice * threads, MR_PURPOSE_WORKSPACE, false);
  uint8_t* const data = memory.as<uint8_t>();
  // Each thread writes the part that it reads: pages that were never written are all one page of zeros, and the system places
  // a page near the thread that touches it first.
  device.threads.run_each([&](int thread) { std::memset(data + slice * static_cast<uint64_t>(thread), 1 + thread, slice); });
  std::vector<uint64_t> folds(threads * 8);
  return sum_of_rates(device, duration_ns, [&](int thread) {
    folds[static_cast<size_t>(thread) * 8] ^= read_stream(device.isa, data + slice * static_cast<uint64_t>(thread), slice);
    return static_cast<double>(slice);
  });
}

double measure_rounds(Device& device, uint64_t duration_ns, double (*rounds)(Isa, int64_t, float*)) {
  constexpr int64_t kRounds = 4096;  // some microseconds to a millisecond on any path
  std::vector<float> sinks(static_cast<size_t>(device.threads.size()) * 16);
  return sum_of_rates(device, duration_ns, [&](int thread) {
    return rounds(device.isa, kRounds, &sinks[static_cast<size_t>(thread) * 16]);
  });
}

}  // namespace

double measure_roof(Device& device, int32_t what, uint64_t duration_ns) {
  constexpr uint64_t kLeast = 1'000'000, kMost = 60'000'000'000;
  if (duration_ns < kLeast || duration_ns > kMost)
    fail(MR_INVALID_ARGUMENT, "duration is %llu ns: want 1 ms to 60 s", static_cast<unsigned long long>(duration_ns));
  switch (what) {
    case MR_MEASURE_READ_BYTES: return measure_read(device, duration_ns);
    case MR_MEASURE_INT8_OPS: return measure_rounds(device, duration_ns, int8_rounds);
    case MR_MEASURE_F32_OPS: return measure_rounds(device, duration_ns, f32_rounds);
    case MR_MEASURE_BF16_OPS: return measure_rounds(device, duration_ns, bf16_rounds);
    default: fail(MR_INVALID_ARGUMENT, "measure is %d: want 0 to %d", what, MR_MEASURE_BF16_OPS);
  }
}

}  // namespace mr::cpu
