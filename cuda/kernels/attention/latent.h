// latent: causal attention over a latent that all heads share (MR_MIX_LATENT), in its absorbed form.
//
// The cache holds one row for a position: the normed latent, then the rotated key, then zeros up to the width of pad_latent. The row is
// the key of every head, and its first dims are the value. All heads of a token read the same rows, so heads are the rows of the tensor
// cores' tiles, as the tokens of a prompt are.
//
//   file               rows                          how
//   latent_decode.cu   decode, row by row            16 or 32 heads of a row; keys split between blocks, as in decode_kernel.cuh
//   latent_prefill.cu  prompts, tiles of rows        64 rows of a token and a head; pieces of keys, as in prefill_mma_kernel.cuh
//   latent_tile.cuh    both                          the products of one tile of keys, by mma
//
// The promise is that of attention.h: keys are cut at absolute positions, parts are merged in ascending order by merge(), and rows of a
// tile never exchange values. So a row's bits depend neither on the batch, nor on the cuts of a prompt, nor on the number of SMs.
#pragma once

#include "kernels/attention/attention.h"

namespace mr::cuda {

constexpr int32_t kMostLatent = 512, kMostLatentRow = 576;

// Returns the width of a row of the cache: the least that kernels are compiled for and that holds the latent and the rotated key; 0 if
// the latent has more than kMostLatent dims, or both more than kMostLatentRow.
constexpr int32_t pad_latent(int32_t latent, int32_t rotated) {
  if (latent < 1 || latent > kMostLatent || rotated < 0 || latent + rotated > kMostLatentRow) return 0;
  return latent + rotated <= 64 ? 64 : kMostLatentRow;
}

// Dims of a row of this width that kernels weigh as values: the latent is among them.
constexpr int32_t latent_value_dims(int32_t padded_dim) { return padded_dim < kMostLatent ? padded_dim : kMostLatent; }

// Elements from head to head of results: whole pieces of 16 bytes, which the GEMM after it loads. Those past the latent are finite and
// have no meaning.
constexpr int32_t latent_result_dims(int32_t latent) { return (latent + 7) / 8 * 8; }

// Returns the layout of a layer's cache. Its only plane is that of keys.
inline KvLayout latent_layout(Act act, int32_t block_size, int32_t latent, int32_t rotated) {
  return {act, block_size, 1, latent_result_dims(latent), pad_latent(latent, rotated), Kv::kAct};
}

// Returns whether these are arguments of attention over a latent.
inline bool latent_args_valid(const AttentionArgs& c) {
  const KvLayout& l = c.layout;
  return c.heads >= 1 && l.kv_heads == 1 && l.kv == Kv::kAct && (l.padded_dim == 64 || l.padded_dim == kMostLatentRow) && l.head_dim >= 8 &&
         l.head_dim % 8 == 0 && l.head_dim <= latent_value_dims(l.padded_dim) && (l.block_size == 16 || l.block_size == 32) &&
         c.scale > 0 && c.cap == 0 && c.window == 0 && c.sinks == nullptr && c.q_stride % 8 == 0 && c.out_stride % 8 == 0;
}

// Returns the bytes of shared memory that the device must allow a block for rows of this width.
int32_t latent_shared_bytes(int32_t padded_dim);

// The arguments are those of decode and prefill attention, with a layout of latent_layout. q: (rows, heads * padded_dim), a head's
// absorbed query, its rotated part, and zeros. out: (rows, heads * layout.head_dim), sums of latents. values, cap, window and sinks are
// not used and must be unset.
cudaError_t launch_decode_latent(const DecodeAttentionArgs& args, const Stream& on);
int64_t decode_latent_bytes(int32_t rows, int32_t capacity, int32_t heads, int32_t padded_dim);  // of its workspace

int32_t prefill_latent_tile_rows(int32_t heads);
int32_t prefill_latent_columns(int32_t heads);
cudaError_t launch_prefill_latent(const PrefillAttentionArgs& args, const Stream& on);
int64_t prefill_latent_bytes(int32_t capacity, int32_t heads, int32_t padded_dim);

}  // namespace mr::cuda
