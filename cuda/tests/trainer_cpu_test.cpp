// Trainings on the GPU against those of the CPU engine, which is linked to this test: every bit is the same.
#include "src/vectors/trainer.h"

#include "src/error.h"
#include "tests/engine_fixture.h"
#include "tests/trainer_fixture.h"

namespace mr::cuda {
namespace {

constexpr uint64_t kPlenty = uint64_t{8} << 30;

// One device serves all tests with plenty of memory.
std::shared_ptr<Device> device_of(uint64_t bytes) {
  if (bytes != kPlenty) return test::open_device(bytes);
  static const std::shared_ptr<Device> device = test::open_device(kPlenty);
  return device;
}

class OnGPU : public Any {
 public:
  OnGPU(const mr_trainer_config& config, uint64_t bytes) : device_(device_of(bytes)), trainer_(device_, config) {}
  void write(uint64_t first, const void* rows, uint64_t count) override { trainer_.write(first, rows, count); }
  void give(const std::vector<uint8_t>& codewords) override { trainer_.give(codewords.data(), codewords.size()); }
  void restore(const std::vector<uint8_t>& state) override { trainer_.restore(state.data(), state.size()); }
  void submit(const mr_slice& slice) override { trainer_.submit(slice); }
  void wait(mr_training* out) override { trainer_.wait(UINT64_MAX, out); }
  uint64_t size(int32_t what) override { return trainer_.size(what); }
  void read(int32_t what, uint64_t offset, void* dst, uint64_t size) override { trainer_.read(what, offset, dst, size); }

 private:
  std::shared_ptr<Device> device_;
  Trainer trainer_;
};

void check(const Job& job, uint64_t bytes = kPlenty) {
  OnCPU cpu(job.config);
  const Outcome want = trained(cpu, job, nullptr, false);
  OnGPU gpu(job.config, bytes);
  compare(trained(gpu, job, nullptr, false), want, 0);
}

TEST(TrainerOnTheGPU, RandomJobsAreThoseOfTheCPU) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Job job = random_job(seed);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + text_of(job));
    check(job);
    if (HasFatalFailure()) return;
  }
}

TEST(TrainerOnTheGPU, ResumedTrainingsGoOnAsTheyWould) {
  for (uint64_t seed = 1000; seed < 1030; ++seed) {
    Job job = random_job(seed);
    job.slice.max_rounds = 1;
    job.slice.budget_ns = 0;
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + text_of(job));
    OnCPU cpu(job.config);
    const Outcome want = trained(cpu, job, nullptr, true);
    for (size_t i = 0; i < want.states.size(); ++i) {
      OnGPU gpu(job.config, kPlenty);
      compare(trained(gpu, job, &want.states[i], false), want, i + 1);
      if (HasFatalFailure()) return;
    }
  }
}

// Shapes of the wide kernels: many rows and many codewords, of each element type, in graphs and in ranges.
TEST(TrainerOnTheGPU, LargerJobsAreThoseOfTheCPU) {
  for (const int32_t element : {MR_VECTOR_F32, MR_VECTOR_F16, MR_VECTOR_BF16, MR_VECTOR_U8, MR_VECTOR_I8})
    for (const int32_t dimension : {128, 31}) {
      Job job = shaped(50, 0, 20'000, dimension, 256);
      Random random(60);
      job.config.element_type = element;
      job.config.codeword_type = MR_VECTOR_F16;
      job.rows = encoded(random, element, MR_VECTOR_F16, 0, 20'000, dimension);
      SCOPED_TRACE(text_of(job));
      check(job);
      if (HasFatalFailure()) return;
    }
  check(shaped(51, 0, 70'000, 2, 65'536));
  check(shaped(52, 0, 2000, 4096, 300));
  Job many = shaped(53, 0, 5000, 128, 256);
  many.config.kind = MR_CODEBOOK_PRODUCT;
  many.config.subspaces = 64;
  check(many);
}

TEST(TrainerOnTheGPU, WideRowsGiveTheBitsOfTheCPU) {
  for (const Job& job : jobs_of_wide_rows()) {
    SCOPED_TRACE(text_of(job));
    check(job);
    if (HasFatalFailure()) return;
  }
}

TEST(TrainerOnTheGPU, SpooledRowsGiveTheSameBits) {
  for (const bool product : {false, true}) {
    Job job = shaped(70, 0, 200'000, 64, 16);
    mr_trainer_config& c = job.config;
    if (product) {
      c.kind = MR_CODEBOOK_PRODUCT;
      c.subspaces = 4;
    }
    const uint64_t bytes = job.rows.size();
    c.spool_bytes = bytes;
    mr_trainer_cost cost{};
    Trainer::cost(*test::open_device(bytes / 4 * 3), c, &cost);
    EXPECT_EQ(cost.spool_bytes, bytes);
    check(job, bytes / 4 * 3);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace mr::cuda
