#include "step_plan.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "error.h"
#include "runner_config.h"

namespace mr {
namespace {

// Element i of an array whose elements are `stride` bytes apart; members that the caller's version lacks read as zero.
template <class T>
T element(const T* base, size_t stride, int64_t i) {
  T value{};
  std::memcpy(&value, reinterpret_cast<const uint8_t *>(base) + static_cast<size_t>(i) * stride,
              std::min(stride, sizeof(T)));
  return value;
}

void check_array(const char* what, const void* data, size_t stride, int64_t count, int64_t limit) {
  if (count < 0 || count > limit)
    fail(MR_INVALID_ARGUMENT, "step: %lld %s, wanted 0 .. %lld", static_cast<long long>(count), what,
         static_cast<long long>(limit));
  if (count == 0) return;
  if (data == nullptr) fail(MR_INVALID_ARGUMENT, "step: the array of %s is null", what);
  if (stride < sizeof(int32_t)) fail(MR_INVALID_ARGUMENT, "step: the stride of %s is %zu bytes", what, stride);
}

}  // namespace

StepChecker::StepChecker(const mr_runner_config& config, const Description& desc, int32_t positions)
    : config_(config),
      vocab_(desc.vocab),
      context_(desc.context),
      positions_(positions),
      whole_texts_(whole_texts(desc)),
      states_(state_floats(desc) != 0),
      window_(config.window_blocks == 0 ? 0 : group_window(desc)),
      views_(static_cast<size_t>(config.max_sequences)) {
  undo_.reserve(views_.size() + static_cast<size_t>(config.max_batched_tokens) +
                static_cast<size_t>(config.max_sample_rows));
  if (!states_) return;
  read_.assign(static_cast<size_t>(state_count(config)), kUnread);
  host_read_.assign(static_cast<size_t>(config.host_states), kUnread);
}

void StepChecker::reserve(StepPlan& plan) const {
  const size_t tokens = static_cast<size_t>(config_.max_batched_tokens);
  const size_t samples = static_cast<size_t>(config_.max_sample_rows);
  const size_t scores = static_cast<size_t>(config_.max_score_rows);
  plan.pre_ops.reserve(views_.size());
  plan.segments.reserve(tokens);
  plan.tokens.reserve(tokens);
  plan.block_ids.reserve((static_cast<size_t>(config_.kv_blocks) + tokens) * (window_ == 0 ? 1 : 2));
  plan.samples.reserve(samples);
  plan.scores.reserve(scores);
  plan.hidden.reserve(static_cast<size_t>(config_.max_hidden_rows));
  plan.sample_results.reserve(samples);
  plan.score_results.reserve(scores);
  plan.candidates.reserve((samples + scores) * static_cast<size_t>(config_.max_top_n));
}

StepChecker::View& StepChecker::change(int32_t slot) {
  View& view = views_[static_cast<size_t>(slot)];
  undo_.push_back(Undo{slot, view});
  return view;
}

bool StepChecker::HostWritten::has(int32_t block) const {
  const size_t at = static_cast<size_t>(block);
  return at < written.size() && written[at];
}

void StepChecker::HostWritten::write(int32_t block) {
  const size_t at = static_cast<size_t>(block);
  if (has(block)) return;
  if (at >= written.size()) written.resize(at + 1);
  undo.push_back(block);
  written[at] = true;
}

void StepChecker::HostWritten::take_back() {
  for (const int32_t block : undo) written[static_cast<size_t>(block)] = false;
  undo.clear();
}

StepChecker::View& StepChecker::find(int32_t slot, uint32_t generation, const char* what, int32_t index) {
  if (slot < 0 || slot >= config_.max_sequences)
    fail(MR_INVALID_ARGUMENT, "%s %d: slot is %d, wanted 0 .. %d", what, index, slot, config_.max_sequences - 1);
  View& view = views_[static_cast<size_t>(slot)];
  if (!view.set) fail(MR_INVALID_ARGUMENT, "%s %d: slot %d has no parameters; set it first", what, index, slot);
  if (view.generation != generation)
    fail(MR_INVALID_ARGUMENT, "%s %d: slot %d is of generation %u, not %u", what, index, slot, view.generation,
         generation);
  return view;
}

void StepChecker::accept(const mr_step& step, StepPlan& plan, const std::function<void(const StepPlan&)>& also) {
  undo_.clear();
  host_written_.undo.clear();
  host_window_written_.undo.clear();
  undo_read_ = read_;
  undo_host_read_ = host_read_;
  users_.assign(read_.size(), Users{});
  plan.pre_ops.clear();
  plan.segments.clear();
  plan.tokens.clear();
  plan.block_ids.clear();
  plan.samples.clear();
  plan.scores.clear();
  plan.hidden.clear();
  plan.masks.clear();
  try {
    take_flags(step, plan);
    take_pre_ops(step, plan);
    take_segments(step, plan);
    take_samples(step, plan);
    take_scores(step, plan);
    take_hidden(step, plan);
    if (also) also(plan);
  } catch (...) {
    undo();
    throw;
  }
  ++accepted_;
}

void StepChecker::undo() {
  for (auto u = undo_.rbegin(); u != undo_.rend(); ++u) views_[static_cast<size_t>(u->slot)] = u->view;
  undo_.clear();
  host_written_.take_back();
  host_window_written_.take_back();
  read_ = undo_read_;
  host_read_ = undo_host_read_;
}

void StepChecker::take_back() {
  undo();
  --accepted_;
}

void StepChecker::take_flags(const mr_step& step, StepPlan& plan) const {
  if ((step.flags & ~uint32_t{MR_STEP_LATE_MASKS}) != 0)
    fail(MR_UNIMPLEMENTED, "step: flags are %#x, this engine knows %#x", step.flags, MR_STEP_LATE_MASKS);
  if (step.reserved0 != 0) fail(MR_UNIMPLEMENTED, "step: reserved0 is %u, which this engine does not know", step.reserved0);
  if (step.reserved1 != 0) fail(MR_UNIMPLEMENTED, "step: reserved1 is %d, which this engine does not know", step.reserved1);
  plan.masks_late = (step.flags & MR_STEP_LATE_MASKS) != 0;
  plan.mask_words = plan.masks_late ? step.mask_words : 0;
  if (!plan.masks_late) return;
  const int64_t words = (static_cast<int64_t>(vocab_) + 31) / 32, most = words * config_.max_sample_rows;
  if (step.masks != nullptr) fail(MR_INVALID_ARGUMENT, "step: masks are to come late, and are there already");
  if (step.mask_words < words || step.mask_words > most)
    fail(MR_INVALID_ARGUMENT, "step: %lld mask words are to come late, wanted %lld .. %lld",
         static_cast<long long>(step.mask_words), static_cast<long long>(words), static_cast<long long>(most));
}

void StepChecker::accept_masks(const uint32_t* masks, int64_t words, StepPlan& plan) {
  if (words != plan.mask_words || masks == nullptr)
    fail(MR_INVALID_ARGUMENT, "late masks: %lld words%s, but the step said %lld", static_cast<long long>(words),
         masks == nullptr ? " at null" : "", static_cast<long long>(plan.mask_words));
  plan.masks.assign(masks, masks + words);
}

void StepChecker::take_history(const mr_pre_op& op, const char* where, StepPlan::PreOp& to) const {
  if (op.history_count < 0 || op.history_count > std::min(context_, positions_))
    fail(MR_INVALID_ARGUMENT, "%s: a history of %d tokens, wanted 0 .. %d", where, op.history_count,
         std::min(context_, positions_));
  if (op.history_count == 0) return;
  if (op.history == nullptr) fail(MR_INVALID_ARGUMENT, "%s: the history of %d tokens is null", where, op.history_count);
  for (int32_t i = 0; i < op.history_count; ++i)
    if (op.history[i] < 0 || op.history[i] >= vocab_)
      fail(MR_INVALID_ARGUMENT, "%s: token %d of the history is %d, wanted 0 .. %d", where, i, op.history[i], vocab_ - 1);
  to.history.assign(op.history, op.history + op.history_count);
}

void StepChecker::take_pre_ops(const mr_step& step, StepPlan& plan) {
  check_array("pre-operations", step.pre_ops, step.pre_op_stride, step.pre_op_count, INT32_MAX);
  for (int32_t i = 0; i < step.pre_op_count; ++i) {
    mr_pre_op op = element(step.pre_ops, step.pre_op_stride, i);
    if (op.struct_size < sizeof op) {
      mr_pre_op known{};
      std::memcpy(&known, &op, op.struct_size);
      op = known;
    }
    if (op.reserved0 != 0) fail(MR_UNIMPLEMENTED, "pre-operation %d: reserved0 is %d, wanted 0", i, op.reserved0);
    StepPlan::PreOp p{};
    p.kind = op.kind;
    if (op.kind == MR_PRE_SLOT_SET) {
      char where[48];
      std::snprintf(where, sizeof where, "pre-operation %d", i);
      if (op.slot < 0 || op.slot >= config_.max_sequences)
        fail(MR_INVALID_ARGUMENT, "%s: slot is %d, wanted 0 .. %d", where, op.slot, config_.max_sequences - 1);
      if (op.params == nullptr) fail(MR_INVALID_ARGUMENT, "%s: params is null", where);
      p.slot = op.slot;
      p.generation = op.slot_generation;
      p.params = SlotParams::copy(*op.params, vocab_, config_.max_top_n, where);
      take_history(op, where, p);
      View& view = change(op.slot);
      view = View{};
      view.set = true;
      view.generation = op.slot_generation;
      view.length = op.history_count;
    } else if (op.kind == MR_PRE_BLOCK_COPY || op.kind == MR_PRE_BLOCK_OUT || op.kind == MR_PRE_BLOCK_IN) {
      take_block(op, i, p);
    } else if (op.kind == MR_PRE_STATE_OUT || op.kind == MR_PRE_STATE_IN) {
      take_state(op, i, p);
    } else {
      fail(MR_INVALID_ARGUMENT, "pre-operation %d: unknown kind %d", i, op.kind);
    }
    plan.pre_ops.push_back(std::move(p));
  }
}

void StepChecker::take_block(const mr_pre_op& op, int32_t index, StepPlan::PreOp& to) {
  const auto check = [index](const char* where, int32_t block, int32_t count) {
    if (block < 0 || block >= count)
      fail(MR_INVALID_ARGUMENT, "pre-operation %d: block %d %s, wanted 0 .. %d", index, block, where, count - 1);
  };
  if (op.window != 0 && (op.window != 1 || window_ == 0))
    fail(MR_INVALID_ARGUMENT, "pre-operation %d: window is %d, wanted 0 .. %d", index, op.window, window_ == 0 ? 0 : 1);
  const bool from_host = op.kind == MR_PRE_BLOCK_IN, to_host = op.kind == MR_PRE_BLOCK_OUT, window = op.window != 0;
  const int32_t blocks = window ? config_.window_blocks : config_.kv_blocks;
  const int32_t host_blocks = window ? config_.host_window_blocks : config_.host_blocks;
  HostWritten& written = window ? host_window_written_ : host_written_;
  check(from_host ? "of host memory" : "of the device", op.src_block, from_host ? host_blocks : blocks);
  check(to_host ? "of host memory" : "of the device", op.dst_block, to_host ? host_blocks : blocks);
  if (from_host && !written.has(op.src_block))
    fail(MR_INVALID_ARGUMENT, "pre-operation %d: block %d of host memory was never written; copy one out to it first", index,
         op.src_block);
  if (to_host) written.write(op.dst_block);
  to.window = window;
  to.src = op.src_block;
  to.dst = op.dst_block;
}

void StepChecker::take_state(const mr_pre_op& op, int32_t index, StepPlan::PreOp& to) {
  const auto check = [index](const char* what, int32_t value, int32_t most) {
    if (value < 0 || value > most)
      fail(MR_INVALID_ARGUMENT, "pre-operation %d: %s %d, wanted 0 .. %d", index, what, value, most);
  };
  if (!states_) fail(MR_INVALID_ARGUMENT, "pre-operation %d: copies a state, but no layer of the model carries one", index);
  const bool out = op.kind == MR_PRE_STATE_OUT;
  check("slot", op.slot, config_.max_sequences - 1);
  check("state", out ? op.src_block : op.dst_block, config_.saved_states);
  check("state of host memory", out ? op.dst_block : op.src_block, config_.host_states - 1);
  to.slot = op.slot;
  to.src = out ? state_index(config_, op.slot, op.src_block) : op.src_block;
  to.dst = out ? op.dst_block : state_index(config_, op.slot, op.dst_block);
  const int32_t read = out ? read_[static_cast<size_t>(to.src)] : host_read_[static_cast<size_t>(to.src)];
  if (read == kUnread)
    fail(MR_INVALID_ARGUMENT, "pre-operation %d: state %d of %s was never written", index, op.src_block,
         out ? "the device" : "host memory");
  (out ? host_read_[static_cast<size_t>(to.dst)] : read_[static_cast<size_t>(to.dst)]) = read;
}

// The states of a segment whose other members are checked, by their indexes from here on.
void StepChecker::take_states(mr_segment& s, int32_t index, const View& slot) {
  for (const int32_t id : {s.state_from, s.state_to})
    if (states_ ? id < 0 || id > config_.saved_states : id != 0)
      fail(MR_INVALID_ARGUMENT, "segment %d: names state %d, wanted 0 .. %d", index, id, states_ ? config_.saved_states : 0);
  if (!states_) return;
  const int32_t from_id = s.state_from, to_id = s.state_to;
  s.state_from = state_index(config_, s.slot, from_id);
  s.state_to = state_index(config_, s.slot, to_id);
  const auto other = [&s](int32_t slot) { return slot != kNoSlot && slot != s.slot; };
  if (slot.fed_step == accepted_ + 1 && s.state_from != slot.state)
    fail(MR_INVALID_ARGUMENT, "segment %d: reads state %d of slot %d, but the segment before it wrote another", index, from_id, s.slot);
  if (s.first_position > 0) {
    const int32_t read = read_[static_cast<size_t>(s.state_from)];
    if (read != s.first_position)
      fail(MR_INVALID_ARGUMENT, "segment %d: begins at position %d of slot %d, but its state %d has read %d", index, s.first_position,
           s.slot, from_id, read);
    Users& users = users_[static_cast<size_t>(s.state_from)];
    if (other(users.writer))
      fail(MR_INVALID_ARGUMENT, "segment %d: slot %d reads state %d, which slot %d writes in this step", index, s.slot, from_id,
           users.writer);
    users.reader = other(users.reader) ? kManySlots : s.slot;
  }
  Users& users = users_[static_cast<size_t>(s.state_to)];
  if (other(users.writer))
    fail(MR_INVALID_ARGUMENT, "segment %d: slot %d writes state %d, which slot %d writes in this step", index, s.slot, to_id, users.writer);
  if (other(users.reader))
    fail(MR_INVALID_ARGUMENT, "segment %d: slot %d writes state %d, which another slot reads in this step", index, s.slot, to_id);
  users.writer = s.slot;
  read_[static_cast<size_t>(s.state_to)] = s.first_position + s.count;
}

void StepChecker::take_segments(const mr_step& step, StepPlan& plan) {
  check_array("tokens", step.tokens, sizeof(int32_t), step.token_count, config_.max_batched_tokens);
  check_array("segments", step.segments, step.segment_stride, step.segment_count, step.token_count);
  check_array("block ids", step.block_ids, sizeof(int32_t), step.block_id_count, INT32_MAX);
  int64_t first = 0;
  for (int32_t i = 0; i < step.segment_count; ++i) {
    mr_segment s = element(step.segments, step.segment_stride, i);
    View& view = find(s.slot, s.slot_generation, "segment", i);
    if (s.kernel_class != MR_CLASS_PREFILL && s.kernel_class != MR_CLASS_DECODE)
      fail(MR_INVALID_ARGUMENT, "segment %d: unknown kernel class %d", i, s.kernel_class);
    if (s.adapter != 0) fail(MR_INVALID_ARGUMENT, "segment %d: adapter is %d, wanted 0", i, s.adapter);
    if (s.flags != 0) fail(MR_INVALID_ARGUMENT, "segment %d: flags are %#x, wanted 0", i, s.flags);
    if (s.count < 1) fail(MR_INVALID_ARGUMENT, "segment %d: count is %d, wanted at least 1", i, s.count);
    if (s.first_position < 0 || s.first_position > view.length)
      fail(MR_INVALID_ARGUMENT, "segment %d: first position is %d, but slot %d holds %d tokens", i, s.first_position,
           s.slot, view.length);
    if (whole_texts_ && (s.first_position != 0 || view.fed_step == accepted_ + 1))
      fail(MR_INVALID_ARGUMENT, "segment %d: begins at position %d of slot %d, but a layer sees later positions: want one segment a text",
           i, s.first_position, s.slot);
    if (view.fed_step == accepted_ + 1 && s.first_position != view.length)
      fail(MR_INVALID_ARGUMENT, "segment %d: begins at %d, inside an earlier segment of slot %d that ends at %d", i,
           s.first_position, s.slot, view.length);
    const int64_t end = static_cast<int64_t>(s.first_position) + s.count;
    if (end > context_)
      fail(MR_OUT_OF_RANGE, "segment %d: ends at position %lld, beyond the context of %d", i,
           static_cast<long long>(end), context_);
    if (end > positions_)
      fail(MR_OUT_OF_RANGE, "segment %d: ends at position %lld, beyond the %d tokens of the whole block pool", i,
           static_cast<long long>(end), positions_);
    if (first + s.count > step.token_count)
      fail(MR_INVALID_ARGUMENT, "segment %d: its %d tokens end beyond the step's %d", i, s.count, step.token_count);
    if (window_ == 0 && (s.window_block_offset != 0 || s.window_block_count != 0))
      fail(MR_INVALID_ARGUMENT, "segment %d: window block table %d + %d, but the runner has no window_blocks", i, s.window_block_offset,
           s.window_block_count);
    take_tokens(step, s, i, static_cast<int32_t>(first), plan);
    take_states(s, i, view);
    take_table(step, s, i, false, plan);
    if (window_ != 0) take_table(step, s, i, true, plan);
    View& changed = change(s.slot);
    changed.length = static_cast<int32_t>(end);
    changed.fed_step = accepted_ + 1;
    changed.state = s.state_to;
    first += s.count;
    plan.segments.push_back(s);
  }
  if (first != step.token_count)
    fail(MR_INVALID_ARGUMENT, "step: %d tokens, but its segments have %lld", step.token_count,
         static_cast<long long>(first));
}

// A block table of a segment whose positions are checked. It is copied up to the last of them.
void StepChecker::take_table(const mr_step& step, mr_segment& s, int32_t index, bool window, StepPlan& plan) const {
  const char* const what = window ? "window block" : "block";
  int32_t& offset = window ? s.window_block_offset : s.block_offset;
  int32_t& count = window ? s.window_block_count : s.block_count;
  const int32_t end = s.first_position + s.count, needed = (end + config_.block_size - 1) / config_.block_size;
  const int32_t ids = window ? config_.window_blocks : config_.kv_blocks;
  const int32_t first = window ? first_window_block(s.first_position, window_, config_.block_size) : 0;
  if (count < needed)
    fail(MR_INVALID_ARGUMENT, "segment %d: %d %ss for %d positions, wanted at least %d", index, count, what, end, needed);
  if (offset < 0 || offset > step.block_id_count - count)
    fail(MR_INVALID_ARGUMENT, "segment %d: %s table %d + %d lies outside the step's %d block ids", index, what, offset, count,
         step.block_id_count);
  const int32_t* const blocks = step.block_ids + offset;
  for (int32_t b = 0; b < count; ++b)
    if (blocks[b] >= ids || blocks[b] < (b < first ? -1 : 0))
      fail(MR_INVALID_ARGUMENT, "segment %d: %s table entry %d is %d, wanted %d .. %d", index, what, b, blocks[b], b < first ? -1 : 0,
           ids - 1);
  offset = static_cast<int32_t>(plan.block_ids.size());
  count = needed;
  plan.block_ids.insert(plan.block_ids.end(), blocks, blocks + needed);
  if (window) std::replace(plan.block_ids.end() - needed, plan.block_ids.end(), -1, ids);
}

void StepChecker::take_tokens(const mr_step& step, const mr_segment& s, int32_t index, int32_t first, StepPlan& plan) {
  for (int32_t t = first; t < first + s.count; ++t) {
    const int32_t token = step.tokens[t];
    if (token == -1) {
      if (s.kernel_class != MR_CLASS_DECODE || s.count != 1)
        fail(MR_INVALID_ARGUMENT, "segment %d: token -1 outside a decode segment of one token", index);
      const View& view = views_[static_cast<size_t>(s.slot)];
      if (accepted_ == 0 || view.sampled_step != accepted_)
        fail(MR_INVALID_ARGUMENT, "segment %d: token -1, but the step before sampled nothing for slot %d", index,
             s.slot);
    } else if (token < 0 || token >= vocab_) {
      fail(MR_INVALID_ARGUMENT, "segment %d: token %d of the step is %d, wanted 0 .. %d", index, t, token, vocab_ - 1);
    }
    plan.tokens.push_back(token);
  }
}

void StepChecker::take_samples(const mr_step& step, StepPlan& plan) {
  check_array("sample rows", step.samples, step.sample_stride, step.sample_count, config_.max_sample_rows);
  const int64_t words = (static_cast<int64_t>(vocab_) + 31) / 32;
  for (int32_t i = 0; i < step.sample_count; ++i) {
    const mr_sample_row r = element(step.samples, step.sample_stride, i);
    find(r.slot, r.slot_generation, "sample row", i);
    if (r.token_index < 0 || r.token_index >= step.token_count)
      fail(MR_INVALID_ARGUMENT, "sample row %d: token index is %d, wanted 0 .. %d", i, r.token_index,
           step.token_count - 1);
    if (r.position < 0 || r.position > context_)
      fail(MR_INVALID_ARGUMENT, "sample row %d: position is %d, wanted 0 .. %d", i, r.position, context_);
    if (r.mask_offset != -1) {
      if (r.mask_offset < 0 || step.mask_words < words || (step.masks == nullptr && !plan.masks_late) ||
          r.mask_offset > step.mask_words - words)
        fail(MR_INVALID_ARGUMENT, "sample row %d: mask %d + %lld lies outside the step's %lld mask words", i,
             r.mask_offset, static_cast<long long>(words), static_cast<long long>(step.mask_words));
      if (plan.masks.empty() && !plan.masks_late)  // rows may share one
        plan.masks.assign(step.masks, step.masks + step.mask_words);
    }
    change(r.slot).sampled_step = accepted_ + 1;
    plan.samples.push_back(r);
  }
}

void StepChecker::take_scores(const mr_step& step, StepPlan& plan) {
  check_array("score rows", step.scores, step.score_stride, step.score_count, config_.max_score_rows);
  for (int32_t i = 0; i < step.score_count; ++i) {
    const mr_score_row r = element(step.scores, step.score_stride, i);
    if (r.token_index < 0 || r.token_index >= step.token_count)
      fail(MR_INVALID_ARGUMENT, "score row %d: token index is %d, wanted 0 .. %d", i, r.token_index,
           step.token_count - 1);
    if (r.target < 0 || r.target >= vocab_)
      fail(MR_INVALID_ARGUMENT, "score row %d: target is %d, wanted 0 .. %d", i, r.target, vocab_ - 1);
    if (r.top_n < 0 || r.top_n > config_.max_top_n)
      fail(MR_INVALID_ARGUMENT, "score row %d: top_n is %d, wanted 0 .. %d", i, r.top_n, config_.max_top_n);
    plan.scores.push_back(r);
  }
}

void StepChecker::take_hidden(const mr_step& step, StepPlan& plan) const {
  check_array("hidden rows", step.hidden_rows, sizeof(int32_t), step.hidden_count, config_.max_hidden_rows);
  for (int32_t i = 0; i < step.hidden_count; ++i) {
    const int32_t token = step.hidden_rows[i];
    if (token < 0 || token >= step.token_count)
      fail(MR_INVALID_ARGUMENT, "hidden row %d: token index is %d, wanted 0 .. %d", i, token, step.token_count - 1);
    plan.hidden.push_back(token);
  }
}

void give_results(const StepPlan& plan, int32_t width, mr_step_result* result) {
  const auto check_room = [](const char* what, const void* data, int64_t capacity, size_t count) {
    if (count > 0 && (data == nullptr || capacity < static_cast<int64_t>(count)))
      fail(MR_INVALID_ARGUMENT, "step result: room for %lld %s, wanted %zu; the step can be waited for again",
           static_cast<long long>(capacity), what, count);
  };
  size_t candidates = 0;
  for (const auto* rows : {&plan.sample_results, &plan.score_results})
    for (const mr_row_result& r : *rows) candidates += static_cast<size_t>(r.candidate_count);
  check_room("sample rows", result->samples, result->sample_capacity, plan.sample_results.size());
  check_room("score rows", result->scores, result->score_capacity, plan.score_results.size());
  check_room("candidates", result->candidates, result->candidate_capacity, candidates);
  const size_t floats = plan.hidden.size() * static_cast<size_t>(width);
  check_room("floats of hidden rows", result->hidden, result->hidden_capacity, floats);
  if (plan.sample_results.size() + plan.score_results.size() > 0 && result->row_stride < sizeof(int32_t))
    fail(MR_INVALID_ARGUMENT, "step result: row_stride is %zu bytes", result->row_stride);

  int32_t used = 0;
  const auto give = [&](const std::vector<mr_row_result>& from, mr_row_result* to) {
    for (size_t i = 0; i < from.size(); ++i) {
      mr_row_result r = from[i];
      std::copy_n(plan.candidates.data() + r.candidate_offset, r.candidate_count, result->candidates + used);
      r.candidate_offset = used;
      used += r.candidate_count;
      std::memcpy(reinterpret_cast<uint8_t *>(to) + i * result->row_stride, &r,
                  std::min(result->row_stride, sizeof r));
    }
  };
  give(plan.sample_results, result->samples);
  give(plan.score_results, result->scores);
  result->sample_count = static_cast<int32_t>(plan.sample_results.size());
  result->score_count = static_cast<int32_t>(plan.score_results.size());
  result->candidate_count = used;
  std::copy_n(plan.hidden_rows, floats, result->hidden);
  result->hidden_count = static_cast<int32_t>(plan.hidden.size());
  result->device_ns = plan.device_ns;
  result->bytes_read = plan.bytes_read;
}

}  // namespace mr
