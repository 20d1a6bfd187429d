// rank_states: mixers that carry a state from position to position, from the residual stream to what MIX_OUT multiplies. A step has
// decode rows and prefill rows; GEMMs are of one class of rows, all else is of both at once, because a slot may have rows of both.
#include <vector>

#include "kernels/states/states.h"
#include "src/error.h"
#include "src/rank.h"

namespace mr::cuda {

// Files have the taps of a column one after another; kernels read those of neighbouring columns at once.
void Rank::lay_out_taps() {
  for (int32_t i = 0; i < desc_.layer_count(); ++i) {
    const mr_mixer_desc& m = desc_.mixer(i);
    if (keeps_keys(m)) continue;
    const size_t width = static_cast<size_t>(conv_width(m, desc_.hidden)), conv = static_cast<size_t>(m.conv);
    std::vector<float> columns(width * conv), taps(width * conv);
    device().transfers.download(columns.data(), shard_.layer(i).mix_conv, columns.size() * sizeof(float));
    for (size_t c = 0; c < width; ++c)
      for (size_t j = 0; j < conv; ++j) taps[j * width + c] = columns[c * conv + j];
    device().transfers.upload(space_.states.taps[static_cast<size_t>(i)], taps.data(), taps.size() * sizeof(float));
  }
}

StateRows Rank::state_rows(const StepShape& shape) const {
  StateRows rows{};
  rows.chains = reinterpret_cast<const StateChain*>(space_.input + shape.chain);
  rows.segments = reinterpret_cast<const StateSegment*>(space_.input + shape.segment);
  rows.chain_of = reinterpret_cast<const int32_t*>(space_.input + shape.chain_of);
  rows.segment_of = reinterpret_cast<const int32_t*>(space_.input + shape.segment_of);
  rows.rows = shape.rows;
  rows.chain_count = shape.chains;
  return rows;
}

StateMemory Rank::state_memory(int32_t index) const {
  return {states_.as<float>() + sizes_.state_at[static_cast<size_t>(index)], sizes_.state_floats};
}

ConvolveArgs Rank::convolve_args(const StepShape& shape, int32_t index) const {
  const mr_mixer_desc& m = desc_.mixer(index);
  ConvolveArgs args{};
  args.rows = state_rows(shape);
  args.states = state_memory(index);
  args.in = space_.qkv;
  args.in_stride = sizes_.qkv_stride;
  args.taps = space_.states.taps[static_cast<size_t>(index)];
  args.conv = m.conv;
  args.width = static_cast<int32_t>(conv_width(m, desc_.hidden));
  args.gates = m.kind == MR_MIX_CONV;
  return args;
}

StoreInputsArgs Rank::store_inputs_args(const StepShape& shape, int32_t index) const {
  const ConvolveArgs of = convolve_args(shape, index);
  return {of.rows, of.states, of.in, of.in_stride, of.conv, of.width, of.gates};
}

void Rank::short_convolution(const StepShape& shape, int32_t index, const Stream& on) {
  const GemmTarget in{shard_.layer(index).mix_in, nullptr, space_.qkv, sizes_.qkv_stride};
  for (const Span& span : spans(shape)) normed_gemm(span, mixer_norm(index), Epilogue::kStoreF32, 1, &in, on);
  const InputType type = mixed_type(index);
  const ActRows& out = space_.attention[static_cast<size_t>(index)];
  ConvolveArgs args = convolve_args(shape, index);
  args.gated_out = out.base;
  args.gated_stride = out.stride;
  args.act = type.act;
  args.out_scale = 1 / type.scale;
  CUDA_CHECK(launch_convolve(args, on));
  CUDA_CHECK(launch_store_inputs(store_inputs_args(shape, index), on));
}

void Rank::gated_delta(const StepShape& shape, int32_t index, const Stream& on) {
  const Layer& l = shard_.layer(index);
  const mr_mixer_desc& m = desc_.mixer(index);
  const StateSpace& space = space_.states;
  const GemmTarget in[4] = {{l.mix_in, nullptr, space_.qkv, sizes_.qkv_stride},
                            {l.mix_gate, nullptr, space.gates, sizes_.mix_gate_stride},
                            {l.delta_alpha, nullptr, space.alpha, sizes_.scalar_stride},
                            {l.delta_beta, nullptr, space.beta, sizes_.scalar_stride}};
  for (const Span& span : spans(shape)) normed_gemm(span, mixer_norm(index), Epilogue::kStoreF32, 4, in, on);

  ConvolveArgs convolve = convolve_args(shape, index);
  convolve.key_heads = m.kv_heads;
  convolve.key_dim = m.key_dim;
  convolve.scale = attention_scale(m);
  convolve.out = space.convolved;
  CUDA_CHECK(launch_convolve(convolve, on));

  DeltaArgs delta{};
  delta.inputs = store_inputs_args(shape, index);
  delta.u = space.convolved;
  delta.u_stride = conv_width(m, desc_.hidden);
  delta.alpha = space.alpha;
  delta.beta = space.beta;
  delta.scalar_stride = sizes_.scalar_stride;
  delta.a = l.delta_a;
  delta.dt = l.delta_dt;
  delta.heads = m.heads;
  delta.key_heads = m.kv_heads;
  delta.key_dim = m.key_dim;
  delta.value_dim = m.value_dim;
  delta.tiled_heads = (m.flags & MR_MIX_TILED_HEADS) != 0;
  delta.out = space.convolved + 2 * key_width(m);  // over the values
  delta.out_stride = delta.u_stride;
  delta.sm_count = device().properties.multiProcessorCount;
  CUDA_CHECK(launch_delta(delta, on));

  const InputType type = mixed_type(index);
  const ActRows& out = space_.attention[static_cast<size_t>(index)];
  GateNormArgs norm{};
  norm.o = delta.out;
  norm.gate = space.gates;
  norm.o_stride = delta.out_stride;
  norm.gate_stride = sizes_.mix_gate_stride;
  norm.norm = l.delta_norm;
  norm.eps = desc_.norm_eps;
  norm.rows = shape.rows;
  norm.heads = m.heads;
  norm.value_dim = m.value_dim;
  norm.out = out.base;
  norm.out_stride = out.stride;
  norm.act = type.act;
  norm.out_scale = 1 / type.scale;
  CUDA_CHECK(launch_gate_norm(norm, on));
}

}  // namespace mr::cuda
