// The sampler against the CPU engine's: the same tokens, ranks and candidates from the same logits, on many random
// settings, on rows that bins split badly, and where parts of a row meet; then its answers to rows it cannot sample from, and
// its independence of other rows. Launches of few jobs share a row among more blocks than launches of many.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "cpu/isa.h"
#include "cpu/sampler.h"
#include "kernels/sampler.h"
#include "kernel_fixture.h"

namespace mr::cuda::testing {
namespace {

constexpr int32_t kBiases = 16;

struct Request {
  cpu::SlotParams params;
  std::vector<int32_t> history;
  int32_t position = 0, logits_row = 0, mask_offset = -1, row = 0;
  uint32_t flags = kJobFeeds;
  bool score = false;
  int32_t target = 0;
};

SlotParams device_params(const cpu::SlotParams& p) {
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

// One slot a request; `repeats` launches over one workspace, of which the last is given.
Answer sample(const std::vector<Request>& requests, const std::vector<float>& logits, int32_t vocab, int64_t stride,
              const std::vector<uint32_t>& masks, const std::vector<int32_t>& poison, int repeats = 2) {
  const int32_t count = static_cast<int32_t>(requests.size()), words = (vocab + 31) / 32;
  int32_t longest = 1;
  for (const Request& r : requests) longest = std::max(longest, static_cast<int32_t>(r.history.size()));
  Guarded<SlotParams> params(requests.size());
  Guarded<SlotFeed> feeds(requests.size());
  Guarded<uint32_t> allowed(requests.size() * static_cast<size_t>(words)), suppressed(requests.size() * static_cast<size_t>(words));
  Guarded<int32_t> bias_ids(requests.size() * kBiases), history(requests.size() * static_cast<size_t>(longest));
  Guarded<float> bias_values(requests.size() * kBiases), dlogits(logits);
  Guarded<uint32_t> dmasks(masks.empty() ? std::vector<uint32_t>(1) : masks);
  Guarded<int32_t> dpoison(poison);
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
  args.poison = dpoison;
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

Reference on_cpu(const Request& r, const float* logits, int32_t vocab, const std::vector<uint32_t>& masks) {
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

bool close(float a, float b) { return a == b || std::fabs(a - b) <= 2e-6 + 2e-6 * std::fabs(b); }

void expect_same(const Answer& got, size_t i, const Reference& want, const char* what) {
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

Request random_request(Numbers& n, int32_t vocab) {
  Request r;
  cpu::SlotParams& p = r.params;
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

// Rows of logits of several characters: spread, flat, peaked, with many equal values, with infinities.
std::vector<float> random_row(Numbers& n, int32_t vocab) {
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

TEST(Sampler, ChoosesWhatTheCpuEngineChooses) {
  Numbers n(21);
  for (const int32_t vocab : {1, 2, 31, 33, 100, 2047, 2048, 2049, 5000, 32000}) {
    const int32_t count = vocab > 10000 ? 40 : 60, rows = 20, words = (vocab + 31) / 32;
    const int64_t stride = (vocab + 3) / 4 * 4;
    std::vector<float> logits(static_cast<size_t>(rows * stride), NAN);
    for (int32_t r = 0; r < rows; ++r) {
      const std::vector<float> row = random_row(n, vocab);
      std::copy(row.begin(), row.end(), logits.begin() + r * stride);
    }
    std::vector<uint32_t> masks(static_cast<size_t>(3 * words));
    for (uint32_t& word : masks) word = static_cast<uint32_t>(n.next());
    std::vector<Request> requests;
    for (int32_t i = 0; i < count; ++i) {
      Request r = random_request(n, vocab);
      r.logits_row = n.below(rows);
      if (n.below(4) == 0) r.mask_offset = n.below(3) * words;
      if (n.below(6) == 0) {
        r.score = true;
        r.target = n.below(vocab);
      }
      requests.push_back(r);
    }
    const Answer got = sample(requests, logits, vocab, stride, masks, {MR_ROW_OK});
    int32_t ok = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      const Reference want = on_cpu(requests[i], logits.data() + requests[i].logits_row * stride, vocab, masks);
      expect_same(got, i, want, ("vocab " + std::to_string(vocab) + " request").c_str());
      EXPECT_EQ(got.results[i].slot, requests[i].score ? -1 : static_cast<int32_t>(i));
      EXPECT_EQ(got.results[i].position, requests[i].score ? -1 : requests[i].position);
      if (!requests[i].score) {
        EXPECT_EQ(got.feeds[i].token, want.result.token);
        EXPECT_EQ(got.feeds[i].status, want.result.status);
      }
      ok += want.result.status == MR_ROW_OK;
    }
    EXPECT_GT(ok, count / 2);
  }
}

TEST(Sampler, ChoosesWhatTheCpuEngineChoosesFromALargeVocabulary) {
  Numbers n(22);
  const int32_t vocab = 128256;
  std::vector<float> logits = n.normals(static_cast<size_t>(vocab), 2.5f);
  std::vector<float> flat(static_cast<size_t>(vocab), 0.5f);
  logits.insert(logits.end(), flat.begin(), flat.end());
  std::vector<Request> requests;
  for (int32_t i = 0; i < 30; ++i) {  // and as many of padding, so that a warp takes two pieces
    Request r;
    r.logits_row = i % 2;
    r.position = i;
    r.params.seed = n.next();
    r.params.temperature = 0.5f + 0.1f * static_cast<float>(i % 8);
    r.params.top_n = i % 5 == 0 ? 20 : 0;
    if (i % 6 == 1) r.params.temperature = 0;
    if (i % 6 == 2) r.params.top_p = 0.9f;
    if (i % 6 == 3) r.params.top_k = 50;
    if (i % 6 == 4) r.params.typical_p = 0.8f;
    if (i % 6 == 5) r.params.top_k = 20000, r.params.top_p = 0.99f, r.params.min_p = 0.001f;
    requests.push_back(r);
  }
  const Answer got = sample(requests, logits, vocab, vocab, {}, {MR_ROW_OK}, 1);
  for (size_t i = 0; i < requests.size(); ++i)
    expect_same(got, i, on_cpu(requests[i], logits.data() + requests[i].logits_row * int64_t{vocab}, vocab, {}), "request");
}

// One request a filter, and some of several.
std::vector<Request> every_filter(Numbers& n, int32_t vocab, int32_t logits_row, float temperature) {
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

void expect_as_on_cpu(const std::vector<Request>& requests, const std::vector<float>& logits, int32_t vocab, int64_t stride,
                      const char* what) {
  const Answer got = sample(requests, logits, vocab, stride, {}, {MR_ROW_OK}, 1);
  for (size_t i = 0; i < requests.size(); ++i)
    expect_same(got, i, on_cpu(requests[i], logits.data() + requests[i].logits_row * stride, vocab, {}), what);
}

TEST(Sampler, ChoosesAtTheBordersOfParts) {
  Numbers n(24);
  for (const int32_t vocab : {1, 3, 4, 5, 15, 16, 17, 61, 63, 64, 65, 255, 257, 1021, 4095, 4097, 8191, 16387}) {
    const int64_t stride = (vocab + 3) / 4 * 4;
    std::vector<float> logits;
    const auto add_row = [&](auto logit_of) {
      logits.resize(logits.size() + static_cast<size_t>(stride), NAN);  // NaN behind the row is not of it
      for (int32_t i = 0; i < vocab; ++i) logits[logits.size() - static_cast<size_t>(stride) + static_cast<size_t>(i)] = logit_of(i);
    };
    add_row([&](int32_t) { return -2.0f; });
    add_row([&](int32_t i) { return i == 0 ? 3.0f : n.normal(); });
    add_row([&](int32_t i) { return i == vocab - 1 ? 3.0f : n.normal(); });
    add_row([&](int32_t i) { return i == vocab - 1 ? 0.0f : -INFINITY; });
    add_row([&](int32_t i) { return i % 2 == 0 ? 1.0f : 1.5f; });
    std::vector<Request> requests;
    for (int32_t row = 0; row < 5; ++row)
      for (const Request& r : every_filter(n, vocab, row, 0.7f)) requests.push_back(r);
    const std::string what = "vocab " + std::to_string(vocab) + " request";
    expect_as_on_cpu(requests, logits, vocab, stride, what.c_str());
    for (size_t i = 0; i + 4 <= requests.size(); i += 9)
      expect_as_on_cpu({&requests[i], &requests[i] + 4}, logits, vocab, stride, (what + " of few").c_str());
  }
}

// Rows whose tokens crowd in few bins, in a vocabulary in which no list holds them.
TEST(Sampler, ChoosesFromRowsThatBinsSplitBadly) {
  Numbers n(25);
  const int32_t vocab = 128256;
  const std::vector<std::pair<const char*, std::function<float(int32_t)>>> rows = {
      {"equal", [](int32_t) { return 0.25f; }},
      {"of two values", [](int32_t i) { return i % 3 == 0 ? 0.25f : -1.0f; }},
      {"of neighbouring values", [&](int32_t) { return 1.0f + 0x1p-23f * static_cast<float>(n.below(5)); }},
      {"flat", [&](int32_t) { return 0.001f * n.normal(); }},
      {"flat below one", [&](int32_t i) { return i == 77777 ? 9.0f : 1e-6f * n.normal(); }},
      {"far below one", [](int32_t i) { return i == 77777 ? 0.0f : -1e9f; }},
      {"of many scales", [&](int32_t) { return -std::exp(4 * n.normal()); }},
      {"with infinities", [](int32_t i) { return i % 50000 == 7 ? INFINITY : 0.0f; }},
      {"half forbidden", [&](int32_t i) { return i < vocab / 2 ? -INFINITY : n.normal(); }}};
  for (const auto& [what, logit_of] : rows) {
    std::vector<float> logits(static_cast<size_t>(vocab));
    for (int32_t i = 0; i < vocab; ++i) logits[static_cast<size_t>(i)] = logit_of(i);
    for (const float temperature : {0.8f, 100.0f}) {
      const std::vector<Request> requests = every_filter(n, vocab, 0, temperature);
      expect_as_on_cpu(requests, logits, vocab, vocab, what);
      for (size_t i = 0; i < requests.size(); i += 4) {
        const size_t end = std::min(i + 4, requests.size());
        const std::vector<Request> few(&requests[i], &requests[i] + (end - i));
        expect_as_on_cpu(few, logits, vocab, vocab, what);
      }
    }
  }
}

// Bounds among so many tokens that all of them are split, that few are left, or that they are few from the start.
TEST(Sampler, ChoosesAmongFewAndMany) {
  Numbers n(28);
  const int32_t vocab = 5003;
  const int64_t stride = 5004;
  std::vector<float> logits = n.normals(static_cast<size_t>(2 * stride), 2);
  for (int64_t i = stride; i < 2 * stride; ++i) logits[static_cast<size_t>(i)] = std::round(4 * logits[static_cast<size_t>(i)]) / 4;
  for (const int32_t row : {0, 1}) {
    std::vector<Request> requests;
    for (const int32_t top_k : {1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 513, 1000, 3000}) {
      Request r;
      r.logits_row = row;
      r.params.seed = n.next();
      r.params.temperature = 1.5f;
      r.params.top_k = top_k;
      requests.push_back(r);
      r.params.seed = n.next();
      r.params.typical_p = 0.95f, r.params.top_p = 0.9f, r.params.min_p = 0.05f;
      requests.push_back(r);
    }
    expect_as_on_cpu(requests, logits, vocab, stride, "request");
    for (size_t i = 0; i < requests.size(); i += 5) expect_as_on_cpu({requests[i]}, logits, vocab, stride, "request alone");
  }
}

// The rank of every kind of logit: equal ones before and behind, zeros of both signs, infinities.
TEST(Sampler, RanksTokens) {
  const int32_t vocab = 20001;
  const int64_t stride = 20004;
  const float kinds[] = {0.0f, -0.0f, 1.0f, -INFINITY, 0x1p-149f, -0x1p-149f, -1.0f, 2.0f};
  std::vector<float> logits(static_cast<size_t>(2 * stride), NAN);
  for (int32_t i = 0; i < vocab; ++i) {
    logits[static_cast<size_t>(i)] = kinds[i / 3 % 8];
    logits[static_cast<size_t>(stride + i)] = i % 5000 == 7 ? INFINITY : kinds[i % 8];
  }
  std::vector<Request> requests;
  for (const int32_t first : {0, 4096, 8190, 16383, 19985})
    for (int32_t i = 0; i < 16; ++i) {
      Request r;
      r.score = true;
      r.logits_row = i % 2;
      r.target = first + i;
      requests.push_back(r);
    }
  expect_as_on_cpu(requests, logits, vocab, stride, "request");
  for (size_t i = 0; i < requests.size(); i += 7) expect_as_on_cpu({requests[i]}, logits, vocab, stride, "request alone");
}

// Blocks that take as many tokens of one bin as there may be, in vocabularies in which a warp takes two pieces and in which not.
TEST(Sampler, AddsUpAllThatABinMayHold) {
  Numbers n(29);
  for (const int32_t vocab : {245760, 245764, 262144}) {
    std::vector<float> logits(static_cast<size_t>(vocab), 1.0f);
    logits[5] = 0.0f;
    std::vector<Request> requests;
    for (const Request& r : every_filter(n, vocab, 0, 0.8f)) requests.insert(requests.end(), 2, r);
    expect_as_on_cpu(requests, logits, vocab, vocab, "request");
  }
}

TEST(Sampler, ChoosesAtTemperaturesOfEveryScale) {
  Numbers n(26);
  const int32_t vocab = 3001;
  for (const float temperature : {1e-39f, 1e-30f, 1e-9f, 1e-6f, 1e-3f, 1.0f, 1e4f, 1e9f, 1e30f}) {
    std::vector<float> logits = n.normals(3004, std::max(1e-30f, std::min(temperature, 1e30f)));
    expect_as_on_cpu(every_filter(n, vocab, 0, temperature), logits, vocab, 3004, "temperature");
  }
}

TEST(Sampler, ChoosesForAsManyJobsAsAStepHas) {
  Numbers n(27);
  const int32_t vocab = 2050;
  const int64_t stride = 2052;
  for (const int32_t count : {1, 4, 5, 8, 9, 32, 33, 128}) {  // and as many of padding
    std::vector<float> logits = n.normals(static_cast<size_t>(3 * stride), 3);
    std::vector<Request> requests;
    for (int32_t i = 0; i < count; ++i) {
      requests.push_back(random_request(n, vocab));
      requests.back().logits_row = i % 3;
    }
    expect_as_on_cpu(requests, logits, vocab, stride, "job");
  }
}

TEST(Sampler, FindsNaNInEveryPart) {
  const int32_t vocab = 5003;
  for (int32_t at = 0; at < vocab; at = at == 5002 ? vocab : std::min(5002, at + 311)) {
    std::vector<float> logits(5004, 0.5f);
    logits[static_cast<size_t>(at)] = NAN;
    std::vector<Request> requests(2);
    requests[1].params.temperature = 1, requests[1].params.top_p = 0.5f;
    for (const mr_row_result& r : sample(requests, logits, vocab, 5004, {}, {MR_ROW_OK}, 1).results) EXPECT_EQ(r.status, MR_ROW_NAN) << at;
  }
}

TEST(Sampler, GivesARowTheSameAnswerAloneAndAmongOthers) {
  Numbers n(23);
  const int32_t vocab = 5003;
  const int64_t stride = 5004;
  std::vector<float> logits = n.normals(static_cast<size_t>(2 * stride), 3);
  std::vector<Request> requests;
  for (int32_t i = 0; i < 70; ++i) {
    requests.push_back(random_request(n, vocab));
    requests.back().logits_row = i % 2;
  }
  const Answer all = sample(requests, logits, vocab, stride, {}, {MR_ROW_OK}, 3);
  for (size_t i = 0; i < requests.size(); i += 3) {
    const Answer one = sample({requests[i]}, logits, vocab, stride, {}, {MR_ROW_OK}, 1);
    EXPECT_EQ(one.results[0].token, all.results[i].token);
    EXPECT_EQ(one.results[0].rank, all.results[i].rank);
    EXPECT_TRUE(same_bits(&one.results[0].logprob, &all.results[i].logprob, 1));
  }
}

TEST(Sampler, SaysWhatItCannotSampleFrom) {
  const int32_t vocab = 3000;
  std::vector<float> logits(5 * 3000, 0.0f);
  logits[2999] = NAN;                                                                  // row 0
  std::fill(logits.begin() + 3000, logits.begin() + 6000, -INFINITY);                  // row 1
  std::fill(logits.begin() + 6000, logits.begin() + 9000, NAN);                        // row 2
  std::vector<uint32_t> masks((3000 + 31) / 32, 0);                                    // forbids all of row 3
  std::vector<Request> requests(8);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].logits_row = static_cast<int32_t>(i < 5 ? i : 4);
    requests[i].params.temperature = 1;
    requests[i].params.top_p = 0.5f;
    requests[i].params.top_n = 3;
  }
  requests[3].mask_offset = 0;
  requests[5].flags |= kJobNanFault;
  requests[6].row = 1;  // poisoned
  requests[7].params.temperature = 0;
  requests[7].flags = 0;  // does not feed
  const Answer got = sample(requests, logits, vocab, vocab, masks, {MR_ROW_OK, MR_ROW_EMPTY});
  const int32_t want[] = {MR_ROW_NAN, MR_ROW_EMPTY, MR_ROW_NAN, MR_ROW_EMPTY, MR_ROW_OK, MR_ROW_NAN, MR_ROW_NAN, MR_ROW_OK};
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(got.results[i].status, want[i]) << i;
    EXPECT_EQ(got.results[i].count, want[i] == MR_ROW_OK ? 1 : 0) << i;
    if (i < 7) EXPECT_EQ(got.feeds[i].status, want[i]) << i;
  }
  EXPECT_EQ(got.results[7].token, 0);
  EXPECT_EQ(got.feeds[7].status, MR_ROW_OK);
  EXPECT_EQ(got.feeds[7].token, 0);
}

}  // namespace
}  // namespace mr::cuda::testing
