// steps: fuzzed steps, which begin as valid ones.
#pragma once

#include <cmath>

#include "fuzz/runners.h"

namespace fuzz {

template <class T>
T* list(Input& in, Arena& arena, int32_t count, int32_t room, const std::vector<T>& from) {
  if (count > room || in.once_in(16)) return nullptr;
  return arena.array(from, std::max(count, 0));
}

inline mr_slot_params* slot_params(Input& in, Arena& arena, int32_t vocab) {
  mr_slot_params p{};
  p.struct_size = sizeof p;
  p.seed = in.byte();
  p.top_p = p.typical_p = p.repetition_penalty = 1;
  p.allowed_count = -1;
  if (in.once_in(2)) {
    p.temperature = static_cast<float>(in.byte()) / 64;
    p.top_k = static_cast<int32_t>(in.below(8));
    p.top_p = 1 - static_cast<float>(in.byte()) / 256;
    p.typical_p = 1 - static_cast<float>(in.byte()) / 256;
    p.min_p = static_cast<float>(in.byte()) / 512;
  }
  if (in.once_in(3)) {
    p.repetition_penalty = 0.5f + static_cast<float>(in.byte()) / 128;
    p.penalty_window = -1;
    p.top_n = static_cast<int32_t>(in.below(4));
    p.min_tokens = static_cast<int32_t>(in.below(8));
    p.bias_count = p.suppressed_count = static_cast<int32_t>(in.below(4));
    p.allowed_count = in.once_in(2) ? 4 : -1;
  }
  for (int i = 0; i < 3; ++i) in.bend(&p);
  constexpr int32_t room = 4;
  std::vector<int32_t> ids;
  std::vector<float> values;
  for (int32_t i = 0; i < room; ++i) {
    ids.push_back(static_cast<int32_t>(in.once_in(32) ? in.hostile32() : in.below(static_cast<uint32_t>(vocab))));
    const uint32_t bits = in.hostile32();
    values.push_back(0);
    std::memcpy(&values.back(), &bits, sizeof bits);
  }
  p.bias_ids = list(in, arena, p.bias_count, room, ids);
  p.bias_values = list(in, arena, p.bias_count, room, values);
  p.allowed_ids = list(in, arena, p.allowed_count, room, ids);
  p.suppressed_ids = list(in, arena, p.suppressed_count, room, ids);
  return arena.place(p);
}

// A step under construction: its state if the engine accepts it.
struct Draft {
  KnownRunner runner;
  std::vector<mr_pre_op> pre_ops;
  std::vector<mr_segment> segments;
  std::vector<int32_t> tokens, blocks, hidden;
  std::vector<mr_sample_row> samples;
  std::vector<mr_score_row> scores;
  std::vector<uint32_t> masks;

  int32_t slot(Input& in) const { return static_cast<int32_t>(in.below(static_cast<uint32_t>(runner.slots.size()))); }
  int32_t token(Input& in) const {
    return static_cast<int32_t>(in.once_in(64) ? in.hostile32() : in.below(static_cast<uint32_t>(runner.vocab)));
  }
};

inline void add_pre_op(Draft& d, Input& in, Arena& arena) {
  mr_pre_op op{};
  op.struct_size = sizeof op;
  op.kind = in.once_in(3) ? static_cast<int32_t>(in.below(7)) : MR_PRE_SLOT_SET;
  op.slot = d.slot(in);
  op.slot_generation = in.byte();
  op.src_block = static_cast<int32_t>(in.below(2));
  op.dst_block = static_cast<int32_t>(in.below(2));
  op.window = d.runner.config.window_blocks > 0 && in.once_in(2) ? 1 : 0;
  std::vector<int32_t> history;
  for (uint32_t i = in.once_in(2) ? in.below(40) : 0; i > 0; --i) history.push_back(d.token(in));
  op.history_count = static_cast<int32_t>(history.size());
  in.bend(&op);
  op.params = in.once_in(32) ? nullptr : slot_params(in, arena, d.runner.vocab);
  op.history = arena.array(history, op.history_count);
  d.pre_ops.push_back(op);
  if (op.kind == MR_PRE_SLOT_SET && op.slot >= 0 && static_cast<size_t>(op.slot) < d.runner.slots.size())
    d.runner.slots[static_cast<size_t>(op.slot)] = {true, op.slot_generation, op.history_count};
}

inline void add_segment(Draft& d, Input& in) {
  mr_segment s{};
  s.slot = d.slot(in);
  Slot& slot = d.runner.slots[static_cast<size_t>(s.slot)];
  s.slot_generation = slot.generation;
  s.first_position = in.once_in(8) ? static_cast<int32_t>(in.byte()) : slot.length;
  s.count = in.once_in(2) ? 1 : 1 + static_cast<int32_t>(in.below(20));
  s.kernel_class = in.once_in(2) ? MR_CLASS_DECODE : MR_CLASS_PREFILL;
  s.block_offset = static_cast<int32_t>(d.blocks.size());
  const int32_t size = d.runner.config.block_size;
  s.block_count = static_cast<int32_t>((int64_t{std::clamp(s.first_position, 0, 4096)} + s.count + size - 1) / size);
  const int32_t pool = d.runner.config.kv_blocks;
  for (int32_t b = 0; b < s.block_count; ++b)
    d.blocks.push_back(in.once_in(32) ? static_cast<int32_t>(in.hostile32()) : (s.slot + b) % pool);
  if (const int32_t window = d.runner.config.window_blocks; window > 0) {
    s.window_block_offset = static_cast<int32_t>(d.blocks.size());
    s.window_block_count = s.block_count;
    for (int32_t b = 0; b < s.block_count; ++b)
      d.blocks.push_back(in.once_in(8) ? -1 : in.once_in(32) ? static_cast<int32_t>(in.hostile32()) : (s.slot + b) % window);
  }
  for (int32_t t = 0; t < s.count; ++t) d.tokens.push_back(s.count == 1 && in.once_in(3) ? -1 : d.token(in));
  if (d.runner.config.saved_states > 0 && in.once_in(2)) {
    s.state_from = static_cast<int32_t>(in.below(3));
    s.state_to = static_cast<int32_t>(in.below(3));
  }
  in.bend(&s);
  slot.length = static_cast<int32_t>(std::clamp<int64_t>(int64_t{s.first_position} + s.count, 0, 4096));
  d.segments.push_back(s);
}

inline void add_rows(Draft& d, Input& in) {
  const uint32_t tokens = static_cast<uint32_t>(d.tokens.size());
  const int32_t words = (d.runner.vocab + 31) / 32;
  for (uint32_t i = in.below(5); i > 0; --i) {
    mr_sample_row row{};
    row.token_index = static_cast<int32_t>(in.below(tokens));
    row.slot = d.slot(in);
    const Slot& slot = d.runner.slots[static_cast<size_t>(row.slot)];
    row.slot_generation = slot.generation;
    row.position = slot.length;
    row.mask_offset = in.once_in(3) ? 0 : -1;
    in.bend(&row);
    d.samples.push_back(row);
  }
  for (uint32_t i = in.once_in(3) ? in.below(4) : 0; i > 0; --i) {
    mr_score_row row{static_cast<int32_t>(in.below(tokens)), d.token(in), static_cast<int32_t>(in.below(4))};
    in.bend(&row);
    d.scores.push_back(row);
  }
  for (uint32_t i = in.once_in(3) ? in.below(4) : 0; i > 0; --i)
    d.hidden.push_back(in.once_in(16) ? static_cast<int32_t>(in.hostile32()) : static_cast<int32_t>(in.below(tokens)));
  if (in.once_in(2) && words > 0 && words <= 8)
    for (int32_t i = words * 2; i > 0; --i) d.masks.push_back(in.raw<uint32_t>());
}

inline void submit_step(World& w, Input& in) {
  Arena arena;
  if (w.runners.size() == 0) create_runner(w, in);
  const auto runner = w.runners.pick(in);
  Draft d;
  d.runner = runner.known != nullptr ? *runner.known : KnownRunner{small_config(), 40, 100, std::vector<Slot>(3), 0};
  for (uint32_t i = in.below(4); i > 0; --i) add_pre_op(d, in, arena);
  for (uint32_t i = in.below(4); i > 0; --i) add_segment(d, in);
  add_rows(d, in);
  mr_step s{};
  s.struct_size = sizeof s;
  s.segment_stride = sizeof(mr_segment);
  s.sample_stride = sizeof(mr_sample_row);
  s.score_stride = sizeof(mr_score_row);
  s.pre_op_stride = sizeof(mr_pre_op);
  s.segment_count = static_cast<int32_t>(d.segments.size());
  s.token_count = static_cast<int32_t>(d.tokens.size());
  s.block_id_count = static_cast<int32_t>(d.blocks.size());
  s.sample_count = static_cast<int32_t>(d.samples.size());
  s.score_count = static_cast<int32_t>(d.scores.size());
  s.pre_op_count = static_cast<int32_t>(d.pre_ops.size());
  s.mask_words = static_cast<int64_t>(d.masks.size());
  s.hidden_count = static_cast<int32_t>(d.hidden.size());
  s.flags = !d.masks.empty() && in.once_in(4) ? MR_STEP_LATE_MASKS : 0;
  in.bend(&s);
  s.segments = arena.array(d.segments, s.segment_count, s.segment_stride);
  s.tokens = arena.array(d.tokens, s.token_count);
  s.block_ids = arena.array(d.blocks, s.block_id_count);
  s.samples = arena.array(d.samples, s.sample_count, s.sample_stride);
  s.scores = arena.array(d.scores, s.score_count, s.score_stride);
  s.hidden_rows = arena.array(d.hidden, s.hidden_count);
  s.pre_op_stride = whole<mr_pre_op>(s.pre_op_stride);
  for (mr_pre_op& op : d.pre_ops) op.struct_size = whole<mr_pre_op>(op.struct_size);
  s.pre_ops = arena.array(d.pre_ops, s.pre_op_count, s.pre_op_stride);
  s.masks = (s.flags & MR_STEP_LATE_MASKS) != 0 && !in.once_in(16) ? nullptr : arena.array(d.masks, s.mask_words);
  mr_step* const given = in.once_in(64) ? nullptr : arena.place(s);
  if (w.code(api->step_submit(runner.handle, given)) != MR_OK) return;
  const bool knows_flags = given->struct_size >= offsetof(mr_step, flags) + sizeof s.flags;
  d.runner.late_words = knows_flags && (s.flags & MR_STEP_LATE_MASKS) != 0 ? s.mask_words : 0;
  *runner.known = d.runner;
}

}  // namespace fuzz
