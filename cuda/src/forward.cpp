#include "src/forward.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "cpu/runner_config.h"
#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/linear/repack.h"
#include "kernels/norm.h"
#include "kernels/qkv.h"
#include "kernels/rows.h"
#include "kernels/sampler.h"
#include "src/error.h"

namespace mr::cuda {
namespace {

// Row `row` of activations whose rows are `stride` elements apart.
void* act_row(void* base, int64_t row, int64_t stride) {
  return static_cast<uint8_t*>(base) + row * stride * static_cast<int64_t>(kActBytes);
}

}  // namespace

Forward::Forward(std::shared_ptr<const Model> model, const mr_runner_config& config, const Sizes& sizes)
    : model_(std::move(model)), desc_(model_->desc()), config_(config), sizes_(sizes), activations_(activations_of(*model_, config)),
      kv_(model_->device()->ledger.allocate(cpu::pool_bytes(config, sizes.kv_block_bytes), MR_PURPOSE_KV)),
      memory_(model_->device()->ledger.allocate(Workspace(*model_, config, sizes, nullptr).bytes, MR_PURPOSE_WORKSPACE)),
      space_(*model_, config, sizes, memory_.data()),
      plane_(static_cast<uint64_t>(config.kv_blocks) * static_cast<uint64_t>(sizes.kv.block_bytes())) {
  Device& device = *model_->device();
  device.transfers.fill(memory_.data(), 0, memory_.size());  // padding behind activation rows stays zero
  std::vector<double> frequencies(static_cast<size_t>(desc_.rope_dims / 2));
  rope_frequencies(desc_.rope_dims, desc_.rope_base, desc_.rope_scale, model_->rope_factors(), frequencies.data());
  device.transfers.upload(space_.frequencies, frequencies.data(), frequencies.size() * sizeof(double));
}

void Forward::set_slots(const StepShape& shape, cudaStream_t stream) {
  if (shape.sets == 0) return;
  CUDA_CHECK(launch_slot_sets(space_.slots, reinterpret_cast<const SlotSet*>(space_.input + shape.set), shape.sets,
                              shape.most_history, {stream, false}));
}

Rows Forward::rows_from(const StepShape& shape, int32_t first) const {
  const auto at = [&](uint64_t offset) { return reinterpret_cast<const int32_t*>(space_.input + offset) + first; };
  return {at(shape.slot), at(shape.position), at(shape.table),
          reinterpret_cast<const int32_t*>(space_.input + shape.block_ids)};
}

void Forward::queue(const StepShape& shape, const Stream& on) {
  body(shape, on);
  heads(shape, on);
}

void Forward::queue_before_masks(const StepShape& shape, const Stream& on) {
  body(shape, on);
  if (keeps_logits(shape)) heads(shape, on);
}

void Forward::queue_behind_masks(const StepShape& shape, const Stream& on) {
  if (keeps_logits(shape)) {
    if (shape.jobs > 0) sample(shape, 0, shape.jobs, on);
  } else {
    heads(shape, on);  // each piece of rows takes the place of the one before it: they are multiplied as they are sampled
  }
}

void Forward::body(const StepShape& shape, const Stream& on) {
  if (shape.rows == 0) return;
  begin(shape, on);
  CUDA_CHECK(launch_dequant_rows({model_->embedding(), space_.token, shape.rows, space_.x, sizes_.hidden_stride}, on));
  for (int32_t i = 0; i < desc_.layers; ++i) layer(shape, i, on);
}

// Token ids, histories, rotations and the division of decode attention: decode rows in parts, prefill rows at once.
void Forward::begin(const StepShape& shape, const Stream& on) {
  for (int32_t first = 0, part = 0; first < shape.rows; ++part) {
    const bool decode = first < shape.decode_rows;
    const int32_t count = decode ? std::min(sizes_.decode_rows, shape.decode_rows - first) : shape.rows - first;
    BeginArgs args{};
    args.rows = rows_from(shape, first);
    args.count = count;
    args.decode_rows = decode ? count : 0;
    args.token_in = reinterpret_cast<const int32_t*>(space_.input + shape.token) + first;
    args.token = space_.token + first;
    args.poison = space_.poison + first;
    args.feeds = space_.slots.feeds;
    args.history = space_.slots.history;
    args.history_stride = space_.slots.history_stride;
    args.frequencies = space_.frequencies;
    args.rope_dims = desc_.rope_dims;
    args.turns = space_.turns + int64_t{first} * desc_.rope_dims;
    if (decode)
      args.plan = {space_.plan_first + int64_t{part} * (sizes_.decode_rows + 1), space_.plan_span + part, sizes_.decode_units};
    CUDA_CHECK(launch_begin(args, on));
    first += count;
  }
}

void Forward::norm(const float* weight, const Span& span, const Stream& on) {
  RmsNormArgs args{};
  args.x = space_.x + span.first * sizes_.hidden_stride;
  args.weight = weight;
  args.out = act_row(space_.norm, span.first, sizes_.hidden_stride);
  args.act = activations_.act;
  args.rows = span.count;
  args.dim = desc_.hidden;
  args.x_stride = args.out_stride = sizes_.hidden_stride;
  args.eps = desc_.norm_eps;
  CUDA_CHECK(launch_rms_norm(args, on));
}

ProductArgs Forward::product_args(const Span& span, const void* x, int64_t x_stride, ProductEnd end, int32_t count,
                                  const ProductTarget* targets) const {
  ProductArgs args;
  const bool f32 = end == ProductEnd::kStoreF32 || end == ProductEnd::kAddF32;
  for (int32_t i = 0; i < count; ++i) {
    args.targets[i] = targets[i];
    if (targets[i].out == nullptr) continue;
    const int64_t skip = span.first * targets[i].out_stride;
    args.targets[i].out = f32 ? static_cast<void*>(static_cast<float*>(targets[i].out) + skip)
                              : act_row(targets[i].out, span.first, targets[i].out_stride);
  }
  args.count = count;
  args.end = end;
  args.kind = span.kind;
  args.x = act_row(const_cast<void*>(x), span.first, x_stride);
  args.x_stride = x_stride;
  args.act = activations_.act;
  args.tokens = span.count;
  if (end == ProductEnd::kSwiGLU) args.pair_scale = activations_.ffn_scale;
  args.terms = space_.terms;
  return args;
}

void Forward::product(const Span& span, const void* x, int64_t x_stride, ProductEnd end, int32_t count,
                      const ProductTarget* targets, const Stream& on) {
  if (span.count > 0) CUDA_CHECK(launch_product(product_args(span, x, x_stride, end, count, targets), on));
}

// What SwiGLU gave, into the residual stream.
void Forward::down_product(const Span& span, const Layer& l, const Stream& on) {
  if (span.count == 0) return;
  const ProductTarget down{l.down, nullptr, space_.x, sizes_.hidden_stride};
  ProductArgs args = product_args(span, space_.ffn, sizes_.ffn_stride, ProductEnd::kAddF32, 1, &down);
  args.x_scale = activations_.ffn_scale;
  CUDA_CHECK(launch_product(args, on));
}

// One row is normed by the product's own blocks, where they can.
void Forward::normed_product(const Span& span, const float* weight, ProductEnd end, int32_t count, const ProductTarget* targets,
                             const Stream& on) {
  if (span.count == 0) return;
  ProductArgs args = product_args(span, space_.norm, sizes_.hidden_stride, end, count, targets);
  if (product_norms(args)) args.norm = {space_.x + span.first * sizes_.hidden_stride, weight, desc_.norm_eps};
  else norm(weight, span, on);
  CUDA_CHECK(launch_product(args, on));
}

void Forward::layer(const StepShape& shape, int32_t index, const Stream& on) {
  const Layer& l = model_->layer(index);
  const Span spans[2] = {{0, shape.decode_rows, ProductClass::kDecode},
                         {shape.decode_rows, shape.rows - shape.decode_rows, ProductClass::kPrefill}};
  const int64_t kv_width = int64_t{desc_.kv_heads} * desc_.head_dim;

  const ProductTarget qkv[3] = {{l.q, nullptr, space_.qkv, sizes_.qkv_stride},
                                {l.k, nullptr, space_.qkv + sizes_.q_width, sizes_.qkv_stride},
                                {l.v, nullptr, space_.qkv + sizes_.q_width + kv_width, sizes_.qkv_stride}};
  for (const Span& span : spans) normed_product(span, l.attn_norm, ProductEnd::kStoreF32, 3, qkv, on);

  FinishQkvArgs finish{};
  finish.rows = rows_from(shape, 0);
  finish.count = shape.rows;
  finish.qkv = space_.qkv;
  finish.qkv_is_f32 = true;
  finish.qkv_stride = sizes_.qkv_stride;
  finish.q_bias = l.q_bias;
  finish.k_bias = l.k_bias;
  finish.v_bias = l.v_bias;
  finish.q_norm = l.q_norm;
  finish.k_norm = l.k_norm;
  finish.norm_eps = desc_.norm_eps;
  finish.turns = space_.turns;
  finish.rope_dims = desc_.rope_dims;
  finish.rope_style = desc_.rope_style;
  finish.heads = desc_.heads;
  finish.q_out = space_.q;
  finish.q_stride = sizes_.q_stride;
  finish.layout = sizes_.kv;
  finish.keys = kv_.data() + 2 * static_cast<uint64_t>(index) * plane_;
  finish.values = static_cast<uint8_t*>(finish.keys) + plane_;
  CUDA_CHECK(launch_finish_qkv(finish, on));

  attend(shape, index, on);
  const ProductTarget o{l.o, l.o_bias, space_.x, sizes_.hidden_stride};
  for (const Span& span : spans) product(span, space_.attention, sizes_.attention_stride, ProductEnd::kAddF32, 1, &o, on);

  for (const Span& span : spans) {
    feed_forward(span, l, on);
    down_product(span, l, on);
  }
}

void Forward::attend(const StepShape& shape, int32_t index, const Stream& on) {
  AttentionArgs args{};
  args.layout = sizes_.kv;
  args.heads = desc_.heads;
  args.scale = cpu::attn_scale(desc_);
  args.q_stride = sizes_.q_stride;
  args.out_stride = sizes_.attention_stride;
  args.out_act = activations_.act;
  args.keys = kv_.data() + 2 * static_cast<uint64_t>(index) * plane_;
  args.values = static_cast<const uint8_t*>(args.keys) + plane_;
  for (int32_t first = 0, part = 0; first < shape.decode_rows; first += sizes_.decode_rows, ++part) {
    DecodeAttentionArgs decode{};
    decode.common = args;
    decode.common.rows = rows_from(shape, first);
    decode.common.q = act_row(space_.q, first, sizes_.q_stride);
    decode.common.out = act_row(space_.attention, first, sizes_.attention_stride);
    decode.count = std::min(sizes_.decode_rows, shape.decode_rows - first);
    decode.step_rows = shape.rows;
    decode.plan = {space_.plan_first + int64_t{part} * (sizes_.decode_rows + 1), space_.plan_span + part,
                   sizes_.decode_units};
    decode.workspace = space_.decode;
    decode.sm_count = model_->device()->properties.multiProcessorCount;
    CUDA_CHECK(launch_decode_attention(decode, on));
  }
  PrefillAttentionArgs prefill{};
  prefill.common = args;
  prefill.common.rows = rows_from(shape, 0);
  prefill.common.q = space_.q;
  prefill.common.out = space_.attention;
  prefill.items = reinterpret_cast<const PrefillItem*>(space_.input + shape.item);
  prefill.merges = reinterpret_cast<const PrefillMerge*>(space_.input + shape.merge);
  prefill.workspace = space_.prefill;
  prefill.capacity = sizes_.prefill_places;
  prefill.sm_count = model_->device()->properties.multiProcessorCount;
  for (int32_t i = 0; i < shape.prefill_groups; ++i) {
    prefill.item_count = shape.prefill[i].items;
    prefill.merge_count = shape.prefill[i].merges;
    CUDA_CHECK(launch_prefill_attention(prefill, on));
    prefill.items += prefill.item_count;
    prefill.merges += prefill.merge_count;
  }
}

// ffn = silu(gate) * up of the normed rows: in one kernel where the pair allows it, else by way of both products.
void Forward::feed_forward(const Span& span, const Layer& l, const Stream& on) {
  if (swiglu_supported(l.gate, l.up)) {
    const ProductTarget pair[2] = {{l.gate, nullptr, space_.ffn, sizes_.ffn_stride}, {l.up, nullptr, nullptr, 0}};
    normed_product(span, l.ffn_norm, ProductEnd::kSwiGLU, 2, pair, on);
    return;
  }
  norm(l.ffn_norm, span, on);
  for (int32_t done = 0; done < span.count; done += kGateRows) {
    const int32_t count = std::min(kGateRows, span.count - done);
    ProductArgs args;
    args.targets[0] = {l.gate, nullptr, space_.gate, sizes_.ffn_stride};
    args.targets[1] = {l.up, nullptr, space_.up, sizes_.ffn_stride};
    args.count = 2;
    args.end = ProductEnd::kStoreF32;
    args.kind = span.kind;
    args.x = act_row(space_.norm, span.first + done, sizes_.hidden_stride);
    args.x_stride = sizes_.hidden_stride;
    args.act = activations_.act;
    args.tokens = count;
    args.terms = space_.terms;
    CUDA_CHECK(launch_product(args, on));
    SwigluArgs swiglu{};
    swiglu.gate = space_.gate;
    swiglu.up = space_.up;
    swiglu.in_is_f32 = true;
    swiglu.act = activations_.act;
    swiglu.out = act_row(space_.ffn, span.first + done, sizes_.ffn_stride);
    swiglu.rows = count;
    swiglu.dim = desc_.ffn;
    swiglu.in_stride = swiglu.out_stride = sizes_.ffn_stride;
    swiglu.scale = 1 / activations_.ffn_scale;
    CUDA_CHECK(launch_swiglu(swiglu, on));
  }
}

// Final norm, head and results of the rows that jobs name, some at a time.
void Forward::heads(const StepShape& shape, const Stream& on) {
  for (int32_t first = 0; first < shape.jobs; first += sizes_.logit_rows) {
    const int32_t count = std::min(sizes_.logit_rows, shape.jobs - first);
    RmsNormArgs norm{};
    norm.x = space_.x;
    norm.weight = model_->output_norm();
    norm.gather = reinterpret_cast<const int32_t*>(space_.input + shape.gather) + first;
    norm.out = space_.norm;
    norm.act = activations_.act;
    norm.rows = count;
    norm.dim = desc_.hidden;
    norm.x_stride = norm.out_stride = sizes_.hidden_stride;
    norm.eps = desc_.norm_eps;
    CUDA_CHECK(launch_rms_norm(norm, on));
    const ProductTarget head{model_->head(), nullptr, space_.logits, sizes_.vocab_stride};
    product({0, count, ProductClass::kDecode}, space_.norm, sizes_.hidden_stride, ProductEnd::kStoreF32, 1, &head, on);
    sample(shape, first, count, on);
  }
}

// Jobs [first, first + count), whose rows of logits lie from the first on.
void Forward::sample(const StepShape& shape, int32_t first, int32_t count, const Stream& on) {
  SampleArgs args{};
  args.jobs = reinterpret_cast<const SampleJob*>(space_.input + shape.job) + first;
  args.job_count = count;
  args.logits = space_.logits;
  args.logits_stride = sizes_.vocab_stride;
  args.vocab = desc_.vocab;
  args.poison = space_.poison;
  args.masks = space_.masks;
  args.slots = space_.slots;
  args.results = space_.results + first;
  args.candidates = space_.candidates;
  args.workspace = space_.sampler;
  args.workspace_jobs = sizes_.logit_rows;
  CUDA_CHECK(launch_sample(args, on));
}

}  // namespace mr::cuda
