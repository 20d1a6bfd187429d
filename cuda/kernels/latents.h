// latents: the steps around attention over a latent (attention/latent.h): norm, rotation and cache write, the parts of queries, and the
// plan by which the grouped GEMMs (experts/) multiply each head with its own matrix.
#pragma once

#include <cstdint>

#include "kernels/experts/plan.h"
#include "kernels/kv.h"
#include "kernels/launch.h"
#include "kernels/rows.h"
#include "kernels/types.h"

namespace mr::cuda {

// For each row it norms the latent, rotates the key and the last rope_dims dims of each head of Q by the row's entries of the RoPE table,
// all in f32. The latent and the key go to the row's position of the cache, with zeros after them. The other dims of a head of Q go to
// `plain`, and the rotated ones to q, from dim `latent` on, with zeros after them. Dims of q below `latent` are not written. A padding row
// writes zeros to plain and q and nothing to the cache. A row's bits depend on that row alone.
struct FinishLatentArgs {
  Rows rows;
  int32_t count;
  const float* queries;      // (count, queries_stride): heads of Q, each key_dim wide
  const float* cached;       // (count, cached_stride): the latent, then the key, rope_dims wide
  int64_t queries_stride, cached_stride;  // elements
  int32_t heads, key_dim, latent;
  const float* norm;         // (latent)
  float norm_eps;
  const float* rope_table;   // (count, rope_dims), from launch_begin
  int32_t rope_dims, rope_style;  // MR_ROPE_*; rope_dims < key_dim
  void* plain;               // (count, heads, plain_stride) of plain_act
  Act plain_act;
  int64_t plain_stride;      // elements from head to head
  void* q;                   // (count, q_stride) of the layout's act: heads of padded_dim
  int64_t q_stride;          // elements
  KvLayout layout;           // latent_layout
  void* keys;                // block 0 of the layer
};
cudaError_t launch_finish_latent(const FinishLatentArgs& args, const Stream& on);

// out[r, h, d] = in[r, h, d] for d < width, in the type act. Finite numbers beyond f16's range are saturated.
struct PlaceHeadsArgs {
  const float* in;     // (rows, heads, in_stride)
  int64_t in_stride;   // elements from head to head
  void* out;           // (rows, out_stride) of act, heads head_stride apart
  int64_t out_stride, head_stride;  // elements
  Act act;
  int32_t rows, heads, width;
};
cudaError_t launch_place_heads(const PlaceHeadsArgs& args, const Stream& on);

// Writes the plan of a grouped GEMM in which pair r * heads + h is row r with "expert" h: each head has the pairs of all rows, by
// ascending row. It neither reads nor writes plan.done, which a grouped GEMM needs.
struct PlanHeadsArgs {
  ExpertPlan plan;  // of rows * heads pairs, heads experts and expert_tiles(...) tiles
  int32_t rows, heads, tile;
};
cudaError_t launch_plan_heads(const PlanHeadsArgs& args, const Stream& on);

}  // namespace mr::cuda
