// ops: the plain operations of engine.h in f32 on the device; see MR_OP_* for shapes. Operands are contiguous, `batch`
// independent problems one after another. The caller must have checked sizes and bounds.
#pragma once

#include <cstdint>

#include "kernels/gemm/weight.h"
#include "kernels/launch.h"
#include "millrace/engine.h"

namespace mr::cuda {

cudaError_t launch_op_softmax(const float* a, int64_t rows, int64_t cols, float* out, const Stream& on);

// Row r of a uses the weights b + r / rows_a_batch * cols.
cudaError_t launch_op_rms_norm(const float* a, const float* b, float eps, int64_t rows, int64_t rows_a_batch, int64_t cols,
                               float* out, const Stream& on);

// MR_OP_ADD, MUL, SCALE, SILU, SWIGLU or COPY over count floats; b is read by the binary ones, scale by SCALE. out may
// be an input.
cudaError_t launch_op_elementwise(int32_t op, const float* a, const float* b, float scale, int64_t count, float* out,
                                  const Stream& on);

// frequencies: (dims / 2) doubles in device memory, from rope_frequencies; dims == cols. out may be a.
cudaError_t launch_op_rope(const float* a, const double* frequencies, int32_t style, int64_t batch, int64_t rows,
                           int32_t heads, int32_t dims, int32_t first_position, float* out, const Stream& on);

// out(rows, cols) = b(rows, inner) * a(cols, inner)^T with f32 products and sums. a: the bytes of a file, 16-byte
// aligned; so must be b if inner is a multiple of 4, and out if cols is.
struct OpMatmulArgs {
  const void* a;
  int32_t a_type;
  const float* b;
  float* out;
  int64_t rows, cols, inner;
  int32_t sm_count;  // of the device: selects the tile, which changes no bits
};
// A row's bits do not depend on the other rows.
cudaError_t launch_op_matmul(const OpMatmulArgs& args, const Stream& on);
// rows must be 1. The order of sums differs from matmul's.
cudaError_t launch_op_matvec(const OpMatmulArgs& args, const Stream& on);

inline bool op_matmul_valid(const OpMatmulArgs& a) {
  const int32_t format = weight_format_index(a.a_type);
  if (format == kWeightTypeCount || a.rows < 0 || a.rows > INT32_MAX || a.cols < 1 || a.inner < 1 || a.sm_count < 1) return false;
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return a.inner % kWeightFormats[format].block == 0 && aligned(a.a) && (a.inner % 4 != 0 || aligned(a.b)) &&
         (a.cols % 4 != 0 || aligned(a.out));
}

// cols must be at most 4096.
struct OpAttentionArgs {
  const float *q, *k, *v;
  float* out;
  int64_t batch, rows, inner;
  int32_t heads, kv_heads, cols;
  float scale;
};
cudaError_t launch_op_attention(const OpAttentionArgs& args, const Stream& on);

}  // namespace mr::cuda
