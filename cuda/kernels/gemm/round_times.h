// round_times: how long a round of tiles takes in each of the decode class's kernels for more than 64 tokens. Launches choose
// the kernel with the least product of rounds and time; all of them give the same bits.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/gemm/weight.h"

namespace mr::cuda {

// RoundKernel is a kernel, with the rows by tokens of a cluster's tile: forms of skinny_wgmma.h and shares of m128_wgmma.h.
enum class RoundKernel : int32_t { kSkinny = 0, kSkinnySingle, kHalfOfK, kWholeOfK };
constexpr int32_t kRoundKernels = 4;

// RoundTimes are nanoseconds: [kind of weights][pair][kernel]. Kinds: float, rounded, folded.
constexpr int32_t kWeightKinds = 3;
constexpr int32_t weight_kind(int32_t type) { return !quantised(type) ? 0 : type == kQ4_K || type == kQ5_K ? 2 : 1; }
struct RoundTimes {
  int32_t of[kWeightKinds][2][kRoundKernels];

  int32_t at(int32_t type, bool pair, RoundKernel kernel) const {
    return of[weight_kind(type)][pair ? 1 : 0][static_cast<int32_t>(kernel)];
  }
};

// Nanoseconds of a round of kRoundCols columns on one H200. Rows and tokens bound float tiles; a skinny round of quantised weights
// takes about a third of one of 128 rows. A pair of whole K takes longer than one weight.
constexpr int32_t kRoundCols = 4096;
constexpr RoundTimes kUnmeasured = {{{{9'150, 13'725, 18'300, 18'300}, {9'150, 13'725, 18'300, 18'300}},
                                     {{6'314, 9'471, 18'300, 31'470}, {6'006, 9'009, 18'300, 35'660}},
                                     {{6'314, 9'471, 18'300, 31'470}, {6'006, 9'009, 18'300, 35'660}}}};

// Replaces a row of times by measured ones, if the ratios to kSkinny are within a factor of two of the row's: others show that
// something else ran on the device. A kernel that was not measured (0) keeps its ratio. Returns whether it replaced them.
constexpr bool accept_times(int32_t (&row)[kRoundKernels], const int32_t (&measured)[kRoundKernels]) {
  if (measured[0] <= 0) return false;
  for (int32_t k = 1; k < kRoundKernels; ++k) {
    const int64_t is = int64_t{measured[k]} * row[0], was = int64_t{row[k]} * measured[0];
    if (measured[k] < 0 || (measured[k] > 0 && (is > 2 * was || was > 2 * is))) return false;
  }
  const int64_t first = row[0];
  for (int32_t k = 0; k < kRoundKernels; ++k)
    row[k] = measured[k] > 0 ? measured[k] : static_cast<int32_t>(row[k] * int64_t{measured[0]} / first);
  return true;
}

// Returns the times of a device: kUnmeasured until measure_round_times.
const RoundTimes& round_times(int32_t device);

// Measures the times of the current device, once in a process; later calls return at once. Takes a few milliseconds and, while
// it runs, up to 200 MiB of memory. Must come after prepare_gemms, outside of stream capture. If memory is lacking the
// device keeps kUnmeasured, and the result is success; an error is one that other calls would meet too.
cudaError_t measure_round_times(cudaStream_t stream);

}  // namespace mr::cuda
