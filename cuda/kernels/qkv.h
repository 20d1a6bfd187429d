// qkv: the step between the QKV GEMM and attention: bias, QK-norm, rotation, and the writes of keys and values.
#pragma once

#include <cstdint>

#include "kernels/kv.h"
#include "kernels/launch.h"
#include "kernels/rows.h"
#include "kernels/types.h"

namespace mr::cuda {

// For each row it adds the biases to Q, K and V, norms each head of Q and K if norms are given, rotates the first
// rope_dims dims of each head of Q and K by the row's entries of the RoPE table, and multiplies Q by the temperature of
// its position, all in f32. Then it writes Q in the layout's activation type, and K and V in the cache's type to the
// row's position. Padding rows write zeros to q_out and nothing to the cache.
struct FinishQkvArgs {
  Rows rows;
  int32_t count;
  const float* qkv;       // (count, qkv_stride): heads of Q, of K, of V one after another
  int64_t qkv_stride;     // elements
  const float *q_bias, *k_bias, *v_bias;  // (heads * head_dim), (kv_heads * head_dim) twice; null if absent
  const float *q_norm, *k_norm;           // (head_dim); null if absent
  float norm_eps;
  const float* rope_table;     // (count, rope_dims), from launch_begin
  int32_t rope_dims, rope_style;  // MR_ROPE_*
  int32_t heads;
  void* q_out;            // (count, heads * padded_dim): zeros from head_dim on in each head
  int64_t q_stride;       // elements from row to row of q_out
  KvLayout layout;
  void *keys, *values;    // block 0 of the layer
  bool queries_only = false;  // the layer reads another layer's cache: there is no K and no V
  bool value_is_key = false;  // V is K with its bias, before norm and rotation; qkv has no V
  bool v_norm = false;        // each head of V is divided by its root mean square
  bool query_gates = false;   // a gate of head_dim columns, which is not read, follows each head of Q; q_bias has none
  // Q of position p is multiplied by 1 + temperature_scale * ln(1 + floor(p / temperature_length)); 0: it is not
  float temperature_scale = 0;
  int32_t temperature_length = 0;
};
cudaError_t launch_finish_qkv(const FinishQkvArgs& args, const Stream& on);

}  // namespace mr::cuda
