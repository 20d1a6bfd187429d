// Sums of rows by codeword, in integers: in the order of the rows where codewords are few, else by rows sorted by codeword.
#pragma GCC optimize("fp-contract=off")
#include <algorithm>

#include "training.h"
#include "vector_math.h"

namespace mr::cpu {
namespace {

constexpr uint64_t kFetchedAhead = 6;  // rows of a sum, which lie anywhere

}  // namespace

// Adds rows as they come to a thread's own sums, and these to those of all.
void Training::tally_task(int64_t task, TrainingLane* lane) {
  const int64_t begin = task * shape_.tallied, end = std::min(begin + shape_.tallied, shape_.n);
  std::fill(lane->tally, lane->tally + shape_.values, int64_t{0});
  const int64_t some = shape_.stored == MR_VECTOR_F32 ? end - begin : shape_.group;  // that are decoded at once
  for (int64_t first = begin; first < end; first += some) {
    const int64_t count = std::min(some, end - first);
    const Rows rows = rows_of(first, count, lane);
    for (int64_t i = 0; i < count; ++i)
      for (int64_t s = 0; s < shape_.spaces; ++s) {
        const int64_t c = at_.new_ids[s * shape_.n + first + i];
        kernels_.add_fixed(rows.data + i * rows.stride + s * shape_.width, at_.scale + s * shape_.width, shape_.width,
                           lane->tally + (s * shape_.codewords + c) * shape_.width);
      }
  }
  for (int64_t i = 0; i < shape_.values; ++i)
    if (lane->tally[i] != 0) at_.sums[i].fetch_add(lane->tally[i], std::memory_order_relaxed);
}

void Training::sort_begin() {
  uint64_t start = 0;
  for (int64_t c = 0; c < shape_.codewords; ++c) {
    at_.starts[c] = start;
    at_.cursors[c].store(static_cast<uint32_t>(start), std::memory_order_relaxed);
    start += at_.new_loads[space_ * shape_.codewords + c];
  }
  at_.starts[shape_.codewords] = start;
}

// Puts rows into their codewords' segments, in no order: sums of integers need none.
void Training::sort_task(int64_t task, TrainingLane* lane) {
  const int64_t begin = task * kSortedRows, end = std::min(begin + kSortedRows, shape_.n);
  const uint32_t* const ids = at_.new_ids + space_ * shape_.n;
  if (shape_.codewords > kCountedCodewords) {
    for (int64_t i = begin; i < end; ++i)
      at_.order[at_.cursors[ids[i]].fetch_add(1, std::memory_order_relaxed)] = static_cast<uint32_t>(i);
    return;
  }
  std::fill(lane->counts, lane->counts + shape_.codewords, 0u);
  for (int64_t i = begin; i < end; ++i) ++lane->counts[ids[i]];
  for (int64_t c = 0; c < shape_.codewords; ++c)
    if (lane->counts[c] != 0) lane->counts[c] = at_.cursors[c].fetch_add(lane->counts[c], std::memory_order_relaxed);
  for (int64_t i = begin; i < end; ++i) at_.order[lane->counts[ids[i]]++] = static_cast<uint32_t>(i);
}

// Adds the kept rows of some places of the order to their codewords' sums.
void Training::add_task(int64_t task, TrainingLane* lane) {
  const uint64_t begin = static_cast<uint64_t>(task * shape_.added);
  const uint64_t end = static_cast<uint64_t>(std::min((task + 1) * shape_.added, shape_.n));
  const uint64_t* const starts = at_.starts;
  int64_t c = std::upper_bound(starts, starts + shape_.codewords + 1, begin) - starts - 1;
  for (; c < shape_.codewords && starts[c] < end; ++c) {
    const uint64_t first = std::max(begin, starts[c]);
    const uint64_t last = std::min(end, starts[c] + kept(starts[c + 1] - starts[c]));
    if (first >= last) continue;
    std::fill(lane->sums, lane->sums + shape_.width, int64_t{0});
    for (uint64_t i = first; i < last; ++i) {
      fetch_part(at_.order[std::min(i + kFetchedAhead, last - 1)], space_);
      kernels_.add_fixed(part_of(at_.order[i], space_, lane), at_.scale + space_ * shape_.width, shape_.width, lane->sums);
    }
    std::atomic<int64_t>* const to = at_.sums + (space_ * shape_.codewords + c) * shape_.width;
    for (int64_t j = 0; j < shape_.width; ++j) to[j].fetch_add(lane->sums[j], std::memory_order_relaxed);
  }
}

}  // namespace mr::cpu
