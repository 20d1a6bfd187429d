// round_times: launches rounds of every kernel over weights of zeros that do not fit the L2 cache, and takes the shortest of three
// times.
#include "kernels/gemm/round_times.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "kernels/gemm/input_sums.h"
#include "kernels/gemm/m128_wgmma.h"
#include "kernels/gemm/skinny_wgmma.h"

namespace mr::cuda {
namespace {

std::atomic<const RoundTimes*> measured[kMaxDevices];

constexpr int32_t kCols = kRoundCols, kTokens = 128, kTries = 3;
constexpr int64_t kWeightBytes = 160 << 20, kOutBytes = 24 << 20, kInputBytes = kTokens * kCols * 2;
constexpr int32_t kTypes[kWeightKinds] = {kBF16, kQ8_0, kQ4_K};

// Scratch is device memory and two events, freed at the end.
struct Scratch {
  uint8_t *memory = nullptr, *weights = nullptr, *out = nullptr, *x = nullptr, *sums = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;

  cudaError_t allocate(cudaStream_t stream) {
    const size_t bytes = kWeightBytes + kOutBytes + kInputBytes + input_sum_bytes(kTokens, kCols);
    cudaError_t error = cudaMalloc(reinterpret_cast<void**>(&memory), bytes);
    if (error == cudaSuccess) error = cudaMemsetAsync(memory, 0, bytes, stream);
    if (error == cudaSuccess) error = cudaEventCreate(&begin);
    if (error == cudaSuccess) error = cudaEventCreate(&end);
    weights = memory;
    out = weights + kWeightBytes;
    x = out + kOutBytes;
    sums = x + kInputBytes;
    return error;
  }
  ~Scratch() {
    if (begin != nullptr) (void)cudaEventDestroy(begin);
    if (end != nullptr) (void)cudaEventDestroy(end);
    (void)cudaFree(memory);
  }
};

// Two rounds include the cost of one's end to the next. kSkinnySingle has memory for the sums of one.
constexpr int32_t rounds_of(RoundKernel kernel) { return kernel == RoundKernel::kSkinnySingle ? 1 : 2; }

constexpr int32_t skinny_form(int32_t type) { return type == kQ4_K || type == kQ5_K ? kSkinnyWithSums : kSkinnySixtyFour; }

// Returns the rows that give each cluster of a kernel rounds_of tiles; 0 if it does not run here.
int64_t rows_of(RoundKernel kernel, int32_t device, int32_t type, Act act) {
  const int64_t tiles = rounds_of(kernel), skinny = tiles * kSkinnyPanels * kPanelRows, m128 = tiles * kM128Panels * kPanelRows;
  switch (kernel) {
    case RoundKernel::kSkinny: return skinny / 2 * skinny_wgmma_clusters(device, type, act, skinny_form(type));  // two tiles of tokens
    case RoundKernel::kSkinnySingle: return skinny * skinny_wgmma_clusters(device, type, act, kSkinnySingle);
    case RoundKernel::kHalfOfK: return m128 * m128_wgmma_clusters(M128Share::kK, device, type, act);
    case RoundKernel::kWholeOfK: return m128 * kM128Cluster * m128_wgmma_clusters(M128Share::kTokens, device, type, act);
  }
  return 0;
}

cudaError_t run(RoundKernel kernel, int32_t device, const GemmArgs& args, const Stream& on) {
  const int32_t type = args.targets[0].weight.type;
  switch (kernel) {
    case RoundKernel::kSkinny: return launch_skinny_wgmma_as(skinny_form(type), device, args, 0, args.count, on);
    case RoundKernel::kSkinnySingle: return launch_skinny_wgmma_as(kSkinnySingle, device, args, 0, args.count, on);
    case RoundKernel::kHalfOfK: return launch_m128_wgmma_as(M128Share::kK, device, args, 0, args.count, on);
    case RoundKernel::kWholeOfK: return launch_m128_wgmma_as(M128Share::kTokens, device, args, 0, args.count, on);
  }
  return cudaErrorInvalidValue;
}

// Sets round to the nanoseconds of a round, or to 0 if the kernel does not run here. Each try reads other weights, if there
// is room for them, because a model's weights are not in the L2 cache either.
cudaError_t measure(const Scratch& scratch, RoundKernel kernel, int32_t device, int32_t type, bool pair, cudaStream_t stream,
                    int32_t* round) {
  GemmArgs args;
  args.act = quantised(type) ? Act::kF16 : Act::kBF16;
  args.count = pair ? 2 : 1;
  const int64_t rows = rows_of(kernel, device, type, args.act) / args.count;
  const int64_t bytes = static_cast<int64_t>(weight_packed_bytes(type, rows, kCols)), out_bytes = rows * kTokens * 4;
  *round = 0;
  if (rows == 0 || bytes * args.count > kWeightBytes || out_bytes > kOutBytes) return cudaSuccess;
  args.epilogue = pair ? Epilogue::kSwiGLU : Epilogue::kStoreF32;
  args.x = scratch.x;
  args.x_stride = kCols;
  args.tokens = kTokens;
  args.input_sums = scratch.sums;
  args.summed = true;
  const int64_t places = kWeightBytes / (bytes * args.count);
  int64_t place = 0;
  const auto launch_next = [&] {
    for (int32_t t = 0; t < args.count; ++t)
      args.targets[t] = {{type, rows, kCols, scratch.weights + (place % places * args.count + t) * bytes}, nullptr, scratch.out, rows};
    ++place;
    return run(kernel, device, args, Stream{stream});
  };
  float best = 0;
  for (int32_t i = 0; i < kTries; ++i) {
    // The first launch keeps the device busy while this thread prepares the second, which is timed.
    cudaError_t error = launch_next();
    if (error == cudaErrorNotSupported) return cudaSuccess;
    if (error == cudaSuccess) error = cudaEventRecord(scratch.begin, stream);
    if (error == cudaSuccess) error = launch_next();
    if (error == cudaSuccess) error = cudaEventRecord(scratch.end, stream);
    if (error == cudaSuccess) error = cudaEventSynchronize(scratch.end);
    float ms = 0;
    if (error == cudaSuccess) error = cudaEventElapsedTime(&ms, scratch.begin, scratch.end);
    if (error != cudaSuccess) return error;
    best = i == 0 ? ms : std::min(best, ms);
  }
  *round = static_cast<int32_t>(best * 1e6f / rounds_of(kernel));
  return cudaSuccess;
}

cudaError_t measure(int32_t device, cudaStream_t stream, RoundTimes& times) {
  Scratch scratch;
  const cudaError_t error = scratch.allocate(stream);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return cudaSuccess;
  }
  if (error != cudaSuccess) return error;
  for (int32_t kind = 0; kind < kWeightKinds; ++kind) {
    for (int32_t pair = 0; pair < 2; ++pair) {
      int32_t row[kRoundKernels] = {};
      for (int32_t k = 0; k < kRoundKernels; ++k) {
        const cudaError_t failed = measure(scratch, static_cast<RoundKernel>(k), device, kTypes[kind], pair != 0, stream, row + k);
        if (failed != cudaSuccess) return failed;
      }
      (void)accept_times(times.of[kind][pair], row);
    }
  }
  return cudaSuccess;
}

}  // namespace

const RoundTimes& round_times(int32_t device) {
  const RoundTimes* const times = measured[device].load(std::memory_order_acquire);
  return times == nullptr ? kUnmeasured : *times;
}

cudaError_t measure_round_times(cudaStream_t stream) {
  static std::mutex mutex;
  static RoundTimes all[kMaxDevices];
  int32_t device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess || device >= kMaxDevices || !wgmma_available(device)) return error;
  const std::lock_guard<std::mutex> lock(mutex);
  if (measured[device].load(std::memory_order_relaxed) != nullptr) return cudaSuccess;
  all[device] = kUnmeasured;
  error = measure(device, stream, all[device]);
  if (error == cudaSuccess) measured[device].store(&all[device], std::memory_order_release);
  return error;
}

}  // namespace mr::cuda
