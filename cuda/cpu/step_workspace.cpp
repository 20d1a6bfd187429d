#include "step_workspace.h"

#include <algorithm>

#include "sampler.h"
#include "vecops.h"

namespace mr::cpu {
namespace {

constexpr int32_t largest_wave = 64;  // chunks of a whole tile that threads share at a time

// Hands out aligned pieces of memory, or counts them.
class Layout {
 public:
  explicit Layout(uint8_t* base) : base_(base) {}

  template <class T>
  T* take(uint64_t count) {
    T* const piece = base_ == nullptr ? nullptr : reinterpret_cast<T *>(base_ + used_);
    used_ += (count * sizeof(T) + 63) / 64 * 64;
    return piece;
  }
  uint64_t used() const { return used_; }

 private:
  uint8_t* const base_;
  uint64_t used_ = 0;
};

// Which kinds of activation the matrices use.
struct Kinds {
  Isa isa;
  bool used[activation_kinds] = {};
  void add(const Matrix* m) { used[static_cast<int>(activation_kind(isa, m->type))] = true; }
};

// A model that is not sealed may still get matrices of any kind.
Kinds kinds_of(const Model& model) {
  Kinds kinds{model.device()->isa};
  if (!model.sealed()) {
    for (const int32_t type : {type_f32, type_bf16, type_q8_0}) kinds.used[static_cast<int>(activation_kind(kinds.isa, type))] = true;
    return kinds;
  }
  kinds.add(&model.head());
  if (model.input_projection() != nullptr) kinds.add(model.input_projection());
  for (int32_t i = 0; i < model.desc().layer_count(); ++i) {
    for (const Matrix* m : matrices_of(model.layer(i)))
      if (m != nullptr) kinds.add(m);
    for (const Matrix* m : expert_stacks_of(model.layer(i)))
      if (m != nullptr) kinds.add(m);
    for (const Matrix* m : head_stacks_of(model.layer(i)))
      if (m != nullptr) kinds.add(m);
  }
  return kinds;
}

// parts: the tokens are prepared in that number of parts, each of which begins at a multiple of 64 bytes.
Prepared prepared_for(Layout& layout, const Kinds& kinds, int64_t widest, int64_t tokens, int64_t parts = 0) {
  Prepared p;
  for (int k = 0; k < activation_kinds; ++k)
    if (kinds.used[k]) {
      // Room for any narrower input too: sizes grow with the width and the tokens.
      p.act[k] = layout.take<uint8_t>(activation_size(static_cast<Activation>(k), widest, tokens) + static_cast<uint64_t>(64 * parts));
    }
  return p;
}

}  // namespace

int64_t StepWorkspace::history_positions(const Description& model, const mr_runner_config& config) {
  return std::min<int64_t>(model.context, static_cast<int64_t>(config.kv_blocks) * config.block_size);
}

StepWorkspace::StepWorkspace(const Model& model, const mr_runner_config& config, int thread_count, uint8_t* base) {
  const Description& d = model.desc();
  const uint64_t tokens = static_cast<uint64_t>(config.max_batched_tokens);
  const int64_t inputs_width = layer_inputs_width(d);
  int64_t attended = 0, inner = d.layer_input_width;
  int32_t most_heads = 0, least_heads = INT32_MAX, most_group = 0, most_dim = 0;
  bool branches = d.layer_input_width != 0;
  int64_t most_used = 0, expert_width = 0;
  int64_t columns = 0, kept = 0, delta_width = 0, delta_columns = 0;
  int32_t delta_heads = 0;
  int64_t query_latent = 0, latent_width = 0, head_width = 0;
  most_experts = 0;
  qkv_width = rotation_width = 0;
  for (const mr_layer_desc& l : d.layers) {
    const mr_mixer_desc& m = l.mixer;
    if (attends(m)) {
      qkv_width = std::max(qkv_width, query_width(m) + key_width(m) + value_width(m));
      attended = std::max(attended, attended_width(m));
    } else if (by_latent(m)) {
      const int32_t cached = cached_width(d, m);
      qkv_width = std::max(qkv_width, query_width(m) + cached);
      attended = std::max(attended, attended_width(m));
      query_latent = std::max<int64_t>(query_latent, m.query_latent);
      latent_width = std::max<int64_t>(latent_width, int64_t{m.heads} * pad_dim(cached));
      head_width = std::max<int64_t>({head_width, m.latent, m.key_dim});
    } else {
      qkv_width = std::max(qkv_width, mix_in_width(m, d.hidden));
      attended = std::max(attended, mix_out_width(m, d.hidden));
      columns = std::max(columns, conv_width(m, d.hidden));
      kept = std::max(kept, (m.conv - 1) * conv_width(m, d.hidden));
    }
    if (m.kind == MR_MIX_DELTA) {
      delta_heads = std::max(delta_heads, m.heads);
      delta_width = std::max(delta_width, attended_width(m));
      delta_columns = std::max(delta_columns, conv_width(m, d.hidden));
    }
    inner = std::max<int64_t>({inner, l.mlp.width, l.experts.shared_width});
    if (l.mlp.kind == MR_MLP_EXPERTS) {
      most_experts = std::max<int64_t>(most_experts, l.experts.count);
      most_used = std::max<int64_t>(most_used, l.experts.used);
      expert_width = std::max<int64_t>(expert_width, l.mlp.width);
      branches = true;
    }
    if (keeps_keys(m)) {
      const int32_t parts = attention_parts(m);
      most_heads = std::max(most_heads, parts);
      least_heads = std::min(least_heads, parts);
      most_group = std::max(most_group, m.heads / parts);
      most_dim = std::max(most_dim, by_latent(m) ? m.latent : m.key_dim);
    }
    branches = branches || (m.flags & MR_MIX_END_NORM) != 0 || (l.mlp.flags & MR_MLP_END_NORM) != 0;
  }
  for (const Rope& rope : d.ropes) rotation_width += rope_floats(rope.dims);
  const auto whole_blocks = [](int64_t width) { return (width + 255) / 256 * 256; };
  const int64_t widest = whole_blocks(std::max<int64_t>({d.hidden, attended, inner, query_latent}));
  const Kinds kinds = kinds_of(model);
  logit_rows = std::min<int64_t>({head_rows, static_cast<int64_t>(config.max_sample_rows) + config.max_score_rows,
                                  config.max_batched_tokens});
  vocab_stride = (static_cast<int64_t>(d.vocab) + 15) / 16 * 16;
  positions = history_positions(d, config);
  tile_rows = std::max(vec_ops(model.device()->isa).attention_tile, most_group);

  Layout layout(base);
  const auto floats = [&layout](uint64_t rows, int64_t width) {
    return layout.take<float>(rows * static_cast<uint64_t>(width));
  };
  x = floats(tokens, d.hidden);
  norm = floats(tokens, std::max<int64_t>(d.hidden, query_latent));
  qkv = floats(tokens, qkv_width);
  attention = floats(tokens, attended);
  ffn = floats(tokens, inner);
  branch = branches ? floats(tokens, d.hidden) : nullptr;
  rotations = floats(tokens, rotation_width);
  layer_inputs = inputs_width == 0 ? nullptr : floats(tokens, inputs_width);
  logits = floats(static_cast<uint64_t>(logit_rows), vocab_stride);
  mix_gates = floats(tokens, delta_width);
  betas = floats(tokens, delta_heads);
  alphas = floats(tokens, delta_heads);
  convolved = floats(tokens, delta_columns);
  latent_tokens = latent_width == 0 ? 0 : std::clamp<int64_t>(most_latent_floats / latent_width, 1, config.max_batched_tokens);
  query_latents = floats(tokens, query_latent);
  latent_rows = floats(static_cast<uint64_t>(latent_tokens), latent_width);
  for (const mr_layer_desc& l : d.layers)
    conv_taps.push_back(keeps_keys(l.mixer) ? nullptr : floats(static_cast<uint64_t>(l.mixer.conv), conv_width(l.mixer, d.hidden)));
  expert_rows = most_used == 0 ? 0 : std::clamp<int64_t>(most_expert_rows / most_used, 1, config.max_batched_tokens);
  const uint64_t rows = static_cast<uint64_t>(expert_rows * most_used);
  router_logits = floats(tokens, most_experts);
  routed = layout.take<RoutedExpert>(tokens * static_cast<uint64_t>(most_used));
  expert_end = layout.take<int32_t>(static_cast<uint64_t>(most_experts));
  row_token = layout.take<int32_t>(rows);
  row_of = layout.take<int32_t>(rows);
  expert_rows_prepared = {};
  if (rows != 0) {
    const int64_t most = static_cast<int64_t>(rows), inputs = whole_blocks(std::max<int64_t>(d.hidden, expert_width));
    expert_rows_prepared = prepared_for(layout, kinds, inputs, most, std::min(most_experts, most));
  }
  expert_ffn = floats(rows, expert_width);
  expert_out = floats(rows, d.hidden);
  shared_weights = most_used == 0 ? nullptr : floats(tokens, 1);
  const int32_t most_chunks = attention_chunks(static_cast<int32_t>(positions));
  const bool shares = most_chunks >= shared_chunks && least_heads < shared_parts * thread_count && thread_count > 1;
  chunk_floats = shares ? most_heads * attention_record(tile_rows, pad_dim(most_dim)) *
                              (1 + std::min(most_chunks, largest_wave)) : 0;
  chunks = chunk_floats == 0 ? nullptr : floats(1, chunk_floats);
  frequencies = layout.take<double>(static_cast<uint64_t>(rotation_width / 4));
  history = layout.take<int32_t>(static_cast<uint64_t>(config.max_sequences) * static_cast<uint64_t>(positions));
  prepared = prepared_for(layout, kinds, widest, config.max_batched_tokens);
  int64_t panel_floats = 0;
  for (const int64_t t : {int64_t{64}, int64_t{256}, static_cast<int64_t>(config.max_batched_tokens)}) {
    const int64_t most = std::min<int64_t>(t, config.max_batched_tokens);
    panel_floats = std::max(panel_floats, most * panel_rows * task_panels(most));
  }
  for (int t = 0; t < thread_count; ++t) {
    PerThread p = {};
    p.rows = floats(few_tokens, widest);
    p.prepared = prepared_for(layout, kinds, widest, few_tokens);
    p.panel[0] = floats(1, panel_floats);
    p.panel[1] = floats(1, panel_floats);
    p.convolved = columns == 0 ? nullptr : floats(1, columns);
    p.inputs = columns == 0 ? nullptr : floats(1, kept);
    p.decay = delta_heads == 0 ? nullptr : floats(tokens, 1);
    p.beta = delta_heads == 0 ? nullptr : floats(tokens, 1);
    p.input_row = inputs_width == 0 ? nullptr : floats(1, inputs_width);
    p.attention = floats(1, attention_scratch(tile_rows, pad_dim(most_dim)));
    if (head_width != 0) p.head_rows = prepared_for(layout, kinds, whole_blocks(head_width), head_tokens);
    p.q = layout.take<const float *>(static_cast<uint64_t>(tile_rows));
    p.out = layout.take<float *>(static_cast<uint64_t>(tile_rows));
    p.visible = layout.take<int32_t>(static_cast<uint64_t>(tile_rows));
    p.first = layout.take<int32_t>(static_cast<uint64_t>(tile_rows));
    p.sampler = layout.take<uint8_t>(SamplerSpace::bytes(d.vocab));
    p.route = {floats(1, most_experts), layout.take<int32_t>(static_cast<uint64_t>(most_experts)), floats(1, most_experts)};
    threads.push_back(p);
  }
  bytes = layout.used();
}

}  // namespace mr::cpu
