// rank_attention: the attention of one layer, from the products of Q, K and V to what O reads.
#include <algorithm>

#include "kernels/attention/attention.h"
#include "kernels/attention/latent.h"
#include "kernels/qk_rows.h"
#include "kernels/qkv.h"
#include "src/error.h"
#include "src/rank.h"

namespace mr::cuda {

// Queues the GEMM of a step's queries, keys and values if its epilogue can finish them too. Otherwise does nothing and returns
// false.
bool Rank::try_heads_epilogue(const StepShape& shape, int32_t index, const Stream& on) {
  const mr_mixer_desc& m = desc_.mixer(index);
  constexpr uint32_t kFinishes = MR_MIX_QKV_BIAS | MR_MIX_OUT_BIAS | MR_MIX_NO_NORM | MR_MIX_END_NORM | MR_MIX_SINKS;
  if (shape.rows != shape.decode_rows || (m.flags & ~kFinishes) != 0 || m.rope < 0 || m.kv_layer != 0 || m.temperature_scale != 0)
    return false;
  const Layer& l = shard_.layer(index);
  const LayerCache& cache = sizes_.caches[static_cast<size_t>(index)];
  const Rope& rope = desc_.ropes[static_cast<size_t>(m.rope)];
  const Span all = spans(shape).decode;
  const GemmTarget targets[3] = {{l.q, l.q_bias, space_.q, sizes_.q_stride},
                                 {l.k, l.k_bias, kv_.data() + cache.keys, 0},
                                 {l.v, l.v_bias, kv_.data() + cache.values, 0}};
  const BranchNorm source = mixer_norm(index);
  GemmArgs args = gemm_args(all, source.type, space_.norm, sizes_.hidden_stride, Epilogue::kHeads, 3, targets);
  args.heads = {rows_of(shape, 0, index), space_.rope_tables[static_cast<size_t>(m.rope)], rope.dims, rope.style, sizes_.layout(index)};
  if (!gemm_fuses_heads(args)) return false;
  normed_gemm(args, all, source, on);
  return true;
}

void Rank::attend(const StepShape& shape, int32_t index, const Stream& on) {
  if (heads_apart(index)) {
    finish_qkv(shape, index, on);
  } else if (!try_heads_epilogue(shape, index, on)) {
    multiply_heads(shape, index, on);
    finish_qkv(shape, index, on);
  }
  attention(shape, index, on);
  if (gated_output(desc_.mixer(index))) gate_output(shape, index, on);
}

void Rank::multiply_heads(const StepShape& shape, int32_t index, const Stream& on) {
  const Layer& l = shard_.layer(index);
  const mr_mixer_desc& m = desc_.mixer(index);
  const bool apart = heads_apart(index);
  const int64_t stride = apart ? sizes_.heads_stride : sizes_.qkv_stride;
  float* const queries = apart ? space_.heads + shard_.rank() * heads_width(m) : space_.qkv;
  float* const values = space_.qkv + query_width(m) + key_width(m);
  // The gates between the queries have biases too, which finish_qkv does not read.
  const bool biased = apart || gated_output(m);
  const GemmTarget qkv[3] = {{l.q, biased ? l.q_bias : nullptr, queries, stride},
                             {l.k, apart ? l.k_bias : nullptr, queries + query_width(m), stride},
                             {l.v, nullptr, values, sizes_.qkv_stride}};
  const int32_t count = m.kv_layer != 0 ? 1 : (m.flags & MR_MIX_VALUE_IS_KEY) != 0 ? 2 : 3;
  for (const Span& span : spans(shape)) normed_gemm(span, mixer_norm(index), Epilogue::kStoreF32, count, qkv, on);
}

void Rank::finish_qkv(const StepShape& shape, int32_t index, const Stream& on) {
  const Layer& l = shard_.layer(index);
  const mr_mixer_desc& m = desc_.mixer(index);
  const LayerCache& cache = sizes_.caches[static_cast<size_t>(index)];
  const bool queries_only = m.kv_layer != 0, value_is_key = (m.flags & MR_MIX_VALUE_IS_KEY) != 0;
  const bool by_row = (m.flags & MR_MIX_QK_ROW_NORM) != 0;
  if (by_row) {
    NormQkRowsArgs args{};
    args.qkv = space_.qkv;
    args.stride = sizes_.qkv_stride;
    args.rows = shape.rows;
    args.q_width = static_cast<int32_t>(query_width(m));
    args.k_width = queries_only ? 0 : static_cast<int32_t>(key_width(m));
    args.q_norm = l.q_norm;
    args.k_norm = l.k_norm;
    args.eps = desc_.norm_eps;
    args.copies_keys = value_is_key;
    if (heads_apart(index)) {
      args.parts = space_.heads;
      args.parts_stride = sizes_.heads_stride;
      args.part = shard_.rank();
      args.part_count = model_->ranks();
    } else {
      args.q_bias = l.q_bias;
      args.k_bias = l.k_bias;
    }
    CUDA_CHECK(launch_norm_qk_rows(args, on));
  }
  FinishQkvArgs finish{};
  finish.rows = rows_of(shape, 0, index);
  finish.count = shape.rows;
  finish.qkv = space_.qkv;
  finish.qkv_stride = sizes_.qkv_stride;
  if (!by_row) {
    finish.q_bias = gated_output(m) ? nullptr : l.q_bias;
    finish.k_bias = l.k_bias;
    finish.q_norm = l.q_norm;
    finish.k_norm = l.k_norm;
    finish.value_is_key = value_is_key;
  }
  finish.v_bias = l.v_bias;
  finish.norm_eps = desc_.norm_eps;
  if (m.rope >= 0) {
    const Rope& rope = desc_.ropes[static_cast<size_t>(m.rope)];
    finish.rope_table = space_.rope_tables[static_cast<size_t>(m.rope)];
    finish.rope_dims = rope.dims;
    finish.rope_style = rope.style;
  }
  finish.heads = m.heads;
  finish.query_gates = gated_output(m);
  finish.q_out = space_.q;
  finish.q_stride = sizes_.q_stride;
  finish.layout = sizes_.layout(index);
  finish.keys = kv_.data() + cache.keys;
  finish.values = kv_.data() + cache.values;
  finish.queries_only = queries_only;
  finish.v_norm = (m.flags & MR_MIX_V_NORM) != 0;
  finish.temperature_scale = m.temperature_scale;
  finish.temperature_length = m.temperature_length;
  CUDA_CHECK(launch_finish_qkv(finish, on));
}

void Rank::attention(const StepShape& shape, int32_t index, const Stream& on) {
  const mr_mixer_desc& m = desc_.mixer(index);
  const int32_t kind = sizes_.kinds.of_layer[static_cast<size_t>(index)];
  const LayerCache& cache = sizes_.caches[static_cast<size_t>(index)];
  const bool latent = by_latent(m);
  const int64_t summed = int64_t{m.heads} * sizes_.layout(index).head_dim;
  const ActRows out = latent ? ActRows{space_.latents.summed, summed} : space_.attention[static_cast<size_t>(index)];
  AttentionArgs args{};
  args.layout = sizes_.layout(index);
  args.heads = m.heads;
  args.scale = attention_scale(m);
  args.cap = m.score_cap;
  args.window = m.window;
  const int64_t first_column = shard_.rows(index).attended.first;
  if (shard_.layer(index).sinks != nullptr) args.sinks = shard_.layer(index).sinks + first_column / m.key_dim;
  args.q_stride = sizes_.q_stride;
  args.out_stride = out.stride;
  args.out_act = latent ? activations_.act_of({&shard_.layer(index).v_up}) : mixed_type(index).act;
  args.keys = kv_.data() + cache.keys;
  args.values = kv_.data() + cache.values;
  void* const part = act_column(out.base, first_column);
  for (int32_t first = 0, piece = 0; first < shape.decode_rows; first += sizes_.decode_rows, ++piece) {
    DecodeAttentionArgs decode{};
    decode.common = args;
    decode.common.rows = rows_of(shape, first, index);
    decode.common.q = act_row(space_.q, first, sizes_.q_stride);
    decode.common.out = act_row(part, first, out.stride);
    decode.count = std::min(sizes_.decode_rows, shape.decode_rows - first);
    // 0: without a cache write just before it, the kernel has no bound for early loads, and loads all keys after the wait.
    decode.step_rows = m.kv_layer != 0 ? 0 : shape.rows;
    decode.plan = decode_plan(kind, piece);
    decode.workspace = space_.decode[static_cast<size_t>(kind)];
    decode.sm_count = device().properties.multiProcessorCount;
    CUDA_CHECK(latent ? launch_decode_latent(decode, on) : launch_decode_attention(decode, on));
  }
  const StepShape::Prefill& plan = shape.prefill[kind];
  PrefillAttentionArgs prefill{};
  prefill.common = args;
  prefill.common.rows = rows_of(shape, 0, index);
  prefill.common.q = space_.q;
  prefill.common.out = part;
  prefill.items = reinterpret_cast<const PrefillItem*>(space_.input + plan.item);
  prefill.merges = reinterpret_cast<const PrefillMerge*>(space_.input + plan.merge);
  prefill.workspace = space_.prefill;
  prefill.capacity = sizes_.prefill_places;
  prefill.sm_count = device().properties.multiProcessorCount;
  if (plan.span_count > 0) {
    prefill.wide = {space_.wide, sizes_.wide_blocks[static_cast<size_t>(kind)]};
    PrefillWidenArgs widen{prefill.common.rows, args.layout, args.keys, args.values,
                           reinterpret_cast<const PrefillSpan*>(space_.input + plan.span), plan.span_count, plan.wide_blocks, prefill.wide};
    CUDA_CHECK(launch_prefill_widen(widen, on));
  }
  for (int32_t i = 0; i < plan.group_count; ++i) {
    prefill.item_count = plan.groups[i].items;
    prefill.merge_count = plan.groups[i].merges;
    CUDA_CHECK(latent ? launch_prefill_latent(prefill, on) : launch_prefill_attention(prefill, on));
    prefill.items += prefill.item_count;
    prefill.merges += prefill.merge_count;
  }
}

// Multiplies what attention returned by the gates that lie between the queries in the product of Q.
void Rank::gate_output(const StepShape& shape, int32_t index, const Stream& on) {
  const mr_mixer_desc& m = desc_.mixer(index);
  const ActRows& out = space_.attention[static_cast<size_t>(index)];
  GateOutputArgs args{};
  args.out = act_column(out.base, shard_.rows(index).attended.first);
  args.out_stride = out.stride;
  args.act = mixed_type(index).act;
  args.q = space_.qkv;
  args.q_stride = sizes_.qkv_stride;
  args.rows = shape.rows;
  args.heads = m.heads;
  args.dim = m.value_dim;
  CUDA_CHECK(launch_gate_output(args, on));
}

}  // namespace mr::cuda
