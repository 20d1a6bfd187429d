// search_prepare. The center of a subspace is the mean of some of its codewords; any vector would be correct.
// Everything here is a function of the codewords' values alone.
#include "kernels/vectors/search_prepare.h"

#include "kernels/vectors/search_element.cuh"
#include "kernels/vectors/search_mma.cuh"

namespace mr::cuda {
namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kCenterThreads = 1024;
constexpr int64_t kSome = 256;  // codewords that are averaged for a center

struct Params {
  SearchForm form;
  SearchState* state;
  const float* codewords;
  float *center, *radius;
  uint8_t* images;
  int64_t spaces, codewords_each, width, tiles;
  uint32_t moved;
  int32_t inner, always;  // always: operands are moved whatever the codewords are
};

// One block for a subspace, with as many threads for a column as fit. If operands may be exact without a center, they
// are moved only if the codewords' mean is more than four times as long as their spread: then the differences are
// smaller by more than splitting them loses.
__global__ void __launch_bounds__(kCenterThreads) find_centers(Params p) {
  __shared__ double sums[2][kCenterThreads];
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int32_t columns = p.width < kCenterThreads ? static_cast<int32_t>(p.width) : kCenterThreads, shares = kCenterThreads / columns;
  const int32_t share = thread / columns, column = thread % columns;
  const int64_t space = blockIdx.x, some = p.codewords_each < kSome ? p.codewords_each : kSome;
  const float* const from = p.codewords + space * p.codewords_each * p.width;
  double means = 0, squares = 0;
  for (int64_t first = 0; first < p.width; first += columns) {
    const int64_t j = first + column;
    double sum = 0;
    if (share < shares && j < p.width) {
#pragma unroll 8
      for (uint32_t i = static_cast<uint32_t>(share); i < static_cast<uint32_t>(some); i += static_cast<uint32_t>(shares)) {
        const uint32_t codeword = i * static_cast<uint32_t>(p.codewords_each) / static_cast<uint32_t>(some);  // the product is at most 2^24
        const double v = static_cast<double>(from[codeword * p.width + j]);
        sum += v;
        squares += v * v;
      }
    }
    sums[0][thread] = sum;
    __syncthreads();
    if (share == 0 && j < p.width) {
      for (int32_t i = 1; i < shares; ++i) sum += sums[0][i * columns + column];
      const double mean = sum / static_cast<double>(some);
      means += mean * mean;
      const float center = static_cast<float>(mean);
      p.center[space * p.width + j] = isfinite(center) ? center : 0.0f;
    }
    __syncthreads();
  }
  sums[0][thread] = means;
  sums[1][thread] = squares;
  for (int32_t half = kCenterThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half)
      for (int32_t i = 0; i < 2; ++i) sums[i][thread] += sums[i][thread + half];
  }
  if (thread != 0) return;
  const double spread = sums[1][0] / static_cast<double>(some) - sums[0][0];
  if (p.always != 0 || sums[0][0] > 16 * spread) atomicOr(&p.state->moved, 1u);
}

__device__ __forceinline__ float operand(const Params& p, int64_t space, int64_t codeword, int64_t j) {
  const float v = p.codewords[(space * p.codewords_each + codeword) * p.width + j];
  return p.moved ? v - p.center[space * p.width + j] : v;
}

// One warp for a codeword of a tile: its length, and its row of the tile's first block.
__global__ void __launch_bounds__(kThreads) measure_codewords(Params p) {
  if (p.state->moved != p.moved) return;
  const int64_t each = p.tiles * kSearchWide, all = p.spaces * each, warps = int64_t{gridDim.x} * (kThreads / 32);
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  for (int64_t i = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32; i < all; i += warps) {
    const int64_t space = i / each, codeword = i % each;
    double square = 0;
    if (codeword < p.codewords_each) {
      for (int64_t j = lane; j < p.width; j += 32) {
        const double v = static_cast<double>(operand(p, space, codeword, j));
        square += v * v;
      }
      for (int32_t across = 16; across > 0; across /= 2) square += __shfl_xor_sync(0xffffffffu, square, across);
    }
    if (lane != 0) continue;
    double rest = p.inner ? 0.0 : -square / 2;
    if (!(rest > static_cast<double>(kNoScore))) rest = static_cast<double>(kNoScore);
    if (codeword >= p.codewords_each) rest = static_cast<double>(kNoScore);
    uint32_t term[3];
    for (uint32_t& t : term) {
      t = pack_bf16(static_cast<float>(rest), 0.0f);
      rest -= static_cast<double>(bf16_float(t));
    }
    uint8_t* const block = p.images + (space * p.tiles + codeword / kSearchWide) * p.form.blocks * kCodewordBlock;
    const int32_t row = static_cast<int32_t>(codeword % kSearchWide);
    *reinterpret_cast<uint4*>(block + piece_offset(row, 0)) = make_uint4(term[0] | term[1] << 16, term[2], 0, 0);
    *reinterpret_cast<uint4*>(block + piece_offset(row, 1)) = make_uint4(0, 0, 0, 0);
    if (codeword >= p.codewords_each) continue;
    const float length = static_cast<float>(sqrt(square)) * (1 + 0x1p-10f);
    atomicMax(reinterpret_cast<int32_t*>(p.radius + space), length >= 0 ? __float_as_int(length) : 0x7f800000);
  }
}

// One thread for a piece of 8 columns of a block of terms.
__global__ void __launch_bounds__(kThreads) pack_codewords(Params p) {
  if (p.state->moved != p.moved) return;
  const SearchForm& f = p.form;
  const int64_t tile_pieces = int64_t{f.blocks - 1} * kSearchWide * 2, all = p.spaces * p.tiles * tile_pieces;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < all; i += int64_t{gridDim.x} * kThreads) {
    const int64_t tile = i / tile_pieces, space = tile / p.tiles;  // of all tiles
    const int32_t piece = static_cast<int32_t>(i % tile_pieces), h = piece % 2, row = piece / 2 % kSearchWide;
    const int32_t block = piece / (2 * kSearchWide), chunk_blocks = f.codeword_terms * f.chunk_steps;
    const int32_t first = block / chunk_blocks * f.chunk_steps, within = block % chunk_blocks;
    const int32_t steps = f.steps - first < f.chunk_steps ? f.steps - first : f.chunk_steps;
    const int64_t codeword = tile % p.tiles * kSearchWide + row, column = int64_t{first + within % steps} * 16 + h * 8;
    float v[8];
#pragma unroll
    for (int32_t j = 0; j < 8; ++j)
      v[j] = codeword < p.codewords_each && column + j < p.width ? operand(p, space, codeword, column + j) : 0.0f;
    uint4 bits;
    if (f.half) {
      uint32_t word[4];
#pragma unroll
      for (int32_t j = 0; j < 4; ++j)
        word[j] = uint32_t{__half_as_ushort(__float2half_rn(v[2 * j]))} | uint32_t{__half_as_ushort(__float2half_rn(v[2 * j + 1]))} << 16;
      bits = make_uint4(word[0], word[1], word[2], word[3]);
    } else {
      bits = take_term(v);
      if (within >= steps) bits = take_term(v);
    }
    *reinterpret_cast<uint4*>(p.images + (tile * f.blocks + 1 + block) * kCodewordBlock + piece_offset(row, h)) = bits;
  }
}

unsigned blocks_for(int64_t threads, int32_t processors) {
  const int64_t blocks = (threads + kThreads - 1) / kThreads, most = int64_t{processors} * 16;
  return static_cast<unsigned>(blocks < most ? blocks : most);
}

}  // namespace

cudaError_t launch_search_prepare(const SearchPrepareArgs& args, cudaStream_t stream) {
  const SearchPlan& plan = *args.plan;
  const SearchShape& s = args.shape;
  char* const m = args.memory;
  Params p{};
  p.state = reinterpret_cast<SearchState*>(m);
  p.codewords = args.codewords;
  p.center = reinterpret_cast<float*>(m + plan.memory.center);
  p.radius = reinterpret_cast<float*>(m + plan.memory.radius);
  p.images = reinterpret_cast<uint8_t*>(m + plan.memory.images);
  p.spaces = s.spaces;
  p.codewords_each = s.codewords;
  p.width = s.width;
  p.tiles = plan.tiles;
  p.inner = s.metric != MR_METRIC_L2;
  p.always = plan.may_be_plain ? 0 : 1;
  cudaError_t error = cudaMemsetAsync(p.state, 0, sizeof(SearchState), stream);
  if (error == cudaSuccess) error = cudaMemsetAsync(p.radius, 0, static_cast<size_t>(s.spaces) * 4, stream);
  const Stream on{stream, false};
  if (error == cudaSuccess && plan.may_move)
    error = launch(on, dim3(static_cast<unsigned>(s.spaces)), dim3(kCenterThreads), 0, find_centers, p);
  for (uint32_t moved = 0; moved < 2 && error == cudaSuccess; ++moved) {
    if (!(moved ? plan.may_move : plan.may_be_plain)) continue;
    p.form = moved ? plan.moved : plan.plain;
    p.moved = moved;
    const int64_t rows = s.spaces * plan.tiles * kSearchWide;
    error = launch(on, dim3(blocks_for(rows * 32, plan.processors)), dim3(kThreads), 0, measure_codewords, p);
    if (error == cudaSuccess)
      error = launch(on, dim3(blocks_for(rows * 2 * (p.form.blocks - 1), plan.processors)), dim3(kThreads), 0, pack_codewords, p);
  }
  return error;
}

}  // namespace mr::cuda
