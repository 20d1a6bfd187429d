// Steps of small random models: logprobs against a reference in double, bits against every other way to cut the work,
// and the rules of the step.
#include <chrono>
#include <functional>
#include <thread>

#include "b2_step.h"
#include "b2_tiny_model.h"
#include "error.h"
#include "runner.h"

using namespace mr;
using namespace mr::cpu;
using namespace tiny;

namespace {

// The logprob bits of every next token of `ids`, computed in chunks of the given sizes (repeated), in a batch with `strangers`.
std::vector<float> score_in_chunks(Runner& runner, const std::vector<int32_t>& ids, const std::vector<int32_t>& chunks,
                                   int32_t slot, int32_t first_block, int32_t stride, int32_t strangers, int32_t kernel_class) {
  const mr_slot_params p = greedy();
  const int32_t n = static_cast<int32_t>(ids.size());
  const std::vector<int32_t> table = table_of(n, first_block, stride);
  std::vector<float> logprobs;
  int32_t done = 0;
  for (size_t c = 0; done < n; ++c) {
    const int32_t count = std::min(chunks[c % chunks.size()], n - done);
    Step step;
    if (done == 0) step.set(slot, 7, &p);
    for (int32_t s = 0; s < strangers; ++s) {
      const int32_t other = (slot + 1 + s) % 6;
      step.set(other, 9, &p);
      step.feed(other, 9, 0, random_tokens(1 + 5 * s, 80, static_cast<uint64_t>(s)), table_of(1 + 5 * s, 60 + s, 1), s % 2);
    }
    const int32_t at = static_cast<int32_t>(step.tokens.size());
    step.feed(slot, 7, done, {ids.begin() + done, ids.begin() + done + count}, table, kernel_class);
    for (int32_t i = 0; i < count && done + i + 1 < n; ++i) step.score(at + i, ids[static_cast<size_t>(done + i + 1)]);
    step.run(runner);
    for (int32_t i = 0; i < step.result.score_count; ++i) {
      const mr_row_result& r = step.score_results[static_cast<size_t>(i)];
      CHECK(r.status == MR_ROW_OK && r.count == 1 && r.slot == -1 && r.position == -1, "score row %d has status %d", i, r.status);
      logprobs.push_back(r.logprob);
    }
    CHECK(step.result.bytes_read > 0 && step.result.device_ns > 0, "the step counts nothing");
    done += count;
  }
  return logprobs;
}

void same_logprobs(const char* path, const tiny::Weights& weights, int32_t kv_type) {
  const std::vector<int32_t> ids = random_tokens(330, weights.desc.vocab, 3);
  std::vector<float> base;
  for (const int32_t threads : {1, 3}) {
    const auto device = tiny::open_device(path, threads);
    const auto model = weights.bind(device);
    Runner runner(model, config_of(kv_type));
    struct Way {
      std::vector<int32_t> chunks;
      int32_t slot, first, stride, strangers, kernel_class;
    };
    const Way ways[] = {{{330}, 0, 0, 1, 0, MR_CLASS_PREFILL}, {{1}, 1, 3, 1, 0, MR_CLASS_DECODE},
                        {{7}, 2, 50, 79, 0, MR_CLASS_PREFILL}, {{64}, 3, 20, 1, 3, MR_CLASS_DECODE},
                        {{1}, 4, 9, 1, 2, MR_CLASS_PREFILL},   {{2, 100, 5}, 5, 30, 1, 4, MR_CLASS_PREFILL}};
    for (const Way& w : ways) {
      const std::vector<float> got = score_in_chunks(runner, ids, w.chunks, w.slot, w.first, w.stride, w.strangers, w.kernel_class);
      if (base.empty()) base = got;
      CHECK(got.size() == base.size() && std::memcmp(got.data(), base.data(), got.size() * 4) == 0,
            "%s: %d threads, chunks of %d, %d strangers: other bits", path == nullptr ? "best" : path, threads, w.chunks[0], w.strangers);
    }
  }
  if (kv_type != MR_KV_F32) return;
  const auto want = weights.logits(ids);
  double worst = 0;
  for (size_t t = 0; t + 1 < ids.size(); ++t) {
    double top = -1e300, sum = 0;
    for (const double x : want[t]) top = std::fmax(top, x);
    for (const double x : want[t]) sum += std::exp(x - top);
    const double logprob = want[t][static_cast<size_t>(ids[t + 1])] - top - std::log(sum);
    const double error = std::fabs(static_cast<double>(base[t]) - logprob);
    if (!(error <= worst)) worst = error;
  }
  std::printf("%s: worst logprob error %.3g\n", path, worst);
  CHECK(worst < 2e-4, "%s: logprob differs by %g", path, worst);
}

// Generated tokens: fed back by -1 two steps deep, or given; sampled with penalties; the same.
void feedback(const char* path, const tiny::Weights& weights) {
  const auto device = tiny::open_device(path, 2);
  const auto model = weights.bind(device);
  Runner runner(model, config_of(MR_KV_BF16));
  mr_slot_params p = greedy();
  p.temperature = 0.9f;
  p.seed = 77;
  p.prompt_length = 5;
  p.penalty_window = 12;
  p.repetition_penalty = 1.3f;
  p.frequency_penalty = 0.2f;
  const std::vector<int32_t> prompt = random_tokens(5, weights.desc.vocab, 8), table = table_of(40, 0, 1);
  std::vector<int32_t> given;
  std::vector<float> logprobs;
  Step first;
  first.set(0, 1, &p).feed(0, 1, 0, prompt, table, MR_CLASS_PREFILL).sample(0, 1, 5).run(runner);
  given.push_back(first.sample_results[0].token);
  for (int32_t position = 5; position < 30; ++position) {
    Step step;
    step.feed(0, 1, position, {given.back()}, table, MR_CLASS_DECODE).sample(0, 1, position + 1).run(runner);
    given.push_back(step.sample_results[0].token);
    logprobs.push_back(step.sample_results[0].logprob);
    const mr_row_result& r = step.sample_results[0];
    CHECK(r.slot == 0 && r.position == position + 1 && r.candidate_count == 2, "%s: the row names slot %d", path, r.slot);
    CHECK(step.candidates[static_cast<size_t>(r.candidate_offset)].logprob >= r.logprob, "%s: the best is below the sample", path);
  }
  std::vector<Step> steps(26);
  steps[0].set(3, 2, &p).feed(3, 2, 0, prompt, table, MR_CLASS_PREFILL).sample(3, 2, 5);
  for (int32_t i = 1; i < 26; ++i) steps[static_cast<size_t>(i)].feed(3, 2, 4 + i, {-1}, table, MR_CLASS_DECODE).sample(3, 2, 5 + i);
  runner.submit(steps[0].view());
  for (size_t i = 1; i < steps.size(); ++i) {
    runner.submit(steps[i].view());
    steps[i - 1].wait(runner);
  }
  steps.back().wait(runner);
  for (size_t i = 0; i < steps.size(); ++i) {
    CHECK(steps[i].sample_results[0].token == given[i], "%s: token %d differs when fed back", path, static_cast<int>(i));
    if (i > 0) CHECK(steps[i].sample_results[0].logprob == logprobs[i - 1], "%s: logprob %d differs when fed back", path, static_cast<int>(i));
  }
  // Rolled back to position 10 and fed again: the same token there.
  Step again;
  again.feed(3, 2, 10, {given.begin() + 5, given.begin() + 9}, table, MR_CLASS_DECODE).sample(3, 2, 14).run(runner);
  CHECK(again.sample_results[0].token == given[9], "%s: another token after a rollback", path);
  // A copied block serves another slot's table.
  Step copy;
  std::vector<int32_t> forked = table;
  forked[0] = 70;
  mr_pre_op op{};
  op.struct_size = sizeof op;
  op.kind = MR_PRE_BLOCK_COPY;
  op.src_block = table[0];
  op.dst_block = 70;
  copy.pre_ops.push_back(op);
  copy.feed(3, 2, 14, {given[9]}, forked, MR_CLASS_DECODE).sample(3, 2, 15).run(runner);
  CHECK(copy.sample_results[0].token == given[10], "%s: another token over a copied block", path);
}

void rules(const tiny::Weights& weights) {
  const auto device = tiny::open_device(nullptr, 2);
  const auto model = weights.bind(device);
  const LedgerCounts before = device->ledger.counts();
  {
    Runner runner(model, config_of(MR_KV_F32));
    mr_runner_cost cost{};
    Runner::cost(*model, config_of(MR_KV_F32), &cost);
    const LedgerCounts during = device->ledger.counts();
    CHECK(during.used[MR_PURPOSE_KV] == cost.kv_bytes && cost.kv_bytes == 80 * cost.bytes_per_block, "KV bytes differ from the cost");
    CHECK(during.used[MR_PURPOSE_WORKSPACE] == cost.workspace_bytes, "workspace bytes differ from the cost");
    CHECK(model->runners.load() == 1 && device->runners.load() == 1, "the runner is not counted");
    const mr_slot_params p = greedy();
    const std::vector<int32_t> table = table_of(40, 0, 1);
    Step start;
    start.set(0, 1, &p).set(1, 4, &p).feed(0, 1, 0, {1, 2, 3}, table, MR_CLASS_PREFILL).feed(1, 4, 0, {9}, table_of(40, 5, 1), MR_CLASS_PREFILL);
    start.sample(0, 1, 3, 2).run(runner);

    const auto refuse = [&](const char* what, int32_t code, const std::function<void(Step&)>& build) {
      Step step;
      build(step);
      try {
        runner.submit(step.view());
        step.wait(runner);
        CHECK(false, "accepted: %s", what);
      } catch (const Error& e) {
        CHECK(e.code == code && !e.message.empty(), "%s: code %d (%s), wanted %d", what, e.code, e.message.c_str(), code);
      }
    };
    const int32_t bad = MR_INVALID_ARGUMENT;
    const auto feed = [&](int32_t slot, uint32_t generation, int32_t at, std::vector<int32_t> ids, int32_t kernel_class) {
      return [=](Step& s) { s.feed(slot, generation, at, ids, table, kernel_class); };
    };
    refuse("slot outside", bad, feed(6, 1, 0, {1}, 0));
    refuse("slot never set", bad, feed(2, 0, 0, {1}, 0));
    refuse("another generation", bad, feed(0, 2, 3, {1}, 0));
    refuse("unknown class", bad, feed(0, 1, 3, {1}, 2));
    refuse("a gap in the history", bad, feed(0, 1, 4, {1}, 0));
    refuse("negative position", bad, feed(0, 1, -1, {1}, 0));
    refuse("token outside", bad, feed(0, 1, 3, {weights.desc.vocab}, 0));
    refuse("token -2", bad, feed(0, 1, 3, {-2}, 1));
    refuse("-1 in a prefill segment", bad, feed(0, 1, 3, {-1}, 0));
    refuse("-1 among others", bad, feed(0, 1, 3, {-1, 4}, 1));
    refuse("-1 for a slot that sampled nothing", bad, feed(1, 4, 1, {-1}, 1));
    refuse("-1 after the slot is set again", bad, [&](Step& s) { s.set(0, 1, &p).feed(0, 1, 0, {-1}, table, 1); });
    refuse("too few blocks", bad, [&](Step& s) { s.feed(0, 1, 3, random_tokens(14, 80, 1), {0}, 0); });
    refuse("block id outside", bad, [&](Step& s) { s.feed(0, 1, 3, {1}, {80}, 0); });
    refuse("negative block id", bad, [&](Step& s) { s.feed(0, 1, 3, {1}, {-1}, 0); });
    refuse("a step too large", bad, feed(0, 1, 3, random_tokens(401, 80, 1), 0));
    refuse("block table outside", bad, [&](Step& s) { s.feed(0, 1, 3, {1}, table, 0); s.segments[0].block_offset = 1; });
    refuse("adapter", bad, [&](Step& s) { s.feed(0, 1, 3, {1}, table, 0); s.segments[0].adapter = 1; });
    refuse("flags", bad, [&](Step& s) { s.feed(0, 1, 3, {1}, table, 0); s.segments[0].flags = 1; });
    refuse("count 0", bad, [&](Step& s) { s.feed(0, 1, 3, {1}, table, 0); s.segments[0].count = 0; });
    refuse("more tokens than segments", bad, [&](Step& s) { s.feed(0, 1, 3, {1}, table, 0); s.tokens.push_back(1); });
    refuse("segments of a slot that overlap", bad, [&](Step& s) { s.feed(0, 1, 3, {1, 2}, table, 0).feed(0, 1, 4, {1}, table, 0); });
    refuse("sample of a token that is not there", bad, [&](Step& s) { s.feed(0, 1, 3, {1}, table, 0).sample(0, 1, 4, 1); });
    refuse("sample of another generation", bad, [&](Step& s) { s.feed(0, 1, 3, {1}, table, 0).sample(0, 9, 4); });
    refuse("sample beyond the context", bad, [&](Step& s) { s.feed(0, 1, 3, {1}, table, 0).sample(0, 1, 701); });
    refuse("mask outside", bad, [&](Step& s) { s.feed(0, 1, 3, {1}, table, 0).sample(0, 1, 4); s.samples[0].mask_offset = 1; s.masks.resize(3); });
    refuse("score target outside", bad, [&](Step& s) { s.feed(0, 1, 3, {1}, table, 0).score(0, weights.desc.vocab); });
    refuse("score top_n above the runner's", bad, [&](Step& s) { s.feed(0, 1, 3, {1}, table, 0).score(0, 1, 5); });
    refuse("block copy outside", bad, [&](Step& s) { s.pre_ops.push_back(mr_pre_op{sizeof(mr_pre_op), MR_PRE_BLOCK_COPY, 0, 0, nullptr, 0, 80, 0, nullptr}); });
    refuse("unknown pre-operation", bad, [&](Step& s) { s.pre_ops.push_back(mr_pre_op{sizeof(mr_pre_op), 4, 0, 0, nullptr, 0, 0, 0, nullptr}); });
    refuse("slot set and refused later in the step", bad, [&](Step& s) { s.set(0, 50, &p).feed(0, 50, 0, {1}, table, 0).score(0, -1); });

    // After all that slot 0 still has its history, its sample and its generation.
    Step next;
    next.feed(0, 1, 3, {-1}, table, MR_CLASS_DECODE).sample(0, 1, 4).run(runner);
    Step same;
    same.feed(0, 1, 3, {start.sample_results[0].token}, table, MR_CLASS_DECODE).sample(0, 1, 4).run(runner);
    CHECK(next.sample_results[0].token == same.sample_results[0].token && next.sample_results[0].logprob == same.sample_results[0].logprob,
          "a refused step left something behind");

    // NaN: the row and its successors fail; others do not.
    runner.fault(MR_FAULT_NAN_LOGITS, 0, 0);
    Step nan;
    nan.feed(0, 1, 4, {5}, table, MR_CLASS_DECODE).sample(0, 1, 5).feed(1, 4, 1, {5}, table_of(40, 5, 1), MR_CLASS_DECODE).sample(1, 4, 2);
    Step after;
    after.feed(0, 1, 5, {-1}, table, MR_CLASS_DECODE).sample(0, 1, 6).feed(1, 4, 2, {-1}, table_of(40, 5, 1), MR_CLASS_DECODE).sample(1, 4, 3);
    runner.submit(nan.view());
    runner.submit(after.view());
    nan.wait(runner);
    after.wait(runner);
    CHECK(nan.sample_results[0].status == MR_ROW_NAN && nan.sample_results[0].count == 0, "the row has status %d", nan.sample_results[0].status);
    CHECK(after.sample_results[0].status == MR_ROW_NAN, "a row fed from nothing has status %d", after.sample_results[0].status);
    CHECK(nan.sample_results[1].status == MR_ROW_OK && after.sample_results[1].status == MR_ROW_OK, "a stranger's row failed");

    // A mask that forbids all gives an empty row; one that allows a token gives it.
    Step masked;
    masked.feed(0, 1, 6, {5}, table, MR_CLASS_DECODE).sample(0, 1, 7).sample(1, 4, 3, 0);
    masked.masks.assign(6, 0);
    masked.masks[4] = 1u << 9;
    masked.samples[0].mask_offset = 0;
    masked.samples[1].mask_offset = 3;
    masked.run(runner);
    CHECK(masked.sample_results[0].status == MR_ROW_EMPTY && masked.sample_results[0].count == 0, "status %d", masked.sample_results[0].status);
    CHECK(masked.sample_results[1].status == MR_ROW_OK && masked.sample_results[1].token == 41, "token %d", masked.sample_results[1].token);

    // A hung step: waiting ends in time, progress shows it, a third step is refused, results wait for enough room.
    runner.fault(MR_FAULT_HANG_STEP, 0, 1'000'000'000);
    Step hung, behind;
    hung.feed(0, 1, 7, {5}, table, MR_CLASS_DECODE).sample(0, 1, 8);
    behind.feed(0, 1, 8, {5}, table, MR_CLASS_DECODE).sample(0, 1, 9);
    runner.submit(hung.view());
    runner.submit(behind.view());
    const auto code_of = [](const std::function<void()>& f) {
      try {
        f();
      } catch (const Error& e) {
        return e.code;
      }
      return static_cast<int32_t>(MR_OK);
    };
    CHECK(code_of([&] { hung.wait(runner, 1000); }) == MR_DEADLINE_EXCEEDED, "the wait did not end in time");
    mr_progress progress{};
    for (int i = 0; i < 20000 && progress.running_ns == 0; ++i) {
      runner.progress(&progress);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    CHECK(progress.running_ns > 0 && progress.submitted == progress.completed + 2, "progress: %llu of %llu",
          static_cast<unsigned long long>(progress.completed), static_cast<unsigned long long>(progress.submitted));
    CHECK(code_of([&] { runner.submit(behind.view()); }) == MR_FAILED_PRECONDITION, "a third step in flight");
    hung.wait(runner);
    CHECK(hung.result.device_ns >= 1'000'000'000, "the hung step lasted %llu ns", static_cast<unsigned long long>(hung.result.device_ns));
    mr_step_result small{};
    CHECK(code_of([&] { runner.wait(UINT64_MAX, &small); }) == MR_INVALID_ARGUMENT, "results without room");
    behind.wait(runner);
    CHECK(behind.result.sample_count == 1 && behind.sample_results[0].status == MR_ROW_OK, "the result after a refused wait");
    CHECK(code_of([&] { behind.wait(runner); }) == MR_FAILED_PRECONDITION, "a wait for nothing");
    runner.progress(&progress);
    CHECK(progress.submitted == progress.completed && progress.running_ns == 0, "progress of an idle runner");

    // Destroyed with steps in flight, after a step of pre-operations alone.
    Step alone;
    alone.set(2, 1, &p).run(runner);
    CHECK(alone.result.sample_count == 0, "rows out of nothing");
    runner.fault(MR_FAULT_HANG_STEP, 0, 20'000'000);
    Step last;
    last.feed(2, 1, 0, {5}, table, MR_CLASS_PREFILL).sample(2, 1, 1);
    runner.submit(last.view());
  }
  const LedgerCounts after = device->ledger.counts();
  for (int i = 0; i < MR_PURPOSE_COUNT; ++i) CHECK(before.used[i] == after.used[i], "purpose %d: bytes left behind", i);
  CHECK(model->runners.load() == 0 && device->runners.load() == 0, "the runner is still counted");
  for (const auto& change : std::vector<std::function<void(mr_runner_config&)>>{
           [](mr_runner_config& c) { c.kv_blocks = 0; }, [](mr_runner_config& c) { c.block_size = 8; },
           [](mr_runner_config& c) { c.max_sequences = 0; }, [](mr_runner_config& c) { c.max_batched_tokens = -1; },
           [](mr_runner_config& c) { c.max_sample_rows = 0; }, [](mr_runner_config& c) { c.max_score_rows = -1; },
           [](mr_runner_config& c) { c.max_top_n = 65; }, [](mr_runner_config& c) { c.kv_type = 8; }}) {
    mr_runner_config c = config_of(MR_KV_F32);
    change(c);
    int32_t code = MR_OK;
    try {
      Runner runner(model, c);
    } catch (const Error& e) {
      code = e.code;
    }
    CHECK(code == MR_INVALID_ARGUMENT, "a configuration was accepted");
  }
  mr_runner_config c = config_of(MR_KV_F32);
  c.kv_blocks = 1 << 24;
  int32_t code = MR_OK;
  try {
    Runner runner(model, c);
  } catch (const Error& e) {
    code = e.code;
  }
  CHECK(code == MR_RESOURCE_EXHAUSTED, "a cache beyond the ledger: code %d", code);
  CHECK(device->ledger.counts().used[MR_PURPOSE_KV] == 0 && device->runners.load() == 0, "a refused runner left something");
}

}  // namespace

int main() {
  const tiny::Weights llama(tiny::llama_shape()), qwen(tiny::qwen_shape());
  check::each_isa([&](Isa isa) {
    same_logprobs(name(isa), llama, MR_KV_F32);
    same_logprobs(name(isa), qwen, MR_KV_F32);
    feedback(name(isa), qwen);
  });
  same_logprobs(nullptr, llama, MR_KV_F16);
  same_logprobs(nullptr, qwen, MR_KV_BF16);
  rules(llama);
  return check::report("runner");
}
