// training_round: the measurements of a round, and its end.
#include "kernels/vectors/training.cuh"

namespace mr::cuda {
namespace {

constexpr int64_t kCounted = 1024;          // codewords up to which a block first counts loads in shared memory
constexpr uint64_t kExactRows = 94'906'265;  // up to this many rows the squares of loads sum up to less than 2^53
constexpr int64_t kCopied = 4096;           // blocks of a copy

__device__ int64_t grid_first() { return int64_t{blockIdx.x} * kTrainingThreads + threadIdx.x; }
__device__ int64_t grid_step() { return int64_t{gridDim.x} * kTrainingThreads; }

__global__ void begin_round(TrainingView t) {
  grid_wait();
  Control& control = *t.a.control;
  const bool skip = control.done != 0 || control.hold != 0;
  if (grid_first() == 0) control.skip = skip ? 1 : 0;
  if (skip) return;
  if (grid_first() == 0) {
    control.over = 0;
    control.changes = control.merged = control.split = 0;
    control.empty = 0;
  }
  const int64_t all = t.p.spaces * t.p.codewords;
  for (int64_t i = grid_first(); i < all; i += grid_step()) t.a.new_loads[i] = 0;
}

// One block for rows of a subspace: the sum of its distances, its loads, its changes. Lane i has rows i, i + 256, ...
__global__ void measure(TrainingView t) {
  __shared__ double sums[kTrainingThreads];
  __shared__ unsigned counts[kCounted];
  __shared__ unsigned changed;
  static_assert(kTrainingThreads == kBlockLanes, "a thread a partial sum");
  grid_wait();
  Control& control = *t.a.control;
  if (control.skip != 0) return;
  const int64_t space = blockIdx.x / t.p.blocks, block = blockIdx.x % t.p.blocks;
  const int64_t first = block * kBlockRows, count = min(kBlockRows, t.p.n - first);
  const int64_t at = space * t.p.n + first;
  unsigned long long* const loads = reinterpret_cast<unsigned long long*>(t.a.new_loads + space * t.p.codewords);
  const bool counted = t.p.codewords <= kCounted, known = control.has_ids != 0;
  if (counted)
    for (int64_t c = threadIdx.x; c < t.p.codewords; c += kTrainingThreads) counts[c] = 0;
  if (threadIdx.x == 0) changed = 0;
  __syncthreads();
  const double plus = t.p.metric == MR_METRIC_COSINE ? 1 : 0;
  double sum = 0;
  unsigned changes = 0;
  for (int64_t i = threadIdx.x; i < count; i += kTrainingThreads) {
    sum += plus + t.a.distances[at + i];
    const uint32_t id = t.a.new_ids[at + i];
    changes += !known || t.a.ids[at + i] != id ? 1 : 0;
    if (counted) atomicAdd(&counts[id], 1u);
    else atomicAdd(&loads[id], 1ull);
  }
  sums[threadIdx.x] = sum;
  if (changes != 0) atomicAdd(&changed, changes);
  __syncthreads();
  for (int half = kTrainingThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    t.a.block_values[space * t.p.blocks + block] = sums[0];
    if (changed != 0) atomicAdd(reinterpret_cast<unsigned long long*>(&control.changes), static_cast<unsigned long long>(changed));
  }
  if (counted)
    for (int64_t c = threadIdx.x; c < t.p.codewords; c += kTrainingThreads)
      if (counts[c] != 0) atomicAdd(&loads[c], static_cast<unsigned long long>(counts[c]));
}

// One thread: the round's figures and their consequences.
__device__ void decide(const TrainingView& t) {
  Control& control = *t.a.control;
  const double n = static_cast<double>(t.p.n), k = static_cast<double>(t.p.codewords);
  double total = 0, uneven = 0;
  int64_t empty = 0;
  for (int64_t s = 0; s < t.p.spaces; ++s) {
    total += t.a.space_energy[s];
    uneven += k * t.a.space_squares[s] / n / n;
    empty += t.a.space_empty[s];
  }
  control.empty = empty;
  control.next_energy = total / n;
  control.imbalance = uneven / static_cast<double>(t.p.spaces);
  const bool stable = is_stable(t.p.end, control.iteration, control.energy, control.next_energy,
                                     static_cast<int64_t>(control.changes));
  control.next_stable = stable ? control.stable + 1 : 0;
  const int32_t reason = end_reason(t.p.end, control.iteration, control.next_stable);
  control.reason = reason;
  control.over = reason != MR_REASON_NONE ? 1 : 0;
  control.hold = control.over == 0 && t.p.annealed == 0 && empty > 0 ? 1 : 0;
}

// One block for a subspace: its energy and squared loads, in ascending order, and its codewords without rows. If it is
// the only one, it also decides.
__global__ void measure_space(TrainingView t) {
  __shared__ double tile[kTrainingThreads];
  __shared__ unsigned long long squares, empty;
  grid_wait();
  if (t.a.control->skip != 0) return;
  const int64_t space = blockIdx.x;
  const uint64_t* const loads = t.a.new_loads + space * t.p.codewords;
  const bool exact = static_cast<uint64_t>(t.p.n) <= kExactRows;  // then integers give the same sum in any order
  if (threadIdx.x == 0) squares = empty = 0;
  __syncthreads();
  unsigned long long my_squares = 0, my_empty = 0;
  for (int64_t c = threadIdx.x; c < t.p.codewords; c += kTrainingThreads) {
    const uint64_t load = loads[c];
    if (exact) my_squares += load * load;
    my_empty += load == 0 ? 1 : 0;
  }
  if (my_squares != 0) atomicAdd(&squares, my_squares);
  if (my_empty != 0) atomicAdd(&empty, my_empty);
  const double* const blocks = t.a.block_values + space * t.p.blocks;
  double energy = 0;
  for (int64_t first = 0; first < t.p.blocks; first += kTrainingThreads) {
    const int64_t count = min(int64_t{kTrainingThreads}, t.p.blocks - first);
    __syncthreads();
    if (threadIdx.x < count) tile[threadIdx.x] = blocks[first + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
#pragma unroll 8
      for (int64_t i = 0; i < count; ++i) energy += tile[i];
    }
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  double sum = static_cast<double>(squares);
  if (!exact) {
    sum = 0;
    for (int64_t c = 0; c < t.p.codewords; ++c) sum += static_cast<double>(loads[c]) * static_cast<double>(loads[c]);
  }
  t.a.space_energy[space] = energy;
  t.a.space_squares[space] = sum;
  t.a.space_empty[space] = static_cast<uint32_t>(empty);
  if (t.p.spaces == 1) decide(t);
}

__global__ void judge(TrainingView t) {
  grid_wait();
  if (t.a.control->skip == 0) decide(t);
}

// Publishes the result of the round.
__global__ void commit(TrainingView t) {
  grid_wait();
  const Control& control = *t.a.control;
  if (control.skip != 0 || control.hold != 0) return;
  const int64_t rows = t.p.spaces * t.p.n, books = t.p.spaces * t.p.codewords, values = books * t.p.width;
  for (int64_t i = grid_first(); i < rows; i += grid_step()) t.a.ids[i] = t.a.new_ids[i];
  for (int64_t i = grid_first(); i < books; i += grid_step()) t.a.loads[i] = t.a.new_loads[i];
  if (control.over != 0) return;  // the state stays as it was at the start of the round
  for (int64_t i = grid_first(); i < values; i += grid_step()) {
    t.a.last[i] = t.a.now[i];
    t.a.now[i] = t.a.next[i];
    if (t.p.annealed != 0) {
      t.a.place[i] = t.a.next_place[i];
      t.a.velocity[i] = t.a.next_velocity[i];
    }
  }
}

__global__ void end_round(TrainingView t) {
  grid_wait();
  Control& control = *t.a.control;
  const bool ends = control.skip == 0 && control.hold == 0;
  RoundReport report{};
  if (ends) {
    mr_round& round = report.round;
    round.iteration = control.iteration;
    round.energy = control.next_energy;
    round.changes = static_cast<int64_t>(control.changes);
    round.temperature = control.temperature;
    round.empty = control.empty;
    round.merged = static_cast<int64_t>(control.merged);
    round.split = static_cast<int64_t>(control.split);
    round.imbalance = control.imbalance;
    control.has_ids = 1;
    if (control.over != 0) {
      control.done = 1;
    } else {
      ++control.iteration;
      control.stable = control.merged + control.split > 0 ? 0 : control.next_stable;
      control.energy = control.next_energy;
      if (t.p.annealed != 0) control.temperature *= 1 - t.p.cooling_rate;
    }
  }
  report.iteration = control.iteration;
  report.stable = control.stable;
  report.temperature = control.temperature;
  report.energy = control.energy;
  report.recomputed = control.recomputed;
  report.ended = ends ? 1 : 0;
  report.hold = control.hold;
  report.done = control.done;
  report.reason = control.done != 0 ? control.reason : static_cast<int32_t>(MR_REASON_NONE);
  t.a.reports[control.sequence % kReports] = report;
  ++control.sequence;
}

// Held rounds between which others were skipped continue as if these had not been.
__global__ void release(TrainingView t) {
  grid_wait();
  t.a.control->hold = 0;
  t.a.control->skip = 0;
}

__global__ void adopt_ids(TrainingView t) {
  grid_wait();
  const int64_t rows = t.p.spaces * t.p.n;
  for (int64_t i = grid_first(); i < rows; i += grid_step()) t.a.ids[i] = t.a.new_ids[i];
  if (grid_first() == 0) t.a.control->has_ids = 1;
}

}  // namespace

cudaError_t launch_begin_round(const TrainingView& t, const Stream& on) {
  return launch(on, training_grid(t.p.spaces * t.p.codewords, kTrainingThreads, kCopied), dim3(kTrainingThreads), 0, begin_round, t);
}

cudaError_t launch_measure(const TrainingView& t, const Stream& on) {
  cudaError_t error = launch(on, training_grid(t.p.spaces * t.p.blocks, 1), dim3(kTrainingThreads), 0, measure, t);
  if (error == cudaSuccess) error = launch(on, training_grid(t.p.spaces, 1), dim3(kTrainingThreads), 0, measure_space, t);
  if (error == cudaSuccess && t.p.spaces > 1) error = launch(on, dim3(1), dim3(1), 0, judge, t);
  return error;
}

cudaError_t launch_end_round(const TrainingView& t, const Stream& on) {
  const int64_t most = std::max(t.p.spaces * t.p.n, t.p.spaces * t.p.codewords * t.p.width);
  const cudaError_t error = launch(on, training_grid(most, kTrainingThreads, kCopied), dim3(kTrainingThreads), 0, commit, t);
  return error != cudaSuccess ? error : launch(on, dim3(1), dim3(1), 0, end_round, t);
}

cudaError_t launch_release(const TrainingView& t, const Stream& on) { return launch(on, dim3(1), dim3(1), 0, release, t); }

cudaError_t launch_adopt_ids(const TrainingView& t, const Stream& on) {
  return launch(on, training_grid(t.p.spaces * t.p.n, kTrainingThreads, kCopied), dim3(kTrainingThreads), 0, adopt_ids, t);
}

}  // namespace mr::cuda
