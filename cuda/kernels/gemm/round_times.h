// round_times: how long a round of tiles takes in each of the decode class's kernels for more than 64 tokens. Launches choose
// the kernel with the least product of rounds and time; all of them give the same bits.
#pragma once

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

// Of kRoundCols columns, measured on one H200. Rows and tokens bound float tiles; a skinny round of quantised weights takes about a third
// of one of 128 rows. A pair of whole K takes longer than one weight.
constexpr int32_t kRoundCols = 4096;
constexpr RoundTimes kRoundTimes = {{{{9'150, 13'725, 18'300, 18'300}, {9'150, 13'725, 18'300, 18'300}},
                                     {{6'314, 9'471, 18'300, 31'470}, {6'006, 9'009, 18'300, 35'660}},
                                     {{6'314, 9'471, 18'300, 31'470}, {6'006, 9'009, 18'300, 35'660}}}};

}  // namespace mr::cuda
