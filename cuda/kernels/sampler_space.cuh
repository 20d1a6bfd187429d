// sampler_space: a block's shared memory, in front of its part of the row where that lies beside it.
#pragma once

#include "kernels/sampler_histogram.cuh"
#include "kernels/sampler_select.cuh"

namespace mr::cuda {

constexpr int kListed = 2048;  // tokens that a team lists

// What a team listed, in every block of it.
struct Listed {
  uint64_t keys[kListed], values[kListed];
};

struct SamplerSpace {
  union {  // each is written only after a sync() behind the last use of another
    HistogramSpace histogram;
    Listed list;
    int32_t counts[2 * kBins * kColumns];  // how often tokens were said
  };
  SampleJob job;
  SlotParams params;
  Rules rules;
  int32_t own[kListed];  // ids that this block lists
  uint32_t own_count;
  TeamSpace team;
  BinSpace bins;
  SelectSpace select;
  uint64_t token;  // the drawn token's logit above its id
};

}  // namespace mr::cuda
