// The sampler against the CPU engine's: the same tokens, ranks and candidates from the same logits, for many random
// settings, rows whose histogram splits badly, and the borders of a row's parts; then rows that it cannot sample from,
// and independence of other rows. Launches of few jobs share a row among more blocks than launches of many.
#include "sampler_fixture.h"

namespace mr::cuda::testing {
namespace {

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
  for (const int32_t vocab : {128256, 262208, kMostVocab}) {
    std::vector<float> logits = n.normals(static_cast<size_t>(vocab), 2.5f);
    std::vector<float> flat(static_cast<size_t>(vocab), 0.5f);
    logits.insert(logits.end(), flat.begin(), flat.end());
    std::vector<Request> requests;
    for (int32_t i = 0; i < 30; ++i) {  // padding jobs, so that a warp has two pieces of the smallest
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
    expect_as_on_cpu(requests, logits, vocab, vocab, "request");
    for (size_t i = 0; i < requests.size(); i += 8)  // a piece is shared by warps
      expect_as_on_cpu({&requests[i], &requests[i] + 2}, logits, vocab, vocab, "request of few");
  }
}

// Pieces of more tokens than a block reads at once: the greatest logits and their neighbours lie in both of its reads.
TEST(Sampler, FindsTokensAnywhereInALongPiece) {
  Numbers n(30);
  const int32_t vocab = kMostVocab;
  std::vector<float> logits(static_cast<size_t>(vocab), -4.0f);
  for (const int32_t id : {5, 2047, 2048, 4095, 4096 + 2049, 4096 * 77 + 4094, vocab - 1}) logits[static_cast<size_t>(id)] = 9.0f;
  std::vector<float> late(static_cast<size_t>(vocab), -4.0f);
  for (const int32_t id : {4096 * 9 + 3000, 4096 * 9 + 3001, 4096 * 100 + 2048}) late[static_cast<size_t>(id)] = 9.0f;
  logits.insert(logits.end(), late.begin(), late.end());
  std::vector<Request> requests;
  for (const int32_t row : {0, 1})
    for (int i = 0; i < 10; ++i) {
      Request r;
      r.logits_row = row;
      r.params.seed = n.next();
      r.params.temperature = i < 2 ? 0.0f : 1.0f;
      r.params.top_n = row == 0 ? 7 - i % 3 : 3 - i % 3;
      if (i % 2 == 1) r.params.top_p = 0.4f;
      requests.push_back(r);
    }
  expect_as_on_cpu(requests, logits, vocab, vocab, "request");
  for (size_t i = 0; i < requests.size(); i += 3) expect_as_on_cpu({requests[i]}, logits, vocab, vocab, "request alone");
}

// All tokens but one are at the distance whose mass times distance is the greatest, or all have the greatest mass.
TEST(Sampler, AddsUpTheLargestSumsOfTheLargestVocabulary) {
  Numbers n(31);
  const int32_t vocab = kMostVocab;
  std::vector<float> logits(static_cast<size_t>(vocab), 0.0f);
  logits[77777] = 1.0f;
  logits.resize(2 * static_cast<size_t>(vocab), 2.0f);
  logits.back() = 1.0f;
  std::vector<Request> requests;
  for (const int32_t row : {0, 1}) {
    for (const Request& r : every_filter(n, vocab, row, 1.0f)) requests.push_back(r);
    Request typical;
    typical.logits_row = row;
    typical.params.seed = n.next();
    typical.params.temperature = 1;
    typical.params.typical_p = 0.999f;
    requests.push_back(typical);
  }
  expect_as_on_cpu(requests, logits, vocab, vocab, "request");
}

TEST(Sampler, ChoosesAtTheBordersOfParts) {
  Numbers n(24);
  for (const int32_t vocab : {1, 3, 4, 5, 15, 16, 17, 61, 63, 64, 65, 255, 257, 1021, 4095, 4097, 8191, 16387}) {
    const int64_t stride = (vocab + 3) / 4 * 4;
    std::vector<float> logits;
    const auto add_row = [&](auto logit_of) {
      logits.resize(logits.size() + static_cast<size_t>(stride), NAN);  // NaN after the row must not matter
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

// Rows whose tokens are crowded in few bins, in a vocabulary in which no list holds them.
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

// Bounds among tokens of which all are split, few are left after a split, or few exist from the start.
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

// The rank of every kind of logit: equal ones before and after, zeros of both signs, infinities.
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

// Blocks with as many tokens of one bin as possible, in vocabularies in which a warp has two pieces, one, and a half.
TEST(Sampler, AddsUpAllThatABinMayHold) {
  Numbers n(29);
  for (const int32_t vocab : {245760, 245764, 262144, 262208, 507904, 507908, kMostVocab}) {
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
  requests[6].row = 1;  // has a NaN flag
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
