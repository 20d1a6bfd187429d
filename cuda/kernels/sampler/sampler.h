// sampler: from rows of logits to tokens, logprobs, ranks and candidates, on the device.
//
// The rules are those of cpu/sampler.h, and equal f32 logits give the same token as on the CPU: exponentials are the
// same sequence of f32 operations, masses are integers in units of 2^-40, so that their sums are exact in any order,
// and draws use the same Philox counters. Only typical-p may differ from the CPU, if two tokens are equally typical to
// 2e-9, because the row's entropy is a sum of integers in units of 2^-46. Log-sums are sums of integers in units of
// 2^-44. No row's result depends on another row.
//
// A top-k or top-p filter needs a sorted order, but sorting 128 000 logits for each row would take longer than the rest
// of the step's tail. Instead a histogram finds the bins in which the bound lies, and only the tokens of these bins are
// compared (space.cuh describes the four kernels).
#pragma once

#include <cstdint>

#include "kernels/launch.h"
#include "kernels/sampler/state.h"
#include "millrace/engine.h"

namespace mr::cuda {

enum : int32_t {
  kJobNone = 0,    // padding: writes nothing
  kJobSample = 1,
  kJobScore = 2,
};
enum : uint32_t {
  kJobFeeds = 1,     // the slot's last sample row of the step: its token becomes the slot's token -1
  kJobNanFault = 2,  // the row is treated as if it had a NaN
};

// One sample or score row, in device memory.
struct SampleJob {
  int32_t kind;              // kJob*
  uint32_t flags;
  int32_t row;               // of the step, whose NaN flag applies
  int32_t logits_row;
  int32_t slot;              // sample: whose parameters; reported in the result
  int32_t position;          // sample: of the token to choose
  int32_t history_length;    // sample: tokens of history before `position`: min(slot's length, position)
  int32_t mask_offset;       // sample: first word in masks, or -1
  int32_t target;            // score: the token to score
  int32_t top_n;             // candidates wanted
  int32_t candidate_offset;  // index of the first one in candidates
  int32_t reserved;
};

// The largest vocabulary. The sums of a row are at most 2^19 exponentials of 2^44, 2^19 masses of 2^40, and 2^19 surprises of
// 2^46 / e, which is 2^63.6: twice as many tokens would overflow 64 bits.
constexpr int32_t kMostVocab = 1 << 19;

struct SampleArgs {
  const SampleJob* jobs;      // (job_count)
  int32_t job_count;          // jobs, padding (kJobNone) included
  const float* logits;        // (rows, logits_stride)
  int64_t logits_stride;      // floats; a multiple of 4
  int32_t vocab;              // 1 .. kMostVocab
  const int32_t* nan_flags;      // by row of the step, from launch_begin; null: none
  const uint32_t* masks;      // read by jobs whose mask_offset is not -1; null when none has one
  SlotTables slots;
  mr_row_result* results;     // (job_count)
  mr_candidate* candidates;
  void* workspace;            // sampler_bytes(...) bytes, 256-byte aligned, zeroed once before its first use
  int32_t workspace_jobs;     // as given to sampler_bytes; >= job_count
};
// Score rows and rows of several slots may share one row of logits. The results of padding jobs are not written. The
// kernel or copy just before this on the stream must not write jobs or slot parameters, unless this is launched without
// overlap (launch.h).
cudaError_t launch_sample(const SampleArgs& args, const Stream& on);

int64_t sampler_bytes(int32_t jobs, int32_t vocab);

}  // namespace mr::cuda
