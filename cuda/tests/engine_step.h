// engine_step: builds steps part by part, for tests of the engine that need more than whole requests.
#pragma once

#include <cstring>
#include <deque>
#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine_fixture.h"

namespace mr::cuda::test {

constexpr uint64_t kPatience = 60'000'000'000;  // ns
constexpr size_t kHiddenWidth = 256;            // of a hidden row: that of desc_of

inline mr_slot_params params_of(int32_t prompt_length, float temperature = 0) {
  mr_slot_params p{};
  p.struct_size = sizeof p;
  p.seed = 11;
  p.prompt_length = prompt_length;
  p.temperature = temperature;
  p.top_p = p.typical_p = p.repetition_penalty = 1;
  p.allowed_count = -1;
  return p;
}

// A greedy slot whose choice depends on all of its history: a token of the history precedes all others, the more so the
// less often it occurs.
inline mr_slot_params penalised_params(int32_t prompt_length) {
  mr_slot_params p = params_of(prompt_length);
  p.repetition_penalty = 1.2f;
  p.frequency_penalty = 0.7f;
  p.presence_penalty = -50;
  p.penalty_window = -1;
  return p;
}

inline std::vector<int32_t> random_ids(uint32_t seed, int32_t count) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 509);
  return ids;
}

inline std::vector<int32_t> range(int32_t first, int32_t count) {
  std::vector<int32_t> out;
  for (int32_t i = 0; i < count; ++i) out.push_back(first + i);
  return out;
}

// StepMaker collects the parts of a step, which must be added in the order in which a step has them. Slots have
// generation 1 by default.
class StepMaker {
 public:
  void set(int32_t slot, const mr_slot_params& params, std::vector<int32_t> history = {}) {
    params_.push_back(params);
    histories_.push_back(std::move(history));
    mr_pre_op op{};
    op.struct_size = sizeof op;
    op.kind = MR_PRE_SLOT_SET;
    op.slot = slot;
    op.slot_generation = 1;
    op.params = &params_.back();
    op.history = histories_.back().data();
    op.history_count = static_cast<int32_t>(histories_.back().size());
    ops_.push_back(op);
  }
  void block(int32_t kind, int32_t src, int32_t dst) {
    mr_pre_op op{};
    op.struct_size = sizeof op;
    op.kind = kind;
    op.src_block = src;
    op.dst_block = dst;
    ops_.push_back(op);
  }
  // Returns the step's index of the segment's first token.
  int32_t feed(int32_t slot, int32_t kernel_class, int32_t first_position, const std::vector<int32_t>& ids,
               const std::vector<int32_t>& table) {
    mr_segment s{};
    s.slot = slot;
    s.slot_generation = 1;
    s.kernel_class = kernel_class;
    s.first_position = first_position;
    s.count = static_cast<int32_t>(ids.size());
    s.block_offset = static_cast<int32_t>(blocks_.size());
    s.block_count = static_cast<int32_t>(table.size());
    segments_.push_back(s);
    const int32_t first = static_cast<int32_t>(tokens_.size());
    tokens_.insert(tokens_.end(), ids.begin(), ids.end());
    blocks_.insert(blocks_.end(), table.begin(), table.end());
    return first;
  }
  void sample(int32_t token, int32_t slot, int32_t position, int32_t mask_offset = -1) {
    samples_.push_back({token, slot, 1, position, mask_offset});
  }
  void score(int32_t token, int32_t target) { scores_.push_back({token, target, 0}); }
  void hidden(int32_t token) { hidden_.push_back(token); }
  void masks(std::vector<uint32_t> words) { masks_ = std::move(words); }
  void late(int64_t words) { late_ = words; }

  mr_step step() const {
    mr_step s{};
    s.struct_size = sizeof s;
    s.segment_stride = sizeof(mr_segment);
    s.sample_stride = sizeof(mr_sample_row);
    s.score_stride = sizeof(mr_score_row);
    s.pre_op_stride = sizeof(mr_pre_op);
    s.segments = segments_.data();
    s.segment_count = static_cast<int32_t>(segments_.size());
    s.tokens = tokens_.data();
    s.token_count = static_cast<int32_t>(tokens_.size());
    s.block_ids = blocks_.data();
    s.block_id_count = static_cast<int32_t>(blocks_.size());
    s.samples = samples_.data();
    s.sample_count = static_cast<int32_t>(samples_.size());
    s.scores = scores_.data();
    s.score_count = static_cast<int32_t>(scores_.size());
    s.hidden_rows = hidden_.data();
    s.hidden_count = static_cast<int32_t>(hidden_.size());
    s.pre_ops = ops_.data();
    s.pre_op_count = static_cast<int32_t>(ops_.size());
    s.masks = masks_.empty() ? nullptr : masks_.data();
    s.mask_words = static_cast<int64_t>(masks_.size());
    if (late_ != 0) {
      s.flags = MR_STEP_LATE_MASKS;
      s.mask_words = late_;
    }
    return s;
  }

 private:
  std::deque<mr_slot_params> params_;  // ops point into it
  std::deque<std::vector<int32_t>> histories_;
  std::vector<mr_pre_op> ops_;
  std::vector<mr_segment> segments_;
  std::vector<int32_t> tokens_, blocks_, hidden_;
  std::vector<mr_sample_row> samples_;
  std::vector<mr_score_row> scores_;
  std::vector<uint32_t> masks_;
  int64_t late_ = 0;
};

// Row is an exact result.
struct Row {
  int32_t status, token, rank, position;
  uint32_t logprob;
  bool operator==(const Row& o) const {
    return status == o.status && token == o.token && rank == o.rank && position == o.position && logprob == o.logprob;
  }
};

inline std::ostream& operator<<(std::ostream& out, const Row& r) {
  return out << "{status " << r.status << ", token " << r.token << ", rank " << r.rank << ", position " << r.position
             << ", logprob bits " << r.logprob << "}";
}

// Collects the sample rows, then the score rows, of the oldest step in flight. `hidden` has room for its hidden rows, and is cut
// to what they fill.
inline std::vector<Row> collect(Runner& runner, uint64_t timeout_ns = kPatience, std::vector<float>* hidden = nullptr) {
  std::vector<mr_row_result> samples(256), scores(1024);
  std::vector<mr_candidate> candidates((samples.size() + scores.size()) * 4);
  mr_step_result result{};
  result.struct_size = sizeof result;
  result.row_stride = sizeof(mr_row_result);
  result.samples = samples.data();
  result.sample_capacity = static_cast<int32_t>(samples.size());
  result.scores = scores.data();
  result.score_capacity = static_cast<int32_t>(scores.size());
  result.candidates = candidates.data();
  result.candidate_capacity = static_cast<int32_t>(candidates.size());
  if (hidden != nullptr) {
    result.hidden = hidden->data();
    result.hidden_capacity = static_cast<int64_t>(hidden->size());
  }
  runner.wait(timeout_ns, &result);
  if (hidden != nullptr) hidden->resize(static_cast<size_t>(result.hidden_count) * kHiddenWidth);
  samples.resize(static_cast<size_t>(result.sample_count));
  scores.resize(static_cast<size_t>(result.score_count));
  std::vector<Row> rows;
  for (const auto* each : {&samples, &scores})
    for (const mr_row_result& r : *each) {
      Row row{r.status, r.token, r.rank, r.position, 0};
      std::memcpy(&row.logprob, &r.logprob, sizeof row.logprob);
      rows.push_back(row);
    }
  return rows;
}

inline std::vector<Row> run(Runner& runner, const StepMaker& maker) {
  runner.submit(maker.step());
  return collect(runner);
}

struct Refusal {
  int32_t code = MR_OK;
  std::string message;
};

inline Refusal refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return {e.code, e.message};
  }
  return {};
}

// Story is a prompt computed at once and `count` tokens sampled after it, one a step: the expected continuation for
// other tests.
struct Story {
  std::vector<int32_t> prompt;
  std::vector<Row> rows;  // row i: the token at position prompt.size() + i

  int32_t length() const { return static_cast<int32_t>(prompt.size()); }
  // Returns the ids of positions [first, last), of the prompt and the tokens after it.
  std::vector<int32_t> ids(int32_t first, int32_t last) const {
    std::vector<int32_t> out;
    for (int32_t p = first; p < last; ++p)
      out.push_back(p < length() ? prompt[static_cast<size_t>(p)] : rows[static_cast<size_t>(p - length())].token);
    return out;
  }
};

inline Story tell(Runner& runner, int32_t slot, const mr_slot_params& params, std::vector<int32_t> prompt,
                  const std::vector<int32_t>& table, int32_t count) {
  Story story{std::move(prompt), {}};
  StepMaker first;
  first.set(slot, params);
  const int32_t at = first.feed(slot, MR_CLASS_PREFILL, 0, story.prompt, table);
  first.sample(at + story.length() - 1, slot, story.length());
  story.rows = run(runner, first);
  while (static_cast<int32_t>(story.rows.size()) < count) {
    const int32_t position = story.length() + static_cast<int32_t>(story.rows.size()) - 1;
    StepMaker next;
    next.sample(next.feed(slot, MR_CLASS_DECODE, position, {story.rows.back().token}, table), slot, position + 1);
    story.rows.push_back(run(runner, next)[0]);
  }
  return story;
}

}  // namespace mr::cuda::test
