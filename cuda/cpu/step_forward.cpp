#pragma GCC optimize("fp-contract=off")
#include "step_forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace mr::cpu {
namespace {

constexpr int64_t kTokensATask = 8;    // of embedding, norms and preparation
constexpr int64_t kTasksAThread = 6;   // that a product is cut into, at least, where its size allows
constexpr int64_t kHeadPanels = 16;    // of the head in a task, at most

}  // namespace

StepForward::StepForward(std::shared_ptr<const Model> model, const mr_runner_config& config)
    : model_(std::move(model)),
      config_(config),
      desc_(model_->desc()),
      isa_(model_->device()->isa),
      ops_(vec_ops(isa_)),
      threads_(model_->device()->threads),
      kv_(model_->device()->ledger, desc_, config),
      memory_(model_->device()->ledger.allocate(StepWorkspace(*model_, config, threads_.size(), nullptr).bytes,
                                                MR_PURPOSE_WORKSPACE, false)),
      space_(*model_, config, threads_.size(), memory_.as<uint8_t>()),
      slots_(static_cast<size_t>(config.max_sequences)),
      attn_scale_(attn_scale(desc_)),
      ranges_(new Range[static_cast<size_t>(threads_.size())]) {
  for (size_t s = 0; s < slots_.size(); ++s) slots_[s].history = space_.history + static_cast<int64_t>(s) * space_.positions;
  for (const auto& t : space_.threads) samplers_.emplace_back(t.sampler, desc_.vocab);
  rope_frequencies(desc_.rope_dims, desc_.rope_base, desc_.rope_scale, model_->rope_factors(), space_.frequencies);
  const size_t tokens = static_cast<size_t>(config.max_batched_tokens);
  poison_.resize(tokens);
  positions_.resize(tokens);
  tiles_.reserve(tokens);
  long_tiles_.reserve(tokens);
  rows_.reserve(static_cast<size_t>(config.max_sample_rows) + static_cast<size_t>(config.max_score_rows));
}

// Every thread runs prologue(thread) and then tasks until none is left: body(task, thread). A thread has a range of its own,
// so that what one task asks the memory for ahead of its end is what its next one reads; then it helps the others. A thread
// that comes too late for any of it is not waited for.
template <class Prologue, class Body>
void StepForward::phase(int64_t tasks, Prologue prologue, Body body) {
  const int count = threads_.size();
  for (int t = 0; t < count; ++t) {
    ranges_[t].next.store(tasks * t / count, std::memory_order_relaxed);
    ranges_[t].end = tasks * (t + 1) / count;
  }
  threads_.run_present([&](int thread) {
    prologue(thread);
    for (int i = 0; i < count; ++i) {
      Range& range = ranges_[thread + i < count ? thread + i : thread + i - count];
      for (int64_t task; (task = range.next.fetch_add(1, std::memory_order_relaxed)) < range.end;) body(task, thread);
    }
  });
}

// Whole stacks for few tokens, where every thread gets one: there a product waits for the memory, which is fastest so.
int64_t StepForward::task_panels(int64_t total_panels) const {
  const bool stacks = few() && total_panels >= stack_panels * threads_.size();
  const int64_t fair = total_panels / (kTasksAThread * threads_.size()), unit = stacks ? stack_panels : 1;
  return std::clamp<int64_t>(fair / unit * unit, unit, StepWorkspace::task_panels(tokens_));
}

// What the thread reads behind a task: the next one of its range, or what it begins the product after this one with.
const uint8_t* StepForward::behind(const Cut& cut, int64_t task, int thread, const Cut& then) const {
  if (task + 1 != ranges_[thread].end && task + 1 < cut.tasks) return cut.begin(task + 1);
  return then.begin(then.tasks * thread / threads_.size());
}

Cut StepForward::qkv_cut(const Layer& l) const {
  // Where heads are whole panels a task is whole heads.
  const int64_t grain = desc_.head_dim % panel_rows == 0 ? desc_.head_dim / panel_rows : 1;
  const int64_t fair = task_panels(panels(l.q->out) + panels(l.k->out) + panels(l.v->out));
  return Cut({l.q, l.k, l.v}, std::max<int64_t>(1, fair / grain) * grain);
}

Cut StepForward::cut(const Matrix* m) const { return Cut({m}, task_panels(panels(m->out))); }

Cut StepForward::head_cut() const {
  const Matrix* const head = &model_->head();
  return Cut({head}, std::clamp<int64_t>(panels(head->out) / (kTasksAThread * threads_.size()) / stack_panels * stack_panels,
                                         stack_panels, kHeadPanels));
}

void StepForward::run(StepPlan& plan, const std::function<bool()>& masks) {
  begin(plan);
  if (tokens_ != 0) {
    cut_tiles(plan);
    embed(plan);
    for (int32_t i = 0; i < desc_.layers; ++i) layer(plan, i);
  }
  heads(plan, masks);
  if (!plan.tokens.empty()) read_bytes(plan);
}

void StepForward::pre_op(StepPlan::PreOp& op) {
  switch (op.kind) {
    case MR_PRE_BLOCK_COPY: return kv_.copy_block(op.src, op.dst);
    case MR_PRE_BLOCK_OUT: return kv_.copy_out(op.src, op.host);
    case MR_PRE_BLOCK_IN: return kv_.copy_in(op.host, op.dst);
    default: break;  // SLOT_SET: the checker lets nothing else pass
  }
  Slot& slot = slots_[static_cast<size_t>(op.slot)];
  slot.generation = op.generation;
  slot.params = std::move(op.params);
  std::copy(op.history.begin(), op.history.end(), slot.history);
  slot.length = static_cast<int32_t>(op.history.size());
  slot.sampled = 0;
  slot.sampled_status = MR_ROW_OK;
}

// Pre-operations, token ids and histories; makes room for the results.
void StepForward::begin(StepPlan& plan) {
  for (StepPlan::PreOp& op : plan.pre_ops) pre_op(op);
  tokens_ = static_cast<int64_t>(plan.tokens.size());
  size_t at = 0;
  for (const mr_segment& s : plan.segments) {
    Slot& slot = slots_[static_cast<size_t>(s.slot)];
    for (int32_t i = 0; i < s.count; ++i, ++at) {
      poison_[at] = MR_ROW_OK;
      if (plan.tokens[at] < 0) {
        plan.tokens[at] = slot.sampled;
        poison_[at] = slot.sampled_status;
      }
      positions_[at] = s.first_position + i;
      slot.history[s.first_position + i] = plan.tokens[at];
    }
    slot.length = s.first_position + s.count;
  }
  plan.sample_results.assign(plan.samples.size(), mr_row_result{});
  plan.score_results.assign(plan.scores.size(), mr_row_result{});
  int32_t candidates = 0;
  for (size_t i = 0; i < plan.samples.size(); ++i) {
    plan.sample_results[i].candidate_offset = candidates;
    candidates += slots_[static_cast<size_t>(plan.samples[i].slot)].params.top_n;
  }
  for (size_t i = 0; i < plan.scores.size(); ++i) {
    plan.score_results[i].candidate_offset = candidates;
    candidates += plan.scores[i].top_n;
  }
  plan.candidates.assign(static_cast<size_t>(candidates), mr_candidate{});
}

void StepForward::cut_tiles(const StepPlan& plan) {
  const int32_t group = desc_.heads / desc_.kv_heads;
  const int32_t tile = std::max(1, space_.tile_rows / group);
  tiles_.clear();
  int32_t at = 0;
  for (int32_t i = 0; i < static_cast<int32_t>(plan.segments.size()); ++i) {
    const int32_t count = plan.segments[static_cast<size_t>(i)].count;
    for (int32_t t = 0; t < count; t += tile) tiles_.push_back(Tile{i, at + t, std::min(tile, count - t)});
    at += count;
  }
  std::sort(tiles_.begin(), tiles_.end(), [this](const Tile& a, const Tile& b) {
    const int32_t pa = positions_[static_cast<size_t>(a.token)], pb = positions_[static_cast<size_t>(b.token)];
    return pa != pb ? pa > pb : a.token < b.token;
  });
  share_long_tiles();
}

int32_t StepForward::last_position(const Tile& tile) const {
  return positions_[static_cast<size_t>(tile.token + tile.count - 1)];
}

// A tile's head is the least that one thread attends to, unless that is too much of the step's attention: then the threads share
// its chunks. A single token behind a long prefix is the common case.
void StepForward::share_long_tiles() {
  long_tiles_.clear();
  if (space_.chunk_floats == 0) return;
  const auto cost = [this](const Tile& tile) { return int64_t{tile.count} * attention_chunks(last_position(tile) + 1); };
  int64_t all = 0;
  for (const Tile& tile : tiles_) all += cost(tile) * desc_.kv_heads;
  const auto shared = [&](const Tile& tile) {
    return attention_chunks(last_position(tile) + 1) >= StepWorkspace::shared_chunks &&
           cost(tile) * StepWorkspace::shared_parts * threads_.size() > all;
  };
  for (const Tile& tile : tiles_)
    if (shared(tile)) long_tiles_.push_back(tile);
  tiles_.erase(std::remove_if(tiles_.begin(), tiles_.end(), shared), tiles_.end());
}

void StepForward::embed(const StepPlan& plan) {
  const auto one = [&](int64_t t) {
    dequantize_row(model_->embedding(), plan.tokens[static_cast<size_t>(t)], space_.x + t * desc_.hidden);
    rope_turns(space_.frequencies, desc_.rope_dims, desc_.rope_style, positions_[static_cast<size_t>(t)],
               space_.turns + t * rope_floats(desc_.rope_dims));
  };
  if (few()) {
    for (int64_t t = 0; t < tokens_; ++t) one(t);
    return;
  }
  phase((tokens_ + kTokensATask - 1) / kTokensATask, [](int) {}, [&](int64_t task, int) {
    for (int64_t t = task * kTokensATask; t < std::min(tokens_, (task + 1) * kTokensATask); ++t) one(t);
  });
}

void StepForward::prepare(const float* x, int64_t width, const Cut& cut, int64_t t0, int64_t t1,
                          const Prepared& into) const {
  bool done[activation_kinds] = {};
  for (int32_t i = 0; i < cut.count; ++i) {
    const Activation kind = activation_kind(isa_, cut.matrices[i]->type);
    bool& kind_done = done[static_cast<int>(kind)];
    if (!kind_done) prepare_activations(isa_, kind, x, width, width, tokens_, t0, t1, into.of(kind));
    kind_done = true;
  }
}

template <class Body>
void StepForward::with_prepared(const float* x, int64_t width, const float* weight, const Cut& cut, int64_t tasks, Body body) {
  const auto fill = [&](int64_t t0, int64_t t1, float* rows, const Prepared& into) {
    if (weight == nullptr) {
      prepare(x, width, cut, t0, t1, into);
      return;
    }
    for (int64_t t = t0; t < t1; ++t) ops_.rms_norm(x + t * width, weight, desc_.norm_eps, width, rows + t * width);
    prepare(rows, width, cut, t0, t1, into);
  };
  if (few()) {
    phase(tasks,
          [&](int thread) {
            const auto& own = space_.threads[static_cast<size_t>(thread)];
            fill(0, tokens_, own.rows, own.prepared);
          },
          [&](int64_t task, int thread) { body(task, thread, space_.threads[static_cast<size_t>(thread)].prepared); });
    return;
  }
  phase((tokens_ + kTokensATask - 1) / kTokensATask, [](int) {}, [&](int64_t task, int) {
    fill(task * kTokensATask, std::min(tokens_, (task + 1) * kTokensATask), space_.norm, space_.prepared);
  });
  phase(tasks, [](int) {}, [&](int64_t task, int thread) { body(task, thread, space_.prepared); });
}

void StepForward::layer(const StepPlan& plan, int32_t index) {
  const Layer& l = model_->layer(index);
  const int64_t q_width = static_cast<int64_t>(desc_.heads) * desc_.head_dim;
  const int64_t kv_width = static_cast<int64_t>(desc_.kv_heads) * desc_.head_dim;

  // Q, K and V: the tasks of the three products follow one another. A task of whole heads finishes them while they are in
  // its cache.
  float* const outputs[3] = {space_.qkv, space_.qkv + q_width, space_.qkv + q_width + kv_width};
  const bool whole = desc_.head_dim % panel_rows == 0;
  const Cut qkv = qkv_cut(l), o = cut(l.o), gate = cut(l.gate), down = cut(l.down);
  with_prepared(space_.x, desc_.hidden, l.attn_norm, qkv, qkv.tasks, [&](int64_t task, int thread, const Prepared& prepared) {
    const Piece p = qkv.at(task);
    multiply(isa_, p.matrix, prepared.of(activation_kind(isa_, p.matrix.type)), tokens_, outputs[p.index],
             space_.qkv_width, p.first, p.last, behind(qkv, task, thread, o));
    if (!whole) return;
    const int64_t head_panels = desc_.head_dim / panel_rows;
    for (int64_t h = p.first / head_panels; h < p.last / head_panels; ++h)
      finish_head(plan, l, index, static_cast<Part>(p.index), static_cast<int32_t>(h));
  });
  if (!whole) {
    const int64_t heads = desc_.heads, kv_heads = desc_.kv_heads;
    phase(heads + 2 * kv_heads, [](int) {}, [&](int64_t task, int) {
      const Part part = task < heads ? Part::query : task < heads + kv_heads ? Part::key : Part::value;
      const int64_t before = part == Part::query ? 0 : part == Part::key ? heads : heads + kv_heads;
      finish_head(plan, l, index, part, static_cast<int32_t>(task - before));
    });
  }
  attend(plan, index);
  project(space_.attention, q_width, o, l.o_bias, gate);
  feed_forward(l, gate, down);
  project(space_.ffn, desc_.ffn, down, nullptr, index + 1 < desc_.layers ? qkv_cut(model_->layer(index + 1)) : head_cut());
}

// Bias, norm and rotation of one head of all tokens; keys and values go into the cache.
void StepForward::finish_head(const StepPlan& plan, const Layer& l, int32_t index, Part part, int32_t head) {
  const int32_t dim = desc_.head_dim;
  const int64_t first_head = part == Part::query ? 0 : part == Part::key ? desc_.heads : desc_.heads + desc_.kv_heads;
  const float* bias = part == Part::query ? l.q_bias : part == Part::key ? l.k_bias : l.v_bias;
  const float* const norm = part == Part::query ? l.q_norm : part == Part::key ? l.k_norm : nullptr;
  if (bias != nullptr) bias += static_cast<int64_t>(head) * dim;
  float* values = space_.qkv + (first_head + head) * dim;
  int32_t token = 0;
  for (const mr_segment& s : plan.segments) {
    const int32_t* const blocks = plan.block_ids.data() + s.block_offset;
    for (int32_t position = s.first_position; position < s.first_position + s.count; ++position, ++token) {
      if (bias != nullptr) ops_.add(values, bias, dim, values);
      if (norm != nullptr) ops_.rms_norm(values, norm, desc_.norm_eps, dim, values);
      if (part != Part::value)
        ops_.rope(values, space_.turns + token * rope_floats(desc_.rope_dims), desc_.rope_dims, desc_.rope_style);
      if (part != Part::query)
        ops_.kv_store(part == Part::key ? values : nullptr, part == Part::value ? values : nullptr, kv_.layout(),
                      blocks[position / config_.block_size], position % config_.block_size, head, kv_.keys(index),
                      kv_.values(index));
      values += space_.qkv_width;
    }
  }
}

AttentionArgs StepForward::attention_of(const StepPlan& plan, const Tile& tile, int32_t kv_head, int32_t index, int thread) {
  const auto& own = space_.threads[static_cast<size_t>(thread)];
  const int32_t dim = desc_.head_dim, group = desc_.heads / desc_.kv_heads;
  const int64_t out_width = static_cast<int64_t>(desc_.heads) * dim;
  int32_t rows = 0;
  for (int32_t t = tile.token; t < tile.token + tile.count; ++t)
    for (int32_t h = kv_head * group; h < (kv_head + 1) * group; ++h, ++rows) {
      own.q[rows] = space_.qkv + t * space_.qkv_width + static_cast<int64_t>(h) * dim;
      own.out[rows] = space_.attention + t * out_width + static_cast<int64_t>(h) * dim;
      own.visible[rows] = positions_[static_cast<size_t>(t)] + 1;
    }
  AttentionArgs args;
  args.q = own.q;
  args.out = own.out;
  args.visible = own.visible;
  args.rows = rows;
  args.scale = attn_scale_;
  args.layout = kv_.layout();
  args.kv_head = kv_head;
  args.blocks = plan.block_ids.data() + plan.segments[static_cast<size_t>(tile.segment)].block_offset;
  args.keys = kv_.keys(index);
  args.values = kv_.values(index);
  args.scratch = own.attention;
  return args;
}

void StepForward::attend(const StepPlan& plan, int32_t index) {
  const int64_t kv_heads = desc_.kv_heads;
  for (const Tile& tile : long_tiles_) attend_in_chunks(plan, tile, index);
  phase(static_cast<int64_t>(tiles_.size()) * kv_heads, [](int) {}, [&](int64_t task, int thread) {
    ops_.attend(attention_of(plan, tiles_[static_cast<size_t>(task / kv_heads)], static_cast<int32_t>(task % kv_heads), index,
                             thread));
  });
}

// As many chunks at a time as there is room for: of each head a state, and the records of the chunks behind it.
void StepForward::attend_in_chunks(const StepPlan& plan, const Tile& tile, int32_t index) {
  const int64_t kv_heads = desc_.kv_heads;
  const int64_t record = attention_record(int64_t{tile.count} * (desc_.heads / desc_.kv_heads), pad_dim(desc_.head_dim));
  const int32_t chunks = attention_chunks(last_position(tile) + 1);
  const int32_t room = static_cast<int32_t>(std::min<int64_t>(space_.chunk_floats / kv_heads / record - 1, chunks));
  const auto state = [&](int64_t head) { return space_.chunks + head * (room + 1) * record; };
  for (int32_t from = 0; from < chunks; from += room) {
    const int32_t to = std::min(chunks, from + room);
    phase((to - from) * kv_heads, [](int) {}, [&](int64_t task, int thread) {
      const int32_t head = static_cast<int32_t>(task / (to - from)), chunk = static_cast<int32_t>(task % (to - from));
      ops_.attend_chunks(attention_of(plan, tile, head, index, thread), from + chunk, from + chunk + 1,
                         state(head) + (1 + chunk) * record);
    });
    phase(kv_heads, [](int) {}, [&](int64_t head, int thread) {
      ops_.merge_chunks(attention_of(plan, tile, static_cast<int32_t>(head), index, thread), from, to, state(head) + record,
                        state(head));
    });
  }
}

// residual += x * m^T (+ bias)
void StepForward::project(const float* x, int64_t width, const Cut& cut, const float* bias, const Cut& then) {
  const int64_t ld = cut.chunk * panel_rows;
  with_prepared(x, width, nullptr, cut, cut.tasks, [&](int64_t task, int thread, const Prepared& prepared) {
    float* const y = space_.threads[static_cast<size_t>(thread)].panel[0];
    const Piece p = cut.at(task);
    const int64_t row = p.first * panel_rows, n = std::min(p.matrix.out, p.last * panel_rows) - row;
    multiply(isa_, p.matrix, prepared.of(activation_kind(isa_, p.matrix.type)), tokens_, y - row, ld, p.first, p.last,
             behind(cut, task, thread, then));
    for (int64_t t = 0; t < tokens_; ++t) {
      if (bias != nullptr) ops_.add(y + t * ld, bias + row, n, y + t * ld);
      float* const to = space_.x + t * desc_.hidden + row;
      ops_.add(to, y + t * ld, n, to);
    }
  });
}

// ffn = silu(gate) * up of the normed residual
void StepForward::feed_forward(const Layer& l, const Cut& gate, const Cut& then) {
  const int64_t ld = gate.chunk * panel_rows;
  const Cut both({l.gate, l.up}, gate.chunk);
  with_prepared(space_.x, desc_.hidden, l.ffn_norm, both, gate.tasks, [&](int64_t task, int thread, const Prepared& prepared) {
    const auto& own = space_.threads[static_cast<size_t>(thread)];
    const Piece p = gate.at(task);
    const int64_t row = p.first * panel_rows, n = std::min(p.matrix.out, p.last * panel_rows) - row;
    const auto product = [&](const Matrix& m, float* y, const uint8_t* next) {
      multiply(isa_, m, prepared.of(activation_kind(isa_, m.type)), tokens_, y - row, ld, p.first, p.last, next);
    };
    product(*l.gate, own.panel[0], begin_of(*l.up, p.first));
    product(*l.up, own.panel[1], behind(gate, task, thread, then));
    for (int64_t t = 0; t < tokens_; ++t)
      ops_.swiglu(own.panel[0] + t * ld, own.panel[1] + t * ld, n, space_.ffn + t * desc_.ffn + row);
  });
}

// Final norm, head and results for the tokens that rows name, a few distinct tokens at a time. The first product needs no mask.
void StepForward::heads(StepPlan& plan, const std::function<bool()>& masks) {
  rows_.clear();
  for (size_t i = 0; i < plan.samples.size(); ++i)
    rows_.push_back(LogitRow{plan.samples[i].token_index, static_cast<int32_t>(i)});
  for (size_t i = 0; i < plan.scores.size(); ++i)
    rows_.push_back(LogitRow{plan.scores[i].token_index, ~static_cast<int32_t>(i)});
  std::sort(rows_.begin(), rows_.end(), [](const LogitRow& a, const LogitRow& b) {
    return a.token != b.token ? a.token < b.token : a.index < b.index;
  });
  if (rows_.empty()) {
    (void)masks();
    return;
  }
  const Cut head = head_cut(), first = qkv_cut(model_->layer(0));
  const int64_t hidden = desc_.hidden;
  for (size_t begin = 0; begin < rows_.size();) {
    // The residual rows move to the front of the norm buffer; tokens_ counts them, so that products see a batch.
    int64_t distinct = 0;
    size_t end = begin;
    int64_t place[StepWorkspace::head_rows];
    for (; end < rows_.size(); ++end) {
      const bool fresh = end == begin || rows_[end].token != rows_[end - 1].token;
      if (fresh && distinct == space_.logit_rows) break;
      if (fresh) place[distinct++] = rows_[end].token;
    }
    tokens_ = distinct;
    for (int64_t i = 0; i < distinct; ++i)
      ops_.rms_norm(space_.x + place[i] * hidden, model_->output_norm(), desc_.norm_eps, hidden,
                    space_.norm + i * hidden);
    with_prepared(space_.norm, hidden, nullptr, head, head.tasks, [&](int64_t task, int thread, const Prepared& prepared) {
      const Piece p = head.at(task);
      multiply(isa_, p.matrix, prepared.of(activation_kind(isa_, p.matrix.type)), distinct, space_.logits,
               space_.vocab_stride, p.first, p.last, behind(head, task, thread, first));
    });
    if (begin == 0 && !masks()) return;
    const auto result = [&](int64_t task, int thread) {
      const LogitRow& r = rows_[begin + static_cast<size_t>(task)];
      int64_t i = 0;
      while (place[i] != r.token) ++i;
      row(plan, r, space_.logits + i * space_.vocab_stride, thread);
    };
    if (end - begin == 1) result(0, 0);
    else phase(static_cast<int64_t>(end - begin), [](int) {}, result);
    begin = end;
  }
  // Of several rows of one slot the last stays: what the slot's token -1 stands for.
  for (size_t i = 0; i < plan.samples.size(); ++i) {
    Slot& slot = slots_[static_cast<size_t>(plan.samples[i].slot)];
    const mr_row_result& r = plan.sample_results[i];
    slot.sampled_status = r.status;
    slot.sampled = r.status == MR_ROW_OK ? r.token : 0;
  }
}

void StepForward::row(StepPlan& plan, const LogitRow& r, const float* logits, int thread) {
  const bool sample = r.index >= 0;
  SamplerSpace& space = samplers_[static_cast<size_t>(thread)];
  mr_row_result& out = sample ? plan.sample_results[static_cast<size_t>(r.index)]
                              : plan.score_results[static_cast<size_t>(~r.index)];
  out.slot = out.position = -1;
  int32_t top_n = 0, status = poison_[static_cast<size_t>(r.token)];
  if (sample) {
    const mr_sample_row& s = plan.samples[static_cast<size_t>(r.index)];
    out.slot = s.slot;
    out.position = s.position;
    top_n = slots_[static_cast<size_t>(s.slot)].params.top_n;
    if (r.index == plan.nan_row) status = MR_ROW_NAN;
  } else {
    top_n = plan.scores[static_cast<size_t>(~r.index)].top_n;
  }
  RowStats stats{status, 0, 0};
  if (status == MR_ROW_OK) stats = row_stats(ops_, logits, desc_.vocab);
  out.status = stats.status;
  if (stats.status != MR_ROW_OK) return;
  if (sample) {
    const mr_sample_row& s = plan.samples[static_cast<size_t>(r.index)];
    const Slot& slot = slots_[static_cast<size_t>(s.slot)];
    const uint32_t* mask = s.mask_offset < 0 ? nullptr : plan.masks.data() + s.mask_offset;
    out.token = choose_token(ops_, Choice{logits, desc_.vocab, mask, &slot.params, slot.history,
                                          std::min(slot.length, s.position), s.position}, space);
    if (out.token < 0) {
      out.token = 0;
      out.status = MR_ROW_EMPTY;
      return;
    }
  } else {
    out.token = plan.scores[static_cast<size_t>(~r.index)].target;
  }
  out.count = 1;
  out.logprob = stats.logprob(logits[out.token]);
  out.rank = row_rank(ops_, logits, desc_.vocab, out.token);
  out.candidate_count = best_tokens(ops_, logits, desc_.vocab, top_n, stats, space,
                                    plan.candidates.data() + out.candidate_offset);
}

// Every weight once, the embedding by row; keys and values of every position a segment sees.
void StepForward::read_bytes(StepPlan& plan) const {
  uint64_t bytes = 0;
  for (int32_t i = 0; i < desc_.layers; ++i) {
    const Layer& l = model_->layer(i);
    for (const Matrix* m : {l.q, l.k, l.v, l.o, l.gate, l.up, l.down}) bytes += m->bytes;
    bytes += 2 * sizeof(float) * static_cast<uint64_t>(desc_.hidden);
  }
  if (!rows_.empty()) bytes += model_->head().bytes;
  bytes += plan.tokens.size() * (model_->embedding().bytes / static_cast<uint64_t>(desc_.vocab));
  const uint64_t position = 2 * static_cast<uint64_t>(desc_.layers) * static_cast<uint64_t>(desc_.kv_heads) *
                            static_cast<uint64_t>(desc_.head_dim) * static_cast<uint64_t>(kv_.layout().element());
  for (const mr_segment& s : plan.segments)
    bytes += position * (static_cast<uint64_t>(s.first_position) + static_cast<uint64_t>(s.count));
  plan.bytes_read = bytes;
}

}  // namespace mr::cpu
