// vector_assign: certified assignment, against the roof of the same run: tensor cores without loads.
//
//   cuda_bench_vector_assign [rows] [work]
//
// work: measure only what has this in its name. Rows and codewords are Gaussian and resident, d = 128. A line: rows a
// second, multiplications and additions of the shape (not of its terms) a second, their share of the roof, and the rows
// that were computed again.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <algorithm>
#include <vector>

#include "kernels/vectors/codebook.h"
#include "kernels/vectors/search.h"
#include "kernels/vectors/search_mma.cuh"
#include "millrace/vectors.h"
#include "src/error.h"

namespace mr::cuda {
namespace {

struct Bytes {
  explicit Bytes(size_t bytes) { CUDA_CHECK(cudaMalloc(&data, bytes)); }
  ~Bytes() { cudaFree(data); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  template <class T>
  T* as() const { return static_cast<T*>(data); }
  void* data = nullptr;
};

__device__ uint32_t hash(uint32_t h) {
  h = (h ^ h >> 16) * 0x85ebca6bu;
  h = (h ^ h >> 13) * 0xc2b2ae35u;
  return h ^ h >> 16;
}

// Sums of twelve uniform numbers, minus 6: as f16, or as float32, which `round` rounds to values of f16.
__global__ void fill_normal(float* floats, __half* halves, size_t count, uint32_t seed, bool round) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count; i += size_t{gridDim.x} * blockDim.x) {
    float sum = -6;
    uint32_t h = hash(static_cast<uint32_t>(i) * 0x9e3779b1u ^ static_cast<uint32_t>(i >> 32) ^ seed);
    for (int k = 0; k < 12; ++k) {
      h = hash(h + 0x9e3779b9u);
      sum += static_cast<float>(h >> 8) * 0x1p-24f;
    }
    if (halves != nullptr) halves[i] = __float2half_rn(sum);
    else floats[i] = round ? __half2float(__float2half_rn(sum)) : sum;
  }
}

#if MR_HOPPER
// Two finite f16.
__device__ uint32_t number(uint32_t i) { return hash(i) & 0xbfffbfffu; }

// Four warpgroups multiply the contents of shared memory, and nothing else.
__global__ void __launch_bounds__(512, 1) multiply_only(int32_t rounds, float* out) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t memory[];
  const uint32_t base = (shared_address(memory) + 1023) & ~1023u;
  for (uint32_t i = threadIdx.x * 16; i < 64 * 1024; i += 512 * 16) store_shared16(base + i, make_uint4(number(i), number(i + 1), number(i + 2), number(i + 3)));
  shared_fence();
  __syncthreads();
  float sums[kSearchSums];
  const uint64_t rows = swizzled_rows32(base + threadIdx.x / 128 * 2048), codewords = swizzled_rows32(base + 32 * 1024);
  wgmma_fence();
  wgmma_blocks<__half, false>(sums, rows, codewords);
#pragma unroll 1
  for (int32_t i = 0; i < rounds; ++i) {
#pragma unroll
    for (int32_t k = 0; k < 8; ++k) wgmma_blocks<__half>(sums, rows, codewords + static_cast<uint32_t>(k % 4 * (kCodewordBlock >> 4)));
    wgmma_commit();
    wgmma_wait<1>();
  }
  wgmma_commit();
  wgmma_wait<0>();
  float sum = 0;
#pragma unroll
  for (int32_t i = 0; i < kSearchSums; ++i) sum += sums[i];
  if (sum == 1) *out = sum;
#else
  (void)rounds, (void)out;
#endif
}
#endif

// Returns the seconds of one run, the median of 7 after a warm-up.
template <class F>
double time_of(cudaStream_t stream, F run) {
  cudaEvent_t begin, end;
  CUDA_CHECK(cudaEventCreate(&begin));
  CUDA_CHECK(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < 8; ++i) {
    CUDA_CHECK(cudaEventRecord(begin, stream));
    run();
    CUDA_CHECK(cudaEventRecord(end, stream));
    CUDA_CHECK(cudaEventSynchronize(end));
    float ms = 0;
    CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (i > 0) times.push_back(ms);
  }
  CUDA_CHECK(cudaEventDestroy(begin));
  CUDA_CHECK(cudaEventDestroy(end));
  std::sort(times.begin(), times.end());
  return static_cast<double>(times[times.size() / 2]) * 1e-3;
}

// Returns multiplications and additions a second; 0 if the device has no wgmma.
double measure_roof(cudaStream_t stream) {
#if MR_HOPPER
  int major = 0, processors = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  CUDA_CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
  if (major != 9) return 0;
  const int32_t rounds = 20000, shared = 66 * 1024;
  CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(&multiply_only), cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  const double seconds = time_of(stream, [&] {
    multiply_only<<<static_cast<unsigned>(processors), 512, shared, stream>>>(rounds, nullptr);
    CUDA_CHECK(cudaGetLastError());
  });
  return 2.0 * 64 * 128 * 16 * 8 * rounds * 4 * processors / seconds;
#else
  (void)stream;
  return 0;
#endif
}

struct Work {
  const char* name;
  int32_t type;
  int64_t spaces, codewords, width;
  double terms;       // products of each pair of columns that are multiplied
  double required;    // rows a second
  bool encodes;       // also write codes of one byte
};

const Work kWorks[] = {
    {"f16, k 256", MR_VECTOR_F16, 1, 256, 128, 1, 5.4e9, false},
    {"f16, k 4096", MR_VECTOR_F16, 1, 4096, 128, 1, 466e6, false},
    {"f16, k 65536", MR_VECTOR_F16, 1, 65536, 128, 1, 31.8e6, false},
    {"f32, k 256", MR_VECTOR_F32, 1, 256, 128, 3, 1.8e9, false},
    {"f32, k 4096", MR_VECTOR_F32, 1, 4096, 128, 3, 160e6, false},
    {"f32, k 65536", MR_VECTOR_F32, 1, 65536, 128, 3, 10.6e6, false},
    {"PQ 16x8 f32", MR_VECTOR_F32, 16, 256, 8, 3, 1.2e9, true},
    {"PQ 16x8 f16", MR_VECTOR_F16, 16, 256, 8, 1, 1.2e9, true},
};

void run(const Work& w, int64_t rows, double roof, cudaStream_t stream, bool distances) {
  if (w.codewords > 4096) rows = std::min<int64_t>(rows, 1 << 20);
  const SearchShape shape{MR_METRIC_L2, w.type, w.type, w.spaces, w.codewords, w.width, rows};
  const size_t full = static_cast<size_t>(w.spaces * w.width), n = static_cast<size_t>(rows), pairs = n * static_cast<size_t>(w.spaces);
  const size_t values = static_cast<size_t>(w.codewords) * full;
  const Bytes data(n * full * (w.type == MR_VECTOR_F32 ? 4 : 2)), codewords(values * 4), memory(Search::bytes(shape, 0));
  const Bytes ids(pairs * 4), q(distances ? pairs * 8 : 8), recomputed(8), codes(pairs);
  const bool half = w.type == MR_VECTOR_F16;
  fill_normal<<<2048, 256, 0, stream>>>(half ? nullptr : data.as<float>(), half ? data.as<__half>() : nullptr, n * full, 1, half);
  fill_normal<<<2048, 256, 0, stream>>>(codewords.as<float>(), nullptr, values, 2, half);
  CUDA_CHECK(cudaGetLastError());
  Search search(shape, 0, memory.data);
  const Stream on{stream, false};
  search.prepare(codewords.as<float>(), on);
  CUDA_CHECK(cudaMemsetAsync(recomputed.data, 0, 8, stream));
  const auto once = [&] {
    search.nearest(data.data, rows, ids.as<uint32_t>(), distances ? q.as<double>() : nullptr, rows, recomputed.as<uint64_t>(), on);
    if (w.encodes) CUDA_CHECK(launch_put_codes(ids.as<uint32_t>(), rows, w.spaces, rows, true, codes.data, on));
  };
  once();
  uint64_t again = 0;
  CUDA_CHECK(cudaMemcpyAsync(&again, recomputed.data, 8, cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  const double seconds = time_of(stream, once), rate = static_cast<double>(rows) / seconds;
  const double flops = 2 * rate * static_cast<double>(w.codewords) * static_cast<double>(full);
  std::printf("%-13s %-9s %12.1f %10.1f %9.1f %8.1f %9.1f %10.3f\n", w.name, distances ? "+ Q" : "", rate * 1e-6, w.required * 1e-6,
              flops * 1e-12, roof > 0 ? 100 * flops * w.terms / roof : 0.0, 100 * rate / w.required,
              100 * static_cast<double>(again) / static_cast<double>(pairs));
}

}  // namespace
}  // namespace mr::cuda

int main(int argc, char** argv) {
  using namespace mr::cuda;
  const int64_t rows = argc > 1 ? std::atoll(argv[1]) : int64_t{1} << 22;
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const double roof = measure_roof(stream);
  std::printf("matrix units without loads: %.0f TFLOP/s\n", roof * 1e-12);
  std::printf("%-13s %-9s %12s %10s %9s %8s %9s %10s\n", "work", "", "M rows/s", "required", "TFLOP/s", "% roof", "% of bar", "% again");
  for (const bool distances : {false, true})
    for (const Work& w : kWorks)
      if (argc < 3 || std::strstr(w.name, argv[2]) != nullptr) run(w, rows, roof, stream, distances);
  return 0;
}
