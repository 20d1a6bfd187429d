#pragma GCC optimize("fp-contract=off")
// step_latent: attention over a latent that all heads share, in its absorbed form. The part of a head's query that is not rotated is
// multiplied by K_UP, so that its scores are products with latents, and the weighted sum of latents by V_UP. Both classes do the same
// and read the same cache: keys and values of heads are never made from it.
#include <algorithm>

#include "step_forward.h"
#include "step_phase.h"

namespace mr::cpu {

// `o` is the product after it.
void StepForward::latent_attention(const StepPlan& plan, int32_t index, const Cut& o) {
  const Layer& l = model_->layer(index);
  const mr_mixer_desc& m = desc_.mixer(index);
  const bool direct = l.q_up == nullptr;
  float* const outputs[] = {direct ? space_.qkv : space_.query_latents, space_.qkv + query_width(m)};
  const int64_t widths[] = {direct ? space_.qkv_width : m.query_latent, space_.qkv_width};
  const Cut up = direct ? o : cut(l.q_up);
  mix_products(index, mix_cut(index), outputs, widths, up);
  store_latents(index);
  if (!direct)
    with_prepared(space_.query_latents, m.query_latent, l.q_latent_norm, up, up.tasks,
                  [&](int64_t task, int thread, const Prepared& prepared) {
      const Piece p = up.at(task);
      multiply(isa_, p.matrix, prepared.of(activation_kind(isa_, p.matrix.type)), tokens_, space_.qkv, space_.qkv_width, p.first, p.last,
               weights_after(up, task, thread, o));
    });
  // Queries of latents are several times as wide as others, so a bounded number of tokens has room.
  for (int64_t first = 0; first < tokens_; first += space_.latent_tokens) {
    const int64_t last = std::min(tokens_, first + space_.latent_tokens);
    absorb(index, first, last);
    attend(plan, index, first, last);
    give_values(index, first, last);
  }
}

// Norms the latents of all tokens, rotates their keys, and stores both in the cache.
void StepForward::store_latents(int32_t index) {
  const mr_mixer_desc& m = desc_.mixer(index);
  const Rope& rope = desc_.ropes[static_cast<size_t>(m.rope)];
  each_token([&](int64_t t) {
    float* const row = space_.qkv + t * space_.qkv_width + query_width(m);
    ops_.rms_norm(row, model_->layer(index).kv_latent_norm, desc_.norm_eps, m.latent, row);
    ops_.rope(row + m.latent, rotations_of(m, t), rope.dims, rope.style);
    ops_.kv_store(nullptr, row, kv_.layout(index), token_block_[static_cast<size_t>(t)],
                  positions_[static_cast<size_t>(t)] % config_.block_size, 0, kv_.keys(index), kv_.keys(index));
  });
}

const float* StepForward::rotations_of(const mr_mixer_desc& m, int64_t token) const {
  return space_.rotations + token * space_.rotation_width + rope_at_[static_cast<size_t>(m.rope)];
}

// Calls body(head, first token, tokens, thread) for all heads and tokens [first, last), on all threads.
template <class Body>
void StepForward::each_head(const mr_mixer_desc& m, int64_t first, int64_t last, Body body) {
  constexpr int64_t grain = StepWorkspace::head_tokens;
  const int64_t pieces = (last - first + grain - 1) / grain;
  phase(pieces * m.heads, [](int) {}, [&](int64_t task, int thread) {
    const int64_t token = first + task % pieces * grain;
    body(static_cast<int32_t>(task / pieces), token, std::min(grain, last - token), thread);
  });
}

// y = the rows of x times the matrix of a head.
void StepForward::head_product(const Matrix* stack, int32_t head, const float* x, int64_t ldx, int64_t tokens, float* y, int64_t ldy,
                               int thread) const {
  const Matrix& matrix = stack[head];
  const Activation kind = activation_kind(isa_, matrix.type);
  uint8_t* const act = space_.threads[static_cast<size_t>(thread)].head_rows.of(kind);
  prepare_activations(isa_, kind, x, ldx, matrix.in, tokens, 0, tokens, act);
  multiply(isa_, matrix, act, tokens, y, ldy, 0, panels(matrix.out), begin_of(matrix, 0));
}

// Makes the queries of latents of tokens [first, last).
void StepForward::absorb(int32_t index, int64_t first, int64_t last) {
  const mr_mixer_desc& m = desc_.mixer(index);
  const Rope& rope = desc_.ropes[static_cast<size_t>(m.rope)];
  const int32_t plain = m.key_dim - rope.dims, padded = kv_.layout(index).padded_dim;
  const int64_t width = int64_t{m.heads} * padded;
  each_head(m, first, last, [&](int32_t head, int64_t token, int64_t tokens, int thread) {
    const float* const q = space_.qkv + token * space_.qkv_width + int64_t{head} * m.key_dim;
    float* const to = space_.latent_rows + (token - first) * width + int64_t{head} * padded;
    head_product(model_->layer(index).k_up, head, q, space_.qkv_width, tokens, to, width, thread);
    for (int64_t t = 0; t < tokens; ++t) {
      const float* const part = q + t * space_.qkv_width + plain;
      float* const row = to + t * width;
      std::copy(part, part + rope.dims, row + m.latent);
      ops_.rope(row + m.latent, rotations_of(m, token + t), rope.dims, rope.style);
      std::fill(row + m.latent + rope.dims, row + padded, 0.0f);
    }
  });
}

// Multiplies what attention returned for tokens [first, last) by the values' matrices.
void StepForward::give_values(int32_t index, int64_t first, int64_t last) {
  const mr_mixer_desc& m = desc_.mixer(index);
  const int32_t padded = kv_.layout(index).padded_dim;
  const int64_t width = int64_t{m.heads} * padded, out = attended_width(m);
  each_head(m, first, last, [&](int32_t head, int64_t token, int64_t tokens, int thread) {
    head_product(model_->layer(index).v_up, head, space_.latent_rows + (token - first) * width + int64_t{head} * padded, width, tokens,
                 space_.attention + token * out + int64_t{head} * m.value_dim, out, thread);
  });
}

}  // namespace mr::cpu
