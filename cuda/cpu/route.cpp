#pragma GCC optimize("fp-contract=off")
#include "route.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace mr::cpu {
namespace {

constexpr float kLeastSum = 1e-20f;

// Moves the n ids of the greatest scores to the front; of equal ones those of the lowest id.
void best_first(const float* scores, int32_t* ids, int32_t count, int32_t n) {
  std::partial_sort(ids, ids + n, ids + count, [scores](int32_t a, int32_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  });
}

void count_up(int32_t* ids, int32_t n) {
  for (int32_t i = 0; i < n; ++i) ids[i] = i;
}

float group_score(const float* scores, int32_t size, bool best_two) {
  float first = -std::numeric_limits<float>::infinity(), second = first;
  for (int32_t i = 0; i < size; ++i) {
    second = std::max(second, std::min(first, scores[i]));
    first = std::max(first, scores[i]);
  }
  return best_two && size > 1 ? first + second : first;
}

bool has_nan(const float* a, int32_t n) {
  return std::any_of(a, a + n, [](float v) { return std::isnan(v); });
}

// Writes the ids of the experts that take part to space.ids and returns how many they are: 0 if the score of an expert or of a group is
// not a number. Biases of both infinities in a group make such a score, which no order has a place for.
int32_t taking_part(const mr_experts_desc& e, const RouteSpace& space) {
  if (has_nan(space.scores, e.count)) return 0;
  if (e.groups == 0) {
    count_up(space.ids, e.count);
    return e.count;
  }
  const int32_t size = e.count / e.groups;
  const bool best_two = (e.flags & MR_EXPERTS_GROUP_BEST_TWO) != 0;
  for (int32_t g = 0; g < e.groups; ++g) space.groups[g] = group_score(space.scores + g * size, size, best_two);
  if (has_nan(space.groups, e.groups)) return 0;
  count_up(space.ids, e.groups);
  best_first(space.groups, space.ids, e.groups, e.groups_used);
  std::sort(space.ids, space.ids + e.groups_used);
  // From the last group on, a group's experts lie where no group's id is still to be read.
  for (int32_t g = e.groups_used - 1; g >= 0; --g) {
    const int32_t first = space.ids[g] * size;
    for (int32_t i = size - 1; i >= 0; --i) space.ids[g * size + i] = first + i;
  }
  return e.groups_used * size;
}

}  // namespace

void sigmoid(const VecOps& ops, float* a, int64_t n) {
  ops.scale(a, -1, n, a);
  ops.exp(a, n, a);
  for (int64_t i = 0; i < n; ++i) a[i] = 1 / (1 + a[i]);
}

void route(const VecOps& ops, const mr_experts_desc& e, const float* bias, float* logits, const RouteSpace& space, RoutedExpert* out) {
  float* const weights = logits;
  if (e.gating == MR_GATE_SOFTMAX) ops.softmax(logits, e.count, weights);
  else sigmoid(ops, weights, e.count);
  if (bias == nullptr) std::copy(weights, weights + e.count, space.scores);
  else ops.add(weights, bias, e.count, space.scores);
  const int32_t candidates = taking_part(e, space);
  if (candidates == 0) {
    for (int32_t i = 0; i < e.used; ++i) out[i] = {i, std::numeric_limits<float>::quiet_NaN()};
    return;
  }
  best_first(space.scores, space.ids, candidates, e.used);
  std::sort(space.ids, space.ids + e.used);
  float sum = 0;
  for (int32_t i = 0; i < e.used; ++i) {
    out[i] = {space.ids[i], weights[space.ids[i]]};
    sum += out[i].weight;
  }
  if ((e.flags & MR_EXPERTS_RENORM) != 0)
    for (int32_t i = 0; i < e.used; ++i) out[i].weight /= std::max(sum, kLeastSum);
  if (e.weight_scale != 0)
    for (int32_t i = 0; i < e.used; ++i) out[i].weight *= e.weight_scale;
}

}  // namespace mr::cpu
