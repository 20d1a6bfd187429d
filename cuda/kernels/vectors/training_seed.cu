// training_seed: the first codewords of a training (k-means++ for the random choice).
#include "kernels/vectors/training.cuh"

namespace mr::cuda {
namespace {

constexpr int kOctet = 8;  // lanes that compute one row's distance: one for each partial sum
constexpr int kOctets = kTrainingThreads / kOctet;
constexpr int64_t kMostGrid = int64_t{1} << 20;

// One warp copies one codeword's row.
__global__ void seed_random(TrainingView t) {
  grid_wait();
  const int64_t w = (int64_t{blockIdx.x} * kTrainingThreads + threadIdx.x) / 32;
  if (w >= t.p.spaces * t.p.codewords) return;
  const int64_t space = w / t.p.codewords, c = w % t.p.codewords;
  const uint64_t row = draw_pick(t.p.seed, static_cast<uint64_t>(c), static_cast<uint64_t>(t.p.codewords),
                                      static_cast<uint64_t>(t.p.n), draw_random, static_cast<uint32_t>(space));
  take_row(t, static_cast<int64_t>(row), space, t.a.now + w * t.p.width);
}

// Lane l of eight adds elements l, l + 8, ... of a row. Every lane of a warp runs the same number of rounds.
__global__ void spread(TrainingView t, const void* rows, int64_t first, int64_t count, int64_t space, int64_t c) {
  grid_wait();
  const int lane = static_cast<int>(threadIdx.x % kOctet);
  const float* const newest = t.a.now + (space * t.p.codewords + c - 1) * t.p.width;
  double* const least = t.a.distances + space * t.p.n + first;
  for (int64_t block = int64_t{blockIdx.x} * kOctets; block < count; block += int64_t{gridDim.x} * kOctets) {
    const int64_t i = block + threadIdx.x / kOctet;
    double sum = 0;
    if (i < count) {
      const RowPart x = row_part(rows, t.p.stored, t.p.full, i, space * t.p.width);
      for (int64_t j = lane; j < t.p.width; j += kOctet) {
        const double d = static_cast<double>(x[j]) - static_cast<double>(newest[j]);
        sum += d * d;
      }
    }
    for (int half = kOctet / 2; half > 0; half /= 2) {
      const double other = __shfl_down_sync(kWholeWarp, sum, half, kOctet);
      if (lane < half) sum += other;
    }
    if (i < count && lane == 0 && (c == 1 || sum < least[i])) least[i] = sum;
  }
}

// One block of rows' least distances: their sum in the order of blocks of rows.
__global__ void weigh(TrainingView t, int64_t space) {
  __shared__ double sums[kTrainingThreads];
  static_assert(kTrainingThreads == kBlockLanes, "a thread a partial sum");
  grid_wait();
  const int64_t first = int64_t{blockIdx.x} * kBlockRows, count = min(kBlockRows, t.p.n - first);
  const double* const least = t.a.distances + space * t.p.n + first;
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kTrainingThreads) sum += least[i];
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kTrainingThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) t.a.block_values[blockIdx.x] = sums[0];
}

struct Far {
  double value;
  int64_t row;
};

// Returns the larger value; ties go to the lower row.
__device__ Far farther(Far a, Far b) { return b.value > a.value || (b.value == a.value && b.row < a.row) ? b : a; }

__device__ Far farthest_of(Far mine, Far* all) {
  all[threadIdx.x] = mine;
  __syncthreads();
  for (int half = kTrainingThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) all[threadIdx.x] = farther(all[threadIdx.x], all[threadIdx.x + half]);
    __syncthreads();
  }
  return all[0];
}

// One block finds its farthest row.
__global__ void find_far(TrainingView t, int64_t space) {
  __shared__ Far all[kTrainingThreads];
  grid_wait();
  const int64_t first = int64_t{blockIdx.x} * kBlockRows, end = min(first + kBlockRows, t.p.n);
  const double* const least = t.a.distances + space * t.p.n;
  Far mine{-1, t.p.n};
  for (int64_t i = first + threadIdx.x; i < end; i += kTrainingThreads) mine = farther(mine, {least[i], i});
  mine = farthest_of(mine, all);
  if (threadIdx.x == 0) {
    t.a.block_values[blockIdx.x] = mine.value;
    t.a.block_rows[blockIdx.x] = static_cast<uint32_t>(mine.row);
  }
}

// Visits values one after another through shared memory: the first thread calls f(i, v) until it returns true.
template <class F>
__device__ void in_order(const double* v, int64_t n, double* tile, bool* stop, F&& f) {
  for (int64_t first = 0; first < n; first += kTrainingThreads) {
    const int64_t count = min(int64_t{kTrainingThreads}, n - first);
    __syncthreads();  // the first thread is done with the last tile
    if (threadIdx.x < count) tile[threadIdx.x] = v[first + threadIdx.x];
    if (threadIdx.x == 0) *stop = false;
    __syncthreads();
    if (threadIdx.x == 0)
      for (int64_t i = 0; i < count && !*stop; ++i) *stop = f(first + i, tile[i]);
    __syncthreads();
    if (*stop) break;
  }
  __syncthreads();
}

// One block: draws a row with a probability proportional to its least distance; the first thread has it.
__device__ int64_t weighted(const TrainingView& t, int64_t space, uint64_t bits) {
  __shared__ double tile[kTrainingThreads];
  __shared__ bool stop;
  __shared__ double shared_all, shared_left;
  __shared__ int64_t shared_block;
  double sum = 0;
  in_order(t.a.block_values, t.p.blocks, tile, &stop, [&](int64_t, double v) {
    sum += v;
    return false;
  });
  if (threadIdx.x == 0) shared_all = sum;
  __syncthreads();
  const double all = shared_all;
  if (all == 0) return static_cast<int64_t>(draw_below(bits, static_cast<uint64_t>(t.p.n)));
  const double target = draw_unit(bits) * all;
  RunningPass blocks;
  in_order(t.a.block_values, t.p.blocks, tile, &stop, [&](int64_t i, double v) { return blocks.take(i, v, target); });
  if (threadIdx.x == 0) {
    shared_block = blocks.at;
    shared_left = target - blocks.before;
  }
  __syncthreads();
  const int64_t first = shared_block * kBlockRows;
  const double left = shared_left;
  RunningPass rows;
  in_order(t.a.distances + space * t.p.n + first, min(kBlockRows, t.p.n - first), tile, &stop,
           [&](int64_t i, double v) { return rows.take(i, v, left); });
  return first + rows.at;
}

__global__ void choose(TrainingView t, bool far, int64_t space, int64_t c) {
  __shared__ Far all[kTrainingThreads];
  __shared__ int64_t chosen;
  grid_wait();
  const uint32_t purpose = far ? draw_far : draw_plus;
  const uint64_t bits = vector_draw(t.p.seed, 0, static_cast<uint32_t>(c), purpose, static_cast<uint32_t>(space));
  int64_t row;
  if (c == 0) {
    row = static_cast<int64_t>(draw_below(bits, static_cast<uint64_t>(t.p.n)));
  } else if (far) {
    Far mine{-1, t.p.n};
    for (int64_t b = threadIdx.x; b < t.p.blocks; b += kTrainingThreads)
      mine = farther(mine, {t.a.block_values[b], static_cast<int64_t>(t.a.block_rows[b])});
    row = farthest_of(mine, all).row;
  } else {
    row = weighted(t, space, bits);
  }
  if (threadIdx.x == 0) chosen = row;
  __syncthreads();
  if (threadIdx.x < 32) take_row(t, chosen, space, t.a.now + (space * t.p.codewords + c) * t.p.width);
}

__global__ void places(TrainingView t) {
  grid_wait();
  const int64_t values = t.p.spaces * t.p.codewords * t.p.width;
  for (int64_t i = int64_t{blockIdx.x} * kTrainingThreads + threadIdx.x; i < values; i += int64_t{gridDim.x} * kTrainingThreads) {
    t.a.place[i] = static_cast<double>(t.a.now[i]);
    t.a.velocity[i] = 0;
  }
}

}  // namespace

cudaError_t launch_seed_random(const TrainingView& t, const Stream& on) {
  return launch(on, training_grid(t.p.spaces * t.p.codewords, kTrainingThreads / 32), dim3(kTrainingThreads), 0, seed_random, t);
}

cudaError_t launch_spread(const TrainingView& t, const void* rows, int64_t first, int64_t count, int64_t space, int64_t c,
                          const Stream& on) {
  return launch(on, training_grid(count, kOctets, kMostGrid), dim3(kTrainingThreads), 0, spread, t, rows, first, count, space, c);
}

cudaError_t launch_choose(const TrainingView& t, bool farthest, int64_t space, int64_t c, const Stream& on) {
  if (c > 0) {
    const cudaError_t error = launch(on, training_grid(t.p.blocks, 1), dim3(kTrainingThreads), 0, farthest ? find_far : weigh, t, space);
    if (error != cudaSuccess) return error;
  }
  return launch(on, dim3(1), dim3(kTrainingThreads), 0, choose, t, farthest, space, c);
}

cudaError_t launch_places(const TrainingView& t, const Stream& on) {
  return launch(on, training_grid(t.p.spaces * t.p.codewords * t.p.width, kTrainingThreads, 4096), dim3(kTrainingThreads), 0, places, t);
}

}  // namespace mr::cuda
