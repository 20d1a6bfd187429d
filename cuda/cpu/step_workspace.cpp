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
  for (int32_t i = 0; i < model.desc().layers; ++i) {
    const Layer& l = model.layer(i);
    for (const Matrix* m : {l.q, l.k, l.v, l.o, l.gate, l.up, l.down}) kinds.add(m);
  }
  return kinds;
}

Prepared prepared_for(Layout& layout, const Kinds& kinds, int64_t widest, int64_t tokens) {
  Prepared p;
  for (int k = 0; k < activation_kinds; ++k)
    if (kinds.used[k]) {
      // Room for any narrower input too: sizes grow with the width and the tokens.
      p.act[k] = layout.take<uint8_t>(activation_size(static_cast<Activation>(k), widest, tokens));
    }
  return p;
}

}  // namespace

int64_t StepWorkspace::history_positions(const mr_model_desc& model, const mr_runner_config& config) {
  return std::min<int64_t>(model.context, static_cast<int64_t>(config.kv_blocks) * config.block_size);
}

StepWorkspace::StepWorkspace(const Model& model, const mr_runner_config& config, int thread_count, uint8_t* base) {
  const mr_model_desc& d = model.desc();
  const uint64_t tokens = static_cast<uint64_t>(config.max_batched_tokens);
  const int64_t q_width = static_cast<int64_t>(d.heads) * d.head_dim;
  const int64_t widest = (std::max<int64_t>({d.hidden, q_width, d.ffn}) + 255) / 256 * 256;
  const Kinds kinds = kinds_of(model);
  qkv_width = q_width + 2 * static_cast<int64_t>(d.kv_heads) * d.head_dim;
  logit_rows = std::min<int64_t>({head_rows, static_cast<int64_t>(config.max_sample_rows) + config.max_score_rows,
                                  config.max_batched_tokens});
  vocab_stride = (static_cast<int64_t>(d.vocab) + 15) / 16 * 16;
  positions = history_positions(d, config);
  tile_rows = std::max(vec_ops(model.device()->isa).attention_tile, d.heads / d.kv_heads);

  Layout layout(base);
  const auto floats = [&layout](uint64_t rows, int64_t width) {
    return layout.take<float>(rows * static_cast<uint64_t>(width));
  };
  x = floats(tokens, d.hidden);
  norm = floats(tokens, d.hidden);
  qkv = floats(tokens, qkv_width);
  attention = floats(tokens, q_width);
  ffn = floats(tokens, d.ffn);
  turns = floats(tokens, rope_floats(d.rope_dims));
  logits = floats(static_cast<uint64_t>(logit_rows), vocab_stride);
  const int32_t most_chunks = attention_chunks(static_cast<int32_t>(positions));
  const bool shares = most_chunks >= shared_chunks && d.kv_heads < shared_parts * thread_count && thread_count > 1;
  chunk_floats = shares ? d.kv_heads * attention_record(tile_rows, pad_dim(d.head_dim)) *
                              (1 + std::min(most_chunks, largest_wave)) : 0;
  chunks = chunk_floats == 0 ? nullptr : floats(1, chunk_floats);
  frequencies = layout.take<double>(static_cast<uint64_t>(d.rope_dims / 2));
  history = layout.take<int32_t>(static_cast<uint64_t>(config.max_sequences) * static_cast<uint64_t>(positions));
  prepared = prepared_for(layout, kinds, widest, config.max_batched_tokens);
  int64_t panel_floats = 0;
  for (const int64_t t : {int64_t{64}, int64_t{256}, static_cast<int64_t>(config.max_batched_tokens)}) {
    const int64_t most = std::min<int64_t>(t, config.max_batched_tokens);
    panel_floats = std::max(panel_floats, most * panel_rows * task_panels(most));
  }
  for (int t = 0; t < thread_count; ++t) {
    PerThread p;
    p.rows = floats(few_tokens, widest);
    p.prepared = prepared_for(layout, kinds, widest, few_tokens);
    p.panel[0] = floats(1, panel_floats);
    p.panel[1] = floats(1, panel_floats);
    p.attention = floats(1, attention_scratch(tile_rows, pad_dim(d.head_dim)));
    p.q = layout.take<const float *>(static_cast<uint64_t>(tile_rows));
    p.out = layout.take<float *>(static_cast<uint64_t>(tile_rows));
    p.visible = layout.take<int32_t>(static_cast<uint64_t>(tile_rows));
    p.sampler = layout.take<uint8_t>(SamplerSpace::bytes(d.vocab));
    threads.push_back(p);
  }
  bytes = layout.used();
}

}  // namespace mr::cpu
