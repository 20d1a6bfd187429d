// The optional parts of a step: histories of slots, blocks in host memory, masks that come late; and attention whose
// chunks several threads share.
#include <functional>
#include <stdexcept>

#include "b2_step.h"
#include "b2_tiny_model.h"
#include "error.h"
#include "host_blocks.h"
#include "runner.h"
#include "step_plan.h"

using namespace mr;
using namespace mr::cpu;
using namespace tiny;

namespace {

int32_t code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    CHECK(!e.message.empty(), "an error of code %d says nothing", e.code);
    return e.code;
  }
  return MR_OK;
}

void checker() {
  constexpr int32_t vocab = 83, context = 700, words = 3;
  mr_runner_config config = config_of(MR_KV_F32);
  config.host_blocks = 4;
  Description desc{};
  desc.vocab = vocab;
  desc.context = context;
  StepChecker checker(config, desc, 300);
  StepPlan plan;
  checker.reserve(plan);
  const mr_slot_params p = greedy();
  const auto accept = [&](const Step& step) { return code_of([&] { checker.accept(step.view(), plan); }); };
  const int32_t bad = MR_INVALID_ARGUMENT;
  const auto in = [](int32_t from) {
    Step s;
    s.move(MR_PRE_BLOCK_IN, from, 1);
    return s;
  };

  CHECK(accept(in(0)) == bad, "a block of host memory that was never written");
  Step refused;
  refused.move(MR_PRE_BLOCK_OUT, 0, 2).move(MR_PRE_BLOCK_OUT, 80, 2);
  CHECK(accept(refused) == bad && accept(in(2)) == bad, "a refused step wrote a block of host memory");
  Step out;
  out.move(MR_PRE_BLOCK_OUT, 0, 2).move(MR_PRE_BLOCK_IN, 2, 5);
  CHECK(accept(out) == MR_OK, "out and in again within a step");
  checker.take_back();
  CHECK(accept(in(2)) == bad, "a step taken back wrote a block of host memory");
  CHECK(code_of([&] { checker.accept(out.view(), plan, [](const StepPlan&) { fail(MR_RESOURCE_EXHAUSTED, "no memory"); }); }) ==
            MR_RESOURCE_EXHAUSTED && accept(in(2)) == bad,
        "a step without memory wrote a block of host memory");
  CHECK(accept(out) == MR_OK && accept(in(2)) == MR_OK && accept(in(1)) == bad && accept(in(3)) == bad, "one block was written");
  CHECK(accept(out) == MR_OK, "written again");
  checker.take_back();
  CHECK(accept(in(2)) == MR_OK, "what an earlier step wrote is written, whatever became of a later one");
  for (const int32_t block : {-1, 4, INT32_MAX, INT32_MIN}) {
    Step to;
    to.move(MR_PRE_BLOCK_OUT, 0, block);
    CHECK(accept(to) == bad && accept(in(block)) == bad, "block %d of host memory", block);
  }
  for (const int32_t block : {-1, 80}) {
    Step from, to;
    from.move(MR_PRE_BLOCK_OUT, block, 0);
    to.move(MR_PRE_BLOCK_IN, 2, block);
    CHECK(accept(from) == bad && accept(to) == bad, "block %d of the device", block);
  }

  const std::vector<int32_t> history(301, 4);
  const auto begin = [&](int32_t count, int32_t at) {
    Step s;
    s.set(0, 1, &p, history);
    s.pre_ops[0].history_count = count;
    s.feed(0, 1, at, {1}, table_of(context, 0, 1), MR_CLASS_PREFILL);
    return accept(s);
  };
  CHECK(begin(0, 0) == MR_OK && begin(1, 1) == MR_OK && begin(20, 3) == MR_OK && begin(299, 299) == MR_OK, "a history");
  CHECK(begin(20, 21) == bad && begin(0, 1) == bad, "a gap behind a history");
  CHECK(begin(300, 300) == MR_OUT_OF_RANGE && begin(301, 0) == bad && begin(-1, 0) == bad, "a history beyond the pool");
  for (const int32_t token : {-1, vocab}) {
    std::vector<int32_t> wrong = {3, token};
    Step s;
    s.set(0, 1, &p, wrong);
    CHECK(accept(s) == bad, "token %d in a history", token);
  }
  Step absent;
  absent.set(0, 1, &p);
  absent.pre_ops[0].history_count = 1;
  CHECK(accept(absent) == bad, "a history at null");
  Step older;  // a caller that knows nothing of histories: what lies behind its struct is not read
  older.set(0, 1, &p, history);
  older.pre_ops[0].struct_size = offsetof(mr_pre_op, history_count);
  CHECK(accept(older) == MR_OK && plan.pre_ops[0].history.empty(), "a history that its caller does not know");

  Step start, late;
  start.set(0, 1, &p).feed(0, 1, 0, {1}, table_of(16, 0, 1), MR_CLASS_PREFILL);
  CHECK(accept(start) == MR_OK, "a start");
  late.feed(0, 1, 1, {1}, table_of(16, 0, 1), MR_CLASS_DECODE).sample(0, 1, 2, 0, 0);
  for (const int64_t count : {int64_t{1}, int64_t{words - 1}, int64_t{8 * words + 1}, INT64_MAX}) {
    late.late_words = count;
    CHECK(accept(late) == bad, "%lld words of late masks", static_cast<long long>(count));
  }
  late.late_words = 2 * words;
  late.samples[0].mask_offset = words + 1;
  CHECK(accept(late) == bad, "a mask beyond those that come late");
  late.samples[0].mask_offset = words;
  mr_step view = late.view();
  const std::vector<uint32_t> given(7, 5);
  view.masks = given.data();
  CHECK(code_of([&] { checker.accept(view, plan); }) == bad, "late masks that are there");
  view = late.view();
  view.flags = 3;
  CHECK(code_of([&] { checker.accept(view, plan); }) == MR_UNIMPLEMENTED, "an unknown flag");
  view = late.view();
  view.reserved0 = 1;
  CHECK(code_of([&] { checker.accept(view, plan); }) == MR_UNIMPLEMENTED, "a reserved member");
  CHECK(accept(late) == MR_OK && plan.masks_late && plan.masks.empty(), "late masks");
  for (const int64_t count : {0, 5, 7, -1})
    CHECK(code_of([&] { StepChecker::accept_masks(given.data(), count, plan); }) == bad && plan.masks.empty(), "other late masks");
  CHECK(code_of([&] { StepChecker::accept_masks(nullptr, 6, plan); }) == bad, "late masks at null");
  StepChecker::accept_masks(given.data(), 6, plan);
  CHECK(plan.masks.size() == 6, "late masks are copied");
}

// A segment of a model whose layers see later positions is a whole text.
void whole_texts() {
  Description desc{};
  desc.vocab = 83;
  desc.context = 100;
  desc.layers.resize(2);
  desc.layers[1].mixer.flags = MR_MIX_BIDIRECTIONAL;
  StepChecker checker(config_of(MR_KV_F32), desc, 100);
  StepPlan plan;
  checker.reserve(plan);
  const mr_slot_params p = greedy();
  const auto accept = [&](const Step& step) { return code_of([&] { checker.accept(step.view(), plan); }); };
  Step first, second, again, both, late;
  first.set(0, 1, &p).feed(0, 1, 0, {1, 2, 3}, table_of(16, 0, 1), MR_CLASS_PREFILL);
  CHECK(accept(first) == MR_OK, "a text");
  second.feed(0, 1, 3, {4}, table_of(16, 0, 1), MR_CLASS_DECODE);
  CHECK(accept(second) == MR_INVALID_ARGUMENT, "a second part of a text");
  again.feed(0, 1, 0, {1, 2}, table_of(16, 0, 1), MR_CLASS_DECODE);
  CHECK(accept(again) == MR_OK, "another text in the slot");
  both.feed(0, 1, 0, {1, 2}, table_of(16, 0, 1), MR_CLASS_PREFILL).feed(0, 1, 0, {3}, table_of(16, 0, 1), MR_CLASS_PREFILL);
  CHECK(accept(both) == MR_INVALID_ARGUMENT, "two texts in one slot");
  const std::vector<int32_t> history = {5, 6};
  late.set(0, 1, &p, history).feed(0, 1, 2, {1}, table_of(16, 0, 1), MR_CLASS_PREFILL);
  CHECK(accept(late) == MR_INVALID_ARGUMENT, "a text after a history");
}

// Memory that counts itself.
struct Piece {
  static inline int alive = 0, made = 0, refuse_at = -1;
  std::vector<uint8_t> bytes;
  explicit Piece(uint64_t size) : bytes(static_cast<size_t>(size)) { ++alive; }
  ~Piece() { --alive; }
  void* data() { return bytes.data(); }
  static std::unique_ptr<Piece> make(uint64_t size) {
    if (made == refuse_at) fail(MR_RESOURCE_EXHAUSTED, "refused");
    ++made;
    return std::make_unique<Piece>(size);
  }
};

StepPlan copies_out(const std::vector<int32_t>& blocks) {
  StepPlan plan;
  for (const int32_t block : blocks) {
    StepPlan::PreOp op{};
    op.kind = MR_PRE_BLOCK_OUT;
    op.dst = block;
    plan.pre_ops.push_back(op);
    op.kind = MR_PRE_BLOCK_IN;  // which takes nothing
    op.src = block;
    op.dst = 0;
    plan.pre_ops.push_back(op);
  }
  return plan;
}

void pieces() {
  constexpr uint64_t mega = uint64_t{1} << 20;
  {
    HostBlocks<Piece> none(0, 100), all(10, 24 * mega);  // two blocks a piece
    none.hold(copies_out({}), Piece::make);
    all.hold(copies_out({0, 9, 1}), Piece::make);
    CHECK(Piece::alive == 2, "%d pieces for blocks 0, 1 and 9", Piece::alive);
    CHECK(all.block(1) == all.block(0) + 24 * mega, "blocks of a piece do not lie one after another");
    Piece::refuse_at = Piece::made + 1;
    CHECK(code_of([&] { all.hold(copies_out({0, 2, 5, 7}), Piece::make); }) == MR_RESOURCE_EXHAUSTED && Piece::alive == 2,
          "a refusal left %d pieces", Piece::alive);
    Piece::refuse_at = -1;
    uint8_t* const first = all.block(0);
    const std::vector<size_t> taken = all.hold(copies_out({0, 3, 5}), Piece::make);
    CHECK(taken.size() == 2 && Piece::alive == 4, "a step took %zu pieces of %d", taken.size(), Piece::alive);
    all.give_back(taken);
    CHECK(Piece::alive == 2 && all.block(0) == first, "a step that is refused left %d pieces", Piece::alive);
    all.hold(copies_out({2, 3, 4, 5, 6, 7, 8}), Piece::make);
    CHECK(Piece::alive == 5 && all.block(0) == first, "a block moved");
    std::memset(all.block(9), 1, 24 * mega);
  }
  CHECK(Piece::alive == 0, "%d pieces were left behind", Piece::alive);
  HostBlocks<Piece> large(3, 65 * mega), few(3, 7), many(INT32_MAX, 4096);
  large.hold(copies_out({0, 2}), Piece::make);
  std::memset(large.block(2), 1, 65 * mega);
  CHECK(Piece::alive == 2, "a block above the size of a piece is a piece");
  few.hold(copies_out({2}), Piece::make);
  std::memset(few.block(0), 1, 21);
  CHECK(Piece::alive == 3, "few small blocks are one piece, and no more than they need");
  many.hold(copies_out({INT32_MAX - 1}), Piece::make);
  std::memset(many.block(INT32_MAX - 1), 1, 4096);
}

// Tokens behind a long prefix: few tasks, or many; one thread or several.
void shared_chunks(const char* path) {
  plain_model d = llama_shape();
  d.layers = 1;
  d.kv_heads = 1;
  d.context = 4000;
  const tiny::Weights weights(d);
  mr_runner_config config = config_of(MR_KV_F16);
  config.kv_blocks = 250;
  const std::vector<int32_t> ids = random_tokens(4000, d.vocab, 4);
  const mr_slot_params p = greedy();
  std::vector<float> want;
  for (const int32_t threads : {1, 2, 3, 5}) {
    const auto device = open_device(path, threads);
    const auto model = weights.bind(device);
    Runner runner(model, config);
    std::vector<int32_t> table(250);
    for (int32_t b = 0; b < 250; ++b) table[static_cast<size_t>(b)] = (b * 77 + 3) % 250;
    std::vector<float> got;
    const auto run = [&](int32_t from, int32_t count) {
      Step step;
      const std::vector<int32_t> history(ids.begin(), ids.begin() + from);
      step.set(0, 1, &p, history);
      step.feed(0, 1, from, {ids.begin() + from, ids.begin() + from + count}, table, MR_CLASS_PREFILL);
      step.score(count - 1, 7).score(0, 7).run(runner);
      for (int i = 0; i < 2; ++i) got.push_back(step.score_results[static_cast<size_t>(i)].logprob);
    };
    for (int32_t at = 0; at < 3600; at += 400) run(at, 400);
    // Behind 2 047, 2 048 and 2 049 keys (of which 8 chunks are shared), at edges of chunks, and at the end.
    for (const int32_t at : {1791, 1792, 2047, 2048, 2049, 3071, 3072, 3327, 3584})
      for (const int32_t count : {1, 2, 7, 13}) run(at, count);
    for (const int32_t at : {3613, 3614, 3615}) run(3597, at - 3597);
    run(3999 - 399, 400);
    run(3999, 1);
    if (want.empty()) want = got;
    CHECK(got.size() == want.size() && std::memcmp(got.data(), want.data(), got.size() * 4) == 0, "%s: %d threads: other bits", path,
          threads);
  }
}

void host_memory(const tiny::Weights& weights) {
  const auto device = open_device(nullptr, 2);
  const auto model = weights.bind(device);
  mr_runner_config config = config_of(MR_KV_BF16);
  config.host_blocks = 5;
  mr_runner_cost cost{};
  Runner::cost(*model, config, &cost);
  CHECK(cost.host_bytes_per_block == cost.bytes_per_block, "a block of host memory holds what one of the device does");
  Runner runner(model, config);
  const mr_slot_params p = greedy();
  const std::vector<int32_t> ids = random_tokens(20, weights.desc.vocab, 6);
  Step first;
  first.set(0, 1, &p).feed(0, 1, 0, ids, {3, 4}, MR_CLASS_PREFILL).sample(0, 1, 20).run(runner);
  const LedgerCounts before = device->ledger.counts();
  Step out;
  out.move(MR_PRE_BLOCK_OUT, 4, 2).set(0, 9, &p);
  device->ledger.refuse(MR_FAULT_REFUSE_ALLOC, 0, 1);
  CHECK(code_of([&] { runner.submit(out.view()); }) == MR_RESOURCE_EXHAUSTED, "host memory that the system refuses");
  Step in;
  in.move(MR_PRE_BLOCK_IN, 2, 9);
  CHECK(code_of([&] { runner.submit(in.view()); }) == MR_INVALID_ARGUMENT, "a refused copy out left a block");
  Step old;  // the slot is still of generation 1
  old.feed(0, 1, 19, {ids[19]}, {3, 4}, MR_CLASS_PREFILL).sample(0, 1, 20).run(runner);
  CHECK(old.sample_results[0].logprob == first.sample_results[0].logprob, "the refused step changed something");
  Step again;
  again.move(MR_PRE_BLOCK_OUT, 4, 2).run(runner);
  Step back;
  back.move(MR_PRE_BLOCK_COPY, 3, 4).move(MR_PRE_BLOCK_IN, 2, 9);
  back.feed(0, 1, 19, {ids[19]}, {3, 9}, MR_CLASS_PREFILL).sample(0, 1, 20).run(runner);
  CHECK(back.sample_results[0].logprob == first.sample_results[0].logprob, "a block that came back has other bits");
  const LedgerCounts after = device->ledger.counts();
  for (int i = 0; i < MR_PURPOSE_COUNT; ++i) CHECK(before.used[i] == after.used[i], "the ledger counts host memory");
  for (const auto& [kv, act, want] : {std::tuple{256, 0, MR_UNIMPLEMENTED}, {0, 1, MR_UNIMPLEMENTED}, {1, 30, MR_UNIMPLEMENTED},
                                      {256, 30, MR_UNIMPLEMENTED}, {2, 0, MR_INVALID_ARGUMENT}, {0, 2, MR_INVALID_ARGUMENT}}) {
    mr_runner_config c = config_of(kv);
    c.act_type = act;
    CHECK(code_of([&] { Runner refused(model, c); }) == want && code_of([&] { Runner::cost(*model, c, &cost); }) == want,
          "keys of type %d with activations of type %d", kv, act);
  }
}

void late_masks(const tiny::Weights& weights) {
  const auto device = open_device(nullptr, 2);
  const auto model = weights.bind(device);
  const mr_slot_params p = greedy();
  std::vector<uint32_t> masks(6, 0);
  masks[0] = 0x90;   // tokens 4 and 7
  masks[4] = 0x120;  // tokens 37 and 40
  const auto step = [&](int32_t second) {
    Step s;
    s.set(0, 1, &p).set(1, 1, &p).feed(0, 1, 0, {1, 2, 3}, {0}, MR_CLASS_PREFILL);
    s.sample(0, 1, 3, 2, 0).sample(1, 1, 3, 2, second).sample(0, 1, 2, 1);
    return s;
  };
  for (const int32_t second : {0, 3, -1}) {  // the first row's mask, its own, none
    Runner runner(model, config_of(MR_KV_F32));
    Step early = step(second);
    early.masks = masks;
    early.run(runner);
    Step late = step(second);
    late.late_words = 6;
    CHECK(code_of([&] { runner.masks(masks.data(), 6); }) == MR_FAILED_PRECONDITION, "masks that no step waits for");
    runner.submit(late.view());
    Step behind;
    behind.feed(0, 1, 3, {-1}, {0}, MR_CLASS_DECODE).sample(0, 1, 4);
    CHECK(code_of([&] { late.wait(runner, 1'000'000); }) == MR_DEADLINE_EXCEEDED, "a step without its masks is done");
    CHECK(code_of([&] { runner.submit(behind.view()); }) == MR_FAILED_PRECONDITION, "a step behind one without its masks");
    CHECK(code_of([&] { runner.masks(masks.data(), 5); }) == MR_INVALID_ARGUMENT, "five words of six");
    mr_progress progress{};
    runner.progress(&progress);
    CHECK(progress.submitted == progress.completed + 1, "progress of a step without its masks");
    runner.masks(masks.data(), 6);
    CHECK(code_of([&] { runner.masks(masks.data(), 6); }) == MR_FAILED_PRECONDITION, "masks given twice");
    runner.submit(behind.view());
    late.wait(runner);
    behind.wait(runner);
    for (size_t i = 0; i < 3; ++i)
      CHECK(early.sample_results[i].token == late.sample_results[i].token &&
                early.sample_results[i].logprob == late.sample_results[i].logprob,
            "row %zu differs when its mask is late", i);
  }
  {  // Behind steps in flight that last a while: one without masks, and one whose masks were given before it came so far.
    Runner deep(model, config_of(MR_KV_F32));
    const auto next = [](int32_t position) {
      Step s;
      s.feed(0, 1, position, {-1}, {0}, MR_CLASS_DECODE).sample(0, 1, position + 1, 0, 0);
      s.late_words = 3;
      return s;
    };
    Step first = step(-1), second = next(3), third = next(4);
    first.masks = masks;
    deep.fault(MR_FAULT_HANG_STEP, 0, 20'000'000);
    deep.submit(first.view());
    deep.submit(second.view());
    deep.masks(masks.data(), 3);
    first.wait(deep);
    deep.submit(third.view());
    second.wait(deep);
    deep.masks(masks.data() + 3, 3);
    third.wait(deep);
    const int32_t a = second.sample_results[0].token, b = third.sample_results[0].token;
    CHECK((a == 4 || a == 7) && (b == 37 || b == 40), "tokens %d and %d are not of their masks", a, b);
  }
  Runner left(model, config_of(MR_KV_F32));  // destroyed while it waits, behind a step that hangs a while
  left.fault(MR_FAULT_HANG_STEP, 0, 5'000'000);
  Step hung = step(-1), waiting = step(0);
  hung.masks = masks;
  waiting.late_words = 6;
  left.submit(hung.view());
  left.submit(waiting.view());
}

}  // namespace

int main() {
  checker();
  whole_texts();
  pieces();
  const tiny::Weights llama(llama_shape());
  check::each_isa([](Isa isa) { shared_chunks(name(isa)); });
  host_memory(llama);
  late_masks(llama);
  return check::report("step");
}
