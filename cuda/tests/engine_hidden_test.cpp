// Hidden rows: the same bits however a step is run, and the norm that they are the result of.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/engine_step.h"
#include "tests/engine_together.h"

namespace mr::cuda::test {
namespace {

constexpr int32_t kLength = 70, kRows = 96;

mr_runner_config hidden_config(int32_t kv_type = MR_KV_F16) {
  mr_runner_config c = config_of(kv_type);
  c.max_hidden_rows = kRows;
  return c;
}

// Returns the hidden rows of a step, one after another.
std::vector<float> hidden_of(Runner& runner, const StepMaker& maker) {
  std::vector<float> hidden(kRows * kHiddenWidth, std::numeric_limits<float>::infinity());
  runner.submit(maker.step());
  (void)collect(runner, kPatience, &hidden);
  return hidden;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Returns the hidden rows of all tokens of a prompt in slot 3, `chunk` of them a step, together with prompts of other slots: of the same kernel
// class, or, of three others, of both. Rows are asked for from the last to the first of a step and returned in the order of positions.
std::vector<float> prompt_rows(Runner& runner, int32_t kernel_class, int32_t chunk, int32_t others) {
  const std::vector<int32_t> prompt = random_ids(5, kLength);
  std::vector<float> all(kLength * kHiddenWidth);
  for (int32_t first = 0; first < kLength; first += chunk) {
    const int32_t count = std::min(chunk, kLength - first);
    StepMaker maker;
    for (int32_t slot = 4; slot < 4 + others; ++slot) {
      maker.set(slot, params_of(9));
      const int32_t other_class = others == 3 && slot % 2 == 0 ? MR_CLASS_PREFILL : kernel_class;
      const int32_t at = maker.feed(slot, other_class, 0, random_ids(static_cast<uint32_t>(slot), 9), range(slot * 7, 7));
      maker.sample(at + 8, slot, 9);
    }
    if (first == 0) maker.set(3, params_of(kLength));
    const int32_t at = maker.feed(3, kernel_class, first, {prompt.begin() + first, prompt.begin() + first + count}, range(21, 7));
    for (int32_t i = count; i-- > 0;) maker.hidden(at + i);
    const std::vector<float> rows = hidden_of(runner, maker);
    EXPECT_EQ(rows.size(), static_cast<size_t>(count) * kHiddenWidth);
    for (size_t i = 0; i < static_cast<size_t>(count); ++i)
      std::copy_n(rows.end() - static_cast<int64_t>((i + 1) * kHiddenWidth), kHiddenWidth,
                  all.begin() + static_cast<int64_t>((static_cast<size_t>(first) + i) * kHiddenWidth));
  }
  return all;
}

class HiddenRows : public testing::Test {
 protected:
  HiddenRows() : tensors_(random_tensors(desc_of(4, 2, 64), kQ8_0)), device_(open_device()),
                 model_(bound_model(device_, desc_of(4, 2, 64), tensors_)) {}

  std::unique_ptr<Runner> runner_of(RunnerOptions options = {}) const {
    auto runner = std::make_unique<Runner>(model_, hidden_config(), options);
    runner->settle();
    return runner;
  }

  const std::vector<TensorBytes> tensors_;
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Model> model_;
};

TEST_F(HiddenRows, AreTheSameHoweverAStepIsRun) {
  for (const int32_t kernel_class : {MR_CLASS_PREFILL, MR_CLASS_DECODE}) {
    const std::vector<float> want = prompt_rows(*runner_of({false, false}), kernel_class, kLength, 0);
    for (const RunnerOptions options : {RunnerOptions{false, false}, RunnerOptions{false, true}, RunnerOptions{true, true}}) {
      const auto runner = runner_of(options);
      for (const int32_t chunk : {1, 7, 16, 64, kLength})
        for (const int32_t others : {0, 2, 3})
          EXPECT_TRUE(same_bits(prompt_rows(*runner, kernel_class, chunk, others), want))
              << "class " << kernel_class << ", graphs " << options.graphs << ", chunks of " << chunk << " beside " << others;
    }
  }
}

// Divided by the weights of the output norm, a row has a mean square of 1.
TEST_F(HiddenRows, AreNormed) {
  std::vector<float> weight;
  for (const TensorBytes& t : tensors_) {
    if (t.desc.role != MR_ROLE_OUTPUT_NORM) continue;
    weight.resize(t.bytes.size() / sizeof(float));
    std::memcpy(weight.data(), t.bytes.data(), t.bytes.size());
  }
  ASSERT_EQ(weight.size(), kHiddenWidth);
  const std::vector<float> rows = prompt_rows(*runner_of(), MR_CLASS_PREFILL, kLength, 0);
  for (size_t row = 0; row < kLength; ++row) {
    double square = 0;
    for (size_t d = 0; d < kHiddenWidth; ++d) square += std::pow(static_cast<double>(rows[row * kHiddenWidth + d]) / weight[d], 2);
    EXPECT_NEAR(square / kHiddenWidth, 1, 1e-3) << "row " << row;
    const float* const here = rows.data() + row * kHiddenWidth;
    EXPECT_TRUE(row == 0 || !std::equal(here, here + kHiddenWidth, here - kHiddenWidth)) << "row " << row << " is the one before it";
  }
}

TEST_F(HiddenRows, OfStepsInFlightStayApart) {
  const auto runner = runner_of();
  std::vector<float> want[2];
  const auto step = [&](int32_t slot) {
    StepMaker maker;
    maker.set(slot, params_of(20));
    maker.hidden(maker.feed(slot, MR_CLASS_PREFILL, 0, random_ids(static_cast<uint32_t>(slot) + 40, 20), range(slot * 7, 7)) + 19);
    return maker;
  };
  for (const int32_t slot : {0, 1}) want[slot] = hidden_of(*runner, step(slot));
  ASSERT_FALSE(same_bits(want[0], want[1]));
  const StepMaker first = step(0), second = step(1);
  runner->submit(first.step());
  runner->submit(second.step());
  for (const std::vector<float>& each : want) {
    std::vector<float> got(kHiddenWidth - 1);
    const Refusal refusal = refusal_of([&] { (void)collect(*runner, kPatience, &got); });
    EXPECT_EQ(refusal.code, MR_INVALID_ARGUMENT);
    EXPECT_NE(refusal.message.find("wanted 256"), std::string::npos) << refusal.message;
    got.resize(kHiddenWidth);
    (void)collect(*runner, kPatience, &got);
    EXPECT_TRUE(same_bits(got, each));
  }
}

TEST_F(HiddenRows, OfAStepWithLateMasksAreTheSame) {
  std::vector<uint32_t> mask((509 + 31) / 32, ~0u);
  mask.back() = (1u << 509 % 32) - 1;
  std::vector<float> want[2];  // by class
  for (const bool graphs : {false, true})
    for (const bool late : {false, true})
      for (const int32_t kernel_class : {MR_CLASS_PREFILL, MR_CLASS_DECODE}) {
        const auto runner = runner_of({graphs, true});
        StepMaker maker;
        maker.set(0, params_of(1));
        const int32_t at = maker.feed(0, kernel_class, 0, {77}, range(0, 7));
        maker.sample(at, 0, 1, 0);
        maker.hidden(at);
        if (late) maker.late(static_cast<int64_t>(mask.size()));
        else maker.masks(mask);
        runner->submit(maker.step());
        if (late) runner->masks(mask.data(), static_cast<int64_t>(mask.size()));
        std::vector<float> got(kHiddenWidth);
        (void)collect(*runner, kPatience, &got);
        std::vector<float>& first = want[kernel_class];
        if (first.empty()) first = got;
        EXPECT_TRUE(same_bits(got, first)) << "class " << kernel_class << ", graphs " << graphs << ", late " << late;
      }
}

// The state of a token that could not be sampled is NaN, and that of its neighbour is not.
TEST_F(HiddenRows, OfAnUnknownTokenAreNaN) {
  for (const bool graphs : {false, true}) {
    const auto runner = runner_of({graphs, true});
    StepMaker prompts, tokens;
    for (const int32_t slot : {0, 1}) {
      prompts.set(slot, params_of(3));
      prompts.sample(prompts.feed(slot, MR_CLASS_PREFILL, 0, {1, 2, 3}, range(slot * 7, 7)) + 2, slot, 3);
      tokens.hidden(tokens.feed(slot, MR_CLASS_DECODE, 3, {-1}, range(slot * 7, 7)));
    }
    runner->fault(MR_FAULT_NAN_LOGITS, 0, 0);
    EXPECT_EQ(run(*runner, prompts)[0].status, MR_ROW_NAN);
    const std::vector<float> rows = hidden_of(*runner, tokens);
    ASSERT_EQ(rows.size(), 2 * kHiddenWidth);
    for (size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(std::isnan(rows[i]), i < kHiddenWidth) << "graphs " << graphs << ", number " << i;
  }
}

TEST_F(HiddenRows, AreBoundedAndCounted) {
  mr_runner_cost without{}, with{};
  Runner::cost(*model_, config_of(MR_KV_F16), &without);
  Runner::cost(*model_, hidden_config(), &with);
  EXPECT_GE(with.workspace_bytes - without.workspace_bytes, kRows * kHiddenWidth * sizeof(float));
  const auto runner = runner_of();
  StepMaker maker;
  maker.set(0, params_of(100));
  const int32_t at = maker.feed(0, MR_CLASS_PREFILL, 0, random_ids(1, 100), range(0, 7));
  for (int32_t i = 0; i <= kRows; ++i) maker.hidden(at + i);
  EXPECT_NE(refusal_of([&] { runner->submit(maker.step()); }).message.find("hidden rows"), std::string::npos);
}

TEST(DividedHiddenRows, HaveTheBitsOfOneGpu) {
  NEEDS_TWO_GPUS();
  const UniformShape desc = desc_of(4, 2, 64);
  const std::vector<TensorBytes> tensors = random_tensors(desc, kQ8_0);
  const auto one = bound_model(open_device(), desc, tensors), two = bound_model(open_together({0, 1}), desc, tensors);
  Runner alone(one, hidden_config(MR_KV_BF16)), divided(two, hidden_config(MR_KV_BF16));
  for (const int32_t kernel_class : {MR_CLASS_PREFILL, MR_CLASS_DECODE})
    for (const int32_t chunk : {1, 16, kLength})
      EXPECT_TRUE(same_bits(prompt_rows(alone, kernel_class, chunk, 3), prompt_rows(divided, kernel_class, chunk, 3)))
          << "class " << kernel_class << ", chunks of " << chunk;
}

}  // namespace
}  // namespace mr::cuda::test
