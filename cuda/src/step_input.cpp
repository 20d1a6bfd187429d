#include "src/step_input.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "cpu/runner_config.h"
#include "kernels/attention/latent.h"
#include "src/blocks.h"
#include "src/error.h"
#include "src/workspace.h"

namespace mr::cuda {
namespace {

constexpr uint64_t kMostOfAKind = uint64_t{64} << 20;  // bytes of masks or of slot records in one step
constexpr uint64_t kMostCopies = 32768;                // of blocks, and of states, in one step

uint64_t align(uint64_t bytes) { return (bytes + 255) / 256 * 256; }

SlotSource source_of(const StepPlan::PreOp& set) {
  const mr::SlotParams& from = set.params;
  SlotSource to{};
  SlotParams& p = to.params;
  p.seed = from.seed;
  p.output_index = from.output_index;
  p.prompt_length = from.prompt_length;
  p.min_tokens = from.min_tokens;
  p.top_n = from.top_n;
  p.temperature = from.temperature;
  p.top_k = from.top_k;
  p.top_p = from.top_p;
  p.min_p = from.min_p;
  p.typical_p = from.typical_p;
  p.repetition_penalty = from.repetition_penalty;
  p.presence_penalty = from.presence_penalty;
  p.frequency_penalty = from.frequency_penalty;
  p.penalty_window = from.penalty_window;
  p.bias_count = static_cast<int32_t>(from.bias_ids.size());
  p.all_allowed = from.all_allowed ? 1 : 0;
  p.has_suppressed = from.suppressed.empty() ? 0 : 1;
  to.bias_ids = from.bias_ids.data();
  to.bias_values = from.bias_values.data();
  to.allowed_ids = from.allowed.data();
  to.allowed_count = static_cast<int32_t>(from.allowed.size());
  to.suppressed_ids = from.suppressed.data();
  to.suppressed_count = static_cast<int32_t>(from.suppressed.size());
  to.history = set.history.data();
  to.history_count = static_cast<int32_t>(set.history.size());
  return to;
}

// The record of a slot with every list full and the longest history.
uint64_t largest_record(int32_t vocab, int32_t positions) {
  SlotSource source{};
  source.params.bias_count = std::min(kBiasCapacity, vocab);
  source.params.has_suppressed = 1;
  source.allowed_count = source.suppressed_count = vocab;
  source.history_count = positions;
  return static_cast<uint64_t>(slot_record_bytes(source, vocab));
}

uint64_t mask_words(int32_t vocab) { return (static_cast<uint64_t>(vocab) + 31) / 32; }

uint64_t table_entries(const mr_runner_config& config, int32_t positions) {
  const int64_t blocks = (int64_t{positions} + config.block_size - 1) / config.block_size;
  const int64_t tables = int64_t{std::min(config.max_sequences, config.max_batched_tokens)} * (config.window_blocks == 0 ? 1 : 2);
  return static_cast<uint64_t>(tables * blocks + config.kv_blocks + config.window_blocks);
}

// Every block once, on its way in or out.
uint64_t most_copies(const mr_runner_config& config) {
  return std::min(kMostCopies, static_cast<uint64_t>(config.kv_blocks) + static_cast<uint64_t>(config.host_blocks) +
                                   static_cast<uint64_t>(config.window_blocks) + static_cast<uint64_t>(config.host_window_blocks));
}

// The same of states; 0 without host memory for them.
uint64_t most_state_copies(const mr_runner_config& config) {
  if (config.host_states == 0) return 0;
  return std::min(kMostCopies, static_cast<uint64_t>(state_count(config)) + static_cast<uint64_t>(config.host_states));
}

}  // namespace

StepShape::StepShape(int32_t rows_, int32_t decode_rows_, int32_t jobs_, int32_t chains_)
    : rows(rows_), decode_rows(decode_rows_), jobs(jobs_), chains(chains_) {
  const auto place = [this](uint64_t size) {
    const uint64_t at = bytes;
    bytes += align(size);
    return at;
  };
  const uint64_t row_bytes = static_cast<uint64_t>(rows) * sizeof(int32_t);
  slot = place(row_bytes);
  position = place(row_bytes);
  table = place(row_bytes);
  window_table = place(row_bytes);
  token = place(row_bytes);
  if (chains > 0) {
    chain = place(static_cast<uint64_t>(chains) * sizeof(StateChain));
    segment = place(static_cast<uint64_t>(chains) * sizeof(StateSegment));
    chain_of = place(row_bytes);
    segment_of = place(row_bytes);
  }
  gather = place(static_cast<uint64_t>(jobs) * sizeof(int32_t));
  job = place(static_cast<uint64_t>(jobs) * sizeof(SampleJob));
  block_ids = bytes;
}

uint64_t StepInput::record_capacity(const Description& model, const mr_runner_config& config, int32_t positions) {
  const uint64_t largest = largest_record(model.vocab, positions);
  return std::min(static_cast<uint64_t>(config.max_sequences) * largest, std::max(kMostOfAKind, largest));
}

uint64_t StepInput::mask_capacity(const Description& model, const mr_runner_config& config) {
  const uint64_t row = mask_words(model.vocab) * sizeof(uint32_t);
  return std::min(static_cast<uint64_t>(config.max_sample_rows) * row, std::max(kMostOfAKind / row * row, row));
}

uint64_t StepInput::capacity(const mr_runner_config& config, const Sizes& sizes) {
  const int32_t rows = std::max(config.max_batched_tokens, kMaxDecodeRows);
  const int32_t chains = sizes.state_floats == 0 ? 0 : std::min(rows, kMostChains);
  const StepShape shape(rows, rows, std::max(sizes.rows_wanted, kMaxDecodeRows), chains);
  return shape.bytes + align(table_entries(config, sizes.positions) * sizeof(int32_t)) +
         static_cast<uint64_t>(sizes.kinds.count()) *
             (align(static_cast<uint64_t>(rows + int64_t{kMostPrefillGroups} * sizes.prefill_places) * sizeof(PrefillItem)) +
              align(static_cast<uint64_t>(rows) * sizeof(PrefillMerge)) + align(static_cast<uint64_t>(rows) * sizeof(PrefillSpan))) +
         align(static_cast<uint64_t>(config.max_sequences) * sizeof(SlotSet)) + align(sizes.record_bytes) +
         align(most_copies(config) * sizeof(BlockCopy)) + align(1) +  // in two lists
         align(most_state_copies(config) * sizeof(BlockCopy)) +
         align(static_cast<uint64_t>(sizes.hidden_rows) * sizeof(int32_t));
}

StepInput::StepInput(const Description& model, const mr_runner_config& config, const Sizes& sizes, int32_t sm_count)
    : vocab_(model.vocab), block_size_(config.block_size),
      most_ids_(table_entries(config, sizes.positions)), most_words_(sizes.mask_bytes / sizeof(uint32_t)),
      most_records_(sizes.record_bytes), most_copies_(most_copies(config)), most_state_copies_(most_state_copies(config)),
      states_(sizes.state_floats != 0), logit_rows_(sizes.logit_rows),
      row_of_(static_cast<size_t>(config.max_batched_tokens)),
      feeder_(static_cast<size_t>(config.max_sequences), -1), setter_(static_cast<size_t>(config.max_sequences), -1) {
  for (size_t i = 0; i < sizes.kinds.kinds.size(); ++i) {
    const AttentionKind& kind = sizes.kinds.kinds[i];
    const PrefillWide wide{sizes.wide_blocks[i], config.block_size, kind.kv_heads, sizes.layouts[i].padded_dim, kind.window};
    const bool latent = kind.latent != 0;
    tilings_.push_back({latent ? prefill_latent_tile_rows(kind.heads) : prefill_tile_rows(kind.head_dim, kind.heads, kind.kv_heads),
                        {latent ? prefill_latent_columns(kind.heads) : prefill_columns(kind.heads, kind.kv_heads), sm_count,
                         sizes.prefill_places, PrefillSplit::kByWork, wide}, {}});
    tilings_.back().tiles.reserve(row_of_.size());
  }
}

void StepInput::check(const StepPlan& plan) const {
  const auto refuse = [](const char* what, uint64_t asked, uint64_t most) {
    fail(MR_RESOURCE_EXHAUSTED, "step: %llu %s in one step, room for %llu: split the step",
         static_cast<unsigned long long>(asked), what, static_cast<unsigned long long>(most));
  };
  if (states_ && plan.segments.size() > static_cast<size_t>(kMostChains)) refuse("segments", plan.segments.size(), kMostChains);
  if (plan.block_ids.size() > most_ids_) refuse("entries of block tables", plan.block_ids.size(), most_ids_);
  const uint64_t words = plan.masks_late ? static_cast<uint64_t>(plan.mask_words) : plan.masks.size();
  if (words > most_words_) refuse("words of masks", words, most_words_);
  uint64_t records = 0, copies = 0, state_copies = 0;
  for (const StepPlan::PreOp& op : plan.pre_ops) {
    if (op.kind != MR_PRE_SLOT_SET) {
      copies += Blocks::copies(op) ? 1 : 0;
      state_copies += Blocks::copies_state(op) ? 1 : 0;
      continue;
    }
    if (op.params.bias_ids.size() > static_cast<size_t>(std::min(kBiasCapacity, vocab_)))
      fail(MR_UNIMPLEMENTED, "slot %d has %zu logit biases: this engine keeps at most %d", op.slot, op.params.bias_ids.size(),
           std::min(kBiasCapacity, vocab_));
    records += static_cast<uint64_t>(slot_record_bytes(source_of(op), vocab_));
  }
  if (records > most_records_) refuse("bytes of slot parameters and histories", records, most_records_);
  if (copies > most_copies_) refuse("copies of blocks", copies, most_copies_);
  if (state_copies > most_state_copies_) refuse("copies of states", state_copies, most_state_copies_);
}

StepShape StepInput::pack(const StepPlan& plan, int32_t bucket, int32_t bucket_jobs, std::vector<SlotView>& views,
                          const Blocks& blocks, uint8_t* host, const uint8_t* device) {
  for (const StepPlan::PreOp& op : plan.pre_ops)
    if (op.kind == MR_PRE_SLOT_SET)
      views[static_cast<size_t>(op.slot)] = {static_cast<int32_t>(op.history.size()), op.params.top_n};
  const int32_t tokens = static_cast<int32_t>(plan.tokens.size());
  const int32_t jobs = static_cast<int32_t>(plan.samples.size() + plan.scores.size());
  int32_t decode = 0;
  for (const mr_segment& s : plan.segments) decode += s.kernel_class == MR_CLASS_DECODE ? s.count : 0;
  const int32_t chains = !states_ ? 0 : bucket != 0 ? bucket : static_cast<int32_t>(plan.segments.size());
  StepShape shape(bucket != 0 ? bucket : tokens, bucket != 0 ? bucket : decode, bucket_jobs != 0 ? bucket_jobs : jobs, chains);
  pack_rows(plan, shape, views, host);
  if (states_) pack_chains(plan, shape, host);
  pack_jobs(plan, shape, views, host);
  std::memcpy(host + shape.block_ids, plan.block_ids.data(), plan.block_ids.size() * sizeof(int32_t));
  shape.bytes = shape.block_ids + align(plan.block_ids.size() * sizeof(int32_t));
  pack_prefill(shape, host);
  pack_sets(plan, shape, host, device);
  // States and the blocks of either group share no memory, so that their copies follow one another.
  const auto first = [](const StepPlan::PreOp& op) { return Blocks::copies(op) && !op.window; };
  const auto window = [](const StepPlan::PreOp& op) { return Blocks::copies(op) && op.window; };
  pack_copies(plan, shape, first, copies_, &shape.copy, blocks, host);
  pack_copies(plan, shape, window, window_copies_, &shape.window_copy, blocks, host);
  pack_copies(plan, shape, Blocks::copies_state, state_copies_, &shape.state_copy, blocks, host);
  pack_hidden(plan, shape, host);
  return shape;
}

// Rows of decode segments first; padding behind them.
void StepInput::pack_rows(const StepPlan& plan, const StepShape& shape, std::vector<SlotView>& views, uint8_t* host) {
  int32_t* const slot = reinterpret_cast<int32_t*>(host + shape.slot);
  int32_t* const position = reinterpret_cast<int32_t*>(host + shape.position);
  int32_t* const table = reinterpret_cast<int32_t*>(host + shape.table);
  int32_t* const window_table = reinterpret_cast<int32_t*>(host + shape.window_table);
  int32_t* const token = reinterpret_cast<int32_t*>(host + shape.token);
  for (Tiling& tiling : tilings_) tiling.tiles.clear();
  int32_t row = 0;
  for (const int32_t kernel_class : {MR_CLASS_DECODE, MR_CLASS_PREFILL}) {
    int32_t first = 0, segment = 0;
    for (const mr_segment& s : plan.segments) {
      ++segment;
      if (s.kernel_class == kernel_class) {
        for (int32_t i = 0; i < s.count; ++i, ++row) {
          slot[row] = s.slot;
          position[row] = s.first_position + i;
          table[row] = s.block_offset;
          window_table[row] = s.window_block_offset;
          token[row] = plan.tokens[static_cast<size_t>(first + i)];
          row_of_[static_cast<size_t>(first + i)] = row;
        }
        for (Tiling& tiling : tilings_)
          for (int32_t i = 0; kernel_class == MR_CLASS_PREFILL && i < s.count; i += tiling.tile_rows)
            tiling.tiles.push_back({row - s.count + i, std::min(tiling.tile_rows, s.count - i), s.first_position + i, segment});
      }
      first += s.count;
    }
  }
  for (; row < shape.rows; ++row) {
    slot[row] = -1;
    position[row] = table[row] = window_table[row] = token[row] = 0;
  }
  for (const mr_segment& s : plan.segments) views[static_cast<size_t>(s.slot)].length = s.first_position + s.count;
}

void StepInput::pack_chains(const StepPlan& plan, const StepShape& shape, uint8_t* host) {
  const auto at = [&](uint64_t offset) { return reinterpret_cast<int32_t*>(host + offset); };
  chains_.pack(plan.segments, shape.chains, shape.rows,
               {reinterpret_cast<StateChain*>(host + shape.chain), reinterpret_cast<StateSegment*>(host + shape.segment),
                at(shape.chain_of), at(shape.segment_of)});
}

void StepInput::pack_jobs(const StepPlan& plan, const StepShape& shape, const std::vector<SlotView>& views,
                          uint8_t* host) {
  int32_t* const gather = reinterpret_cast<int32_t*>(host + shape.gather);
  SampleJob* const jobs = reinterpret_cast<SampleJob*>(host + shape.job);
  int32_t at = 0, candidate = 0;
  for (size_t i = 0; i < plan.samples.size(); ++i) feeder_[static_cast<size_t>(plan.samples[i].slot)] = static_cast<int32_t>(i);
  for (const mr_sample_row& r : plan.samples) {
    const SlotView& view = views[static_cast<size_t>(r.slot)];
    SampleJob job{};
    job.kind = kJobSample;
    job.flags = (feeder_[static_cast<size_t>(r.slot)] == at ? kJobFeeds : 0u) | (plan.nan_row == at ? kJobNanFault : 0u);
    job.row = row_of_[static_cast<size_t>(r.token_index)];
    job.slot = r.slot;
    job.position = r.position;
    job.history_length = std::min(view.length, r.position);
    job.mask_offset = r.mask_offset;
    job.top_n = view.top_n;
    gather[at] = job.row;
    jobs[at++] = job;
  }
  for (const mr_score_row& r : plan.scores) {
    SampleJob job{};
    job.kind = kJobScore;
    job.row = row_of_[static_cast<size_t>(r.token_index)];
    job.slot = -1;
    job.position = -1;
    job.mask_offset = -1;
    job.target = r.target;
    job.top_n = r.top_n;
    gather[at] = job.row;
    jobs[at++] = job;
  }
  for (int32_t i = 0; i < at; ++i) {
    jobs[i].logits_row = i % logit_rows_;
    jobs[i].candidate_offset = candidate;
    candidate += jobs[i].top_n;
  }
  for (; at < shape.jobs; ++at) {
    gather[at] = -1;
    jobs[at] = SampleJob{};
  }
}

// What blocks of prefill attention do, behind the block ids.
void StepInput::pack_prefill(StepShape& shape, uint8_t* host) {
  const auto place = [&](const auto& list, uint64_t* at) {
    *at = shape.bytes;
    const size_t bytes = list.size() * sizeof(list[0]);
    if (bytes > 0) std::memcpy(host + *at, list.data(), bytes);
    shape.bytes += align(bytes);
  };
  for (size_t kind = 0; kind < tilings_.size(); ++kind) {
    const Tiling& tiling = tilings_[kind];
    if (!plan_prefill(tiling.tiles, tiling.work, &prefill_))
      fail(MR_INTERNAL, "step: its prefill rows have more partial results than the %d that the workspace holds", tiling.work.capacity);
    StepShape::Prefill& of = shape.prefill[kind];
    place(prefill_.items, &of.item);
    place(prefill_.merges, &of.merge);
    place(prefill_.spans, &of.span);
    of.span_count = static_cast<int32_t>(prefill_.spans.size());
    of.wide_blocks = prefill_.wide_blocks;
    of.group_count = prefill_.group_count;
    std::copy(std::begin(prefill_.groups), std::end(prefill_.groups), std::begin(of.groups));
  }
}

// The last SLOT_SET of each slot; the ones before it have no effect.
void StepInput::pack_sets(const StepPlan& plan, StepShape& shape, uint8_t* host, const uint8_t* device) {
  for (size_t i = 0; i < plan.pre_ops.size(); ++i)
    if (plan.pre_ops[i].kind == MR_PRE_SLOT_SET) setter_[static_cast<size_t>(plan.pre_ops[i].slot)] = static_cast<int32_t>(i);
  const auto last = [&](size_t i) {
    const StepPlan::PreOp& op = plan.pre_ops[i];
    return op.kind == MR_PRE_SLOT_SET && setter_[static_cast<size_t>(op.slot)] == static_cast<int32_t>(i);
  };
  for (size_t i = 0; i < plan.pre_ops.size(); ++i) shape.sets += last(i) ? 1 : 0;
  if (shape.sets == 0) return;
  shape.set = shape.bytes;
  SlotSet* to = reinterpret_cast<SlotSet*>(host + shape.set);
  uint64_t record = shape.bytes + align(static_cast<uint64_t>(shape.sets) * sizeof(SlotSet));
  for (size_t i = 0; i < plan.pre_ops.size(); ++i) {
    if (!last(i)) continue;
    const StepPlan::PreOp& op = plan.pre_ops[i];
    const SlotSource source = source_of(op);
    pack_slot_record(source, vocab_, host + record);
    *to++ = {op.slot, source.history_count, device + record};
    shape.most_history = std::max(shape.most_history, source.history_count);
    record += static_cast<uint64_t>(slot_record_bytes(source, vocab_));
  }
  shape.bytes = align(record);
}

// Packs the operations that `packed` selects. *at: where they begin.
void StepInput::pack_copies(const StepPlan& plan, StepShape& shape, bool (*packed)(const StepPlan::PreOp&), CopyGroups& groups,
                            uint64_t* at, const Blocks& blocks, uint8_t* host) {
  groups.clear();
  *at = shape.bytes;
  BlockCopy* to = reinterpret_cast<BlockCopy*>(host + *at);
  for (const StepPlan::PreOp& op : plan.pre_ops) {
    if (!packed(op)) continue;
    groups.add(op);
    *to++ = blocks.copy_of(op);
  }
  if (!groups.ends().empty()) shape.bytes += align(static_cast<uint64_t>(groups.ends().back()) * sizeof(BlockCopy));
}

void StepInput::pack_hidden(const StepPlan& plan, StepShape& shape, uint8_t* host) const {
  shape.hidden = shape.bytes;
  shape.hidden_rows = static_cast<int32_t>(plan.hidden.size());
  int32_t* to = reinterpret_cast<int32_t*>(host + shape.hidden);
  for (const int32_t token : plan.hidden) *to++ = row_of_[static_cast<size_t>(token)];
  shape.bytes += align(plan.hidden.size() * sizeof(int32_t));
}

}  // namespace mr::cuda
