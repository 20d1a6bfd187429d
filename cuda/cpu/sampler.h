// sampler: from one row of logits to a token, its logprob and rank.
//
// The rules, all deterministic and independent of threads and of other rows:
//   Order      mask, allowed, suppressed, bias, penalties (repetition, then frequency and presence) give the processed
//              logits; -inf forbids a token. Temperature 0 takes the greatest, the lowest id among equals.
//   Weights    w = exp((x - greatest x) / temperature) in f32; masses are w * 2^40 rounded to nearest even, as integers,
//              so that their sums are exact in any order. A token of mass 0 is never drawn.
//   Filters    top-k keeps the k greatest; typical-p, of those left, the least |-ln p - entropy| until their mass reaches
//              typical_p of it; top-p the most probable until their mass reaches top_p of it; min-p those with w >=
//              min_p * greatest w. Each works on the tokens that the previous filter kept, renormalised. The
//              lowest id goes first among equals. At least one token is kept.
//   Draw       t = floor(r * total / 2^64) with r = random_bits(seed, position, output_index, random_sample); the token
//              is the first, in ascending order of ids, at which the running sum of kept masses exceeds t.
//   +infinity  Tokens with an infinite logit share the whole probability.
#pragma once

#include <cstdint>

#include "ledger.h"
#include "millrace/engine.h"
#include "slot.h"
#include "vecops.h"

namespace mr::cpu {

// Statistics of a row's raw logits, computed once for all of its uses.
struct RowStats {
  int32_t status;  // MR_ROW_OK, MR_ROW_NAN, or MR_ROW_EMPTY when every logit is -inf
  float greatest;
  double log_sum;  // ln of the sum of exp(logit - greatest); of the number of infinite logits when greatest is +inf

  float logprob(float logit) const;
};

RowStats row_stats(const VecOps& ops, const float* logits, int32_t vocab);

// 1 + tokens with a greater logit + those of lower id with an equal one.
int32_t row_rank(const VecOps& ops, const float* logits, int32_t vocab, int32_t token);

// What choosing works in: one for each thread.
class SamplerSpace {
 public:
  static uint64_t bytes(int32_t vocab);
  SamplerSpace(void* memory, int32_t vocab);  // bytes(vocab) bytes, 64-byte aligned, that outlive the object

  struct Entry {
    uint64_t key;   // sorts ascending, best first; the low half is the token id
    uint64_t mass;
  };
  float* processed;  // vocab each
  float* weights;
  Entry* entries;
  uint64_t* keys;
  int32_t* counts;   // all zero between calls
};

struct Choice {
  const float* logits;
  int32_t vocab;
  const uint32_t* mask;     // ceil(vocab/32) words, or null
  const SlotParams* params;
  const int32_t* history;   // the tokens before `position`
  int32_t history_length;
  int32_t position;         // of the token to be chosen
};

// The token, or -1 when none is left to choose from. The logits hold no NaN.
int32_t choose_token(const VecOps& ops, const Choice& choice, SamplerSpace& space);

// The `count` best tokens of a row with their raw logprobs, best first, lowest id among equals; gives how many there are.
int32_t best_tokens(const VecOps& ops, const float* logits, int32_t vocab, int32_t count, const RowStats& stats,
                    SamplerSpace& space, mr_candidate* out);

}  // namespace mr::cpu
