#pragma GCC optimize("fp-contract=off")
// step_attention: the attention of one layer, from its products of Q, K and V to what O reads.
#include <algorithm>

#include "mathfn.h"
#include "route.h"
#include "step_forward.h"
#include "step_phase.h"

namespace mr::cpu {
namespace {

// The factor of Q at a position.
float attention_temperature(const mr_mixer_desc& m, int32_t position) {
  return static_cast<float>(1 + double{m.temperature_scale} * log_f64(1 + position / m.temperature_length));
}

}  // namespace

// Q, K and V of the normed residual, then attention. `o` is the product after it.
void StepForward::mix(const StepPlan& plan, int32_t index, const Cut& o) {
  const Layer& l = model_->layer(index);
  const mr_mixer_desc& m = desc_.mixer(index);
  // The tasks of the products follow one another. A task of whole heads finishes them while they are in its cache, unless a norm
  // needs the whole row first.
  float* const outputs[3] = {space_.qkv, space_.qkv + query_width(m), space_.qkv + query_width(m) + key_width(m)};
  const bool by_row = (m.flags & MR_MIX_QK_ROW_NORM) != 0;
  const bool whole = m.key_dim % panel_rows == 0 && !by_row;
  const Cut qkv = mix_cut(index);
  with_prepared(space_.x, desc_.hidden, l.attn_norm, qkv, qkv.tasks, [&](int64_t task, int thread, const Prepared& prepared) {
    const Piece p = qkv.at(task);
    multiply(isa_, p.matrix, prepared.of(activation_kind(isa_, p.matrix.type)), tokens_, outputs[p.index],
             space_.qkv_width, p.first, p.last, weights_after(qkv, task, thread, o));
    if (!whole) return;
    const int64_t head_panels = (p.index == 0 ? query_stride(m) : m.key_dim) / panel_rows;
    for (int64_t h = p.first / head_panels; h < p.last / head_panels; ++h)
      finish_head(plan, index, static_cast<Part>(p.index), static_cast<int32_t>(h));
  });
  if (by_row) norm_rows(index);
  if (!whole) {
    const int64_t heads = m.heads, keys = l.k == nullptr ? 0 : m.kv_heads, values = l.v == nullptr ? 0 : m.kv_heads;
    phase(heads + keys + values, [](int) {}, [&](int64_t task, int) {
      const Part part = task < heads ? Part::query : task < heads + keys ? Part::key : Part::value;
      const int64_t before = part == Part::query ? 0 : part == Part::key ? heads : heads + keys;
      finish_head(plan, index, part, static_cast<int32_t>(task - before));
    });
  }
  attend(plan, index, 0, tokens_);
  if (gated_output(m)) gate_outputs(m);
}

// Multiplies the outputs of attention by the gates of its heads, which lie next to them in Q.
void StepForward::gate_outputs(const mr_mixer_desc& m) {
  each_token([&](int64_t t) {
    for (int32_t h = 0; h < m.heads; ++h) {
      float* const gate = space_.qkv + t * space_.qkv_width + int64_t{h} * query_stride(m) + m.key_dim;
      float* const out = space_.attention + t * attended_width(m) + int64_t{h} * m.value_dim;
      sigmoid(ops_, gate, m.value_dim);
      ops_.mul(out, gate, m.value_dim, out);
    }
  });
}

// Biases and norms of whole rows of Q and K.
void StepForward::norm_rows(int32_t index) {
  const Layer& l = model_->layer(index);
  const mr_mixer_desc& m = desc_.mixer(index);
  each_token([&](int64_t t) {
    float* const q = space_.qkv + t * space_.qkv_width;
    float* const k = q + query_width(m);
    float* const v = k + key_width(m);
    const auto row = [&](float* x, int64_t width, const float* bias, const float* norm) {
      if (bias != nullptr) ops_.add(x, bias, width, x);
      if (norm != nullptr) ops_.rms_norm(x, norm, desc_.norm_eps, width, x);
    };
    row(q, query_width(m), l.q_bias, l.q_norm);
    if (l.k == nullptr) return;
    row(k, key_width(m), l.k_bias, nullptr);
    if ((m.flags & MR_MIX_VALUE_IS_KEY) != 0) std::copy(k, k + key_width(m), v);
    row(k, key_width(m), nullptr, l.k_norm);
  });
}

// Bias, norm and rotation of one head of all tokens; keys and values go into the cache. Where a norm is by row, norm_rows has done
// the biases and norms of Q and K.
void StepForward::finish_head(const StepPlan& plan, int32_t index, Part part, int32_t head) {
  const Layer& l = model_->layer(index);
  const mr_mixer_desc& m = desc_.mixer(index);
  const KvLayout& layout = kv_.layout(index);
  const int32_t dim = m.key_dim;
  const bool by_row = (m.flags & MR_MIX_QK_ROW_NORM) != 0, done = by_row && part != Part::value;
  const bool value_is_key = part == Part::key && (m.flags & MR_MIX_VALUE_IS_KEY) != 0, norms_value = (m.flags & MR_MIX_V_NORM) != 0;
  const int64_t first = part == Part::query ? 0 : part == Part::key ? query_width(m) : query_width(m) + key_width(m);
  const int32_t stride = part == Part::query ? query_stride(m) : dim;  // from head to head
  const float* bias = done ? nullptr : part == Part::query ? l.q_bias : part == Part::key ? l.k_bias : l.v_bias;
  const float* const norm = done || part == Part::value ? nullptr : part == Part::query ? l.q_norm : l.k_norm;
  const Rope* const rope = part == Part::value || m.rope < 0 ? nullptr : &desc_.ropes[static_cast<size_t>(m.rope)];
  const float* rotations = rope == nullptr ? nullptr : space_.rotations + rope_at_[static_cast<size_t>(m.rope)];
  if (bias != nullptr) bias += static_cast<int64_t>(head) * stride;
  float* x = space_.qkv + first + int64_t{head} * stride;
  int32_t token = 0;
  const auto store = [&](const float* key, const float* value, int32_t block, int32_t offset) {
    ops_.kv_store(key, value, layout, block, offset, head, kv_.keys(index), kv_.values(index));
  };
  for (const mr_segment& s : plan.segments) {
    const int32_t* const blocks = block_table(plan, s, index);
    for (int32_t position = s.first_position; position < s.first_position + s.count; ++position, ++token) {
      const int32_t block = blocks[position / config_.block_size], offset = position % config_.block_size;
      if (bias != nullptr) ops_.add(x, bias, stride, x);
      if (value_is_key) {
        float* const v = x + int64_t{m.kv_heads} * dim;
        if (!by_row) std::copy(x, x + dim, v);
        if (norms_value) ops_.rms_norm(v, nullptr, desc_.norm_eps, dim, v);
        store(nullptr, v, block, offset);
      }
      if (norm != nullptr) ops_.rms_norm(x, norm, desc_.norm_eps, dim, x);
      if (rope != nullptr) ops_.rope(x, rotations + token * space_.rotation_width, rope->dims, rope->style);
      if (part == Part::query && m.temperature_scale != 0) ops_.scale(x, attention_temperature(m, position), dim, x);
      if (part == Part::key) store(x, nullptr, block, offset);
      if (part == Part::value) {
        if (norms_value) ops_.rms_norm(x, nullptr, desc_.norm_eps, dim, x);
        store(nullptr, x, block, offset);
      }
      x += space_.qkv_width;
    }
  }
}

const int32_t* StepForward::block_table(const StepPlan& plan, const mr_segment& segment, int32_t index) const {
  return plan.block_ids.data() + (kv_.windowed(index) ? segment.window_block_offset : segment.block_offset);
}

AttentionArgs StepForward::attention_of(const StepPlan& plan, const Tile& tile, int32_t part, int32_t index, int thread) {
  const auto& own = space_.threads[static_cast<size_t>(thread)];
  const mr_mixer_desc& m = desc_.mixer(index);
  const int32_t dim = m.key_dim, group = m.heads / attention_parts(m), padded = kv_.layout(index).padded_dim;
  const int64_t out_width = attended_width(m);
  int32_t rows = 0;
  for (int32_t t = tile.token; t < tile.token + tile.count; ++t)
    for (int32_t h = part * group; h < (part + 1) * group; ++h, ++rows) {
      if (by_latent(m)) {
        own.q[rows] = own.out[rows] = space_.latent_rows + ((t - tiled_first_) * m.heads + h) * padded;
      } else {
        own.q[rows] = space_.qkv + t * space_.qkv_width + static_cast<int64_t>(h) * query_stride(m);
        own.out[rows] = space_.attention + t * out_width + static_cast<int64_t>(h) * dim;
      }
      own.first[rows] = first_key(t, m);
      own.visible[rows] = end_key(tile, t, m);
    }
  AttentionArgs args;
  args.q = own.q;
  args.out = own.out;
  args.visible = own.visible;
  args.rows = rows;
  args.scale = attention_scale(m);
  args.cap = m.score_cap;
  args.first = own.first;
  args.sinks = model_->layer(index).sinks;
  if (args.sinks != nullptr) args.sinks += int64_t{part} * group;
  args.group = group;
  args.layout = kv_.layout(index);
  args.kv_head = by_latent(m) ? 0 : part;
  args.blocks = block_table(plan, plan.segments[static_cast<size_t>(tile.segment)], index);
  args.keys = kv_.keys(index);
  args.values = kv_.values(index);
  args.scratch = own.attention;
  return args;
}

// The attention of tokens [first, last).
void StepForward::attend(const StepPlan& plan, int32_t index, int64_t first, int64_t last) {
  const int64_t parts = attention_parts(desc_.mixer(index));
  cut_tiles(plan, desc_.mixer(index), first, last);
  for (const Tile& tile : long_tiles_) attend_in_chunks(plan, tile, index);
  phase(static_cast<int64_t>(tiles_.size()) * parts, [](int) {}, [&](int64_t task, int thread) {
    ops_.attend(attention_of(plan, tiles_[static_cast<size_t>(task / parts)], static_cast<int32_t>(task % parts), index, thread));
  });
}

// As many chunks at a time as there is room for: of each part a state, and the records of the chunks after it.
void StepForward::attend_in_chunks(const StepPlan& plan, const Tile& tile, int32_t index) {
  const mr_mixer_desc& m = desc_.mixer(index);
  const int64_t parts = attention_parts(m);
  const int64_t record = attention_record(tile.count * (m.heads / parts), kv_.layout(index).padded_value());
  const int32_t end = attention_chunks(end_of(tile, m)), begin = end - chunks_of(tile, m);
  const int32_t room = static_cast<int32_t>(std::min<int64_t>(space_.chunk_floats / parts / record - 1, end - begin));
  const auto state = [&](int64_t part) { return space_.chunks + part * (room + 1) * record; };
  for (int32_t from = begin; from < end; from += room) {
    const int32_t to = std::min(end, from + room);
    phase((to - from) * parts, [](int) {}, [&](int64_t task, int thread) {
      const int32_t part = static_cast<int32_t>(task / (to - from)), chunk = static_cast<int32_t>(task % (to - from));
      ops_.attend_chunks(attention_of(plan, tile, part, index, thread), from + chunk, from + chunk + 1,
                         state(part) + (1 + chunk) * record);
    });
    phase(parts, [](int) {}, [&](int64_t part, int thread) {
      ops_.merge_chunks(attention_of(plan, tile, static_cast<int32_t>(part), index, thread), from, to, state(part) + record,
                        state(part));
    });
  }
}

// Cuts tokens [first, last) of the step into tiles for a layer's attention. Layers whose heads are grouped alike and whose tokens see the
// same positions share the tiles; which tokens make a tile changes no bit.
void StepForward::cut_tiles(const StepPlan& plan, const mr_mixer_desc& m, int64_t first, int64_t last) {
  const int32_t parts = attention_parts(m), group = m.heads / parts;
  if (tiled_ != nullptr && tiled_->heads == m.heads && attention_parts(*tiled_) == parts && tiled_->window == m.window &&
      tiled_first_ == first && tiled_last_ == last && ((tiled_->flags ^ m.flags) & MR_MIX_BIDIRECTIONAL) == 0)
    return;
  tiled_ = &m;
  tiled_first_ = first;
  tiled_last_ = last;
  const int32_t tile = std::max(1, space_.tile_rows / group);
  tiles_.clear();
  int32_t at = 0;
  for (int32_t i = 0; i < static_cast<int32_t>(plan.segments.size()); ++i) {
    const mr_segment& s = plan.segments[static_cast<size_t>(i)];
    const int32_t begin = static_cast<int32_t>(std::max<int64_t>(first, at));
    const int32_t end = static_cast<int32_t>(std::min<int64_t>(last, at + s.count));
    for (int32_t t = begin; t < end; t += tile) tiles_.push_back(Tile{i, t, std::min(tile, end - t), s.first_position + s.count});
    at += s.count;
  }
  std::sort(tiles_.begin(), tiles_.end(), [this](const Tile& a, const Tile& b) {
    const int32_t pa = positions_[static_cast<size_t>(a.token)], pb = positions_[static_cast<size_t>(b.token)];
    return pa != pb ? pa > pb : a.token < b.token;
  });
  share_long_tiles(m);
}

// The first position that a token sees.
int32_t StepForward::first_key(int32_t token, const mr_mixer_desc& m) const {
  const int32_t position = positions_[static_cast<size_t>(token)];
  return m.window == 0 || position < m.window ? 0 : position + 1 - m.window;
}

// The end of the positions that a token of a tile sees.
int32_t StepForward::end_key(const Tile& tile, int32_t token, const mr_mixer_desc& m) const {
  const int32_t position = positions_[static_cast<size_t>(token)];
  if ((m.flags & MR_MIX_BIDIRECTIONAL) == 0) return position + 1;
  return m.window == 0 ? tile.end : std::min(tile.end, position + m.window);
}

int32_t StepForward::end_of(const Tile& tile, const mr_mixer_desc& m) const { return end_key(tile, tile.token + tile.count - 1, m); }

// Chunks of keys that the rows of a tile see.
int32_t StepForward::chunks_of(const Tile& tile, const mr_mixer_desc& m) const {
  return attention_chunks(end_of(tile, m)) - first_key(tile.token, m) / attention_chunk;
}

// A tile's head is the least that one thread attends to, unless that is too much of the step's attention: then the threads share
// its chunks. A single token behind a long prefix is the common case.
void StepForward::share_long_tiles(const mr_mixer_desc& m) {
  long_tiles_.clear();
  if (space_.chunk_floats == 0) return;
  const auto cost = [&](const Tile& tile) { return int64_t{tile.count} * chunks_of(tile, m); };
  int64_t all = 0;
  for (const Tile& tile : tiles_) all += cost(tile) * attention_parts(m);
  const auto shared = [&](const Tile& tile) {
    return chunks_of(tile, m) >= StepWorkspace::shared_chunks && cost(tile) * StepWorkspace::shared_parts * threads_.size() > all;
  };
  for (const Tile& tile : tiles_)
    if (shared(tile)) long_tiles_.push_back(tile);
  tiles_.erase(std::remove_if(tiles_.begin(), tiles_.end(), shared), tiles_.end());
}

}  // namespace mr::cpu
