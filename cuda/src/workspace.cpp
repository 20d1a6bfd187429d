#include "src/workspace.h"

#include <algorithm>

#include "kernels/attention/attention.h"
#include "kernels/gather.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/input_sums.h"
#include "kernels/sampler/sampler.h"
#include "src/error.h"
#include "src/step_input.h"

namespace mr::cuda {
namespace {

int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

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

// Type in which queries, keys and values are multiplied: the cache's own if it has 16 bits; for an 8-bit cache bf16, unless f16
// is configured.
Act attention_act(const mr_runner_config& config) {
  if (config.kv_type == MR_KV_F8) return config.act_type == MR_KV_F16 ? Act::kF16 : Act::kBF16;
  if (config.kv_type != MR_KV_F16 && config.kv_type != MR_KV_BF16)
    fail(MR_UNIMPLEMENTED, "runner configuration: kv_type is %d (f32): this engine keeps keys and values as f16 (1), bf16 (30) or "
         "f8 (256)", config.kv_type);
  return config.kv_type == MR_KV_F16 ? Act::kF16 : Act::kBF16;
}

void check_hidden_rows(const mr_runner_config& config) {
  if (config.max_hidden_rows != 0)
    fail(MR_UNIMPLEMENTED, "runner configuration: max_hidden_rows is %d: this engine gives no hidden rows, want 0", config.max_hidden_rows);
}

}  // namespace

Sizes::Sizes(const UniformShape& d, const mr_runner_config& c, int32_t ranks) {
  check_hidden_rows(c);
  const UniformShape part = part_of(d, 0, ranks);
  kv = KvLayout{attention_act(c), c.block_size, part.kv_heads, d.head_dim, pad_head_dim(d.head_dim),
                c.kv_type == MR_KV_F8 ? Kv::kF8 : Kv::kAct};
  q_width = int64_t{part.heads} * d.head_dim;
  const int64_t kv_width = int64_t{part.kv_heads} * d.head_dim;
  hidden_stride = round_up(d.hidden, kRowAlign);
  q_stride = round_up(int64_t{part.heads} * kv.padded_dim, kRowAlign);
  attention_stride = round_up(int64_t{d.heads} * d.head_dim, kRowAlign);
  qkv_stride = round_up(q_width + 2 * kv_width, kRowAlign);
  ffn_stride = round_up(d.ffn, kRowAlign);
  vocab_stride = round_up(d.vocab, kRowAlign);
  tokens = c.max_batched_tokens;
  decode_rows = std::min(tokens, kMaxDecodeRows);
  decode_parts = (tokens + decode_rows - 1) / decode_rows;
  positions = static_cast<int32_t>(std::min<int64_t>(d.context, int64_t{c.kv_blocks} * c.block_size));
  decode_units = decode_attention_capacity(decode_rows, positions);
  prefill_places = prefill_attention_capacity(tokens, positions);
  rows_wanted = c.max_sample_rows + c.max_score_rows;
  logit_rows = std::min(kLogitRows, rows_wanted);
  candidates = int64_t{rows_wanted} * c.max_top_n;
  kv_block_bytes = 2 * static_cast<uint64_t>(d.layers) * static_cast<uint64_t>(kv.block_bytes());
  record_bytes = StepInput::record_capacity(d, c, positions);
  mask_bytes = StepInput::mask_capacity(d, c);
  input_bytes = StepInput::capacity(c, *this);
}

Workspace::Workspace(const Model& model, const mr_runner_config& c, const Sizes& s, uint8_t* base) {
  const UniformShape& d = model.desc();
  Pieces pieces(base);
  const int64_t t = s.tokens;
  x = pieces.take<float>(t * s.hidden_stride);
  norm = pieces.act(std::max<int64_t>(t, s.logit_rows) * s.hidden_stride);
  qkv = pieces.take<float>(t * s.qkv_stride);
  q = pieces.act(t * s.q_stride);
  attention = pieces.act(t * s.attention_stride);
  ffn = pieces.act(t * s.ffn_stride);
  const int64_t widest = std::max({s.hidden_stride, s.attention_stride, s.ffn_stride});
  input_sums = pieces.bytes(static_cast<uint64_t>(input_sum_bytes(std::max<int64_t>(t, s.logit_rows), widest)));
  semaphores = pieces.take<uint32_t>(kGemmSemaphores);
  gate = pieces.take<float>(std::min<int64_t>(t, kGateRows) * s.ffn_stride);
  up = pieces.take<float>(std::min<int64_t>(t, kGateRows) * s.ffn_stride);
  rope_table = pieces.take<float>(t * std::max(d.rope_dims, 1));
  token = pieces.take<int32_t>(t);
  nan_flags = pieces.take<int32_t>(t);
  logits = pieces.take<float>(int64_t{s.logit_rows} * s.vocab_stride);
  frequencies = pieces.take<double>(std::max(d.rope_dims / 2, 1));
  plan_first = pieces.take<int32_t>(int64_t{s.decode_parts} * (s.decode_rows + 1));
  plan_span = pieces.take<int32_t>(s.decode_parts);
  decode = pieces.bytes(
      static_cast<uint64_t>(decode_attention_bytes(s.decode_rows, s.decode_units, d.heads / model.ranks(), d.head_dim)));
  prefill = pieces.bytes(static_cast<uint64_t>(prefill_attention_bytes(s.prefill_places, d.heads / model.ranks(), d.head_dim)));
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
