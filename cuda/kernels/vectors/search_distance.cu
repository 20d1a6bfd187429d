#include "kernels/vectors/search_exact.cuh"
#include "kernels/vectors/search_prepare.h"

namespace mr::cuda {
namespace {

constexpr int32_t kThreads = 256;

// Eight lanes for a row of a subspace; rows of a subspace are adjacent.
template <int32_t type>
__global__ void __launch_bounds__(kThreads) find_distances(SearchDistanceArgs a) {
  const int64_t all = a.spaces * a.count, step = int64_t{gridDim.x} * (kThreads / 8);
  for (int64_t i0 = (int64_t{blockIdx.x} * kThreads + threadIdx.x / 32 * 32) / 8; i0 < all; i0 += step) {  // of the warp
    const int64_t i = i0 + threadIdx.x % 32 / 8, at = i < all ? i : all - 1;
    const int64_t space = at / a.count, row = at % a.count, offset = row * a.row_stride + space * a.width;
    const float* const codeword = a.codewords + (space * a.codewords_each + a.ids[space * a.stride + row]) * a.width;
    const double q = octet_distance([&](int64_t j, float(&x)[8]) { load_eight<type>(a.rows, offset, j, a.width, x); }, codeword, a.width,
                                    a.inner != 0);
    if (i < all && threadIdx.x % 8 == 0) a.distances[space * a.stride + row] = q;
  }
}

}  // namespace

cudaError_t launch_search_distances(const SearchDistanceArgs& a, cudaStream_t stream) {
  const int64_t blocks = (a.spaces * a.count + kThreads / 8 - 1) / (kThreads / 8), most = int64_t{a.processors} * 32;
  const dim3 grid(static_cast<unsigned>(blocks < most ? blocks : most)), block(kThreads);
  const Stream on{stream, false};
  switch (a.row_type) {
    case MR_VECTOR_F32: return launch(on, grid, block, 0, find_distances<MR_VECTOR_F32>, a);
    case MR_VECTOR_F16: return launch(on, grid, block, 0, find_distances<MR_VECTOR_F16>, a);
    case MR_VECTOR_BF16: return launch(on, grid, block, 0, find_distances<MR_VECTOR_BF16>, a);
    case MR_VECTOR_U8: return launch(on, grid, block, 0, find_distances<MR_VECTOR_U8>, a);
    default: return launch(on, grid, block, 0, find_distances<MR_VECTOR_I8>, a);
  }
}

}  // namespace mr::cuda
