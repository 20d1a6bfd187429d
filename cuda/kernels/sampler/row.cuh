// sampler/row: one job of the sampler as its kernels see it: which rules apply, where its logits are, and the order of
// tokens.
#pragma once

#include <cmath>

#include "kernels/math.cuh"
#include "kernels/sampler/space.cuh"

namespace mr::cuda {

// Rules is which rules apply to a job.
struct Rules {
  bool processed;  // processed logits differ from the raw ones
  bool penalised;
  bool suppressed;
  bool draws;      // temperature > 0
  bool top_k, typical, top_p;

  __device__ __forceinline__ bool filtered() const { return top_k || typical || top_p; }
};

__device__ __forceinline__ Rules rules_of(const SampleArgs& a, const SampleJob& job, const SlotParams& p) {
  Rules r{};
  if (job.kind != kJobSample) return r;
  r.penalised = p.penalty_window != 0 &&
                (p.repetition_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0);
  r.suppressed = p.has_suppressed && job.position - p.prompt_length < p.min_tokens;
  r.processed = r.penalised || p.bias_count > 0 || r.suppressed || !p.all_allowed || job.mask_offset >= 0;
  r.draws = p.temperature > 0;
  r.top_k = r.draws && p.top_k > 0 && p.top_k < a.vocab;
  r.typical = r.draws && p.typical_p < 1;
  r.top_p = r.draws && p.top_p < 1;
  return r;
}

// Returns whether the row has a NaN flag; then its logits are not read.
__device__ __forceinline__ bool has_nan(const SampleArgs& a, const SampleJob& job) {
  return (job.flags & kJobNanFault) != 0 || (a.nan_flags != nullptr && a.nan_flags[job.row] != MR_ROW_OK);
}

__device__ __forceinline__ SlotParams params_of(const SampleArgs& a, const SampleJob& job) {
  return job.kind == kJobSample ? a.slots.params[job.slot] : SlotParams{};
}

__device__ __forceinline__ const float* raw_row(const SampleArgs& a, const SampleJob& job) {
  return a.logits + job.logits_row * a.logits_stride;
}

// Returns bits that ascend with x, which must not be NaN; -0 equals 0.
__device__ __forceinline__ uint32_t ascending(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}
__device__ __forceinline__ float from_ascending(uint32_t bits) {
  return __uint_as_float(bits ^ ((bits >> 31) != 0 ? 0x80000000u : 0xffffffffu));
}

// A key ascends for descending x, then for ascending id, so the best token has the least key.
constexpr int kIdBits = 19;
static_assert(kMostVocab <= 1 << kIdBits, "a key has room for every id");
constexpr uint64_t kNoKey = ~0ull;
__device__ __forceinline__ uint64_t best_first(float x, int32_t id) {
  return static_cast<uint64_t>(~ascending(x)) << kIdBits | static_cast<uint32_t>(id);
}
__device__ __forceinline__ int32_t id_of(uint64_t key) { return static_cast<int32_t>(key & ((1u << kIdBits) - 1)); }

// A listed token: its logit above its id.
__device__ __forceinline__ uint64_t token_of(float x, int32_t id) {
  return static_cast<uint64_t>(__float_as_uint(x)) << 32 | static_cast<uint32_t>(id);
}
__device__ __forceinline__ float logit_of(uint64_t token) { return __uint_as_float(static_cast<uint32_t>(token >> 32)); }
__device__ __forceinline__ int32_t token_id(uint64_t token) { return static_cast<int32_t>(token & 0xffffffffu); }

__device__ __forceinline__ const float* processed_row(const SampleKernelArgs& k, int32_t index, const Rules& rules,
                                                      const float* raw) {
  return rules.processed ? k.space.processed + index * k.space.stride : raw;
}

}  // namespace mr::cuda
