// training_move: the next codebook from the sums; one warp for a codeword.
#include "kernels/vectors/training.cuh"

namespace mr::cuda {
namespace {

__device__ int warp_lane() { return static_cast<int>(threadIdx.x % 32); }

// L2: the mean of the codeword's rows. A codeword without rows stays.
__device__ void move_mean(const TrainingView& t, int64_t first, const int32_t* e, uint64_t load) {
  for (int64_t j = warp_lane(); j < t.p.width; j += 32) {
    const int64_t sum = t.a.sums[first + j];
    t.a.sums[first + j] = 0;
    t.a.next[first + j] = load == 0 ? t.a.now[first + j] : fixed_mean(t.p.codeword_type, sum, load, e[j]);
  }
}

// Inner products: the direction of the mean. A zero sum changes nothing.
__device__ void move_direction(const TrainingView& t, int64_t first, const int32_t* e, uint64_t load) {
  const double length =
      sqrt(warp_length_squared(t.p.width, [&](int64_t j) { return fixed_value(t.a.sums[first + j], e[j]); }));
  __syncwarp();  // all sums are read
  for (int64_t j = warp_lane(); j < t.p.width; j += 32) {
    const double m = fixed_value(t.a.sums[first + j], e[j]);
    t.a.sums[first + j] = 0;
    t.a.next[first + j] = load != 0 && length > 0 ? round_codeword(t.p.codeword_type, m / length) : t.a.now[first + j];
  }
}

// Moves a fraction of the way to the mean of the rows kept.
__device__ void move_some(const TrainingView& t, int64_t first, const int32_t* e, uint64_t rows) {
  if (rows == 0) {
    for (int64_t j = warp_lane(); j < t.p.width; j += 32) {
      t.a.next_place[first + j] = t.a.place[first + j];
      t.a.next_velocity[first + j] = 0;
      t.a.next[first + j] = t.a.now[first + j];
    }
    return;
  }
  const double rate = t.p.learning_rate * t.a.control->temperature;
  for (int64_t j = warp_lane(); j < t.p.width; j += 32) {
    const double m = fixed_value(t.a.sums[first + j], e[j]) / static_cast<double>(rows);
    t.a.sums[first + j] = 0;
    t.a.next_velocity[first + j] = mr::next_velocity(t.p.momentum, t.a.velocity[first + j], rate, m, t.a.place[first + j]);
  }
  double factor = 1;
  bool shortened = false;
  if (t.p.step_limit > 0) {
    __syncwarp();  // the velocity is written
    const double length = sqrt(warp_length_squared(t.p.width, [&](int64_t j) { return t.a.next_velocity[first + j]; }));
    shortened = length > t.p.step_limit;
    if (shortened) factor = t.p.step_limit / length;
    __syncwarp();  // and read
  }
  for (int64_t j = warp_lane(); j < t.p.width; j += 32) {
    double v = t.a.next_velocity[first + j];
    if (shortened) v *= factor;
    const double p = t.a.place[first + j] + v;
    t.a.next_velocity[first + j] = v;
    t.a.next_place[first + j] = p;
    t.a.next[first + j] = round_codeword(t.p.codeword_type, p);
  }
}

__global__ void move(TrainingView t) {
  grid_wait();
  const Control& control = *t.a.control;
  if (control.skip != 0 || control.over != 0) return;
  const int64_t w = (int64_t{blockIdx.x} * kTrainingThreads + threadIdx.x) / 32;
  if (w >= t.p.spaces * t.p.codewords) return;
  const uint64_t load = t.a.new_loads[w];
  const int32_t* const e = t.a.exponent + w / t.p.codewords * t.p.width;
  if (t.p.annealed != 0) move_some(t, w * t.p.width, e, kept_rows(t.p.trim, load));
  else if (t.p.metric == MR_METRIC_L2) move_mean(t, w * t.p.width, e, load);
  else move_direction(t, w * t.p.width, e, load);
}

__global__ void reseed(TrainingView t, const uint32_t* order, int64_t space) {
  grid_wait();
  const int64_t c = (int64_t{blockIdx.x} * kTrainingThreads + threadIdx.x) / 32;
  if (c >= t.p.codewords) return;
  const uint64_t* const loads = t.a.new_loads + space * t.p.codewords;
  if (loads[c] != 0) return;
  unsigned before = 0;  // codewords without rows
  for (int64_t i = warp_lane(); i < c; i += 32) before += loads[i] == 0 ? 1 : 0;
  before = __reduce_add_sync(kWholeWarp, before);
  if (before >= t.p.n) return;
  const int64_t row = order[before];
  if (t.p.metric == MR_METRIC_L2 && t.a.distances[space * t.p.n + row] == 0) return;
  take_row(t, row, space, t.a.next + (space * t.p.codewords + c) * t.p.width);
}

}  // namespace

cudaError_t launch_move(const TrainingView& t, const Stream& on) {
  return launch(on, training_grid(t.p.spaces * t.p.codewords, kTrainingThreads / 32), dim3(kTrainingThreads), 0, move, t);
}

cudaError_t launch_reseed(const TrainingView& t, const uint32_t* order, int64_t space, const Stream& on) {
  return launch(on, training_grid(t.p.codewords, kTrainingThreads / 32), dim3(kTrainingThreads), 0, reseed, t, order, space);
}

}  // namespace mr::cuda
