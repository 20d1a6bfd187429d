// runners: fuzzed calls that make runners, and that wait for their steps.
#pragma once

#include "fuzz/models.h"

namespace fuzz {

inline mr_runner_config small_config() {
  mr_runner_config c{};
  c.struct_size = sizeof c;
  c.kv_blocks = 6;
  c.block_size = 16;
  c.max_sequences = 3;
  c.max_batched_tokens = 24;
  c.max_sample_rows = 4;
  c.max_score_rows = 3;
  c.max_top_n = 3;
  c.max_hidden_rows = 3;
  c.host_blocks = 2;
  return c;
}

// Whether a runner is as small as one input may have.
inline bool little(const mr_runner_config& c) {
  const auto in_between = [](int32_t value, int32_t most) { return value > most && value <= 1 << 20; };
  return !in_between(c.max_sequences, 64) && !in_between(c.max_batched_tokens, 64) && !in_between(c.max_sample_rows, 64) &&
         !in_between(c.max_score_rows, 64) && !in_between(c.max_hidden_rows, 64) && c.kv_blocks <= 4096 && c.host_blocks <= 64 &&
         c.window_blocks <= 4096 && c.host_window_blocks <= 64 &&
         !in_between(c.saved_states, 64) && c.host_states <= 64;
}

inline void create_runner(World& w, Input& in) {
  Arena arena;
  const auto model = w.models.pick(in);
  mr_runner_config config = small_config();
  constexpr int32_t types[] = {MR_KV_F32, MR_KV_F16, MR_KV_BF16, MR_KV_F8};
  config.kv_type = types[in.once_in(16) ? 3 : in.below(3)];
  config.block_size = in.once_in(2) ? 32 : 16;
  if (model.known != nullptr && model.known->described.arrays.layers[0].mixer.kind == MR_MIX_DELTA)
    config.saved_states = config.host_states = 2;
  else if (model.known != nullptr && model.known->described.arrays.layers[1].mixer.window != 0 && in.once_in(2))
    config.window_blocks = config.host_window_blocks = 3;
  in.bend(&config);
  mr_runner_cost cost{};
  cost.struct_size = sizeof cost;
  mr_runner_config* const given = in.once_in(64) ? nullptr : arena.place(config);
  config = known(config);
  if (w.code(api->runner_cost(model.handle, given, &cost)) == MR_OK)
    require(cost.kv_bytes == static_cast<uint64_t>(config.kv_blocks) * cost.bytes_per_block +
                                 (config.window_blocks == 0 ? 0 : uint64_t{1} + static_cast<uint64_t>(config.window_blocks)) *
                                     cost.bytes_per_window_block +
                                 static_cast<uint64_t>(config.max_sequences + config.saved_states) * cost.bytes_per_state &&
                cost.bytes_per_block + cost.bytes_per_window_block > 0,
            "a runner's cost is that of its blocks and states");
  in.bend(&cost);
  (void)w.code(api->runner_cost(model.handle, given, arena.place(cost)));
  if (!little(config) || w.runners.size() >= kMostHandles) return;
  mr_runner* runner = nullptr;
  if (w.code(api->runner_create(model.handle, given, &runner)) != MR_OK) return;
  const mr_model_desc& desc = model.known->described.desc;
  w.runners.add(runner, {config, desc.vocab, desc.context, std::vector<Slot>(static_cast<size_t>(config.max_sequences)), 0});
}

inline void use_runner(World& w, Input& in) {
  Arena arena;
  const auto runner = w.runners.pick(in);
  mr_progress progress{};
  progress.struct_size = sizeof progress;
  switch (in.below(4)) {
    case 0: {
      uint64_t value = in.hostile64();
      const int32_t fault = static_cast<int32_t>(in.once_in(8) ? in.hostile32() : MR_FAULT_HANG_STEP + in.below(2));
      if (fault == MR_FAULT_HANG_STEP) value %= 1'000'000;  // up to a millisecond
      return (void)w.code(api->runner_fault(runner.handle, fault, static_cast<int32_t>(in.hostile32()), value));
    }
    case 1:
      if (w.code(api->runner_progress(runner.handle, &progress)) == MR_OK)
        require(progress.completed <= progress.submitted && progress.submitted <= progress.completed + 2,
                "two steps are in flight at most");
      in.bend(&progress);
      return (void)w.code(api->runner_progress(runner.handle, arena.place(progress)));
    case 2: {
      const int64_t wanted = runner.known != nullptr ? runner.known->late_words : 0;
      const int64_t words = in.once_in(4) ? static_cast<int64_t>(in.hostile64()) : wanted;
      uint8_t* const masks = words >= 0 ? arena.room(static_cast<uint64_t>(words), 4) : nullptr;
      for (int64_t i = 0; masks != nullptr && i < std::min<int64_t>(words * 4, 16); ++i) masks[i] = in.byte();
      if (w.code(api->step_masks(runner.handle, reinterpret_cast<uint32_t*>(masks), words)) == MR_OK) runner.known->late_words = 0;
      return;
    }
    default:
      if (!in.once_in(4)) return;
      if (w.code(api->runner_destroy(runner.handle)) == MR_OK) w.runners.drop(runner.handle);
  }
}

inline void check_row(const mr_row_result& row, int32_t vocab, const mr_step_result& result) {
  if (row.status == MR_ROW_OK) {
    require(row.count == 1 && row.token >= 0 && row.token < vocab, "a sampled token is one of the vocabulary");
    require(row.rank >= 1 && row.rank <= vocab, "a rank is one of the vocabulary");
  } else {
    require(row.count == 0 && (row.status == MR_ROW_NAN || row.status == MR_ROW_EMPTY), "a row without a token says why");
  }
  require(row.candidate_offset >= 0 && row.candidate_count >= 0 &&
              row.candidate_offset <= result.candidate_count - row.candidate_count, "candidates are where a row says");
  for (int32_t i = 0; i < row.candidate_count; ++i) {
    const mr_candidate& candidate = result.candidates[row.candidate_offset + i];
    require(candidate.token >= 0 && candidate.token < vocab, "a candidate is one of the vocabulary");
  }
}

inline void wait_step(World& w, Input& in) {
  Arena arena;
  const auto runner = w.runners.pick(in);
  mr_step_result result{};
  result.struct_size = sizeof result;
  result.row_stride = sizeof(mr_row_result);
  result.sample_capacity = result.score_capacity = 64;
  result.candidate_capacity = 64 * 2 * 64;
  result.hidden_capacity = 64 * 1024;
  in.bend(&result);
  const auto rows = [&](int32_t capacity) {
    if (result.row_stride > 256 || capacity < 0) return static_cast<mr_row_result*>(nullptr);
    return reinterpret_cast<mr_row_result*>(arena.room(static_cast<uint64_t>(capacity), result.row_stride));
  };
  result.samples = rows(result.sample_capacity);
  result.scores = rows(result.score_capacity);
  result.candidates = result.candidate_capacity < 0 ? nullptr : reinterpret_cast<mr_candidate*>(
      arena.room(static_cast<uint64_t>(result.candidate_capacity), sizeof(mr_candidate)));
  result.hidden = result.hidden_capacity < 0 ? nullptr : reinterpret_cast<float*>(
      arena.room(static_cast<uint64_t>(result.hidden_capacity), sizeof(float)));
  constexpr uint64_t seconds = 1'000'000'000, timeouts[] = {UINT64_MAX, 0, 1, 10 * seconds};
  uint64_t timeout = timeouts[in.below(std::size(timeouts))];
  if (runner.known == nullptr || runner.known->late_words != 0) timeout %= 1000;  // masks come from this thread
  mr_step_result* const given = in.once_in(64) ? nullptr : arena.place(result);
  if (w.code(api->step_wait(runner.handle, timeout, given)) != MR_OK || given->struct_size < sizeof *given) return;
  if (given->row_stride < sizeof(mr_row_result)) return;
  const auto row = [](const mr_row_result* base, size_t stride, int32_t i) {
    mr_row_result one;
    std::memcpy(&one, reinterpret_cast<const uint8_t*>(base) + static_cast<size_t>(i) * stride, sizeof one);
    return one;
  };
  const int32_t vocab = runner.known->vocab;
  for (int32_t i = 0; i < given->sample_count; ++i) check_row(row(given->samples, given->row_stride, i), vocab, *given);
  for (int32_t i = 0; i < given->score_count; ++i) check_row(row(given->scores, given->row_stride, i), vocab, *given);
}

}  // namespace fuzz
