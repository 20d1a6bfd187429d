#include "kernels/vectors/codebook.h"

#include "kernels/vectors/search_exact.cuh"

namespace mr::cuda {
namespace {

constexpr int32_t kThreads = 256;

dim3 grid_of(int64_t threads) {
  const int64_t blocks = (threads + kThreads - 1) / kThreads;
  return dim3(static_cast<unsigned>(blocks < 65536 ? blocks : 65536));
}

__device__ __forceinline__ int64_t first_thread() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }
__device__ __forceinline__ int64_t all_threads() { return int64_t{gridDim.x} * kThreads; }

__global__ void __launch_bounds__(kThreads) widen_codewords(const void* from, int32_t type, int64_t count, float* to) {
  grid_wait();
  for (int64_t i = first_thread(); i < count; i += all_threads()) to[i] = load_element(from, type, i);
}

__device__ __forceinline__ void put_code(void* codes, int64_t at, bool narrow, uint32_t code) {
  if (narrow) static_cast<uint8_t*>(codes)[at] = static_cast<uint8_t>(code);
  else static_cast<uint16_t*>(codes)[at] = static_cast<uint16_t>(code);
}

__device__ __forceinline__ uint32_t get_code(const void* codes, int64_t at, bool narrow) {
  return narrow ? uint32_t{static_cast<const uint8_t*>(codes)[at]} : uint32_t{static_cast<const uint16_t*>(codes)[at]};
}

__device__ __forceinline__ float told(double q, bool cosine) { return __double2float_rn(cosine ? __dadd_rn(1.0, q) : q); }

__global__ void __launch_bounds__(kThreads) put_codes(const uint32_t* ids, int64_t count, int64_t spaces, int64_t stride, bool narrow,
                                                      void* codes) {
  grid_wait();
  for (int64_t i = first_thread(); i < count * spaces; i += all_threads()) put_code(codes, i, narrow, ids[i % spaces * stride + i / spaces]);
}

__global__ void __launch_bounds__(kThreads) put_distances(const double* q, int64_t count, int64_t spaces, int64_t stride, bool product,
                                                          bool cosine, float* distances) {
  grid_wait();
  for (int64_t i = first_thread(); i < count; i += all_threads()) {
    double sum = q[i];
    if (product) {
      sum = 0;
      for (int64_t s = 0; s < spaces; ++s) sum = __dadd_rn(sum, q[s * stride + i]);
    }
    distances[i] = told(sum, cosine);
  }
}

// Eight lanes for a row and a codeword.
__global__ void __launch_bounds__(kThreads) all_distances(NeighboursArgs a) {
  grid_wait();
  const int64_t all = a.count * a.codewords;
  for (int64_t i0 = first_thread() / 32 * 4; i0 < all; i0 += all_threads() / 8) {  // of the warp
    const int64_t i = i0 + threadIdx.x % 32 / 8, at = i < all ? i : all - 1, row = at / a.codewords;
    const double q = octet_distance([&](int64_t j, float(&x)[8]) { load_eight(a.rows, a.row_type, row * a.width, j, a.width, x); },
                                    a.values + at % a.codewords * a.width, a.width, a.inner);
    if (i < all && threadIdx.x % 8 == 0) a.q[i] = q;
  }
}

// Orders by Q, then id; NaN is last.
struct Key {
  double q;
  uint32_t id;
  __device__ __forceinline__ bool before(const Key& other) const {
    const bool none = q != q, other_none = other.q != other.q;
    if (none != other_none) return other_none;
    if (!none && q != other.q) return q < other.q;
    return id < other.id;
  }
};

// One block for a row. It finds one neighbour after another, each the first one after its predecessor in the order.
__global__ void __launch_bounds__(kThreads) select_neighbours(NeighboursArgs a) {
  grid_wait();
  __shared__ Key keys[kThreads / 32];
  const int64_t row = blockIdx.x;
  const double* const q = a.q + row * a.codewords;
  const uint32_t none = 0xffffffffu;
  Key last{0, none};
  for (int32_t h = 0; h < a.wanted; ++h) {
    Key best{0, none};
    for (int64_t c = threadIdx.x; c < a.codewords; c += kThreads) {
      const Key key{q[c], static_cast<uint32_t>(c)};
      if ((last.id == none || last.before(key)) && (best.id == none || key.before(best))) best = key;
    }
    for (int32_t across = 16; across > 0; across /= 2) {
      const Key other{__shfl_xor_sync(0xffffffffu, best.q, across), __shfl_xor_sync(0xffffffffu, best.id, across)};
      if (other.id != none && (best.id == none || other.before(best))) best = other;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) keys[threadIdx.x / 32] = best;
    __syncthreads();
    best = keys[0];
    for (int32_t w = 1; w < kThreads / 32; ++w)
      if (keys[w].id != none && (best.id == none || keys[w].before(best))) best = keys[w];
    last = best;
    if (threadIdx.x != 0) continue;
    put_code(a.codes, row * a.wanted + h, a.narrow, best.id);
    if (a.distances != nullptr) a.distances[row * a.wanted + h] = told(best.q, a.cosine);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) gather_codewords(GatherArgs a) {
  grid_wait();
  const int64_t full = a.spaces * a.width, all = a.count * full;
  for (int64_t i = first_thread(); i < all; i += all_threads()) {
    const int64_t row = i / full, column = i % full, space = column / a.width;
    const int64_t codeword = space * a.codewords_each + get_code(a.codes, row * a.spaces + space, a.narrow);
    static_cast<T*>(a.rows)[i] = static_cast<const T*>(a.codewords)[codeword * a.width + column % a.width];
  }
}

}  // namespace

cudaError_t launch_widen_codewords(const void* from, int32_t type, int64_t count, float* to, const Stream& on) {
  return launch(on, grid_of(count), dim3(kThreads), 0, widen_codewords, from, type, count, to);
}

cudaError_t launch_put_codes(const uint32_t* ids, int64_t count, int64_t spaces, int64_t stride, bool narrow, void* codes, const Stream& on) {
  return launch(on, grid_of(count * spaces), dim3(kThreads), 0, put_codes, ids, count, spaces, stride, narrow, codes);
}

cudaError_t launch_put_distances(const double* q, int64_t count, int64_t spaces, int64_t stride, bool product, bool cosine,
                                 float* distances, const Stream& on) {
  return launch(on, grid_of(count), dim3(kThreads), 0, put_distances, q, count, spaces, stride, product, cosine, distances);
}

cudaError_t launch_neighbours(const NeighboursArgs& args, const Stream& on) {
  const cudaError_t error = launch(on, grid_of(args.count * args.codewords * 8), dim3(kThreads), 0, all_distances, args);
  if (error != cudaSuccess) return error;
  return launch(on, dim3(static_cast<unsigned>(args.count)), dim3(kThreads), 0, select_neighbours, args);
}

cudaError_t launch_gather_codewords(const GatherArgs& args, const Stream& on) {
  const dim3 grid = grid_of(args.count * args.spaces * args.width);
  return args.element_bytes == 2 ? launch(on, grid, dim3(kThreads), 0, gather_codewords<uint16_t>, args)
                                 : launch(on, grid, dim3(kThreads), 0, gather_codewords<uint32_t>, args);
}

}  // namespace mr::cuda
