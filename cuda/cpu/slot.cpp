#include "slot.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "error.h"
#include "structs.h"

namespace mr {
namespace {

void check_int(const char* where, const char* field, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high)
    fail(MR_INVALID_ARGUMENT, "%s: %s is %lld, wanted %lld .. %lld", where, field, static_cast<long long>(value),
         static_cast<long long>(low), static_cast<long long>(high));
}

void check_float(const char* where, const char* field, float value, float low, float high) {
  if (!(value >= low && value <= high) || !std::isfinite(value))
    fail(MR_INVALID_ARGUMENT, "%s: %s is %g, wanted a finite number from %g to %g", where, field,
         static_cast<double>(value), static_cast<double>(low), static_cast<double>(high));
}

std::vector<int32_t> copy_ids(const char* where, const char* field, const int32_t* ids, int64_t count, int32_t vocab) {
  if (count > 0 && ids == nullptr) fail(MR_INVALID_ARGUMENT, "%s: %s is null with a count above 0", where, field);
  for (int64_t i = 0; i < count; ++i)
    if (ids[i] < 0 || ids[i] >= vocab)
      fail(MR_INVALID_ARGUMENT, "%s: %s[%lld] is %d, wanted 0 .. %d", where, field, static_cast<long long>(i), ids[i],
           vocab - 1);
  return std::vector<int32_t>(ids, ids + std::max<int64_t>(count, 0));
}

}  // namespace

SlotParams SlotParams::copy(const mr_slot_params& params, int32_t vocab, int32_t max_top_n, const char* where) {
  const mr_slot_params p = read_struct(&params, "mr_slot_params");
  constexpr float huge = std::numeric_limits<float>::max();
  constexpr int64_t many = INT32_MAX;
  check_int(where, "output_index", p.output_index, 0, many);
  check_int(where, "prompt_length", p.prompt_length, 0, many);
  check_int(where, "min_tokens", p.min_tokens, 0, many);
  check_int(where, "top_n", p.top_n, 0, max_top_n);
  check_float(where, "temperature", p.temperature, 0, huge);
  check_int(where, "top_k", p.top_k, 0, many);
  check_float(where, "top_p", p.top_p, 0, 1);
  check_float(where, "min_p", p.min_p, 0, 1);
  check_float(where, "typical_p", p.typical_p, 0, 1);
  check_float(where, "repetition_penalty", p.repetition_penalty, std::numeric_limits<float>::denorm_min(), huge);
  check_float(where, "presence_penalty", p.presence_penalty, -huge, huge);
  check_float(where, "frequency_penalty", p.frequency_penalty, -huge, huge);
  check_int(where, "penalty_window", p.penalty_window, -1, many);
  check_int(where, "bias_count", p.bias_count, 0, many);
  check_int(where, "allowed_count", p.allowed_count, -1, many);
  check_int(where, "suppressed_count", p.suppressed_count, 0, many);
  if (p.allowed_count == 0)
    fail(MR_INVALID_ARGUMENT, "%s: allowed_count is 0, which forbids every token; give -1 to allow all", where);
  if (p.bias_count > 0 && p.bias_values == nullptr)
    fail(MR_INVALID_ARGUMENT, "%s: bias_values is null with a count above 0", where);
  for (int32_t i = 0; i < p.bias_count; ++i)
    if (std::isnan(p.bias_values[i]) || p.bias_values[i] > huge)
      fail(MR_INVALID_ARGUMENT, "%s: bias_values[%d] is %g, wanted a finite number or -infinity", where, i,
           static_cast<double>(p.bias_values[i]));
  SlotParams s;
  s.seed = p.seed;
  s.output_index = p.output_index;
  s.prompt_length = p.prompt_length;
  s.min_tokens = p.min_tokens;
  s.top_n = p.top_n;
  s.temperature = p.temperature;
  s.top_k = p.top_k;
  s.top_p = p.top_p;
  s.min_p = p.min_p;
  s.typical_p = p.typical_p;
  s.repetition_penalty = p.repetition_penalty;
  s.presence_penalty = p.presence_penalty;
  s.frequency_penalty = p.frequency_penalty;
  s.penalty_window = p.penalty_window;
  s.all_allowed = p.allowed_count < 0;
  s.bias_ids = copy_ids(where, "bias_ids", p.bias_ids, p.bias_count, vocab);
  s.bias_values.assign(p.bias_values, p.bias_values + p.bias_count);
  s.allowed = copy_ids(where, "allowed_ids", p.allowed_ids, p.allowed_count, vocab);
  s.suppressed = copy_ids(where, "suppressed_ids", p.suppressed_ids, p.suppressed_count, vocab);
  return s;
}

}  // namespace mr
