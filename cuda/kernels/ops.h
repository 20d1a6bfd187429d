// ops: the plain operations of engine.h in f32 on the device; see MR_OP_* for shapes. Operands are contiguous, `batch`
// independent problems one after another. The caller has checked sizes and bounds.
#pragma once

#include <cstdint>

#include "kernels/launch.h"
#include "millrace/engine.h"

namespace mr::cuda {

cudaError_t launch_op_softmax(const float* a, int64_t rows, int64_t cols, float* out, const Stream& on);

// Row r of a uses the weights b + r / rows_a_batch * cols.
cudaError_t launch_op_rms_norm(const float* a, const float* b, float eps, int64_t rows, int64_t rows_a_batch, int64_t cols,
                               float* out, const Stream& on);

// MR_OP_ADD, MUL, SCALE, SILU, SWIGLU or COPY over count floats; b is read by the binary ones, scale by SCALE. out may be
// an input.
cudaError_t launch_op_elementwise(int32_t op, const float* a, const float* b, float scale, int64_t count, float* out,
                                  const Stream& on);

// frequencies: (dims / 2) doubles in device memory, from rope_frequencies; dims == cols. out may be a.
cudaError_t launch_op_rope(const float* a, const double* frequencies, int32_t style, int64_t batch, int64_t rows,
                           int32_t heads, int32_t dims, int32_t first_position, float* out, const Stream& on);

// cols <= 4096.
struct OpAttentionArgs {
  const float *q, *k, *v;
  float* out;
  int64_t batch, rows, inner;
  int32_t heads, kv_heads, cols;
  float scale;
};
cudaError_t launch_op_attention(const OpAttentionArgs& args, const Stream& on);

}  // namespace mr::cuda
