// ANNEALED: codewords move some way to the trimmed means of their rows, near ones are merged and full ones split.
#pragma GCC optimize("fp-contract=off")
#include <algorithm>
#include <cmath>

#include "training.h"
#include "vector_math.h"

namespace mr::cpu {

// How many rows of a codeword trimming keeps.
uint64_t Training::kept(uint64_t load) const {
  return shape_.annealed ? kept_rows(config_.trim, load) : load;
}

// Whether this round needs to know which rows are kept.
bool Training::trims() const {
  return shape_.annealed && (config_.trim > 0 || (shape_.maintained && (iteration_ + 1) % config_.maintenance_interval == 0));
}

// Puts the kept rows of some codewords before the others.
void Training::trim_task(int64_t task) {
  const int64_t begin = task * shape_.run, end = std::min(begin + shape_.run, shape_.codewords);
  const double* const q = at_.distances + space_ * shape_.n;
  const auto nearer = [q](uint32_t a, uint32_t b) { return q[a] != q[b] ? q[a] < q[b] : a < b; };
  for (int64_t c = begin; c < end; ++c) {
    const uint64_t load = at_.starts[c + 1] - at_.starts[c];
    if (load == 0) continue;
    uint32_t* const rows = at_.order + at_.starts[c];
    uint32_t* const last = rows + kept(load) - 1;
    std::nth_element(rows, last, rows + load, nearer);
    if (shape_.maintained) at_.farthest[space_ * shape_.codewords + c] = *last;
  }
}

void Training::move_some(int64_t s, int64_t c) {
  const int64_t first = (s * shape_.codewords + c) * shape_.width;
  const double *const p = at_.place + first, *const v = at_.velocity + first;
  double *const next_p = at_.next_place + first, *const next_v = at_.next_velocity + first;
  const uint64_t rows = kept(at_.new_loads[s * shape_.codewords + c]);
  if (rows == 0) {
    for (int64_t j = 0; j < shape_.width; ++j) {
      next_p[j] = p[j];
      next_v[j] = 0;
      at_.next[first + j] = at_.now[first + j];
    }
    return;
  }
  const double rate = config_.learning_rate * temperature_;
  for (int64_t j = 0; j < shape_.width; ++j) {
    const int64_t sum = at_.sums[first + j].exchange(0, std::memory_order_relaxed);
    const double m = fixed_value(sum, at_.exponent[s * shape_.width + j]) / static_cast<double>(rows);
    next_v[j] = next_velocity(config_.momentum, v[j], rate, m, p[j]);
  }
  if (config_.step_limit > 0) {
    const double length = std::sqrt(length_squared(next_v, shape_.width));
    if (length > config_.step_limit) {
      const double factor = config_.step_limit / length;
      for (int64_t j = 0; j < shape_.width; ++j) next_v[j] *= factor;
    }
  }
  for (int64_t j = 0; j < shape_.width; ++j) next_p[j] = p[j] + next_v[j];
  place(s, c);
}

// Rounds a codeword's place to its value.
void Training::place(int64_t s, int64_t c) {
  const int64_t first = (s * shape_.codewords + c) * shape_.width;
  for (int64_t j = 0; j < shape_.width; ++j) at_.next[first + j] = round_codeword(config_.codeword_type, at_.next_place[first + j]);
}

// Finds for some codewords with rows the nearest other one of those with rows, if it is near enough; else the codeword itself.
void Training::find_task(int64_t task, TrainingLane* lane) {
  const int64_t begin = task * shape_.run, end = std::min(begin + shape_.run, shape_.codewords);
  const uint64_t* const loads = at_.new_loads + space_ * shape_.codewords;
  const Search search(kernels_, at_.spaces[static_cast<size_t>(space_)]);
  for (int64_t b = begin; b < end; ++b) {
    at_.nearest[b] = static_cast<uint32_t>(b);
    if (loads[b] == 0) continue;
    double least = config_.merge_distance * config_.merge_distance;
    search.within(codeword(at_.next, space_, b), least, lane->search, [&](uint32_t other) {
      if (other == b || loads[other] == 0) return;
      const double q = kernels_.squared(codeword(at_.next, space_, b), codeword(at_.next, space_, other), shape_.width);
      if (q < least) {
        least = q;
        at_.nearest[b] = other;
      }
    });
  }
}

int64_t Training::merge(int64_t s) {
  const uint64_t* const loads = at_.new_loads + s * shape_.codewords;
  std::copy(loads, loads + shape_.codewords, at_.left);
  std::fill(at_.touched, at_.touched + shape_.codewords, uint8_t{0});
  if (!(config_.merge_distance > 0)) return 0;
  int64_t merged = 0;
  for (int64_t b = 0; b < shape_.codewords; ++b) {
    const int64_t a = at_.nearest[b];
    if (a == b || at_.touched[a] != 0 || at_.touched[b] != 0) continue;
    const int64_t low = std::min(a, b), high = std::max(a, b);
    const int64_t first = (s * shape_.codewords + low) * shape_.width, second = (s * shape_.codewords + high) * shape_.width;
    const double n = static_cast<double>(at_.left[low]), m = static_cast<double>(at_.left[high]);
    const double both = static_cast<double>(at_.left[low] + at_.left[high]);
    for (int64_t j = 0; j < shape_.width; ++j) {
      double &p = at_.next_place[first + j], &q = at_.next_place[second + j];
      p = merged_place(n, p, m, q, both);
      q = p;
      at_.next_velocity[first + j] = at_.next_velocity[second + j] = 0;
    }
    place(s, low);
    place(s, high);
    at_.left[low] += at_.left[high];
    at_.left[high] = 0;
    at_.touched[low] = at_.touched[high] = 1;
    ++merged;
  }
  return merged;
}

int64_t Training::split(int64_t s) {
  if (!(config_.split_load > 0)) return 0;
  const double limit = config_.split_load * (static_cast<double>(shape_.n) / static_cast<double>(shape_.codewords));
  const double* const q = at_.distances + s * shape_.n;
  const uint32_t* const farthest = at_.farthest + s * shape_.codewords;
  uint32_t* const donors = at_.listed;
  int64_t count = 0, split = 0;
  for (int64_t c = 0; c < shape_.codewords; ++c)
    if (at_.left[c] != 0 && at_.touched[c] == 0 && static_cast<double>(at_.left[c]) > limit && q[farthest[c]] > 0)
      donors[count++] = static_cast<uint32_t>(c);
  const uint64_t* const left = at_.left;
  std::sort(donors, donors + count, [left](uint32_t a, uint32_t b) { return left[a] != left[b] ? left[a] > left[b] : a < b; });
  for (int64_t c = 0; c < shape_.codewords && split < count; ++c) {
    if (at_.left[c] != 0) continue;
    const int64_t first = (s * shape_.codewords + c) * shape_.width;
    decode_part(farthest[donors[split]], s, at_.next + first);
    for (int64_t j = 0; j < shape_.width; ++j) {
      at_.next_place[first + j] = static_cast<double>(at_.next[first + j]);
      at_.next_velocity[first + j] = 0;
    }
    place(s, c);
    ++split;
  }
  return split;
}

}  // namespace mr::cpu
