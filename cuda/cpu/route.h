// route: which experts a row uses, and with which weights, as mr_experts_desc has it.
#pragma once

#include <cstdint>

#include "millrace/engine.h"
#include "vecops.h"

namespace mr::cpu {

struct RoutedExpert {
  int32_t expert;
  float weight;
};

// Scratch memory of one thread.
struct RouteSpace {
  float* scores;   // (experts)
  int32_t* ids;    // (experts)
  float* groups;   // (experts)
};

// Fills out[used] by ascending id. logits has `count` numbers and holds the weights of all experts afterwards; bias is null without a
// choice bias.
void route(const VecOps& ops, const mr_experts_desc& experts, const float* bias, float* logits, const RouteSpace& space,
           RoutedExpert* out);

// 1 / (1 + exp(-a)) of n numbers, in place.
void sigmoid(const VecOps& ops, float* a, int64_t n);

}  // namespace mr::cpu
