// Blocks that move to host memory and back: a slot continues from them as if they had never moved.
#include "tests/engine_step.h"

namespace mr::cuda::test {
namespace {

constexpr int32_t kPrompt = 41, kCount = 6, kBlocks = 3;  // blocks of the prompt and what follows it
constexpr uint64_t kBlockBytes = 2 * 2 * 16 * 2 * 64 * 2;  // layers, keys and values, tokens, heads, dims, bytes
constexpr int32_t kPiece = static_cast<int32_t>((uint64_t{64} << 20) / kBlockBytes);

mr_runner_config host_config(int32_t host_blocks) {
  mr_runner_config config = config_of(MR_KV_F16);
  config.host_blocks = host_blocks;
  return config;
}

class HostBlocks : public testing::TestWithParam<bool> {  // whether decode steps are graphs
 protected:
  HostBlocks() : device_(open_device()), model_(random_model(device_, desc_of(4, 2, 64), kQ8_0)), runner_(runner_of(kPiece + 5)) {
    story_ = tell(*runner_, 3, penalised_params(kPrompt), random_ids(1, kPrompt), table_, kCount);
  }

  std::unique_ptr<Runner> runner_of(int32_t host_blocks) const {
    auto runner = std::make_unique<Runner>(model_, host_config(host_blocks), RunnerOptions{GetParam(), GetParam()});
    runner->settle();
    return runner;
  }
  // Writes another story into the blocks of the first.
  void overwrite() { (void)tell(*runner_, 4, params_of(kPrompt, 1), random_ids(99, kPrompt), table_, kCount); }
  // A slot that begins after the story's prompt, with its blocks in `table`, must continue the story. Parts of `maker`
  // come first.
  void expect_story(StepMaker& maker, const std::vector<int32_t>& table) {
    for (int32_t from = kPrompt; from < kPrompt + kCount - 1; ++from) {
      StepMaker next;
      StepMaker& step = from == kPrompt ? maker : next;
      if (from == kPrompt) step.set(9, penalised_params(kPrompt), story_.ids(0, from));
      step.sample(step.feed(9, MR_CLASS_DECODE, from, story_.ids(from, from + 1), table), 9, from + 1);
      const std::vector<Row> rows = run(*runner_, step);
      ASSERT_EQ(rows[0], story_.rows[static_cast<size_t>(from + 1 - kPrompt)]) << from;
    }
  }

  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Model> model_;
  const std::vector<int32_t> table_ = range(8, kBlocks);
  const std::unique_ptr<Runner> runner_;
  Story story_;
};

TEST_P(HostBlocks, CostWhatABlockOfTheDeviceDoes) {
  mr_runner_cost cost{};
  Runner::cost(*model_, host_config(0), &cost);
  EXPECT_EQ(cost.host_bytes_per_block, kBlockBytes);
  EXPECT_EQ(cost.bytes_per_block, kBlockBytes);
}

TEST_P(HostBlocks, ComeBackElsewhere) {
  const int32_t places[kBlocks] = {kPiece + 4, 0, kPiece - 1};  // of two pieces, both ends of each
  StepMaker out;
  for (int32_t b = 0; b < kBlocks; ++b) out.block(MR_PRE_BLOCK_OUT, table_[static_cast<size_t>(b)], places[b]);
  EXPECT_TRUE(run(*runner_, out).empty());  // a step without rows
  overwrite();
  StepMaker in;
  for (int32_t b = 0; b < kBlocks; ++b) in.block(MR_PRE_BLOCK_IN, places[b], 511 - b);
  expect_story(in, {511, 510, 509});
}

TEST_P(HostBlocks, GoOutBeforeTheSegmentsOfTheirStep) {
  StepMaker out;
  for (int32_t b = 0; b < kBlocks; ++b) out.block(MR_PRE_BLOCK_OUT, table_[static_cast<size_t>(b)], b);
  out.set(4, params_of(kPrompt));
  out.sample(out.feed(4, MR_CLASS_PREFILL, 0, random_ids(99, kPrompt), table_) + kPrompt - 1, 4, kPrompt);
  EXPECT_EQ(run(*runner_, out).size(), 1u);
  StepMaker in;
  for (int32_t b = 0; b < kBlocks; ++b) in.block(MR_PRE_BLOCK_IN, b, table_[static_cast<size_t>(b)]);
  expect_story(in, table_);
}

// Each operation reads the output of the one before, or overwrites its input.
TEST_P(HostBlocks, MoveInOrder) {
  StepMaker maker;
  for (int32_t b = 0; b < kBlocks; ++b) {
    const int32_t at = table_[static_cast<size_t>(b)];
    maker.block(MR_PRE_BLOCK_COPY, at, 100);
    maker.block(MR_PRE_BLOCK_OUT, 100, 7);
    maker.block(MR_PRE_BLOCK_IN, 7, 101);
    maker.block(MR_PRE_BLOCK_COPY, 200, at);  // overwrites the old contents
    maker.block(MR_PRE_BLOCK_COPY, 101, 110 + b);
    maker.block(MR_PRE_BLOCK_COPY, 110 + b, 110 + b);
  }
  expect_story(maker, range(110, kBlocks));
}

TEST_P(HostBlocks, StayAsTheyWereWrittenLast) {
  StepMaker out;
  for (int32_t b = 0; b < kBlocks; ++b) {
    out.block(MR_PRE_BLOCK_OUT, 300, b);
    out.block(MR_PRE_BLOCK_OUT, table_[static_cast<size_t>(b)], b);
  }
  (void)run(*runner_, out);
  for (int round = 0; round < 3; ++round) {
    overwrite();
    StepMaker in;
    for (int32_t b = 0; b < kBlocks; ++b) in.block(MR_PRE_BLOCK_IN, b, table_[static_cast<size_t>(b)]);
    expect_story(in, table_);
  }
}

TEST_P(HostBlocks, ThatWereNeverWrittenDoNotComeIn) {
  StepMaker out;
  out.block(MR_PRE_BLOCK_OUT, 8, 3);
  (void)run(*runner_, out);
  for (const int32_t block : {2, 4, kPiece + 4}) {
    StepMaker in;
    in.block(MR_PRE_BLOCK_IN, block, 0);
    EXPECT_EQ(refusal_of([&] { runner_->submit(in.step()); }).code, MR_INVALID_ARGUMENT) << block;
  }
}

TEST_P(HostBlocks, BeyondTheirNumberAreRefused) {
  for (const int32_t block : {-1, kPiece + 5}) {
    StepMaker out;
    out.block(MR_PRE_BLOCK_OUT, 0, block);
    EXPECT_EQ(refusal_of([&] { runner_->submit(out.step()); }).code, MR_INVALID_ARGUMENT) << block;
  }
  StepMaker many;
  for (int32_t i = 0; i <= 512 + kPiece + 5; ++i) many.block(MR_PRE_BLOCK_COPY, 0, 1);
  const Refusal refused = refusal_of([&] { runner_->submit(many.step()); });
  EXPECT_EQ(refused.code, MR_RESOURCE_EXHAUSTED);
  EXPECT_NE(refused.message.find("copies of blocks in one step"), std::string::npos) << refused.message;
  const auto none = runner_of(0);
  StepMaker out;
  out.block(MR_PRE_BLOCK_OUT, 0, 0);
  EXPECT_EQ(refusal_of([&] { none->submit(out.step()); }).code, MR_INVALID_ARGUMENT);
}

// A step that is refused its second piece of host memory must not have changed the first one either.
TEST_P(HostBlocks, WithoutMemoryChangeNothing) {
  StepMaker out;
  out.block(MR_PRE_BLOCK_OUT, 8, 0);
  out.block(MR_PRE_BLOCK_OUT, 9, kPiece);
  out.set(3, params_of(0));
  for (int32_t skip = 0; skip < 2; ++skip) {
    device_->ledger.refuse(MR_FAULT_REFUSE_ALLOC, skip, 1);
    const Refusal refused = refusal_of([&] { runner_->submit(out.step()); });
    EXPECT_EQ(refused.code, MR_RESOURCE_EXHAUSTED);
    EXPECT_NE(refused.message.find("host memory for blocks"), std::string::npos) << refused.message;
  }
  device_->ledger.refuse(MR_FAULT_REFUSE_ALLOC, 0, 0);
  StepMaker in;
  in.block(MR_PRE_BLOCK_IN, 0, 0);
  EXPECT_EQ(refusal_of([&] { runner_->submit(in.step()); }).code, MR_INVALID_ARGUMENT);
  StepMaker next;  // slot 3 still has its history
  const int32_t last = kPrompt + kCount - 1;
  next.sample(next.feed(3, MR_CLASS_DECODE, last - 1, story_.ids(last - 1, last), table_), 3, last);
  EXPECT_EQ(run(*runner_, next)[0], story_.rows.back());
  (void)run(*runner_, out);
}

INSTANTIATE_TEST_SUITE_P(Launches, HostBlocks, testing::Values(false, true));

}  // namespace
}  // namespace mr::cuda::test
