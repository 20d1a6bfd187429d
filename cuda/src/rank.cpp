#include "src/rank.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "cpu/runner_config.h"
#include "kernels/attention/attention.h"
#include "kernels/elementwise.h"
#include "kernels/gemm/repack.h"
#include "kernels/norm.h"
#include "kernels/qkv.h"
#include "kernels/rows.h"
#include "kernels/sampler/sampler.h"
#include "src/error.h"

namespace mr::cuda {
namespace {

// Row `row` of activations whose rows are `stride` elements apart.
void* act_row(void* base, int64_t row, int64_t stride) {
  return static_cast<uint8_t*>(base) + row * stride * static_cast<int64_t>(kActBytes);
}

}  // namespace

Rank::Rank(std::shared_ptr<const Model> model, int32_t rank, const mr_runner_config& config, const Sizes& sizes)
    : model_(std::move(model)), shard_(model_->shard(rank)), desc_(shard_.desc()), config_(config), sizes_(sizes),
      activations_(activations_of(shard_, config)),
      kv_(device().ledger.allocate(pool_bytes(config, sizes.kv_block_bytes), MR_PURPOSE_KV)),
      memory_(device().ledger.allocate(Workspace(*model_, config, sizes, nullptr).bytes, MR_PURPOSE_WORKSPACE)),
      space_(*model_, config, sizes, memory_.data()),
      plane_(static_cast<uint64_t>(config.kv_blocks) * static_cast<uint64_t>(sizes.kv.block_bytes())) {
  device().enter();
  device().transfers.fill(memory_.data(), 0, memory_.size());  // padding behind activation rows stays zero, marks return to it
  std::vector<double> frequencies(static_cast<size_t>(desc_.rope_dims / 2));
  rope_frequencies(desc_.rope_dims, desc_.rope_base, desc_.rope_scale, desc_.divisors.empty() ? nullptr : desc_.divisors.data(),
                   frequencies.data());
  device().transfers.upload(space_.frequencies, frequencies.data(), frequencies.size() * sizeof(double));
}

void Rank::set_slots(const StepShape& shape, cudaStream_t stream) {
  if (shape.sets == 0) return;
  CUDA_CHECK(launch_slot_sets(space_.slots, reinterpret_cast<const SlotSet*>(space_.input + shape.set), shape.sets,
                              shape.most_history, {stream, false}));
}

Rows Rank::rows_from(const StepShape& shape, int32_t first) const {
  const auto at = [&](uint64_t offset) { return reinterpret_cast<const int32_t*>(space_.input + offset) + first; };
  return {at(shape.slot), at(shape.position), at(shape.table),
          reinterpret_cast<const int32_t*>(space_.input + shape.block_ids)};
}

Rank::Spans Rank::spans(const StepShape& shape) {
  return {{0, shape.decode_rows, GemmClass::kDecode},
          {shape.decode_rows, shape.rows - shape.decode_rows, GemmClass::kPrefill}};
}

void Rank::begin(const StepShape& shape, const Stream& on) {
  begin_rows(shape, on);
  CUDA_CHECK(launch_dequant_rows({shard_.embedding(), space_.token, shape.rows, space_.x, sizes_.hidden_stride}, on));
}

// Token ids, histories, rotations and the division of decode attention: decode rows in parts, prefill rows at once.
void Rank::begin_rows(const StepShape& shape, const Stream& on) {
  for (int32_t first = 0, part = 0; first < shape.rows; ++part) {
    const bool decode = first < shape.decode_rows;
    const int32_t count = decode ? std::min(sizes_.decode_rows, shape.decode_rows - first) : shape.rows - first;
    BeginArgs args{};
    args.rows = rows_from(shape, first);
    args.count = count;
    args.decode_rows = decode ? count : 0;
    args.token_in = reinterpret_cast<const int32_t*>(space_.input + shape.token) + first;
    args.token = space_.token + first;
    args.nan_flags = space_.nan_flags + first;
    args.feeds = space_.slots.feeds;
    args.history = space_.slots.history;
    args.history_stride = space_.slots.history_stride;
    args.frequencies = space_.frequencies;
    args.rope_dims = desc_.rope_dims;
    args.rope_table = space_.rope_table + int64_t{first} * desc_.rope_dims;
    if (decode)
      args.plan = {space_.plan_first + int64_t{part} * (sizes_.decode_rows + 1), space_.plan_span + part, sizes_.decode_units};
    if (part == 0) args.step = space_.step;
    CUDA_CHECK(launch_begin(args, on));
    first += count;
  }
}

void Rank::norm(const float* weight, const Span& span, const Stream& on) {
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

GemmArgs Rank::gemm_args(const Span& span, const void* x, int64_t x_stride, Epilogue epilogue, int32_t count,
                         const GemmTarget* targets) const {
  GemmArgs args;
  const bool f32 = epilogue == Epilogue::kStoreF32 || epilogue == Epilogue::kAddF32;
  for (int32_t i = 0; i < count; ++i) {
    args.targets[i] = targets[i];
    if (targets[i].out == nullptr) continue;
    const int64_t skip = span.first * targets[i].out_stride;
    args.targets[i].out = f32 ? static_cast<void*>(static_cast<float*>(targets[i].out) + skip)
                              : act_row(targets[i].out, span.first, targets[i].out_stride);
  }
  args.count = count;
  args.epilogue = epilogue;
  args.kind = span.kind;
  args.x = act_row(const_cast<void*>(x), span.first, x_stride);
  args.x_stride = x_stride;
  args.act = activations_.act;
  args.tokens = span.count;
  if (epilogue == Epilogue::kSwiGLU) args.pair_scale = activations_.ffn_scale;
  args.input_sums = space_.input_sums;
  args.semaphores = space_.semaphores;
  return args;
}

void Rank::gemm(const Span& span, const void* x, int64_t x_stride, Epilogue epilogue, int32_t count, const GemmTarget* targets,
                const Stream& on) {
  if (span.count > 0) CUDA_CHECK(launch_gemm(gemm_args(span, x, x_stride, epilogue, count, targets), on));
}

// Multiplies the result of SwiGLU and adds it to the residual stream.
void Rank::down_gemm(const Span& span, const Layer& l, const Stream& on) {
  if (span.count == 0) return;
  const GemmTarget down{l.down, nullptr, space_.x + shard_.hidden().first, sizes_.hidden_stride};
  GemmArgs args = gemm_args(span, space_.ffn, sizes_.ffn_stride, Epilogue::kAddF32, 1, &down);
  args.x_scale = activations_.ffn_scale;
  CUDA_CHECK(launch_gemm(args, on));
}

void Rank::normed_gemm(const Span& span, const float* weight, Epilogue epilogue, int32_t count, const GemmTarget* targets,
                       const Stream& on) {
  if (span.count > 0) normed_gemm(gemm_args(span, space_.norm, sizes_.hidden_stride, epilogue, count, targets), span, weight, on);
}

// If the kernel can, its own blocks norm a single row.
void Rank::normed_gemm(GemmArgs args, const Span& span, const float* weight, const Stream& on) {
  if (gemm_fuses_norm(args)) args.norm = {space_.x + span.first * sizes_.hidden_stride, weight, desc_.norm_eps};
  else norm(weight, span, on);
  CUDA_CHECK(launch_gemm(args, on));
}

// Queues the GEMM of a step's queries, keys and values if its epilogue can finish them too. Otherwise does nothing and returns
// false.
bool Rank::try_heads_epilogue(const StepShape& shape, const Layer& l, uint8_t* keys, const Stream& on) {
  if (shape.rows != shape.decode_rows || l.q_norm != nullptr || l.k_norm != nullptr) return false;
  const Span all = spans(shape).decode;
  const GemmTarget targets[3] = {{l.q, l.q_bias, space_.q, sizes_.q_stride},
                                 {l.k, l.k_bias, keys, 0},
                                 {l.v, l.v_bias, keys + plane_, 0}};
  GemmArgs args = gemm_args(all, space_.norm, sizes_.hidden_stride, Epilogue::kHeads, 3, targets);
  args.heads = {rows_from(shape, 0), space_.rope_table, desc_.rope_dims, desc_.rope_style, sizes_.kv};
  if (!gemm_fuses_heads(args)) return false;
  normed_gemm(args, all, l.attn_norm, on);
  return true;
}

void Rank::attend(const StepShape& shape, int32_t index, const Stream& on) {
  const Layer& l = shard_.layer(index);
  uint8_t* const keys = kv_.data() + 2 * static_cast<uint64_t>(index) * plane_;
  if (try_heads_epilogue(shape, l, keys, on)) return attention(shape, index, on);
  const int64_t kv_width = int64_t{desc_.kv_heads} * desc_.head_dim;
  const GemmTarget qkv[3] = {{l.q, nullptr, space_.qkv, sizes_.qkv_stride},
                             {l.k, nullptr, space_.qkv + sizes_.q_width, sizes_.qkv_stride},
                             {l.v, nullptr, space_.qkv + sizes_.q_width + kv_width, sizes_.qkv_stride}};
  for (const Span& span : spans(shape)) normed_gemm(span, l.attn_norm, Epilogue::kStoreF32, 3, qkv, on);

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
  finish.rope_table = space_.rope_table;
  finish.rope_dims = desc_.rope_dims;
  finish.rope_style = desc_.rope_style;
  finish.heads = desc_.heads;
  finish.q_out = space_.q;
  finish.q_stride = sizes_.q_stride;
  finish.layout = sizes_.kv;
  finish.keys = keys;
  finish.values = keys + plane_;
  CUDA_CHECK(launch_finish_qkv(finish, on));

  attention(shape, index, on);
}

void Rank::project(const StepShape& shape, int32_t index, const Stream& on) {
  const Layer& l = shard_.layer(index);
  const GemmTarget o{l.o, l.o_bias, space_.x + shard_.hidden().first, sizes_.hidden_stride};
  for (const Span& span : spans(shape)) gemm(span, space_.attention, sizes_.attention_stride, Epilogue::kAddF32, 1, &o, on);
}

void Rank::feed_forward(const StepShape& shape, int32_t index, const Stream& on) {
  for (const Span& span : spans(shape)) feed_forward(span, shard_.layer(index), on);
}

void Rank::project_down(const StepShape& shape, int32_t index, const Stream& on) {
  for (const Span& span : spans(shape)) down_gemm(span, shard_.layer(index), on);
}

void Rank::attention(const StepShape& shape, int32_t index, const Stream& on) {
  AttentionArgs args{};
  args.layout = sizes_.kv;
  args.heads = desc_.heads;
  args.scale = desc_.attn_scale;
  args.q_stride = sizes_.q_stride;
  args.out_stride = sizes_.attention_stride;
  args.out_act = activations_.act;
  args.keys = kv_.data() + 2 * static_cast<uint64_t>(index) * plane_;
  args.values = static_cast<const uint8_t*>(args.keys) + plane_;
  void* const part = static_cast<uint8_t*>(space_.attention) + shard_.queries().first * static_cast<int64_t>(kActBytes);
  for (int32_t first = 0, piece = 0; first < shape.decode_rows; first += sizes_.decode_rows, ++piece) {
    DecodeAttentionArgs decode{};
    decode.common = args;
    decode.common.rows = rows_from(shape, first);
    decode.common.q = act_row(space_.q, first, sizes_.q_stride);
    decode.common.out = act_row(part, first, sizes_.attention_stride);
    decode.count = std::min(sizes_.decode_rows, shape.decode_rows - first);
    decode.step_rows = shape.rows;
    decode.plan = {space_.plan_first + int64_t{piece} * (sizes_.decode_rows + 1), space_.plan_span + piece,
                   sizes_.decode_units};
    decode.workspace = space_.decode;
    decode.sm_count = device().properties.multiProcessorCount;
    CUDA_CHECK(launch_decode_attention(decode, on));
  }
  PrefillAttentionArgs prefill{};
  prefill.common = args;
  prefill.common.rows = rows_from(shape, 0);
  prefill.common.q = space_.q;
  prefill.common.out = part;
  prefill.items = reinterpret_cast<const PrefillItem*>(space_.input + shape.item);
  prefill.merges = reinterpret_cast<const PrefillMerge*>(space_.input + shape.merge);
  prefill.workspace = space_.prefill;
  prefill.capacity = sizes_.prefill_places;
  prefill.sm_count = device().properties.multiProcessorCount;
  for (int32_t i = 0; i < shape.prefill_groups; ++i) {
    prefill.item_count = shape.prefill[i].items;
    prefill.merge_count = shape.prefill[i].merges;
    CUDA_CHECK(launch_prefill_attention(prefill, on));
    prefill.items += prefill.item_count;
    prefill.merges += prefill.merge_count;
  }
}

// ffn = silu(gate) * up of the normed rows: in one kernel where the pair allows it, else through both GEMMs.
void Rank::feed_forward(const Span& span, const Layer& l, const Stream& on) {
  void* const part = static_cast<uint8_t*>(space_.ffn) + shard_.ffn().first * static_cast<int64_t>(kActBytes);
  if (swiglu_supported(l.gate, l.up)) {
    const GemmTarget pair[2] = {{l.gate, nullptr, part, sizes_.ffn_stride}, {l.up, nullptr, nullptr, 0}};
    normed_gemm(span, l.ffn_norm, Epilogue::kSwiGLU, 2, pair, on);
    return;
  }
  norm(l.ffn_norm, span, on);
  for (int32_t done = 0; done < span.count; done += kGateRows) {
    const int32_t count = std::min(kGateRows, span.count - done);
    GemmArgs args;
    args.targets[0] = {l.gate, nullptr, space_.gate, sizes_.ffn_stride};
    args.targets[1] = {l.up, nullptr, space_.up, sizes_.ffn_stride};
    args.count = 2;
    args.epilogue = Epilogue::kStoreF32;
    args.kind = span.kind;
    args.x = act_row(space_.norm, span.first + done, sizes_.hidden_stride);
    args.x_stride = sizes_.hidden_stride;
    args.act = activations_.act;
    args.tokens = count;
    args.input_sums = space_.input_sums;
    CUDA_CHECK(launch_gemm(args, on));
    SwigluArgs swiglu{};
    swiglu.gate = space_.gate;
    swiglu.up = space_.up;
    swiglu.in_is_f32 = true;
    swiglu.act = activations_.act;
    swiglu.out = act_row(part, span.first + done, sizes_.ffn_stride);
    swiglu.rows = count;
    swiglu.dim = desc_.ffn;
    swiglu.in_stride = swiglu.out_stride = sizes_.ffn_stride;
    swiglu.scale = 1 / activations_.ffn_scale;
    CUDA_CHECK(launch_swiglu(swiglu, on));
  }
}

void Rank::head(const StepShape& shape, int32_t first, int32_t count, const Stream& on) {
  RmsNormArgs norm{};
  norm.x = space_.x;
  norm.weight = shard_.output_norm();
  norm.gather = reinterpret_cast<const int32_t*>(space_.input + shape.gather) + first;
  norm.out = space_.norm;
  norm.act = activations_.act;
  norm.rows = count;
  norm.dim = desc_.hidden;
  norm.x_stride = norm.out_stride = sizes_.hidden_stride;
  norm.eps = desc_.norm_eps;
  CUDA_CHECK(launch_rms_norm(norm, on));
  const GemmTarget head{shard_.head(), nullptr, space_.logits + shard_.vocab().first, sizes_.vocab_stride};
  gemm({0, count, GemmClass::kDecode}, space_.norm, sizes_.hidden_stride, Epilogue::kStoreF32, 1, &head, on);
}

void Rank::sample(const StepShape& shape, int32_t first, int32_t count, const Stream& on) {
  SampleArgs args{};
  args.jobs = reinterpret_cast<const SampleJob*>(space_.input + shape.job) + first;
  args.job_count = count;
  args.logits = space_.logits;
  args.logits_stride = sizes_.vocab_stride;
  args.vocab = desc_.vocab;
  args.nan_flags = space_.nan_flags;
  args.masks = space_.masks;
  args.slots = space_.slots;
  args.results = space_.results + first;
  args.candidates = space_.candidates;
  args.workspace = space_.sampler;
  args.workspace_jobs = sizes_.logit_rows;
  CUDA_CHECK(launch_sample(args, on));
}

}  // namespace mr::cuda
