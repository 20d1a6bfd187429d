// product: y(tokens, rows) = x(tokens, cols) * W(rows, cols)^T, with what follows it.
//
// Two kernel classes. decode: every output element is the sum of at most 8 segments of the columns, cut by type and cols
// alone, each accumulated 16 inputs at a time in ascending order in f32 and joined as a balanced tree: the same bits for every
// number of tokens, place in the batch and device width. One pass over the weights serves 64 tokens with wgmma (128 of the
// weights' own type, and f16 ones of most quantised weights that have rows enough), where weights and tokens are
// multiplied unsplit, else 8. prefill: one ascending sum, the same bits for every number of tokens; on devices without wgmma it is the
// decode class.
//
// What prefill adds to the residual stream (kAddF32) it adds part by part of the columns, so that a short prompt occupies the device: G
// groups of 256 columns, the last perhaps short, are P = ceil(G / 32) parts, by the columns alone, and part i has the groups from
// floor(G i / P) to floor(G (i + 1) / P). With A_i the ascending sum of part i, out becomes ((out + (A_0 + bias)) + A_1) + ..., in f32
// and in that order, each A_i first multiplied by x_scale. Up to 8 192 columns are one part.
//
// Arithmetic: x is taken as it is (f16 or bf16), sums are f32. decode: products of F16, BF16 and quantised weights are exact,
// scales and mins multiply the f32 sums of their blocks (of 256 inputs where folded.cuh says), F32 weights are two bf16 terms
// (relative 2^-16). prefill: weights are rounded once to the activation type.
#pragma once

#include <cstdint>

#include "kernels/kv.h"
#include "kernels/launch.h"
#include "kernels/linear/weight.h"
#include "kernels/rows.h"
#include "kernels/types.h"

namespace mr::cuda {

enum class ProductClass : int32_t { kDecode = 0, kPrefill = 1 };

enum class ProductEnd : int32_t {
  kStoreF32 = 0,  // out = y + bias, f32
  kStoreAct = 1,  // out = y + bias in the activation type
  kAddF32 = 2,    // out += y + bias, f32: the residual stream
  kSwiGLU = 3,    // out = silu(y0 + bias0) * (y1 + bias1) / pair_scale in the activation type, of the pair 0 (gate) and 1 (up)
  kHeads = 4      // y + bias of 0 (queries), 1 (keys) and 2 (values) as launch_finish_qkv ends them, see ProductHeads
};

constexpr int32_t kProductMarks = 512;  // of ProductArgs::marks

// Where one weight's product goes.
struct ProductTarget {
  PackedWeight weight;
  const float* bias = nullptr;  // (rows) or null
  void* out = nullptr;          // (tokens, rows), row stride out_stride; unused for the second of a kSwiGLU pair
  int64_t out_stride = 0;       // elements
};

// Makes x the RMS norm of an f32 row, as launch_rms_norm writes it (norm.h).
struct ProductNorm {
  const float* x = nullptr;       // (cols), 16-byte aligned; none of out
  const float* weight = nullptr;  // (cols), 16-byte aligned; null: x is ProductArgs::x
  float eps = 0;
};

// Of kHeads, how heads are ended, the bits of launch_finish_qkv (qkv.h): queries and keys are rotated, queries are written to their
// target's out and keys and values into the tokens' places of the cache, whose block 0 of the layer is theirs. All are of the layout's act.
// Rows and turns are read before grid_wait(): between what writes them and the product is a kernel that is not short (launch.h).
struct ProductHeads {
  Rows rows;                     // the tokens'
  const float* turns = nullptr;  // (tokens, rope_dims), from launch_begin
  int32_t rope_dims = 0, rope_style = 0;  // MR_ROPE_*
  KvLayout layout{};
};

// Up to three weights over the same x: Q, K and V, or gate and up. Weights of one launch may differ in type, except for
// a kSwiGLU pair, which needs two of one type and shape (swiglu_supported).
struct ProductArgs {
  ProductTarget targets[3];
  int32_t count = 0;  // of targets, 1..3
  ProductEnd end = ProductEnd::kStoreF32;
  ProductClass kind = ProductClass::kDecode;
  const void* x = nullptr;  // (tokens, cols) of type act, 16-byte aligned; none of out
  int64_t x_stride = 0;     // elements, a multiple of 8
  Act act = Act::kF16;
  int32_t tokens = 0;
  ProductNorm norm;  // only where product_norms
  ProductHeads heads;  // of kHeads, which is only where product_ends_heads
  // Powers of two, by which an activation that f16 cannot hold is kept smaller than it is, exactly: x lies divided by x_scale,
  // so that sums are multiplied by it; out of a kSwiGLU pair is written divided by pair_scale.
  float x_scale = 1, pair_scale = 1;
  // Room for term_bytes(tokens, cols) (terms.h), 16-byte aligned and of this product alone until it has ended, or null. Without it
  // many tokens take more time; the bits are the same.
  void* terms = nullptr;
  // (kProductMarks), zeros, which they are again when the product has ended, and until then of this product alone. By them blocks
  // tell each other of the parts that they have added. Without it what prefill adds by wgmma must be of one part; with it, of fewer than
  // 2 097 152 columns.
  uint32_t* marks = nullptr;
};

// Whether gate and up can be the pair of a kSwiGLU product; otherwise store both and multiply with a kernel of its own.
bool swiglu_supported(const PackedWeight& gate, const PackedWeight& up);

// Whether launch_product norms x itself: of one token, where a block has the threads to.
bool product_norms(const ProductArgs& args);

// Whether launch_product ends heads: of few tokens of the decode class, one with every type, where neighbours are rotated, and the cache
// holds numbers of the layout's act and heads of a padded width. Heads that are normed are not for it.
bool product_ends_heads(const ProductArgs& args);

// Raises the kernels' shared memory limits and learns the device's size: once a device, with it current, before the first
// product and outside of stream capture.
cudaError_t prepare_products();

// Tokens of the prefill class with which a product of so many rows fills the current device's processors in one round, and in each
// further one; 0 where any number is as good.
int32_t prefill_grain(int64_t rows);

// Weights may be requested before grid_wait(), and of kHeads rows and turns read; x, out and bias are touched after it.
cudaError_t launch_product(const ProductArgs& args, const Stream& on);

}  // namespace mr::cuda
