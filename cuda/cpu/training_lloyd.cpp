// LLOYD: codewords become the means of their rows.
#pragma GCC optimize("fp-contract=off")
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "training.h"
#include "vector_math.h"

namespace mr::cpu {

// The mean, or for inner products its direction. One without rows, or whose sum has no direction, stays.
void Training::move_mean(int64_t s, int64_t c) {
  float* const to = codeword(at_.next, s, c);
  std::memcpy(to, codeword(at_.now, s, c), static_cast<size_t>(shape_.width) * sizeof(float));
  const uint64_t load = at_.new_loads[s * shape_.codewords + c];
  if (load == 0) return;
  std::atomic<int64_t>* const sums = at_.sums + (s * shape_.codewords + c) * shape_.width;
  const int32_t* const e = at_.exponent + s * shape_.width;
  if (config_.metric == MR_METRIC_L2) {
    for (int64_t j = 0; j < shape_.width; ++j)
      to[j] = fixed_mean(config_.codeword_type, sums[j].exchange(0, std::memory_order_relaxed), load, e[j]);
    return;
  }
  double partial[8] = {};
  for (int64_t j = 0; j < shape_.width; ++j) {
    const double m = fixed_value(sums[j].load(std::memory_order_relaxed), e[j]);
    partial[j % 8] += m * m;
  }
  const double length = std::sqrt(fold_eight(partial));
  for (int64_t j = 0; j < shape_.width; ++j) {
    const double m = fixed_value(sums[j].exchange(0, std::memory_order_relaxed), e[j]);
    if (length > 0) to[j] = round_codeword(config_.codeword_type, m / length);
  }
}

// Finds the rows that are farthest from their codewords, one for each codeword without rows, and returns for how many of these.
int64_t Training::find_farthest(int64_t s) {
  const uint64_t* const loads = at_.new_loads + s * shape_.codewords;
  int64_t count = 0;
  for (int64_t c = 0; c < shape_.codewords; ++c)
    if (loads[c] == 0) at_.listed[count++] = static_cast<uint32_t>(c);
  if (count == 0) return 0;
  const double* const q = at_.distances + s * shape_.n;
  const auto farther = [q](uint32_t a, uint32_t b) { return q[a] != q[b] ? q[a] > q[b] : a < b; };
  uint32_t* const rows = at_.order;
  std::iota(rows, rows + shape_.n, 0u);
  count = std::min(count, shape_.n);
  std::nth_element(rows, rows + count - 1, rows + shape_.n, farther);
  std::sort(rows, rows + count, farther);
  if (config_.metric == MR_METRIC_L2)
    while (count > 0 && q[rows[count - 1]] == 0) --count;
  return count;
}

void Training::reseed_task(int64_t task) {
  const int64_t begin = task * shape_.run, end = std::min(begin + shape_.run, reseeded_);
  for (int64_t i = begin; i < end; ++i) take_row(at_.order[i], space_, codeword(at_.next, space_, at_.listed[i]));
}

}  // namespace mr::cpu
