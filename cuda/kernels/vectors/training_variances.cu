// training_variances: for each codeword the mean distance of its rows, after a training. The sums are integers, so the
// order of additions changes no bit.
#include "kernels/vectors/training.cuh"

namespace mr::cuda {
namespace {

constexpr int64_t kShared = 1024;  // codewords up to which a block first adds in shared memory

__device__ double reported_distance(const TrainingView& t, int64_t at) { return (t.p.metric == MR_METRIC_COSINE ? 1.0 : 0.0) + t.a.distances[at]; }

// Returns the largest value of the threads of a block, in thread 0.
__device__ double block_largest(double mine) {
  __shared__ double all[kTrainingThreads];
  all[threadIdx.x] = mine;
  __syncthreads();
  for (int half = kTrainingThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) all[threadIdx.x] = fmax(all[threadIdx.x], all[threadIdx.x + half]);
    __syncthreads();
  }
  return all[0];
}

// One block of rows of a subspace: the largest magnitude of its distances. It also clears the sums.
__global__ void distance_scale(TrainingView t) {
  grid_wait();
  const int64_t space = blockIdx.x / t.p.blocks, block = blockIdx.x % t.p.blocks;
  const int64_t first = block * kBlockRows, count = min(kBlockRows, t.p.n - first), at = space * t.p.n + first;
  double most = 0;
  for (int64_t i = threadIdx.x; i < count; i += kTrainingThreads) most = fmax(most, fabs(reported_distance(t, at + i)));
  most = block_largest(most);
  if (threadIdx.x == 0) t.a.block_values[space * t.p.blocks + block] = most;
  const int64_t all = t.p.spaces * t.p.codewords, step = int64_t{gridDim.x} * kTrainingThreads;
  for (int64_t i = int64_t{blockIdx.x} * kTrainingThreads + threadIdx.x; i < all; i += step) t.a.sums[i] = 0;
}

// One block for a subspace: E of the sums of its distances.
__global__ void set_exponents(TrainingView t) {
  grid_wait();
  const double* const blocks = t.a.block_values + blockIdx.x * t.p.blocks;
  double most = 0;
  for (int64_t i = threadIdx.x; i < t.p.blocks; i += kTrainingThreads) most = fmax(most, blocks[i]);
  most = block_largest(most);
  if (threadIdx.x == 0) t.a.space_exponent[blockIdx.x] = fixed_exponent(most, static_cast<uint64_t>(t.p.n));
}

// One block of rows of a subspace: adds their distances to their codewords' sums.
__global__ void distance_sums(TrainingView t) {
  __shared__ unsigned long long own[kShared];
  grid_wait();
  const int64_t space = blockIdx.x / t.p.blocks, block = blockIdx.x % t.p.blocks;
  const int64_t first = block * kBlockRows, count = min(kBlockRows, t.p.n - first), at = space * t.p.n + first;
  const double scale = power_of_two(t.a.space_exponent[space]);
  unsigned long long* const sums = reinterpret_cast<unsigned long long*>(t.a.sums + space * t.p.codewords);
  const bool shared = t.p.codewords <= kShared;
  if (shared)
    for (int64_t c = threadIdx.x; c < t.p.codewords; c += kTrainingThreads) own[c] = 0;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < count; i += kTrainingThreads) {
    const unsigned long long q = static_cast<unsigned long long>(__double2ll_rn(reported_distance(t, at + i) * scale));
    atomicAdd(shared ? &own[t.a.ids[at + i]] : &sums[t.a.ids[at + i]], q);
  }
  __syncthreads();
  if (shared)
    for (int64_t c = threadIdx.x; c < t.p.codewords; c += kTrainingThreads)
      if (own[c] != 0) atomicAdd(&sums[c], own[c]);
}

__global__ void mean_distances(TrainingView t) {
  grid_wait();
  const int64_t all = t.p.spaces * t.p.codewords, step = int64_t{gridDim.x} * kTrainingThreads;
  for (int64_t i = int64_t{blockIdx.x} * kTrainingThreads + threadIdx.x; i < all; i += step)
    t.a.sums[i] = bits_as<int64_t>(fixed_variance(t.a.sums[i], t.a.loads[i], t.a.space_exponent[i / t.p.codewords]));
}

}  // namespace

cudaError_t launch_variances(const TrainingView& t, const Stream& on) {
  const dim3 threads(kTrainingThreads), blocks = training_grid(t.p.spaces * t.p.blocks, 1);
  cudaError_t error = launch(on, blocks, threads, 0, distance_scale, t);
  if (error == cudaSuccess) error = launch(on, training_grid(t.p.spaces, 1), threads, 0, set_exponents, t);
  if (error == cudaSuccess) error = launch(on, blocks, threads, 0, distance_sums, t);
  if (error == cudaSuccess)
    error = launch(on, training_grid(t.p.spaces * t.p.codewords, kTrainingThreads, 4096), threads, 0, mean_distances, t);
  return error;
}

}  // namespace mr::cuda
