// gemv: the parameters of the decode class's kernels for up to eight tokens, and the table from which gemm.cu chooses.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/gemm/gemm.h"

namespace mr::cuda {

constexpr int32_t kSlices = 8;  // split-K slices of the columns

// Device ordinals must be below this: prepare_gemms refuses others.
constexpr int32_t kMaxDevices = 64;

// KernelTarget is a GemmTarget as kernels read it. Tiles of all targets of a launch are numbered one after another.
struct KernelTarget {
  const uint8_t* data;
  const float* bias;
  void* out;
  int64_t out_stride;
  int32_t rows, panels, first_tile;
  int32_t role = 0;  // of kHeads: 0 queries, 1 keys, 2 values
};

struct GemvParams {
  KernelTarget targets[kGemmTargets];
  const void* x;
  int64_t x_stride;
  int32_t count;        // targets in use
  int32_t pair;         // bool: the targets are gate and up
  int32_t even;         // bool: one target or pair, of whole tiles, and one token tile: addresses advance by a constant
  int32_t tokens, cols;
  int32_t groups;       // groups of a panel
  int64_t panel_bytes;
  int64_t item_bytes;   // bytes from a block's panels to those of its next item, if even
  int32_t token_tiles;           // >= 1
  int32_t items, item_stride;    // tiles * token_tiles; tile = item / token_tiles
  Epilogue epilogue;
  GemmNorm norm;
  GemmHeads heads;
  float x_scale, pair_share;  // sums are multiplied by x_scale, the result of a pair by pair_share
  int32_t gelu;               // bool: a pair's activation is GELU
};

// Widest row that a GEMM can norm itself. One block must hold it as rms_norm does, kNormKept groups of four floats for
// each thread (norm_row.cuh). A wider row needs more threads than a block has, or another order of the sum.
constexpr int32_t kMostNormed = 4096;

constexpr int32_t kRegisterGroups = 2;  // groups of a slice whose inputs a warp keeps in registers

// GemvForm is the tokens of a tile, and whether the tile is one panel, a gate's and an up's panel, or two panels of one
// weight. kPair1 and kDouble1 take either two; kDouble1 has stages of whole groups. kRegisters*: gemv_registers.cuh. If a type
// does not have a form, its function is null.
enum class GemvForm : int32_t { kSingle1 = 0, kPair1, kDouble1, kSingle8, kPair8, kDouble8, kRegistersSingle8, kRegistersPair8 };
constexpr int32_t kGemvForms = 8;

struct GemvKernel {
  const void* function;
  int32_t (*shared_bytes)(int32_t capability);  // of the machine code of a compute capability: 80, 86, ...
  int32_t threads;
  int32_t panels, tokens;  // of a tile; of a pair one panel of each
};

// Instantiated once for each type, see instances/.
template <int32_t T>
GemvKernel gemv_kernel(Act act, GemvForm form);

// Returns f(T as a type with a `value`) for the type T of the kernels of kWeightFormats[index].
template <int32_t i = 0, class F>
auto with_kernel_type(int32_t index, F&& f) {
  constexpr std::integral_constant<int32_t, kWeightFormats[i].kernel()> type{};
  if constexpr (i + 1 == kWeightTypeCount) return f(type);
  else return index == i ? f(type) : with_kernel_type<i + 1>(index, f);
}

// Returns f(an element of the activation type), or an empty Kernel if weights of type T have none: quantised weights
// multiply f16 activations alone.
template <int32_t T, class Kernel, class F>
Kernel with_multiplied_act(Act act, F&& f) {
  if (act == Act::kF16) return f(__half{});
  if constexpr (!quantised(T)) return f(__nv_bfloat16{});
  else return {};
}

}  // namespace mr::cuda
