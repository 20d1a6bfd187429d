// training_annealed: trimming, merging and splitting of codewords.
#include "kernels/vectors/training.cuh"

namespace mr::cuda {
namespace {

constexpr int kOctet = 8, kOctets = kTrainingThreads / kOctet;
constexpr int64_t kMostGrid = 8192;

__device__ bool rests(const Control& control) { return control.skip != 0 || control.over != 0; }

__global__ void keys_of(TrainingView t, const uint32_t* order, uint32_t* keys, int64_t space) {
  grid_wait();
  const uint32_t* const ids = t.a.new_ids + space * t.p.n;
  for (int64_t i = int64_t{blockIdx.x} * kTrainingThreads + threadIdx.x; i < t.p.n; i += int64_t{gridDim.x} * kTrainingThreads)
    keys[i] = ids[order[i]];
}

// One block: finds the first index of each codeword's rows.
__global__ void find_starts(TrainingView t, int64_t space) {
  __shared__ uint64_t sums[kTrainingThreads];
  grid_wait();
  if (rests(*t.a.control)) return;
  const uint64_t* const loads = t.a.new_loads + space * t.p.codewords;
  const int64_t each = (t.p.codewords + kTrainingThreads - 1) / kTrainingThreads;
  const int64_t begin = min(int64_t{threadIdx.x} * each, t.p.codewords), end = min(begin + each, t.p.codewords);
  uint64_t mine = 0;
  for (int64_t c = begin; c < end; ++c) mine += loads[c];
  sums[threadIdx.x] = mine;
  __syncthreads();
  uint64_t start = 0;
  for (unsigned i = 0; i < threadIdx.x; ++i) start += sums[i];
  for (int64_t c = begin; c < end; ++c) {
    t.a.starts[c] = start;
    start += loads[c];
  }
}

__global__ void trim(TrainingView t, const uint32_t* keys, const uint32_t* order, int64_t space) {
  grid_wait();
  if (rests(*t.a.control)) return;
  const uint64_t* const loads = t.a.new_loads + space * t.p.codewords;
  for (int64_t i = int64_t{blockIdx.x} * kTrainingThreads + threadIdx.x; i < t.p.n; i += int64_t{gridDim.x} * kTrainingThreads) {
    const uint32_t c = keys[i], row = order[i];
    const uint64_t rank = static_cast<uint64_t>(i) - t.a.starts[c], kept = kept_rows(t.p.trim, loads[c]);
    t.a.sum_ids[space * t.p.n + row] = rank < kept ? c : static_cast<uint32_t>(t.p.codewords);
    if (rank + 1 == kept) t.a.farthest[space * t.p.codewords + c] = row;
  }
}

struct Near {
  double q;
  uint32_t c;
};

__device__ Near nearer(Near a, Near b) { return b.q < a.q || (b.q == a.q && b.c < a.c) ? b : a; }

// One block for a codeword with rows: finds the nearest other codeword, if it is near enough, otherwise itself. Eight
// lanes compute one distance.
__global__ void find_near(TrainingView t, int64_t space, int64_t first) {
  __shared__ Near all[kOctets];
  grid_wait();
  if (rests(*t.a.control)) return;
  const int64_t b = first + blockIdx.x, width = t.p.width;
  const uint64_t* const loads = t.a.new_loads + space * t.p.codewords;
  if (loads[b] == 0) {
    if (threadIdx.x == 0) t.a.nearest[b] = static_cast<uint32_t>(b);
    return;
  }
  const float* const book = t.a.next + space * t.p.codewords * width;
  const int lane = static_cast<int>(threadIdx.x % kOctet), octet = static_cast<int>(threadIdx.x / kOctet);
  Near mine{t.p.merge_distance * t.p.merge_distance, static_cast<uint32_t>(b)};
  for (int64_t group = 0; group < t.p.codewords; group += kOctets) {
    const int64_t a = group + octet;
    const bool wanted = a < t.p.codewords && a != b && loads[a] != 0;
    double sum = 0;
    if (wanted)
      for (int64_t j = lane; j < width; j += kOctet) {
        const double d = static_cast<double>(book[b * width + j]) - static_cast<double>(book[a * width + j]);
        sum += d * d;
      }
    for (int half = kOctet / 2; half > 0; half /= 2) {
      const double other = __shfl_down_sync(kWholeWarp, sum, half, kOctet);
      if (lane < half) sum += other;
    }
    if (wanted && lane == 0 && sum < mine.q) mine = {sum, static_cast<uint32_t>(a)};  // ascending, so ties go to the lowest
  }
  if (lane == 0) all[octet] = mine;
  __syncthreads();
  if (threadIdx.x != 0) return;
  const double limit = t.p.merge_distance * t.p.merge_distance;
  for (int i = 0; i < kOctets; ++i)
    if (all[i].q < limit) mine = mine.q < limit ? nearer(mine, all[i]) : all[i];
  t.a.nearest[b] = mine.c;
}

__device__ void place(const TrainingView& t, int64_t i, double p) {
  t.a.next_place[i] = p;
  t.a.next_velocity[i] = 0;
  t.a.next[i] = round_codeword(t.p.codeword_type, p);
}

// One block walks through the codewords in ascending order: its first thread finds the next two to merge, all threads
// merge them.
__global__ void merge(TrainingView t, int64_t space) {
  __shared__ int64_t at, low, high;
  __shared__ double low_load, high_load, both;
  grid_wait();
  Control& control = *t.a.control;
  if (rests(control)) return;
  const int64_t k = t.p.codewords, width = t.p.width;
  for (int64_t c = threadIdx.x; c < k; c += kTrainingThreads) {
    t.a.left[c] = t.a.new_loads[space * k + c];
    t.a.touched[c] = 0;
  }
  if (threadIdx.x == 0) {
    at = t.p.merge_distance > 0 ? 0 : k;
    control.donors = 0;
  }
  __syncthreads();
  for (;;) {
    if (threadIdx.x == 0) {
      low = -1;
      for (; at < k && low < 0; ++at) {
        const int64_t a = t.a.nearest[at];
        if (a == at || t.a.touched[a] != 0 || t.a.touched[at] != 0) continue;
        low = min(a, at);
        high = max(a, at);
        low_load = static_cast<double>(t.a.left[low]);
        high_load = static_cast<double>(t.a.left[high]);
        both = static_cast<double>(t.a.left[low] + t.a.left[high]);
        t.a.left[low] += t.a.left[high];
        t.a.left[high] = 0;
        t.a.touched[low] = t.a.touched[high] = 1;
        ++control.merged;
      }
    }
    __syncthreads();
    if (low < 0) return;
    for (int64_t j = threadIdx.x; j < width; j += kTrainingThreads) {
      const int64_t i = (space * k + low) * width + j, other = (space * k + high) * width + j;
      const double p = merged_place(low_load, t.a.next_place[i], high_load, t.a.next_place[other], both);
      place(t, i, p);
      place(t, other, p);
    }
    __syncthreads();  // before the first thread finds others
  }
}

__device__ bool donates(const TrainingView& t, int64_t space, int64_t c) {
  const double share = static_cast<double>(t.p.n) / static_cast<double>(t.p.codewords);
  return t.a.left[c] != 0 && t.a.touched[c] == 0 && static_cast<double>(t.a.left[c]) > t.p.split_load * share &&
         t.a.distances[space * t.p.n + t.a.farthest[space * t.p.codewords + c]] > 0;
}

// One warp for a codeword: a donor's rank in the order (load descending, id ascending).
__global__ void list_donors(TrainingView t, int64_t space) {
  grid_wait();
  if (rests(*t.a.control)) return;
  const int64_t c = (int64_t{blockIdx.x} * kTrainingThreads + threadIdx.x) / 32;
  if (c >= t.p.codewords || !donates(t, space, c)) return;
  const uint64_t load = t.a.left[c];
  unsigned before = 0;
  for (int64_t i = threadIdx.x % 32; i < t.p.codewords; i += 32) {
    const uint64_t other = t.a.left[i];
    if ((other > load || (other == load && i < c)) && donates(t, space, i)) ++before;
  }
  before = __reduce_add_sync(kWholeWarp, before);
  if (threadIdx.x % 32 != 0) return;
  t.a.listed[before] = static_cast<uint32_t>(c);
  atomicAdd(reinterpret_cast<unsigned long long*>(&t.a.control->donors), 1ull);
}

// One warp for a codeword: a free one becomes the last kept row of its donor.
__global__ void split(TrainingView t, int64_t space) {
  grid_wait();
  Control& control = *t.a.control;
  if (rests(control)) return;
  const int64_t c = (int64_t{blockIdx.x} * kTrainingThreads + threadIdx.x) / 32;
  if (c >= t.p.codewords || t.a.left[c] != 0) return;
  unsigned before = 0;  // free codewords
  for (int64_t i = threadIdx.x % 32; i < c; i += 32) before += t.a.left[i] == 0 ? 1 : 0;
  before = __reduce_add_sync(kWholeWarp, before);
  if (before >= control.donors) return;
  const int64_t row = t.a.farthest[space * t.p.codewords + t.a.listed[before]];
  const RowPart x = row_part(t.a.any_rows, t.p.stored, t.p.full, row, space * t.p.width);
  for (int64_t j = threadIdx.x % 32; j < t.p.width; j += 32)
    place(t, (space * t.p.codewords + c) * t.p.width + j, static_cast<double>(x[j]));
  if (threadIdx.x % 32 == 0) atomicAdd(reinterpret_cast<unsigned long long*>(&control.split), 1ull);
}

}  // namespace

cudaError_t launch_keys_of(const TrainingView& t, const uint32_t* order, uint32_t* keys, int64_t space, const Stream& on) {
  return launch(on, training_grid(t.p.n, kTrainingThreads, kMostGrid), dim3(kTrainingThreads), 0, keys_of, t, order, keys, space);
}

cudaError_t launch_trim(const TrainingView& t, const uint32_t* keys, const uint32_t* order, int64_t space, const Stream& on) {
  const cudaError_t error = launch(on, dim3(1), dim3(kTrainingThreads), 0, find_starts, t, space);
  if (error != cudaSuccess) return error;
  return launch(on, training_grid(t.p.n, kTrainingThreads, kMostGrid), dim3(kTrainingThreads), 0, trim, t, keys, order, space);
}

cudaError_t launch_find_near(const TrainingView& t, int64_t space, int64_t first, int64_t count, const Stream& on) {
  return launch(on, training_grid(count, 1), dim3(kTrainingThreads), 0, find_near, t, space, first);
}

cudaError_t launch_merge_and_split(const TrainingView& t, int64_t space, const Stream& on) {
  cudaError_t error = launch(on, dim3(1), dim3(kTrainingThreads), 0, merge, t, space);
  if (error != cudaSuccess || !(t.p.split_load > 0)) return error;
  const dim3 grid = training_grid(t.p.codewords, kTrainingThreads / 32);
  error = launch(on, grid, dim3(kTrainingThreads), 0, list_donors, t, space);
  return error != cudaSuccess ? error : launch(on, grid, dim3(kTrainingThreads), 0, split, t, space);
}

}  // namespace mr::cuda
