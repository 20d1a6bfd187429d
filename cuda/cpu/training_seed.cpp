// The first codewords of a training.
#pragma GCC optimize("fp-contract=off")
#include <algorithm>
#include <cmath>
#include <limits>

#include "training.h"
#include "vector_math.h"

namespace mr::cpu {
namespace {

// The place that a target falls on, and the running sum before it.
int64_t pass(const double* v, int64_t n, double target, double* before) {
  RunningPass over;
  for (int64_t i = 0; i < n && !over.take(i, v[i], target); ++i) {
  }
  *before = over.before;
  return over.at;
}

}  // namespace

// A row as a codeword: for inner products divided by its length.
void Training::as_codeword(const float* x, float* to) const {
  const double length = config_.metric == MR_METRIC_L2 ? 0 : std::sqrt(length_squared(x, shape_.width));
  for (int64_t j = 0; j < shape_.width; ++j) {
    const double v = static_cast<double>(x[j]);
    to[j] = round_codeword(config_.codeword_type, length > 0 ? v / length : v);
  }
}

void Training::seed_task(int64_t task) {
  const int64_t s = task / shape_.runs, begin = task % shape_.runs * shape_.run, end = std::min(begin + shape_.run, shape_.codewords);
  for (int64_t c = begin; c < end; ++c) {
    const uint64_t row = draw_pick(config_.seed, static_cast<uint64_t>(c), static_cast<uint64_t>(shape_.codewords), config_.rows,
                                   draw_random, static_cast<uint32_t>(s));
    take_row(static_cast<int64_t>(row), s, codeword(at_.now, s, c));
  }
}

// The row's columns of a subspace as a codeword.
void Training::take_row(int64_t row, int64_t space, float* to) const {
  decode_part(row, space, to);
  as_codeword(to, to);
}

void Training::spread_begin() {
  const uint32_t purpose = config_.init == MR_INIT_FARTHEST ? draw_far : draw_plus;
  const uint64_t row = draw_below(vector_draw(config_.seed, 0, 0, purpose, static_cast<uint32_t>(space_)), config_.rows);
  take_row(static_cast<int64_t>(row), space_, codeword(at_.now, space_, 0));
  double* const least = at_.distances + space_ * shape_.n;
  std::fill(least, least + shape_.n, std::numeric_limits<double>::infinity());
  chosen_ = 1;
}

// The least distances of some rows to the codewords so far.
void Training::spread_task(int64_t task, TrainingLane* lane) {
  const int64_t begin = task * kSpreadRows, end = std::min(begin + kSpreadRows, shape_.n);
  const float* const newest = codeword(at_.now, space_, chosen_ - 1);
  double* const least = at_.distances + space_ * shape_.n;
  double most = 0;
  for (int64_t i = begin; i < end; ++i) {
    least[i] = std::min(least[i], kernels_.squared(part_of(i, space_, lane), newest, shape_.width));
    most = std::max(most, least[i]);
  }
  at_.spread_most[task] = most;
}

void Training::weigh_task(int64_t block) {
  const int64_t first = block * kBlockRows;
  at_.block_sums[space_ * shape_.blocks + block] =
      block_sum(at_.distances + space_ * shape_.n + first, std::min(kBlockRows, shape_.n - first), 0);
}

// Takes one more codeword of the subspace, and ends the seeding behind the last one.
void Training::choose() {
  const bool far = config_.init == MR_INIT_FARTHEST;
  if (space_ < shape_.spaces && chosen_ < shape_.codewords) {
    const uint32_t round = static_cast<uint32_t>(chosen_), s = static_cast<uint32_t>(space_);
    const int64_t row = far ? farthest() : weighted(vector_draw(config_.seed, 0, round, draw_plus, s));
    take_row(row, space_, codeword(at_.now, space_, chosen_));
    ++chosen_;
  }
  if (space_ < shape_.spaces && chosen_ == shape_.codewords && ++space_ < shape_.spaces) spread_begin();
  if (space_ < shape_.spaces) {
    enter(chosen_ < shape_.codewords ? Step::spread : Step::choose);
    return;
  }
  if (shape_.annealed) {
    std::copy(at_.now, at_.now + shape_.values, at_.place);
    std::fill(at_.velocity, at_.velocity + shape_.values, 0.0);
  }
  seeded_ = true;
  enter(Step::center);
}

// A row with a probability proportional to its least distance.
int64_t Training::weighted(uint64_t bits) const {
  const double* const blocks = at_.block_sums + space_ * shape_.blocks;
  double all = 0;
  for (int64_t b = 0; b < shape_.blocks; ++b) all += blocks[b];
  if (all == 0) return static_cast<int64_t>(draw_below(bits, config_.rows));
  const double target = draw_unit(bits) * all;
  double before = 0, unused = 0;
  const int64_t block = pass(blocks, shape_.blocks, target, &before), first = block * kBlockRows;
  const double* const least = at_.distances + space_ * shape_.n + first;
  return first + pass(least, std::min(kBlockRows, shape_.n - first), target - before, &unused);
}

// The row with the largest least distance, the lowest on ties.
int64_t Training::farthest() const {
  const double* const most = at_.spread_most;
  const int64_t tasks = (shape_.n + kSpreadRows - 1) / kSpreadRows, task = std::max_element(most, most + tasks) - most;
  const double* const least = at_.distances + space_ * shape_.n;
  const double* const begin = least + task * kSpreadRows;
  return std::find(begin, least + shape_.n, most[task]) - least;
}

}  // namespace mr::cpu
