#include "src/workspace.h"

#include <algorithm>
#include <utility>

#include "cpu/runner_config.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/latent.h"
#include "kernels/experts/experts.h"
#include "kernels/gather.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/input_sums.h"
#include "kernels/sampler/sampler.h"
#include "src/error.h"
#include "src/step_input.h"

namespace mr::cuda {
namespace {

// Hands out aligned pieces of memory, or counts them.
class Pieces {
 public:
  explicit Pieces(uint8_t* base) : base_(base) {}

  template <class T>
  T* take(int64_t count) {
    return reinterpret_cast<T*>(bytes(static_cast<uint64_t>(count) * sizeof(T)));
  }
  void* act(int64_t count) { return bytes(static_cast<uint64_t>(count) * kActBytes); }
  uint8_t* bytes(uint64_t size) {
    uint8_t* const piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (size + 255) / 256 * 256;
    return piece;
  }
  uint64_t used() const { return used_; }

 private:
  uint8_t* const base_;
  uint64_t used_ = 0;
};

// Rows of activations of each width, once.
class WideRows {
 public:
  WideRows(Pieces& pieces, int64_t rows) : pieces_(pieces), rows_(rows) {}
  ActRows of(int64_t width) {
    for (const auto& [known, rows] : widths_)
      if (known == width) return rows;
    const int64_t stride = row_stride(width);
    widths_.emplace_back(width, ActRows{pieces_.act(rows_ * stride), stride});
    return widths_.back().second;
  }

 private:
  Pieces& pieces_;
  const int64_t rows_;
  std::vector<std::pair<int64_t, ActRows>> widths_;
};

// Type in which queries, keys and values are multiplied: the cache's own if it has 16 bits; for an 8-bit cache bf16, unless f16
// is configured.
Act attention_act(const mr_runner_config& config) {
  if (config.kv_type == MR_KV_F8) return config.act_type == MR_KV_F16 ? Act::kF16 : Act::kBF16;
  if (config.kv_type != MR_KV_F16 && config.kv_type != MR_KV_BF16)
    fail(MR_UNIMPLEMENTED, "runner configuration: kv_type is %d (f32): this engine keeps keys and values as f16 (1), bf16 (30) or "
         "f8 (256)", config.kv_type);
  return config.kv_type == MR_KV_F16 ? Act::kF16 : Act::kBF16;
}

ExpertSpace lay_out_experts(const Description& d, const Sizes& s, int32_t ranks, Pieces& pieces) {
  int64_t logits = 0, pairs = 0, experts = 0, tiles = 0, ffn = 0, out = 0, shared = 0, sums = 0;
  for (int32_t i = 0; i < d.layer_count(); ++i) {
    if (d.mlp(i).kind != MR_MLP_EXPERTS) continue;
    const mr_experts_desc& e = d.experts(i);
    const int64_t rows = s.expert_rows(e), of_layer = rows * e.used, width = row_stride(d.mlp(i).width);
    logits = std::max(logits, rows * e.count);
    pairs = std::max(pairs, of_layer);
    experts = std::max<int64_t>(experts, e.count);
    tiles = std::max<int64_t>(tiles, expert_tiles(e.count, static_cast<int32_t>(of_layer), kLeastExpertTile));
    ffn = std::max(ffn, of_layer * width);
    out = std::max({out, of_layer * s.hidden_stride, 2 * e.used * width});
    if (e.shared_width != 0) shared = std::max(shared, rows);
    if (ranks > 1 && reads_whole_sums(e)) sums = std::max(sums, 2 * rows);
  }
  ExpertSpace space{};
  if (pairs == 0) return space;
  space.logits = pieces.take<float>(logits);
  space.ids = pieces.take<int32_t>(pairs);
  space.weights = pieces.take<float>(pairs);
  space.plan = {pieces.take<int32_t>(pairs), pieces.take<int32_t>(experts), pieces.take<int32_t>(experts),
                pieces.take<ExpertTile>(tiles), pieces.take<int32_t>(1), pieces.take<int32_t>(kPlanCounters)};
  space.ffn = pieces.act(ffn);
  space.out_count = out;
  space.out = pieces.take<float>(out);
  WideRows activated(pieces, shared);
  for (int32_t i = 0; i < d.layer_count(); ++i)
    space.shared_ffn.push_back(d.experts(i).shared_width == 0 ? ActRows{nullptr, 0} : activated.of(d.experts(i).shared_width));
  space.shared = pieces.take<float>(shared * s.hidden_stride);
  space.shared_weight = pieces.take<float>(1);
  space.sums = sums == 0 ? nullptr : pieces.take<float>(sums * s.hidden_stride);
  space.bytes = pieces.take<uint64_t>(1);
  space.read = pieces.take<int32_t>(experts);
  return space;
}

StateSpace lay_out_states(const Description& d, const Sizes& s, Pieces& pieces) {
  StateSpace space{};
  if (s.convolved_stride != 0) {
    const int64_t t = s.tokens;
    space.convolved = pieces.take<float>(t * s.convolved_stride);
    space.gates = pieces.take<float>(t * s.mix_gate_stride);
    space.alpha = pieces.take<float>(t * s.scalar_stride);
    space.beta = pieces.take<float>(t * s.scalar_stride);
  }
  for (const mr_layer_desc& layer : d.layers)
    space.taps.push_back(keeps_keys(layer.mixer) ? nullptr : pieces.take<float>(layer.mixer.conv * conv_width(layer.mixer, d.hidden)));
  return space;
}

LatentSpace lay_out_latents(const Description& d, const Sizes& s, Pieces& pieces) {
  LatentSpace space{};
  if (s.product_stride == 0) return space;
  WideRows queries(pieces, s.tokens);
  for (const mr_layer_desc& layer : d.layers)
    space.queries.push_back(layer.mixer.query_latent == 0 ? ActRows{nullptr, 0} : queries.of(layer.mixer.query_latent));
  space.plain = pieces.act(s.tokens * s.plain_stride);
  space.summed = pieces.act(s.tokens * s.summed_stride);
  // All plans share these counters, because a grouped GEMM counts only after the kernel before it has ended.
  int32_t* const done = pieces.take<int32_t>(kPlanCounters);
  int64_t pairs = 0;
  for (const AttentionKind& kind : s.kinds.kinds) {
    HeadPlans plans{};
    if (kind.latent != 0) {
      const int32_t of_kind = s.head_rows(kind.heads) * kind.heads;
      pairs = std::max<int64_t>(pairs, of_kind);
      for (const GemmClass c : {GemmClass::kDecode, GemmClass::kPrefill})
        for (ExpertPlan& plan : plans.of[static_cast<int32_t>(c)])
          plan = {pieces.take<int32_t>(of_kind), pieces.take<int32_t>(kind.heads), pieces.take<int32_t>(kind.heads),
                  pieces.take<ExpertTile>(expert_tiles(kind.heads, of_kind, kLeastExpertTile)), pieces.take<int32_t>(1), done};
    }
    space.plans.push_back(plans);
  }
  space.products = pieces.take<float>(pairs * s.product_stride);
  return space;
}

int64_t decode_bytes(const Sizes& s, size_t kind) {
  const AttentionKind& k = s.kinds.kinds[kind];
  return k.latent != 0 ? decode_latent_bytes(s.decode_rows, s.decode_units, k.heads, s.layouts[kind].padded_dim)
                       : decode_attention_bytes(s.decode_rows, s.decode_units, k.heads, k.head_dim);
}

int64_t prefill_bytes(const Sizes& s, size_t kind) {
  const AttentionKind& k = s.kinds.kinds[kind];
  return k.latent != 0 ? prefill_latent_bytes(s.prefill_places, k.heads, s.layouts[kind].padded_dim)
                       : prefill_attention_bytes(s.prefill_places, k.heads, k.head_dim);
}

}  // namespace

Sizes::Sizes(const Description& d, const mr_runner_config& c, int32_t ranks) : kinds(part_of(d, 0, ranks)) {
  const Description part = part_of(d, 0, ranks);
  for (const AttentionKind& kind : kinds.kinds)
    layouts.push_back(kind.latent != 0 ? latent_layout(attention_act(c), c.block_size, kind.latent, kind.rotated)
                                       : KvLayout{attention_act(c), c.block_size, kind.kv_heads, kind.head_dim, pad_head_dim(kind.head_dim),
                                                  c.kv_type == MR_KV_F8 ? Kv::kF8 : Kv::kAct});
  lay_out_cache(part, c);
  lay_out_state(part);
  hidden_stride = row_stride(d.hidden);
  q_stride = qkv_stride = heads_stride = gate_stride = convolved_stride = mix_gate_stride = scalar_stride = 0;
  plain_stride = summed_stride = product_stride = 0;
  for (int32_t i = 0; i < d.layer_count(); ++i) {
    const mr_mixer_desc& m = part.mixer(i);
    if (keeps_keys(m)) q_stride = std::max(q_stride, row_stride(int64_t{m.heads} * layout(i).padded_dim));
    if (attends(m)) {
      qkv_stride = std::max(qkv_stride, row_stride(query_width(m) + key_width(m) + value_width(m)));
      if (ranks > 1 && (m.flags & MR_MIX_QK_ROW_NORM) != 0) heads_stride = std::max(heads_stride, row_stride(ranks * heads_width(m)));
    } else if (by_latent(m)) {
      qkv_stride = std::max(qkv_stride, row_stride(LatentRow(part, m).width));
      plain_stride = std::max(plain_stride, m.heads * plain_dims(part, m));
      summed_stride = std::max(summed_stride, int64_t{m.heads} * layout(i).head_dim);
      product_stride = std::max(product_stride, (int64_t{std::max(m.latent, m.value_dim)} + 3) / 4 * 4);
    } else {
      qkv_stride = std::max(qkv_stride, row_stride(mix_in_width(m, d.hidden)));
    }
    if (m.kind == MR_MIX_DELTA) {
      convolved_stride = std::max(convolved_stride, row_stride(conv_width(m, d.hidden)));
      mix_gate_stride = std::max(mix_gate_stride, row_stride(attended_width(m)));
      scalar_stride = std::max(scalar_stride, row_stride(m.heads));
    }
    const int32_t width = d.mlp(i).kind == MR_MLP_EXPERTS ? d.experts(i).shared_width : d.mlp(i).width;
    gate_stride = std::max(gate_stride, row_stride(std::max(width, d.layer_input_width)));
  }
  inputs_stride = row_stride(layer_inputs_width(d));
  vocab_stride = row_stride(d.vocab);
  tokens = c.max_batched_tokens;
  decode_rows = std::min(tokens, kMaxDecodeRows);
  decode_parts = (tokens + decode_rows - 1) / decode_rows;
  positions = static_cast<int32_t>(std::min<int64_t>(d.context, int64_t{c.kv_blocks} * c.block_size));
  decode_units = decode_attention_capacity(decode_rows, positions);
  prefill_places = prefill_attention_capacity(tokens, positions);
  // The longest history and all rows of a step beyond it, or the whole pool.
  const int64_t pool = c.kv_blocks, seen = (int64_t{positions} + tokens) / c.block_size + 1;
  for (const KvLayout& layout : layouts) {
    wide_blocks.push_back(0);
    CUDA_CHECK(prefill_wide_blocks(layout, std::min(pool, seen), &wide_blocks.back()));
  }
  rows_wanted = c.max_sample_rows + c.max_score_rows;
  hidden_rows = c.max_hidden_rows;
  hidden = d.hidden;
  logit_rows = std::min(kLogitRows, rows_wanted);
  candidates = int64_t{rows_wanted} * c.max_top_n;
  record_bytes = StepInput::record_capacity(d, c, positions);
  mask_bytes = StepInput::mask_capacity(d, c);
  input_bytes = StepInput::capacity(c, *this);
}

void Sizes::lay_out_cache(const Description& part, const mr_runner_config& c) {
  for (int32_t i = 0; i < part.layer_count(); ++i) windowed.push_back(c.window_blocks != 0 && in_window_group(part, i));
  caches.resize(part.layers.size());
  kv_block_bytes = lay_out_group(part, c, false, 0);
  window_block_bytes = lay_out_group(part, c, true, pool_bytes(c, false, kv_block_bytes));
}

// Layers whose planes have one size are copied together.
uint64_t Sizes::lay_out_group(const Description& part, const mr_runner_config& c, bool window, uint64_t begin) {
  std::vector<BlockGroup>& groups = window ? window_groups : cache_groups;
  const int64_t blocks = pool_blocks(c, window);
  std::vector<size_t> group_of(part.layers.size());
  std::vector<int32_t> first_plane(part.layers.size());
  for (int32_t i = 0; i < part.layer_count(); ++i) {
    if (!keeps_keys(part.mixer(i)) || part.mixer(i).kv_layer != 0 || windowed[static_cast<size_t>(i)] != window) continue;
    const int64_t bytes = layout(i).block_bytes();
    size_t g = 0;
    while (g < groups.size() && groups[g].plane_bytes != bytes) ++g;
    if (g == groups.size()) groups.push_back({0, bytes, 0, blocks * bytes, 0});
    group_of[static_cast<size_t>(i)] = g;
    first_plane[static_cast<size_t>(i)] = groups[g].planes;
    groups[g].planes += by_latent(part.mixer(i)) ? 1 : 2;
  }
  int64_t block = 0;
  for (BlockGroup& group : groups) {
    group.host_at = block;
    group.pool_at = static_cast<int64_t>(begin) + blocks * block;
    block += group.planes * group.plane_bytes;
  }
  for (int32_t i = 0; i < part.layer_count(); ++i) {
    if (!keeps_keys(part.mixer(i)) || windowed[static_cast<size_t>(i)] != window) continue;
    const size_t own = static_cast<size_t>(i - part.mixer(i).kv_layer);
    const BlockGroup& group = groups[group_of[own]];
    const int64_t keys = group.pool_at + first_plane[own] * group.pool_stride;
    const bool one = by_latent(part.mixer(i));  // plane
    caches[static_cast<size_t>(i)] = {static_cast<uint64_t>(keys), static_cast<uint64_t>(one ? keys : keys + group.pool_stride)};
  }
  return static_cast<uint64_t>(block);
}

void Sizes::lay_out_state(const Description& part) {
  state_floats = 0;
  for (const mr_layer_desc& layer : part.layers) {
    state_at.push_back(state_floats);
    state_floats += (state_width(layer.mixer, part.hidden) + kStateUnit - 1) / kStateUnit * kStateUnit;
  }
}

Workspace::Workspace(const Model& model, const mr_runner_config& c, const Sizes& s, uint8_t* base) {
  const Description& d = model.desc();
  Pieces pieces(base);
  const int64_t t = s.tokens;
  x = pieces.take<float>(t * s.hidden_stride);
  norm = pieces.act(std::max<int64_t>(t, s.logit_rows) * s.hidden_stride);
  qkv = pieces.take<float>(t * s.qkv_stride);
  heads = s.heads_stride == 0 ? nullptr : pieces.take<float>(t * s.heads_stride);
  q = pieces.act(t * s.q_stride);
  WideRows attended(pieces, t), activated(pieces, t);
  int64_t widest = s.hidden_stride;
  bool ends = d.layer_input_width != 0;
  for (int32_t i = 0; i < d.layer_count(); ++i) {
    attention.push_back(attended.of(mix_out_width(d.mixer(i), d.hidden)));
    const bool mixture = d.mlp(i).kind == MR_MLP_EXPERTS;
    ffn.push_back(mixture ? ActRows{nullptr, 0} : activated.of(d.mlp(i).width));
    widest = std::max({widest, attention.back().stride, ffn.back().stride, mixture ? row_stride(d.experts(i).shared_width) : 0});
    ends = ends || ends_mixer(d, i) || ends_mlp(d, i);
  }
  branch = ends ? pieces.take<float>(t * s.hidden_stride) : nullptr;
  layer_inputs = input_rows = nullptr;
  input_ffn = {};
  if (d.layer_input_width != 0) {
    layer_inputs = pieces.take<float>(t * s.inputs_stride);
    input_rows = pieces.take<float>(std::min<int64_t>(t, kGateRows) * s.inputs_stride);
    input_ffn = WideRows(pieces, t).of(d.layer_input_width);
  }
  experts = lay_out_experts(d, s, model.ranks(), pieces);
  states = lay_out_states(d, s, pieces);
  latents = lay_out_latents(d, s, pieces);
  for (const ActRows& rows : latents.queries) widest = std::max(widest, rows.stride);
  input_sums = pieces.bytes(static_cast<uint64_t>(input_sum_bytes(std::max<int64_t>(t, s.logit_rows), widest)));
  semaphores = pieces.take<uint32_t>(kGemmSemaphores);
  gate = pieces.take<float>(std::min<int64_t>(t, kGateRows) * s.gate_stride);
  up = pieces.take<float>(std::min<int64_t>(t, kGateRows) * s.gate_stride);
  for (const Rope& rope : d.ropes) rope_tables.push_back(pieces.take<float>(t * std::max(rope.dims, 1)));
  token = pieces.take<int32_t>(t);
  nan_flags = pieces.take<int32_t>(t);
  logits = pieces.take<float>(int64_t{s.logit_rows} * s.vocab_stride);
  for (const Rope& rope : d.ropes) frequencies.push_back(pieces.take<double>(std::max(rope.dims / 2, 1)));
  plan_first = pieces.take<int32_t>(int64_t{s.kinds.count()} * s.decode_parts * (s.decode_rows + 1));
  plan_span = pieces.take<int32_t>(int64_t{s.kinds.count()} * s.decode_parts);
  int64_t most_prefill = 0, most_wide = 0;
  for (size_t kind = 0; kind < s.kinds.kinds.size(); ++kind) {  // the counters of decode attention lie where its kind says
    decode.push_back(pieces.bytes(static_cast<uint64_t>(decode_bytes(s, kind))));
    most_prefill = std::max(most_prefill, prefill_bytes(s, kind));
    most_wide = std::max(most_wide, prefill_wide_bytes(s.layouts[kind], s.wide_blocks[kind]));
  }
  prefill = pieces.bytes(static_cast<uint64_t>(most_prefill));
  wide = most_wide == 0 ? nullptr : pieces.bytes(static_cast<uint64_t>(most_wide));
  sampler = pieces.bytes(static_cast<uint64_t>(sampler_bytes(s.logit_rows, d.vocab)));
  const int64_t slot_count = c.max_sequences;
  slots.mask_words = (d.vocab + 31) / 32;
  slots.bias_capacity = std::min(kBiasCapacity, d.vocab);
  slots.history_stride = s.positions;
  slots.params = pieces.take<SlotParams>(slot_count);
  slots.feeds = pieces.take<SlotFeed>(slot_count);
  slots.allowed = pieces.take<uint32_t>(slot_count * slots.mask_words);
  slots.suppressed = pieces.take<uint32_t>(slot_count * slots.mask_words);
  slots.bias_ids = pieces.take<int32_t>(slot_count * slots.bias_capacity);
  slots.bias_values = pieces.take<float>(slot_count * slots.bias_capacity);
  slots.history = pieces.take<int32_t>(slot_count * slots.history_stride);
  results = pieces.take<mr_row_result>(s.rows_wanted);
  candidates = pieces.take<mr_candidate>(s.candidates);
  hidden = pieces.take<float>(int64_t{s.hidden_rows} * s.hidden);
  input = pieces.bytes(s.input_bytes);
  masks = reinterpret_cast<uint32_t*>(pieces.bytes(s.mask_bytes));
  step = arrived = nullptr;
  packets = nullptr;
  if (model.ranks() > 1) {
    step = pieces.take<uint64_t>(1);
    arrived = pieces.take<uint64_t>(int64_t{kMostRanks} * kGatherBlocks);
    packets = pieces.bytes(static_cast<uint64_t>(gather_packet_bytes(model.ranks())));
  }
  bytes = pieces.used();
}

}  // namespace mr::cuda
