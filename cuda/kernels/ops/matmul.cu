// ops/matmul: out(rows, cols) = b(rows, inner) * a(cols, inner)^T in f32, a in its file's format.
//
// Sum       Every element is one chain of fmaf over its inputs in ascending order, from zero: its bits depend neither
//           on its tile nor on any other row. Error: at most inner * 2^-24 * sum |a b|, to first order.
// Tile      A block has tiles of 128 rows by 128 columns, each of its 256 threads 8 x 8 elements as four groups of 4 x
//           4. If that gives less than a tile for each SM, tiles are 32 x 64, with 128 threads of 4 x 4. Grid: one
//           block for each tile, up to 2^20.
// Inputs    are loaded 8 at a time through two stages of shared memory, transposed, so that a thread reads four
//           neighbouring rows at once; the next 8 are in flight to registers. A row of a stage has 4 floats of padding,
//           so that the stores of a warp meet every bank once. Weights become f32 between memory and shared memory.
//           F32 has kernels of its own; one kernel for all other types selects the type at each load.
// Shared    16.5 KiB (6.5 KiB for the small tile). Bytes moved: a tile reads its rows of a and b once, so at 128 x 128
//           an element costs 1/128 of its inputs. It is bound by the rate of fmaf, with shared memory at a quarter of
//           its own bound.
// Test bound: (inner + 8) * 2^-24 * sum |a b|.
#include <algorithm>

#include "kernels/ops/ops.h"
#include "kernels/ops/weights.cuh"

namespace mr::cuda {

constexpr int32_t kOpDepth = 8;              // inputs a stage
constexpr int32_t kOpPieces = kOpDepth / 4;  // of four inputs, a row

// OpTile: a thread has groups x groups squares of 4 x 4; a warp is 4 threads of rows by 8 of columns.
template <int32_t groups_, int32_t warp_rows, int32_t warp_cols_, int32_t blocks_an_sm_>
struct OpTile {
  static constexpr int32_t groups = groups_, warp_cols = warp_cols_, blocks_an_sm = blocks_an_sm_;
  static constexpr int32_t threads = 32 * warp_rows * warp_cols;
  static constexpr int32_t rows = 16 * groups * warp_rows, cols = 32 * groups * warp_cols;
  static constexpr int32_t row_stride = rows + 4, col_stride = cols + 4;  // floats
  static constexpr int32_t row_loads = (rows * kOpPieces + threads - 1) / threads;  // of four inputs, a thread
  static constexpr int32_t col_loads = (cols * kOpPieces + threads - 1) / threads;
};

namespace {

constexpr int64_t kMostBlocks = 1 << 20;
typedef OpTile<2, 4, 2, 2> LargeTile;  // 128 x 128
typedef OpTile<1, 2, 2, 4> SmallTile;  // 32 x 64

// Stores four inputs of one row into the columns of a stage.
__device__ __forceinline__ void store_piece(float* stage, int32_t stride, int32_t piece, float4 v) {
  float* const to = stage + piece % kOpPieces * 4 * stride + piece / kOpPieces;
  to[0] = v.x;
  to[stride] = v.y;
  to[2 * stride] = v.z;
  to[3 * stride] = v.w;
}

// T: kF32 or kAnyType.
template <int32_t T, bool whole, class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks_an_sm) tile_per_block(OpMatmulArgs a, int64_t weight_bytes,
                                                                                      int64_t row_tiles, int64_t tiles) {
  __shared__ __align__(16) float stage_b[2][kOpDepth * Shape::row_stride];
  __shared__ __align__(16) float stage_a[2][kOpDepth * Shape::col_stride];
  grid_wait();
  grid_trigger();
  const int32_t thread = static_cast<int32_t>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int32_t own_row = warp / Shape::warp_cols * 16 * Shape::groups + lane / 8 * 4;
  const int32_t own_col = warp % Shape::warp_cols * 32 * Shape::groups + lane % 8 * 4;
  const uint8_t* const weights = static_cast<const uint8_t*>(a.a);
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t row0 = tile % row_tiles * Shape::rows, col0 = tile / row_tiles * Shape::cols;
    float4 next_b[Shape::row_loads], next_a[Shape::col_loads];
    const auto fetch = [&](int64_t k0) {
#pragma unroll
      for (int32_t n = 0; n < Shape::row_loads; ++n) {
        const int32_t piece = thread + n * Shape::threads;
        const int64_t row = row0 + piece / kOpPieces, k = k0 + piece % kOpPieces * 4;
        next_b[n] = make_float4(0, 0, 0, 0);
        if (piece < Shape::rows * kOpPieces && row < a.rows)
          next_b[n] = row_weights<kF32, whole>(reinterpret_cast<const uint8_t*>(a.b + row * a.inner), k, a.inner);
      }
#pragma unroll
      for (int32_t n = 0; n < Shape::col_loads; ++n) {
        const int32_t piece = thread + n * Shape::threads;
        const int64_t col = col0 + piece / kOpPieces, k = k0 + piece % kOpPieces * 4;
        next_a[n] = make_float4(0, 0, 0, 0);
        if (piece < Shape::cols * kOpPieces && col < a.cols) next_a[n] = weights_of_row<T, whole>(a.a_type, weights + col * weight_bytes, k, a.inner);
      }
    };
    const auto store = [&](int32_t stage) {
#pragma unroll
      for (int32_t n = 0; n < Shape::row_loads; ++n) {
        const int32_t piece = thread + n * Shape::threads;
        if (piece < Shape::rows * kOpPieces) store_piece(stage_b[stage], Shape::row_stride, piece, next_b[n]);
      }
#pragma unroll
      for (int32_t n = 0; n < Shape::col_loads; ++n) {
        const int32_t piece = thread + n * Shape::threads;
        if (piece < Shape::cols * kOpPieces) store_piece(stage_a[stage], Shape::col_stride, piece, next_a[n]);
      }
    };

    float sums[4 * Shape::groups][4 * Shape::groups];
#pragma unroll
    for (int32_t i = 0; i < 4 * Shape::groups; ++i)
#pragma unroll
      for (int32_t j = 0; j < 4 * Shape::groups; ++j) sums[i][j] = 0;
    fetch(0);
    store(0);
    __syncthreads();
    int32_t stage = 0;
    for (int64_t k = 0; k < a.inner; k += kOpDepth) {
      const bool more = k + kOpDepth < a.inner;
      if (more) fetch(k + kOpDepth);
      const float* const from_b = stage_b[stage] + own_row;
      const float* const from_a = stage_a[stage] + own_col;
#pragma unroll
      for (int32_t d = 0; d < kOpDepth; ++d) {
        float x[4 * Shape::groups], w[4 * Shape::groups];
#pragma unroll
        for (int32_t g = 0; g < Shape::groups; ++g) {
          const float4 xs = *reinterpret_cast<const float4*>(from_b + d * Shape::row_stride + 16 * g);
          const float4 ws = *reinterpret_cast<const float4*>(from_a + d * Shape::col_stride + 32 * g);
          x[4 * g] = xs.x, x[4 * g + 1] = xs.y, x[4 * g + 2] = xs.z, x[4 * g + 3] = xs.w;
          w[4 * g] = ws.x, w[4 * g + 1] = ws.y, w[4 * g + 2] = ws.z, w[4 * g + 3] = ws.w;
        }
#pragma unroll
        for (int32_t i = 0; i < 4 * Shape::groups; ++i)
#pragma unroll
          for (int32_t j = 0; j < 4 * Shape::groups; ++j) sums[i][j] = fmaf(w[j], x[i], sums[i][j]);
      }
      stage ^= 1;
      if (more) store(stage);  // no thread reads it after the last barrier
      __syncthreads();
    }

    const bool fours = a.cols % 4 == 0;
#pragma unroll
    for (int32_t i = 0; i < 4 * Shape::groups; ++i) {
      const int64_t row = row0 + own_row + i / 4 * 16 + i % 4;
      if (row >= a.rows) continue;
#pragma unroll
      for (int32_t g = 0; g < Shape::groups; ++g) {
        const int64_t col = col0 + own_col + 32 * g;
        float* const to = a.out + row * a.cols + col;
        if (fours && col < a.cols) {
          *reinterpret_cast<float4*>(to) = make_float4(sums[i][4 * g], sums[i][4 * g + 1], sums[i][4 * g + 2], sums[i][4 * g + 3]);
        } else {
#pragma unroll
          for (int32_t j = 0; j < 4; ++j)
            if (col + j < a.cols) to[j] = sums[i][4 * g + j];
        }
      }
    }
  }
}

template <class Shape>
int64_t row_tiles_of(const OpMatmulArgs& a) { return (a.rows + Shape::rows - 1) / Shape::rows; }
template <class Shape>
int64_t tiles_of(const OpMatmulArgs& a) { return row_tiles_of<Shape>(a) * ((a.cols + Shape::cols - 1) / Shape::cols); }

template <class Shape>
cudaError_t run(const OpMatmulArgs& a, const Stream& on) {
  const int64_t tiles = tiles_of<Shape>(a), weight_bytes = static_cast<int64_t>(weight_file_bytes(a.a_type, 1, a.inner));
  const dim3 grid(static_cast<unsigned>(std::min(tiles, kMostBlocks)));
  const bool whole = a.inner % 4 == 0;
  const auto kernel = a.a_type == kF32 ? whole ? tile_per_block<kF32, true, Shape> : tile_per_block<kF32, false, Shape>
                                       : whole ? tile_per_block<kAnyType, true, Shape> : tile_per_block<kAnyType, false, Shape>;
  return launch(on, grid, dim3(Shape::threads), 0, kernel, a, weight_bytes, row_tiles_of<Shape>(a), tiles);
}

}  // namespace

cudaError_t launch_op_matmul(const OpMatmulArgs& args, const Stream& on) {
  if (!op_matmul_valid(args)) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const bool large = tiles_of<LargeTile>(args) >= args.sm_count;
  return large ? run<LargeTile>(args, on) : run<SmallTile>(args, on);
}

}  // namespace mr::cuda
