// activations: how the inputs of a runner's GEMMs are stored.
//
// The matrices that share inputs decide the type. Quantised matrices have kernels for f16 inputs alone, because a quant times
// its scale is rounded to the input type once, which f16 does with an eighth of bf16's error. BF16 and F32 matrices without a
// quantised one among them have bf16 inputs, because their own numbers may pass f16's range.
//
// f16 ends at 65 504, so f16 inputs lie divided by a power of two, by which the GEMM multiplies its sums. Nothing but what
// becomes subnormal loses bits by that. The power depends on what makes the inputs:
//
//   a norm              the least power that no norm of the model can exceed: its weights and the square root of its width
//                       bound it. It is 1 for real models
//   attention           1: means of values, which are within f16's range if the cache is f16, and are saturated if it is not.
//                       An output gate makes them smaller
//   SwiGLU              64: in real models it passes 65 504; beyond four million a row fails
//   a state's layer     64: a gate multiplies the norms of a delta net, and two parts of its input a convolution's, without a
//                       bound. Beyond four million they are saturated
//   the residual stream 64: of layers without a norm. Beyond four million it is saturated, as queries, keys and values are
#pragma once

#include <initializer_list>

#include "kernels/types.h"
#include "millrace/engine.h"
#include "src/shard.h"

namespace mr::cuda {

// InputType is the type of inputs, and the power of two by which they lie divided (GemmArgs::x_scale).
struct InputType {
  Act act = Act::kF16;
  float scale = 1;
};

// Of a sealed model, whose shards all give the same.
class Activations {
 public:
  Activations(const Shard& shard, const mr_runner_config& config);

  // Returns the type of inputs that these matrices share; those that a model lacks do not count. Without a quantised matrix the
  // configuration decides, and if it leaves the choice, f16 if every matrix is F16, else bf16.
  Act act_of(std::initializer_list<const PackedWeight*> matrices) const;

  InputType normed(Act act) const { return {act, act == Act::kF16 ? norm_scale_ : 1}; }
  InputType attended(Act act) const { return {act, 1}; }
  InputType gated(Act act) const { return {act, act == Act::kF16 ? kBeyondF16 : 1}; }     // by SwiGLU
  InputType carried(Act act) const { return {act, act == Act::kF16 ? kBeyondF16 : 1}; }   // by a layer with a state
  InputType residual(Act act) const { return {act, act == Act::kF16 ? kBeyondF16 : 1}; }  // as it is

 private:
  static constexpr float kBeyondF16 = 64;

  int32_t requested_;  // MR_KV_*, or 0
  float norm_scale_;
};

}  // namespace mr::cuda
