// sampler_fixture: requests for the sampler, the device's answers, and the CPU sampler's answers to the same logits.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "cpu/isa.h"
#include "cpu/sampler.h"
#include "kernel_fixture.h"
#include "kernels/sampler/sampler.h"

namespace mr::cuda::testing {

constexpr int32_t kBiases = 16;

struct Request {
  mr::SlotParams params;
  std::vector<int32_t> history;
  int32_t position = 0, logits_row = 0, mask_offset = -1, row = 0;
  uint32_t flags = kJobFeeds;
  bool score = false;
  int32_t target = 0;
};

inline SlotParams device_params(const mr::SlotParams& p) {
  SlotParams d{};
  d.seed = p.seed;
  d.output_index = p.output_index;
  d.prompt_length = p.prompt_length;
  d.min_tokens = p.min_tokens;
  d.top_n = p.top_n;
  d.temperature = p.temperature;
  d.top_k = p.top_k;
  d.top_p = p.top_p;
  d.min_p = p.min_p;
  d.typical_p = p.typical_p;
  d.repetition_penalty = p.repetition_penalty;
  d.presence_penalty = p.presence_penalty;
  d.frequency_penalty = p.frequency_penalty;
  d.penalty_window = p.penalty_window;
  d.bias_count = static_cast<int32_t>(p.bias_ids.size());
  d.all_allowed = p.all_allowed;
  return d;
}

struct Answer {
  std::vector<mr_row_result> results;
  std::vector<mr_candidate> candidates;
  std::vector<SlotFeed> feeds;
};

// Runs one slot for each request; launches `repeats` times over one workspace and returns the last answer.
inline Answer sample(const std::vector<Request>& requests, const std::vector<float>& logits, int32_t vocab, int64_t stride,
                     const std::vector<uint32_t>& masks, const std::vector<int32_t>& nan_flags, int repeats = 2) {
  const int32_t count = static_cast<int32_t>(requests.size()), words = (vocab + 31) / 32;
  int32_t longest = 1;
  for (const Request& r : requests) longest = std::max(longest, static_cast<int32_t>(r.history.size()));
  Guarded<SlotParams> params(requests.size());
  Guarded<SlotFeed> feeds(requests.size());
  Guarded<uint32_t> allowed(requests.size() * static_cast<size_t>(words)), suppressed(requests.size() * static_cast<size_t>(words));
  Guarded<int32_t> bias_ids(requests.size() * kBiases), history(requests.size() * static_cast<size_t>(longest));
  Guarded<float> bias_values(requests.size() * kBiases), dlogits(logits);
  Guarded<uint32_t> dmasks(masks.empty() ? std::vector<uint32_t>(1) : masks);
  Guarded<int32_t> dnan_flags(nan_flags);
  const SlotTables tables{params, feeds, allowed, suppressed, bias_ids, bias_values, history, longest, words, kBiases};

  std::vector<SlotSet> sets;
  std::vector<std::unique_ptr<Guarded<uint8_t>>> records;
  std::vector<SampleJob> jobs;
  int32_t candidates = 0;
  for (int32_t i = 0; i < count; ++i) {
    const Request& r = requests[static_cast<size_t>(i)];
    const SlotSource source{device_params(r.params), r.params.bias_ids.data(), r.params.bias_values.data(), r.params.allowed.data(),
                            static_cast<int32_t>(r.params.allowed.size()), r.params.suppressed.data(),
                            static_cast<int32_t>(r.params.suppressed.size()), r.history.data(),
                            static_cast<int32_t>(r.history.size())};
    std::vector<uint8_t> record(static_cast<size_t>(slot_record_bytes(source, vocab)));
    pack_slot_record(source, vocab, record.data());
    records.push_back(std::make_unique<Guarded<uint8_t>>(record));
    sets.push_back({i, source.history_count, records.back()->data()});
    SampleJob job{};
    job.kind = r.score ? kJobScore : kJobSample;
    job.flags = r.flags;
    job.row = r.row;
    job.logits_row = r.logits_row;
    job.slot = i;
    job.position = r.position;
    job.history_length = static_cast<int32_t>(r.history.size());
    job.mask_offset = r.mask_offset;
    job.target = r.target;
    job.top_n = r.params.top_n;
    job.candidate_offset = candidates;
    candidates += job.top_n;
    jobs.push_back(job);
    jobs.push_back(SampleJob{});  // padding
  }
  Guarded<SlotSet> dsets(sets);
  Guarded<SampleJob> djobs(jobs);
  const int32_t job_count = static_cast<int32_t>(jobs.size());
  Guarded<mr_row_result> results(jobs.size());
  Guarded<mr_candidate> dcandidates(static_cast<size_t>(candidates) + 1);
  Guarded<uint8_t> workspace(static_cast<size_t>(sampler_bytes(job_count, vocab)));
  workspace.zero();
  MUST(launch_slot_sets(tables, dsets, count, longest, Stream{}));
  SampleArgs args{};
  args.jobs = djobs;
  args.job_count = args.workspace_jobs = job_count;
  args.logits = dlogits;
  args.logits_stride = stride;
  args.vocab = vocab;
  args.nan_flags = dnan_flags;
  args.masks = masks.empty() ? nullptr : dmasks.data();
  args.slots = tables;
  args.results = results;
  args.candidates = dcandidates;
  args.workspace = workspace.data();
  for (int i = 0; i < repeats; ++i) MUST(launch_sample(args, Stream{}));
  synchronize();
  Answer answer;
  const std::vector<mr_row_result> all = results.read();
  for (size_t i = 0; i < all.size(); i += 2) answer.results.push_back(all[i]);
  answer.candidates = dcandidates.read();
  answer.feeds = feeds.read();
  return answer;
}

struct Reference {
  mr_row_result result{};
  std::vector<mr_candidate> candidates;
};

inline Reference on_cpu(const Request& r, const float* logits, int32_t vocab, const std::vector<uint32_t>& masks) {
  static const cpu::VecOps& ops = cpu::vec_ops(cpu::detect());
  std::vector<uint8_t> memory(cpu::SamplerSpace::bytes(vocab) + 64);
  cpu::SamplerSpace space(reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64), vocab);
  Reference reference;
  const cpu::RowStats stats = cpu::row_stats(ops, logits, vocab);
  reference.result.status = stats.status;
  if (stats.status != MR_ROW_OK) return reference;
  const uint32_t* mask = r.mask_offset < 0 ? nullptr : masks.data() + r.mask_offset;
  const int32_t token = r.score ? r.target
                                : cpu::choose_token(ops, {logits, vocab, mask, &r.params, r.history.data(),
                                                          static_cast<int32_t>(r.history.size()), r.position}, space);
  if (token < 0) {
    reference.result.status = MR_ROW_EMPTY;
    return reference;
  }
  reference.result.count = 1;
  reference.result.token = token;
  reference.result.logprob = stats.logprob(logits[token]);
  reference.result.rank = cpu::row_rank(ops, logits, vocab, token);
  reference.candidates.resize(static_cast<size_t>(r.params.top_n));
  reference.candidates.resize(static_cast<size_t>(
      cpu::best_tokens(ops, logits, vocab, r.params.top_n, stats, space, reference.candidates.data())));
  return reference;
}

inline bool close(float a, float b) { return a == b || std::fabs(a - b) <= 2e-6 + 2e-6 * std::fabs(b); }

inline void expect_same(const Answer& got, size_t i, const Reference& want, const char* what) {
  const mr_row_result& r = got.results[i];
  EXPECT_EQ(r.status, want.result.status) << what << " " << i;
  EXPECT_EQ(r.token, want.result.token) << what << " " << i;
  EXPECT_EQ(r.count, want.result.count) << what << " " << i;
  EXPECT_EQ(r.rank, want.result.rank) << what << " " << i;
  EXPECT_TRUE(close(r.logprob, want.result.logprob)) << what << " " << i << ": " << r.logprob << ", want " << want.result.logprob;
  ASSERT_EQ(r.candidate_count, static_cast<int32_t>(want.candidates.size())) << what << " " << i;
  for (size_t c = 0; c < want.candidates.size(); ++c) {
    const mr_candidate& candidate = got.candidates[static_cast<size_t>(r.candidate_offset) + c];
    EXPECT_EQ(candidate.token, want.candidates[c].token) << what << " " << i << " candidate " << c;
    EXPECT_TRUE(close(candidate.logprob, want.candidates[c].logprob)) << what << " " << i << " candidate " << c;
  }
}

inline Request random_request(Numbers& n, int32_t vocab) {
  Request r;
  mr::SlotParams& p = r.params;
  p.seed = n.next();
  p.output_index = n.below(3);
  p.prompt_length = n.below(6);
  p.top_n = n.below(3) == 0 ? n.below(65) : n.below(4);
  if (n.below(6) != 0) p.temperature = static_cast<float>(0.2 + 1.5 * n.uniform());
  if (n.below(3) == 0) p.top_k = 1 + n.below(n.below(2) == 0 ? 10 : vocab + 2);
  if (n.below(3) == 0) p.top_p = static_cast<float>(n.uniform());
  if (n.below(3) == 0) p.min_p = static_cast<float>(0.5 * n.uniform());
  if (n.below(4) == 0) p.typical_p = static_cast<float>(n.uniform());
  if (n.below(3) == 0) p.repetition_penalty = static_cast<float>(0.5 + n.uniform());
  if (n.below(3) == 0) p.presence_penalty = static_cast<float>(n.uniform() - 0.5);
  if (n.below(3) == 0) p.frequency_penalty = static_cast<float>(n.uniform() - 0.5);
  p.penalty_window = n.below(20) - 1;
  if (n.below(4) == 0)
    for (int i = 0; i < kBiases; ++i) {
      p.bias_ids.push_back(n.below(std::min(vocab, 40)));
      p.bias_values.push_back(n.below(4) == 0 ? -INFINITY : n.normal());
    }
  if (n.below(6) == 0) {
    p.all_allowed = false;
    for (int i = 0; i < 5; ++i) p.allowed.push_back(n.below(vocab));
  }
  if (n.below(4) == 0) {
    p.min_tokens = n.below(10);
    for (int i = 0; i < 3; ++i) p.suppressed.push_back(n.below(vocab));
  }
  const int32_t length = n.below(60);
  for (int32_t i = 0; i < length; ++i) r.history.push_back(n.below(std::min(vocab, 50)));
  r.position = length;
  return r;
}

// Rows of logits of several kinds: spread, flat, peaked, with many equal values, with infinities.
inline std::vector<float> random_row(Numbers& n, int32_t vocab) {
  const int32_t kind = n.below(6);
  std::vector<float> row = n.normals(static_cast<size_t>(vocab), kind == 1 ? 0.01f : kind == 2 ? 12.0f : 3.0f);
  for (float& x : row) {
    if (kind == 3) x = std::round(x);
    if (kind == 4 && n.below(8) == 0) x = -INFINITY;
    if (kind == 5) x = 1.25f;
  }
  if (n.below(12) == 0) row[static_cast<size_t>(n.below(vocab))] = INFINITY;
  return row;
}

// One request for each filter, and some with several.
inline std::vector<Request> every_filter(Numbers& n, int32_t vocab, int32_t logits_row, float temperature) {
  const auto base = [&] {
    Request r;
    r.logits_row = logits_row;
    r.params.seed = n.next();
    r.params.temperature = temperature;
    return r;
  };
  std::vector<Request> all(14, base());
  for (Request& r : all) r.params.seed = n.next();
  all[0].params.temperature = 0, all[0].params.top_n = 5;
  all[2].params.top_k = std::max(1, vocab / 3);
  all[3].params.top_k = std::max(1, vocab - 1);
  all[4].params.top_p = 0.5f;
  all[5].params.top_p = 0.999999f;
  all[6].params.typical_p = 0.6f;
  all[7].params.min_p = 0.3f;
  all[8].params.top_k = std::max(1, vocab / 2), all[8].params.typical_p = 0.9f, all[8].params.top_p = 0.7f, all[8].params.min_p = 0.1f;
  all[9].params.top_p = 0.3f, all[9].params.top_n = 64, all[9].params.presence_penalty = 0.5f, all[9].history = {0, vocab - 1, vocab / 2};
  all[9].position = 3;
  all[10].score = true, all[10].target = vocab - 1;
  all[11].params.typical_p = 0.9f, all[11].params.min_p = 0.2f;
  all[12].params.typical_p = 0.9f, all[12].params.top_p = 0.7f;
  all[13].params.top_k = std::min(vocab, 40), all[13].params.typical_p = 0.9f, all[13].params.top_p = 0.8f, all[13].params.min_p = 0.02f;
  all[13].params.top_n = 30;
  return all;
}

inline void expect_as_on_cpu(const std::vector<Request>& requests, const std::vector<float>& logits, int32_t vocab, int64_t stride,
                             const char* what) {
  const Answer got = sample(requests, logits, vocab, stride, {}, {MR_ROW_OK}, 1);
  for (size_t i = 0; i < requests.size(); ++i)
    expect_same(got, i, on_cpu(requests[i], logits.data() + requests[i].logits_row * stride, vocab, {}), what);
}

}  // namespace mr::cuda::testing
