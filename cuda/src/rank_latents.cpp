// rank_latents: attention over a latent, from the residual stream to the inputs of O.
//
//   x --Q, or Q_DOWN norm Q_UP--> queries --+-- not rotated --K_UP of the head--> absorbed query --+
//                                           +-- rotated ------------------------------------------ + --> attention --> V_UP of the head
//   x --KV_DOWN--> latent, key --norm, rotate--> cache ---------------------------------------------+
//
// Queries are absorbed in both classes, so that a position whose prefix was computed in one of them has the bits of the other. Matrices of
// heads are multiplied by the grouped GEMMs of experts, with a plan in which each head has all rows. Rows are multiplied some at a time,
// which bounds the memory of their products and changes no bit.
#include <algorithm>

#include "kernels/attention/latent.h"
#include "kernels/experts/experts.h"
#include "kernels/latents.h"
#include "src/error.h"
#include "src/rank.h"

namespace mr::cuda {

// Once a step, because layers of one kind share plans.
void Rank::plan_heads(const StepShape& shape, const Stream& on) {
  for (size_t kind = 0; kind < space_.latents.plans.size(); ++kind) {
    const int32_t heads = sizes_.kinds.kinds[kind].heads;
    if (sizes_.kinds.kinds[kind].latent == 0) continue;
    const int32_t most = sizes_.head_rows(heads);
    for (const Span& span : spans(shape)) {
      const int32_t rows[2] = {span.count < most ? 0 : most, span.count % most};
      for (int32_t i = 0; i < 2; ++i)
        CUDA_CHECK(launch_plan_heads({space_.latents.plans[kind].of[static_cast<int32_t>(span.kind)][i], rows[i], heads,
                                      expert_tile(span.kind, heads, rows[i] * heads)}, on));
    }
  }
}

void Rank::attend_by_latent(const StepShape& shape, int32_t index, const Stream& on) {
  const Layer& l = shard_.layer(index);
  const mr_mixer_desc& m = desc_.mixer(index);
  const KvLayout& layout = sizes_.layout(index);
  const ActRows& out = space_.attention[static_cast<size_t>(index)];
  latent_products(shape, index, on);
  finish_latent(shape, index, on);
  multiply_heads(shape, index, {&l.k_up, activations_.act_of({&l.k_up}), space_.latents.plain, plain_dims(desc_, m), space_.q,
                                sizes_.q_stride, layout.padded_dim, layout.act}, on);
  attention(shape, index, on);
  multiply_heads(shape, index, {&l.v_up, activations_.act_of({&l.v_up}), space_.latents.summed, layout.head_dim, out.base, out.stride,
                                m.value_dim, mixed_type(index).act}, on);
}

// Queries, the latent and its key, in a LatentRow of space().qkv.
void Rank::latent_products(const StepShape& shape, int32_t index, const Stream& on) {
  const Layer& l = shard_.layer(index);
  const mr_mixer_desc& m = desc_.mixer(index);
  const LatentRow at(desc_, m);
  const bool direct = m.query_latent == 0;
  float* const latents = space_.qkv + at.query_latent;
  const GemmTarget targets[2] = {{direct ? l.q : l.q_down, nullptr, direct ? space_.qkv : latents, sizes_.qkv_stride},
                                 {l.kv_down, nullptr, space_.qkv + at.cached, sizes_.qkv_stride}};
  const InputType type = activations_.normed(activations_.act_of({&l.q_up}));
  for (const Span& span : spans(shape)) {
    if (span.count == 0) continue;
    normed_gemm(span, mixer_norm(index), Epilogue::kStoreF32, 2, targets, on);
    if (direct) continue;
    const ActRows& normed = space_.latents.queries[static_cast<size_t>(index)];
    RmsNormArgs norm{};
    norm.x = latents + span.first * sizes_.qkv_stride;
    norm.weight = l.q_latent_norm;
    norm.out = act_row(normed.base, span.first, normed.stride);
    norm.act = type.act;
    norm.rows = span.count;
    norm.dim = m.query_latent;
    norm.x_stride = sizes_.qkv_stride;
    norm.out_stride = normed.stride;
    norm.eps = desc_.norm_eps;
    norm.scale = 1 / type.scale;
    CUDA_CHECK(launch_rms_norm(norm, on));
    const GemmTarget up{l.q_up, nullptr, space_.qkv, sizes_.qkv_stride};
    CUDA_CHECK(launch_gemm(gemm_args(span, type, normed.base, normed.stride, Epilogue::kStoreF32, 1, &up), on));
  }
}

void Rank::finish_latent(const StepShape& shape, int32_t index, const Stream& on) {
  const Layer& l = shard_.layer(index);
  const mr_mixer_desc& m = desc_.mixer(index);
  const Rope& rope = desc_.ropes[static_cast<size_t>(m.rope)];
  FinishLatentArgs args{};
  args.rows = rows_of(shape, 0, index);
  args.count = shape.rows;
  args.queries = space_.qkv;
  args.cached = space_.qkv + LatentRow(desc_, m).cached;
  args.queries_stride = args.cached_stride = sizes_.qkv_stride;
  args.heads = m.heads;
  args.key_dim = m.key_dim;
  args.latent = m.latent;
  args.norm = l.kv_latent_norm;
  args.norm_eps = desc_.norm_eps;
  args.rope_table = space_.rope_tables[static_cast<size_t>(m.rope)];
  args.rope_dims = rope.dims;
  args.rope_style = rope.style;
  args.plain = space_.latents.plain;
  args.plain_act = activations_.act_of({&l.k_up});
  args.plain_stride = plain_dims(desc_, m);
  args.q = space_.q;
  args.q_stride = sizes_.q_stride;
  args.layout = sizes_.layout(index);
  args.keys = kv_.data() + sizes_.caches[static_cast<size_t>(index)].keys;
  CUDA_CHECK(launch_finish_latent(args, on));
}

void Rank::multiply_heads(const StepShape& shape, int32_t index, const HeadProducts& products, const Stream& on) {
  const int32_t heads = desc_.mixer(index).heads, most = sizes_.head_rows(heads);
  const size_t kind = static_cast<size_t>(sizes_.kinds.of_layer[static_cast<size_t>(index)]);
  const int64_t width = products.stack->rows;
  for (const Span& span : spans(shape))
    for (int32_t done = 0; done < span.count; done += most) {
      const int32_t first = span.first + done, count = std::min(most, span.count - done);
      ExpertGemmArgs args;
      args.targets[0] = {*products.stack, nullptr};
      args.kind = span.kind;
      args.act = products.act;
      args.x = act_row(products.x, int64_t{first} * heads, products.x_stride);
      args.x_stride = products.x_stride;
      args.out = space_.latents.products;
      args.out_stride = (width + 3) / 4 * 4;
      args.plan = space_.latents.plans[kind].of[static_cast<int32_t>(span.kind)][count == most ? 0 : 1];
      args.rows = count;
      args.experts = heads;
      args.pairs = count * heads;
      args.tile = expert_tile(span.kind, heads, args.pairs);
      CUDA_CHECK(launch_expert_gemm(args, on));
      PlaceHeadsArgs place{};
      place.in = space_.latents.products;
      place.in_stride = args.out_stride;
      place.out = act_row(products.out, first, products.out_stride);
      place.out_stride = products.out_stride;
      place.head_stride = products.head_stride;
      place.act = products.out_act;
      place.rows = count;
      place.heads = heads;
      place.width = static_cast<int32_t>(width);
      CUDA_CHECK(launch_place_heads(place, on));
    }
}

}  // namespace mr::cuda
