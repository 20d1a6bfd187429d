// gemm: y(tokens, rows) = x(tokens, cols) * W(rows, cols)^T, followed by a fused epilogue.
//
// Rows are the outputs of the weight and cols, the K of a GEMM, its inputs. Weights are quantised or float and stay in
// the order of weight.h, which is the order of the tensor cores' A operand: weights are A, tokens are B, and a tile is
// `rows x tokens`. Launchers pick a kernel by the class, the number of tokens, the weight type and the device:
//
//   file                         tokens      tile (rows x tokens)   how
//   gemv_async.cuh               1, 2 to 8   16 x 1, 16 x 8         mma, cp.async; each warp streams a slice of K
//   gemv_registers.cuh           1 to 8      16 x 8                 the same; the inputs stay in registers
//   skinny_wgmma_kernel.cuh      2 to 128    64 x 8 .. 64 x 128     wgmma, a cluster of two blocks shares a tile
//   m128_wgmma_*kernel.cuh       above 64    128 x 128              the same with 128 rows, or two tiles share tokens
//   prefill_wgmma_kernel.cuh     prefill     64/128 x 64 .. 256     wgmma, persistent clusters of up to eight blocks
//
// One tile of a wgmma kernel (warp-specialised, as in CUTLASS and ThunderKittens):
//
//   weights, tokens in HBM
//         | cp.async.bulk / TMA
//   producer warp --full--> [stage 0][stage 1] ... [stage n-1] --> consumer warpgroup 0: A to registers, wgmma into acc[]
//   (one thread)  <-empty--  one unit of 64 inputs in each    \-> consumer warpgroup 1: the same for other rows or K
//                                                                      |
//            acc[] of several warpgroups or blocks --> reduction in a fixed order --> epilogue --> out
//
// A producer waits until the consumers have released a stage (mbarrier `empty`), announces the bytes and issues the
// copies; the copies complete the mbarrier `full`. A PipelineState is a stage and the parity of its barriers
// (wgmma.cuh). Producers do not stop at the end of a tile: the first units of the next tile are loaded while the
// epilogue of this one runs.
//
// A row's bits must not depend on the batch, because a sequence that moves to another worker must continue with the
// same tokens. Therefore the order of every sum is fixed by the class, the type and cols alone:
//
// * Class kDecode is split-K with at most 8 slices of the columns, cut at whole groups. Each slice is accumulated in
//   ascending order, 16 inputs at a time, in f32, and the slices are added as a balanced tree:
//   ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7)). All kernels of the class keep this order, so they give the same
//   bits. This holds because mma and wgmma add 16 products alike, which mma_agreement.h checks on each device.
// * Class kPrefill is one ascending sum. Without wgmma it is class kDecode.
// * What kPrefill adds to the residual stream (kAddF32) is split into K partitions, so that a short prompt occupies the
//   device. G groups of 256 columns, of which the last may be short, make P = ceil(G / 32) partitions. Partition i has
//   the groups from floor(G i / P) to floor(G (i + 1) / P). If A_i is its ascending sum times x_scale, then out becomes
//   ((out + (A_0 + bias)) + A_1) + ..., in f32 and in that order. Stream-K (Osama et al., 2023) also shares tiles
//   between blocks along K, but lets the number of blocks set the cuts; here the cuts depend on the columns alone.
//
// Arithmetic: x is used as it is (f16 or bf16) and sums are f32. Quantised weights are rounded once to f16, in both classes
// by the same code (fragment.cuh). Exceptions are kDecode's Q4_K and Q5_K, whose products are exact and whose scale and min
// multiply the f32 sum of 256 inputs (folded.cuh). Float weights are exact in kDecode, F32 as two bf16 terms (relative
// error 2^-16), and in kPrefill are rounded to the activation type.
#pragma once

#include <cstdint>

#include "kernels/gemm/weight.h"
#include "kernels/kv.h"
#include "kernels/launch.h"
#include "kernels/rows.h"
#include "kernels/types.h"

namespace mr::cuda {

enum class GemmClass : int32_t { kDecode = 0, kPrefill = 1 };

enum class Epilogue : int32_t {
  kStoreF32 = 0,  // out = y + bias, f32
  kAddF32 = 1,    // out += y + bias, f32: the residual stream
  kSwiGLU = 2,    // out = activation(y0 + bias0) * (y1 + bias1) / pair_scale in the activation type; 0 is the gate, 1 the up projection
  kHeads = 3      // y + bias of 0 (queries), 1 (keys) and 2 (values), rotated and written as launch_finish_qkv does, see GemmHeads
};

constexpr int32_t kGemmTargets = 4;       // weights of one GEMM, at most
constexpr int32_t kGemmSemaphores = 512;  // length of GemmArgs::semaphores

// GemmTarget is one weight and where its result is written.
struct GemmTarget {
  PackedWeight weight;
  const float* bias = nullptr;  // (rows) or null
  void* out = nullptr;          // (tokens, rows), row stride out_stride; unused for the second target of a kSwiGLU pair
  int64_t out_stride = 0;       // elements
};

// GemmNorm makes x the RMS norm of an f32 row, with the bits of launch_rms_norm (norm.h).
struct GemmNorm {
  const float* x = nullptr;       // (cols), 16-byte aligned; must not overlap an out
  const float* weight = nullptr;  // (cols), 16-byte aligned; null: x is GemmArgs::x
  float eps = 0;
  float scale = 1;  // a power of two that multiplies the norm
};

// GemmHeads controls the epilogue kHeads, which has the bits of launch_finish_qkv (qkv.h). Queries and keys are
// rotated. Queries are written to out of their target; keys and values to the tokens' positions in the cache, where out
// of their target is block 0 of the layer. All are of the layout's activation type. Rows and the RoPE table may be read
// before grid_wait(): between the kernel that writes them and the GEMM there must be a kernel that is not short
// (launch.h).
struct GemmHeads {
  Rows rows;                     // of the tokens
  const float* rope_table = nullptr;  // (tokens, rope_dims): cosines, then sines, from launch_begin
  int32_t rope_dims = 0, rope_style = 0;  // MR_ROPE_*
  KvLayout layout{};
};

// GemmArgs holds up to kGemmTargets weights over the same x: Q, K and V, or gate and up. Weights of one launch may differ
// in type, except for a kSwiGLU pair, which must have one type and shape (swiglu_supported).
struct GemmArgs {
  GemmTarget targets[kGemmTargets];
  int32_t count = 0;  // targets in use, 1..kGemmTargets
  Epilogue epilogue = Epilogue::kStoreF32;
  GemmClass kind = GemmClass::kDecode;
  const void* x = nullptr;  // (tokens, cols) of type act, 16-byte aligned; must not overlap an out
  int64_t x_stride = 0;     // elements, a multiple of 8
  Act act = Act::kF16;      // kBF16 only with weights of a float type
  int32_t tokens = 0;
  GemmNorm norm;  // set only if gemm_fuses_norm
  GemmHeads heads;  // set for kHeads, which requires gemm_fuses_heads
  // Powers of two that keep activations inside the range of f16 without rounding: x is stored divided by x_scale, so
  // sums are multiplied by it, and out of a kSwiGLU pair is written divided by pair_scale.
  float x_scale = 1, pair_scale = 1;
  bool gelu = false;  // the activation of a kSwiGLU pair is GELU (activation.cuh), and not SiLU
  // Workspace of input_sum_bytes(tokens, cols) bytes (input_sums.h), 16-byte aligned, or null. No other GEMM may use it
  // until this one has ended. Without it many tokens take more time; the bits are the same.
  void* input_sums = nullptr;
  bool summed = false;  // input_sums holds the sums of x already, written by the kernel that wrote x or by one before it
  // Semaphores (kGemmSemaphores), all zero before and after the GEMM. No other GEMM may use them until this one has
  // ended. Through them the blocks of one tile announce which K partition they have stored. If it is null, a kAddF32
  // GEMM by wgmma must have a single partition; otherwise it must have fewer than 2 097 152 columns.
  uint32_t* semaphores = nullptr;
};

// Returns whether gate and up can be a kSwiGLU pair. If not, store both and multiply them with a kernel of its own.
bool swiglu_supported(const PackedWeight& gate, const PackedWeight& up);

// Returns whether launch_gemm can apply the RMS norm to x itself: one token of a width that one block can hold.
bool gemm_fuses_norm(const GemmArgs& args);

// Returns whether launch_gemm can run the epilogue kHeads: class kDecode, rotation of neighbouring dims, a cache of the
// layout's activation type, heads of a padded width without a norm of their own, and for each target few tokens (one of
// floats, two of Q8_0, eight of other types) or, if skinny kernels run, 17 to 64 and an out that is aligned to two elements.
bool gemm_fuses_heads(const GemmArgs& args);

// Returns whether launch_gemm reads sums of x from input_sums, so that the kernel that writes x should write them too.
bool gemm_reads_input_sums(const GemmArgs& args);

// Raises the kernels' shared memory limits and measures how many tiles the device holds. Must be called once for each
// device, with the device current, before its first GEMM and outside of stream capture.
cudaError_t prepare_gemms();

// Returns how many prefill tokens a GEMM with this many rows needs to fill the current device in one round of tiles;
// each further round takes as many again. Returns 0 if any number is as good.
int32_t prefill_grain(int64_t rows);

// Launches the GEMM. Before grid_wait() it may read weights and, for kHeads, rows and the RoPE table. It touches x, out
// and bias only after it.
cudaError_t launch_gemm(const GemmArgs& args, const Stream& on);

}  // namespace mr::cuda
