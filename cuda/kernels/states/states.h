// states: the kernels of layers that carry a state from position to position: gated delta nets and short convolutions (millrace/model.h).
//
// Positions of a slot are computed one after another and by the same operations however they came, so that a state has the same bits
// alone, in a batch, and for every cut of a prompt. The segments of one slot in a step form a chain: each of them reads the state that the
// one before it wrote.
//
//            x -> MIX_IN -> convolve -+-> delta -> gate_norm -> MIX_OUT         DELTA
//                                     |
//            x -> MIX_IN -> convolve -+-> MIX_OUT,  store_inputs                CONV
#pragma once

#include <cstdint>

#include "kernels/launch.h"
#include "kernels/types.h"

namespace mr::cuda {

constexpr int32_t kMostDeltaKeys = 512;  // of a head of a gated delta net

// A run of rows of one slot. A state is named by its index in StateMemory.
struct StateSegment {
  int32_t first_row, count;  // rows first_row .. first_row + count - 1 are consecutive positions
  int32_t from, to;          // states that it reads first (-1: zeros) and writes at last
};

// Consecutive segments of one slot, in the order of their positions. Of all but the first, `from` is `to` of the one before.
struct StateChain {
  int32_t first_segment, segments;  // segments 0: padding
};

// The chains of a step. All arrays are in device memory; they lie in the step's input.
struct StateRows {
  const StateChain* chains;       // (chain_count)
  const StateSegment* segments;   // those of all chains
  const int32_t* chain_of;        // (rows) the chain of each row; -1: padding
  const int32_t* segment_of;      // (rows) the segment of each row; not read for padding
  int32_t rows, chain_count;      // padding included
};

// The states of a runner, of one layer: state i begins at base + i * stride. f32.
// A layer's state is the inputs of the convolution at the last conv - 1 positions, oldest first, (conv - 1, width), and then of DELTA
// the matrix S of each value head, (key_dim, value_dim), in an order of its elements that depends on the kernel.
struct StateMemory {
  float* base;     // of the layer, 16-byte aligned
  int64_t stride;  // numbers from state to state, a multiple of 4
};

// u = sum over taps i of taps[i] * inputs_{t - conv + 1 + i}, where inputs before position 0 are zeros.
// DELTA: out row = silu(u), of which each key head of the first two parts, queries and keys, is divided by its length
// sqrt(sum u^2 + 1e-6), and queries are multiplied by scale. CONV: the inputs are B * X, and out row = C * u as Act, divided by a power
// of two.
struct ConvolveArgs {
  StateRows rows;
  StateMemory states;
  const float* in;      // (rows, in_stride) MIX_IN x. DELTA: width columns; CONV: B, C, X of width columns each
  int64_t in_stride;    // elements
  const float* taps;    // (conv, width)
  int32_t conv, width;
  bool gates;           // CONV
  // DELTA
  int32_t key_heads, key_dim;
  float scale;
  float* out;           // (rows, width); padding rows are zeros
  // CONV
  void* gated_out;      // (rows, gated_stride) of act
  int64_t gated_stride;
  Act act;
  float out_scale;      // multiplies what is stored: a power of two
};
cudaError_t launch_convolve(const ConvolveArgs& args, const Stream& on);

// Stores the inputs of the convolution that each segment ends with. It follows the convolution of the same layer, and for DELTA it is part
// of launch_delta.
struct StoreInputsArgs {
  StateRows rows;
  StateMemory states;
  const float* in;   // as in ConvolveArgs
  int64_t in_stride;
  int32_t conv, width;
  bool gates;
};
cudaError_t launch_store_inputs(const StoreInputsArgs& args, const Stream& on);

// The gated delta rule: for each position, of a value head with its key head's q and k,
//   g = exp(A softplus(alpha + dt)), b = sigmoid(beta); S = g S; S = S + k (b (v - k^T S))^T; o = q^T S.
// Writes o and each segment's state, with the inputs of the convolution. It reads alpha, beta and states before grid_wait, so a dependent
// launch must follow the convolution, and the convolution the kernels that write alpha and beta (launch.h, 4).
// Heads of 64, 128 or 256 keys with a multiple of 32 values need `in`, u and base at multiples of 16 bytes, and strides in multiples of 4.
struct DeltaArgs {
  StoreInputsArgs inputs;       // rows and states too
  const float* u;               // (rows, u_stride): what launch_convolve wrote: queries, keys, values
  int64_t u_stride;
  const float *alpha, *beta;    // (rows, scalar_stride), (rows, scalar_stride): of each value head
  int64_t scalar_stride;
  const float *a, *dt;          // (heads)
  int32_t heads, key_heads, key_dim, value_dim;
  bool tiled_heads;             // value head j has key head j % key_heads, else j / (heads / key_heads)
  float* out;                   // (rows, out_stride): o of all value heads; may be the values in u
  int64_t out_stride;
  int32_t sm_count;             // of the device: selects how columns are divided, which changes no bits
};
cudaError_t launch_delta(const DeltaArgs& args, const Stream& on);

// out = out_scale * norm(o) * norm_weight * silu(gate), with the RMS norm by head.
struct GateNormArgs {
  const float* o;        // (rows, o_stride)
  const float* gate;     // (rows, gate_stride): MIX_GATE x
  int64_t o_stride, gate_stride;
  const float* norm;     // (value_dim)
  float eps;
  int32_t rows, heads, value_dim;
  void* out;             // (rows, out_stride) of act
  int64_t out_stride;
  Act act;
  float out_scale;       // a power of two
};
cudaError_t launch_gate_norm(const GateNormArgs& args, const Stream& on);

// out = out * sigmoid(gate), in place: attention's result and the gates that MR_MIX_OUT_GATE puts after each head of Q.
struct GateOutputArgs {
  void* out;             // (rows, out_stride) of act: heads of dim
  int64_t out_stride;
  Act act;
  const float* q;        // (rows, q_stride): of each head dim queries, then dim gates
  int64_t q_stride;
  int32_t rows, heads, dim;
};
cudaError_t launch_gate_output(const GateOutputArgs& args, const Stream& on);

}  // namespace mr::cuda
