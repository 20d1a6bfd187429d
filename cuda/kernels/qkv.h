// qkv: what lies between the QKV product and attention: bias, QK-norm, rotation, and the writes of keys and values.
#pragma once

#include <cstdint>

#include "kernels/kv.h"
#include "kernels/launch.h"
#include "kernels/rows.h"
#include "kernels/types.h"

namespace mr::cuda {

// For each row: adds the biases to Q, K and V, norms each head of Q and K where norms are given, rotates the first
// rope_dims dims of each head of Q and K by the row's turns, all in f32; then writes Q as the layout's act, and K and V
// as the cache's into the row's position of it. Padding rows write zeros to q_out and nothing to the cache.
struct FinishQkvArgs {
  Rows rows;
  int32_t count;
  const void* qkv;        // (count, qkv_stride): heads of Q, of K, of V one after another
  bool qkv_is_f32;        // else of the layout's act
  int64_t qkv_stride;     // elements
  const float *q_bias, *k_bias, *v_bias;  // (heads * head_dim), (kv_heads * head_dim) twice; null where absent
  const float *q_norm, *k_norm;           // (head_dim); null where absent
  float norm_eps;
  const float* turns;     // (count, rope_dims), from launch_begin
  int32_t rope_dims, rope_style;  // MR_ROPE_*
  int32_t heads;
  void* q_out;            // (count, heads * padded_dim): zeros from head_dim on in each head
  int64_t q_stride;       // elements from row to row of q_out
  KvLayout layout;
  void *keys, *values;    // block 0 of the layer
};
cudaError_t launch_finish_qkv(const FinishQkvArgs& args, const Stream& on);

}  // namespace mr::cuda
