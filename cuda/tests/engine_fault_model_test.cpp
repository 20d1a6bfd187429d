// Driver calls that fail while a model is loaded, verified, run and released.
#include <functional>
#include <string>

#include "cpu/step_plan.h"
#include "tests/engine_fixture.h"
#include "tests/interpose/allocations.h"

namespace mr::cuda::test {
namespace {

constexpr int kBroken = 304;  // CUDA_ERROR_OPERATING_SYSTEM

struct Failure {
  int32_t code = MR_OK;
  std::string message;
};

Failure failure_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return {e.code, e.message};
  }
  return {};
}

class ModelFaults : public testing::Test {
 protected:
  void SetUp() override {
    device_ = open_device(uint64_t{2} << 30, UINT64_MAX);  // every block is allocated from the driver and freed to it
    for (const TensorBytes& t : tensors_) buffer_of(t);    // allocations that are kept after the first use
    bytes_ = mr_device_bytes();
  }
  void TearDown() override {
    for (int kind = 0; kind < MR_DRIVER_KINDS; ++kind) mr_driver_fail(kind, 0, 0, 0);
    const LedgerCounts counts = device_->ledger.counts();
    EXPECT_EQ(counts.free(), counts.total);
    EXPECT_EQ(counts.held, 0u);
    EXPECT_EQ(mr_device_bytes(), bytes_);
    device_->check_idle();
  }

  std::shared_ptr<Buffer> buffer_of(const TensorBytes& t) const {
    auto staging = std::make_shared<Buffer>(device_, t.bytes.size(), MR_PURPOSE_STAGING);
    staging->write(0, t.bytes.data(), t.bytes.size());
    return staging;
  }

  // Checks that ledger and driver agree.
  void expect_agreement() const { EXPECT_EQ(mr_device_bytes() - bytes_, device_->ledger.counts().held); }

  // OneStep is a step of one sequence's prompt of three tokens, with one sample.
  struct OneStep {
    mr_slot_params params{};
    mr_pre_op set{};
    mr_segment segment{};
    mr_sample_row sample{};
    int32_t tokens[3] = {1, 2, 3}, block = 0;
    mr_step step{};
    OneStep() {
      params.struct_size = sizeof params;
      params.prompt_length = 3;
      params.top_n = 2;
      params.top_p = params.typical_p = params.repetition_penalty = 1;
      params.allowed_count = -1;
      set.struct_size = sizeof set;
      set.slot_generation = segment.slot_generation = sample.slot_generation = 1;
      set.params = &params;
      segment.count = 3;
      segment.block_count = 1;
      sample = {2, 0, 1, 3, -1};
      step.struct_size = sizeof step;
      step.segment_stride = sizeof segment;
      step.sample_stride = sizeof sample;
      step.score_stride = sizeof(mr_score_row);
      step.pre_op_stride = sizeof set;
      step.segments = &segment;
      step.segment_count = 1;
      step.tokens = tokens;
      step.token_count = 3;
      step.block_ids = &block;
      step.block_id_count = 1;
      step.samples = &sample;
      step.sample_count = 1;
      step.pre_ops = &set;
      step.pre_op_count = 1;
    }
  };

  static mr_row_result wait(Runner& runner) {
    mr_row_result row{};
    mr_candidate candidates[8];
    mr_step_result result{};
    result.struct_size = sizeof result;
    result.row_stride = sizeof row;
    result.samples = &row;
    result.sample_capacity = 1;
    result.candidates = candidates;
    result.candidate_capacity = 8;
    runner.wait(60'000'000'000, &result);
    return row;
  }

  const UniformShape desc_ = desc_of(4, 2, 64);
  const std::vector<TensorBytes> tensors_ = random_tensors(desc_, kQ8_0);
  std::shared_ptr<Device> device_;
  unsigned long bytes_ = 0;
};

TEST_F(ModelFaults, OfABindConsumeItsBufferAndLeaveTheModelAsItWas) {
  Model model(device_, description_of(desc_));
  for (const TensorBytes& t : tensors_) {
    const LedgerCounts before = device_->ledger.counts();
    for (const int kind : {MR_DRIVER_ALLOC, MR_DRIVER_COPY, MR_DRIVER_WAIT}) {
      if (kind == MR_DRIVER_COPY && !is_vector(t.desc.role)) continue;  // kernels move it
      auto staging = buffer_of(t);
      mr_driver_fail(kind, 0, 1, kBroken);
      const Failure failed = failure_of([&] { model.bind(t.desc, std::move(staging)); });
      EXPECT_EQ(failed.code, MR_INTERNAL) << "kind " << kind << ": " << failed.message;
      EXPECT_EQ(device_->buffers.load(), 0);
      EXPECT_EQ(device_->ledger.counts().free(), before.free());
      expect_agreement();
    }
    model.bind(t.desc, buffer_of(t));
    expect_agreement();
  }
  model.seal();
}

TEST_F(ModelFaults, OfTheFreeOfABoundBufferAreNoFailureOfTheBind) {
  Model model(device_, description_of(desc_));
  const TensorBytes& t = tensors_.front();
  auto staging = buffer_of(t);
  mr_driver_fail(MR_DRIVER_FREE, 0, 1, kBroken);
  model.bind(t.desc, std::move(staging));
  EXPECT_EQ(device_->ledger.counts().used[MR_PURPOSE_STAGING], t.bytes.size());
  EXPECT_EQ(device_->ledger.counts().failed_frees, 1u);
  expect_agreement();
  device_->ledger.trim();
  EXPECT_EQ(device_->ledger.counts().used[MR_PURPOSE_STAGING], 0u);
  expect_agreement();
}

TEST_F(ModelFaults, OfFreeingAModelStayCountedUntilTheDriverTakesItsBytes) {
  auto model = bound_model(device_, desc_, tensors_);
  const LedgerCounts with = device_->ledger.counts();
  mr_driver_fail(MR_DRIVER_FREE, 0, 1'000'000, kBroken);
  model.reset();
  mr_driver_fail(MR_DRIVER_FREE, 0, 0, 0);
  const LedgerCounts after = device_->ledger.counts();
  EXPECT_EQ(device_->models.load(), 0);
  EXPECT_EQ(after.used[MR_PURPOSE_WEIGHTS], with.used[MR_PURPOSE_WEIGHTS]);
  EXPECT_EQ(after.failed_frees, tensors_.size());
  expect_agreement();
  device_->ledger.trim();
}

TEST_F(ModelFaults, OfMemoryThatIsNotTheDevicesAreFoundWhenTheModelIsSealed) {
  Model model(device_, description_of(desc_));
  for (size_t i = 0; i < tensors_.size(); ++i) {
    auto staging = buffer_of(tensors_[i]);
    mr_driver_manage(i == 3);
    model.bind(tensors_[i].desc, std::move(staging));
    mr_driver_manage(0);
  }
  const Failure found = failure_of([&] { model.seal(); });
  EXPECT_EQ(found.code, MR_INTERNAL);
  const std::string name = tensor_name(tensors_[3].desc.role, tensors_[3].desc.layer);
  EXPECT_EQ(found.message.find(name + " lies in managed memory"), 0u) << found.message;
  EXPECT_FALSE(model.sealed());
}

TEST_F(ModelFaults, OfACacheThatIsNotTheDevicesAreFoundWhenTheRunnerIsMade) {
  const auto model = bound_model(device_, desc_, tensors_);
  mr_driver_manage(1);
  const Failure found = failure_of([&] { const Runner runner(model, config_of(MR_KV_F16)); });
  mr_driver_manage(0);
  EXPECT_EQ(found.code, MR_INTERNAL);
  EXPECT_NE(found.message.find("the cache of keys and values lies in managed memory"), std::string::npos) << found.message;
}

TEST_F(ModelFaults, OfMakingARunnerLeaveNothing) {
  const auto model = bound_model(device_, desc_, tensors_);
  mr_runner_config config = config_of(MR_KV_F16);
  config.max_batched_tokens = 8;  // few graphs
  config.max_sample_rows = 2;
  const uint64_t before = device_->ledger.counts().free();
  for (const int kind : {MR_DRIVER_ALLOC, MR_DRIVER_HOST_ALLOC, MR_DRIVER_FILL, MR_DRIVER_COPY, MR_DRIVER_EVENT_RECORD, MR_DRIVER_WAIT}) {
    int failures = 0;
    for (unsigned long skip = 0;; ++skip) {
      const unsigned long failed = mr_driver_failed(kind);
      mr_driver_fail(kind, skip, 1, kBroken);
      const Failure made = failure_of([&] {
        Runner runner(model, config);
        runner.settle();
      });
      mr_driver_fail(kind, 0, 0, 0);
      EXPECT_EQ(device_->runners.load(), 0);
      EXPECT_EQ(device_->ledger.counts().free(), before);
      expect_agreement();
      if (mr_driver_failed(kind) == failed) {
        EXPECT_EQ(made.code, MR_OK) << made.message;
        break;
      }
      // If a graph after the first cannot be made, it is left out, and its steps are launched kernel by kernel.
      if (made.code != MR_OK) ++failures;
    }
    EXPECT_TRUE(failures > 0 || kind == MR_DRIVER_EVENT_RECORD) << "kind " << kind;
  }
  Runner runner(model, config);
  OneStep one;
  runner.submit(one.step);
  EXPECT_EQ(wait(runner).status, MR_ROW_OK);
}

// A step that the driver refuses leaves everything unchanged; results can be fetched again.
TEST_F(ModelFaults, OfASubmittedStepEndItAlone) {
  const auto model = bound_model(device_, desc_, tensors_);
  for (const bool graphs : {false, true}) {
    Runner runner(model, config_of(MR_KV_F16), {graphs, true});
    runner.settle();
    OneStep one;
    runner.submit(one.step);
    const mr_row_result first = wait(runner);
    int aborted = 0, spared = 0;
    for (const int kind : {MR_DRIVER_COPY, MR_DRIVER_EVENT_RECORD}) {
      for (unsigned long skip = 0;; ++skip) {
        const unsigned long failed = mr_driver_failed(kind);
        mr_driver_fail(kind, skip, 1, kBroken);
        const Failure made = failure_of([&] { runner.submit(one.step); });
        mr_driver_fail(kind, 0, 0, 0);
        const bool asked = mr_driver_failed(kind) != failed;
        if (made.code != MR_OK) {
          EXPECT_EQ(made.code, MR_ABORTED) << made.message;
          ++aborted;
          mr_progress progress{};
          runner.progress(&progress);
          EXPECT_EQ(progress.submitted, progress.completed);
          runner.submit(one.step);
        } else {
          spared += asked ? 1 : 0;
        }
        const mr_row_result row = wait(runner);
        EXPECT_EQ(row.token, first.token);
        EXPECT_EQ(std::memcmp(&row.logprob, &first.logprob, sizeof row.logprob), 0);
        if (!asked) break;
      }
    }
    EXPECT_GE(aborted, 2);  // the input's copy, and the event before it
    EXPECT_GE(spared, 3);   // rows, candidates, and the event after them
  }
}

// The effect of a refused step on its slot is undone.
TEST_F(ModelFaults, OfASubmittedStepLeaveItsSlotAsItWas) {
  const auto model = bound_model(device_, desc_, tensors_);
  Runner runner(model, config_of(MR_KV_F16));
  OneStep one;
  mr_driver_fail(MR_DRIVER_COPY, 0, 1, kBroken);
  EXPECT_EQ(failure_of([&] { runner.submit(one.step); }).code, MR_ABORTED);
  OneStep without;
  without.step.pre_op_count = 0;
  EXPECT_EQ(failure_of([&] { runner.submit(without.step); }).code, MR_INVALID_ARGUMENT) << "slot 0 was never set";
  runner.submit(one.step);
  EXPECT_EQ(wait(runner).status, MR_ROW_OK);
}

// A step whose results cannot be fetched breaks its runner, and no other.
TEST_F(ModelFaults, ThatLastBreakTheRunnerAlone) {
  const auto model = bound_model(device_, desc_, tensors_);
  OneStep one;
  {
    Runner runner(model, config_of(MR_KV_F16));
    mr_driver_fail(MR_DRIVER_COPY, 1, 1'000'000, kBroken);
    const Failure broken = failure_of([&] { runner.submit(one.step); });
    mr_driver_fail(MR_DRIVER_COPY, 0, 0, 0);
    EXPECT_EQ(broken.code, MR_INTERNAL) << broken.message;
    EXPECT_EQ(failure_of([&] { runner.submit(one.step); }).code, MR_INTERNAL);
  }
  Runner other(model, config_of(MR_KV_F16));
  other.submit(one.step);
  EXPECT_EQ(wait(other).status, MR_ROW_OK);
}

}  // namespace
}  // namespace mr::cuda::test
