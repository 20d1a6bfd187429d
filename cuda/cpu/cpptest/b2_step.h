// A step under construction for the unit programs, and the sizes of their runners.
#pragma once

#include <vector>

#include "b2_check.h"
#include "millrace/engine.h"
#include "runner.h"

namespace tiny {

using namespace mr;
using namespace mr::cpu;

inline mr_runner_config config_of(int32_t kv_type) {
  mr_runner_config c{};
  c.struct_size = sizeof c;
  c.kv_blocks = 80;
  c.block_size = 16;
  c.max_sequences = 6;
  c.max_batched_tokens = 400;
  c.max_sample_rows = 8;
  c.max_score_rows = 400;
  c.max_top_n = 4;
  c.kv_type = kv_type;
  return c;
}

inline mr_slot_params greedy() {
  mr_slot_params p{};
  p.struct_size = sizeof p;
  p.top_p = p.typical_p = p.repetition_penalty = 1;
  p.allowed_count = -1;
  p.top_n = 2;
  return p;
}

// A step under construction, and what came of it.
struct Step {
  std::vector<mr_segment> segments;
  std::vector<int32_t> tokens, blocks;
  std::vector<mr_sample_row> samples;
  std::vector<mr_score_row> scores;
  std::vector<mr_pre_op> pre_ops;
  std::vector<uint32_t> masks;
  int64_t late_words = 0;  // > 0: number of mask words that come late; `masks` then do not belong to the step
  std::vector<mr_row_result> sample_results, score_results;
  std::vector<mr_candidate> candidates;
  mr_step_result result{};

  Step& set(int32_t slot, uint32_t generation, const mr_slot_params* params) {
    mr_pre_op op{};
    op.struct_size = sizeof op;
    op.kind = MR_PRE_SLOT_SET;
    op.slot = slot;
    op.slot_generation = generation;
    op.params = params;
    pre_ops.push_back(op);
    return *this;
  }
  Step& set(int32_t slot, uint32_t generation, const mr_slot_params* params, const std::vector<int32_t>& history) {
    set(slot, generation, params);
    pre_ops.back().history = history.data();  // which the caller keeps until the step is submitted
    pre_ops.back().history_count = static_cast<int32_t>(history.size());
    return *this;
  }
  Step& move(int32_t kind, int32_t src, int32_t dst) {  // MR_PRE_BLOCK_*
    mr_pre_op op{};
    op.struct_size = sizeof op;
    op.kind = kind;
    op.src_block = src;
    op.dst_block = dst;
    pre_ops.push_back(op);
    return *this;
  }
  Step& feed(int32_t slot, uint32_t generation, int32_t first, const std::vector<int32_t>& ids,
             const std::vector<int32_t>& table, int32_t kernel_class) {
    mr_segment s{};
    s.slot = slot;
    s.slot_generation = generation;
    s.kernel_class = kernel_class;
    s.first_position = first;
    s.count = static_cast<int32_t>(ids.size());
    s.block_offset = static_cast<int32_t>(blocks.size());
    s.block_count = static_cast<int32_t>(table.size());
    segments.push_back(s);
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    blocks.insert(blocks.end(), table.begin(), table.end());
    return *this;
  }
  Step& sample(int32_t slot, uint32_t generation, int32_t position, int32_t index = -1, int32_t mask = -1) {
    samples.push_back(mr_sample_row{index < 0 ? static_cast<int32_t>(tokens.size()) - 1 : index, slot, generation, position, mask});
    return *this;
  }
  Step& score(int32_t index, int32_t target, int32_t top_n = 0) {
    scores.push_back(mr_score_row{index, target, top_n});
    return *this;
  }
  mr_step view() const {
    mr_step s{};
    s.struct_size = sizeof s;
    s.segment_stride = sizeof(mr_segment);
    s.sample_stride = sizeof(mr_sample_row);
    s.score_stride = sizeof(mr_score_row);
    s.pre_op_stride = sizeof(mr_pre_op);
    s.segments = segments.data();
    s.segment_count = static_cast<int32_t>(segments.size());
    s.tokens = tokens.data();
    s.token_count = static_cast<int32_t>(tokens.size());
    s.block_ids = blocks.data();
    s.block_id_count = static_cast<int32_t>(blocks.size());
    s.samples = samples.data();
    s.sample_count = static_cast<int32_t>(samples.size());
    s.scores = scores.data();
    s.score_count = static_cast<int32_t>(scores.size());
    s.pre_ops = pre_ops.data();
    s.pre_op_count = static_cast<int32_t>(pre_ops.size());
    s.masks = late_words > 0 ? nullptr : masks.data();
    s.mask_words = late_words > 0 ? late_words : static_cast<int64_t>(masks.size());
    s.flags = late_words > 0 ? MR_STEP_LATE_MASKS : 0u;
    return s;
  }
  void wait(Runner& runner, uint64_t timeout = UINT64_MAX) {
    sample_results.resize(8);
    score_results.resize(400);
    candidates.resize(2000);
    result.struct_size = sizeof result;
    result.row_stride = sizeof(mr_row_result);
    result.samples = sample_results.data();
    result.sample_capacity = 8;
    result.scores = score_results.data();
    result.score_capacity = 400;
    result.candidates = candidates.data();
    result.candidate_capacity = 2000;
    runner.wait(timeout, &result);
  }
  Step& run(Runner& runner) {
    runner.submit(view());
    wait(runner);
    return *this;
  }
};

inline std::vector<int32_t> table_of(int32_t tokens, int32_t first, int32_t stride) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i * 16 < tokens; ++i) ids.push_back((first + i * stride) % 80);
  return ids;
}

inline std::vector<int32_t> random_tokens(int32_t count, int32_t vocab, uint64_t seed) {
  check::Numbers n(seed);
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(n.below(vocab)));
  return ids;
}

}  // namespace tiny
