// The variances of a training's last round: for each codeword the mean distance of its rows, in integers, so that no order of the
// additions shows in the bits.
#pragma GCC optimize("fp-contract=off")
#include <algorithm>
#include <cmath>

#include "training.h"
#include "vector_math.h"

namespace mr::cpu {

// The distance of a row in the round at work, as the energy counts it.
double Training::reported_distance(int64_t row, int64_t space) const {
  return (config_.metric == MR_METRIC_COSINE ? 1.0 : 0.0) + at_.distances[space * shape_.n + row];
}

// Finds the largest magnitude of the distances in some blocks of a subspace. The blocks' sums are not used after the energy.
void Training::distance_scale_task(int64_t task) {
  const int64_t runs = (shape_.blocks + kMeasuredBlocks - 1) / kMeasuredBlocks, s = task / runs, begin = task % runs * kMeasuredBlocks;
  const int64_t end = std::min(begin + kMeasuredBlocks, shape_.blocks);
  for (int64_t b = begin; b < end; ++b) {
    double most = 0;
    for (int64_t i = b * kBlockRows; i < std::min((b + 1) * kBlockRows, shape_.n); ++i) most = std::max(most, std::fabs(reported_distance(i, s)));
    at_.block_sums[s * shape_.blocks + b] = most;
  }
}

void Training::set_variance_exponents() {
  for (int64_t s = 0; s < shape_.spaces; ++s) {
    const double* const first = at_.block_sums + s * shape_.blocks;
    at_.variance_exponent[s] = fixed_exponent(*std::max_element(first, first + shape_.blocks), config_.rows);
  }
}

// Adds the distances of some rows of a subspace to their codewords' sums. Threads share the sums of few codewords only at the end.
void Training::distance_sums_task(int64_t task) {
  const int64_t runs = (shape_.n + kSummedRows - 1) / kSummedRows, s = task / runs, begin = task % runs * kSummedRows;
  const int64_t end = std::min(begin + kSummedRows, shape_.n);
  const double scale = power_of_two(at_.variance_exponent[s]);
  const uint32_t* const ids = at_.new_ids + s * shape_.n;
  std::atomic<int64_t>* const sums = at_.sums + s * shape_.codewords;
  if (shape_.codewords > kCountedCodewords) {
    for (int64_t i = begin; i < end; ++i) sums[ids[i]].fetch_add(std::llrint(reported_distance(i, s) * scale), std::memory_order_relaxed);
    return;
  }
  int64_t own[kCountedCodewords] = {};
  for (int64_t i = begin; i < end; ++i) own[ids[i]] += std::llrint(reported_distance(i, s) * scale);
  for (int64_t c = 0; c < shape_.codewords; ++c)
    if (own[c] != 0) sums[c].fetch_add(own[c], std::memory_order_relaxed);
}

// Of codeword i of the whole codebook, once the training is done.
double Training::variance(int64_t i) const {
  return fixed_variance(at_.sums[i].load(std::memory_order_relaxed), at_.loads[i], at_.variance_exponent[i / shape_.codewords]);
}

}  // namespace mr::cpu
