// The device's trainer, with its kernels, on the emulated device: every bit of a training is the CPU engine's.
#include "src/vectors/trainer.h"

#include "src/error.h"
#include "src/vectors/training_memory.h"
#include "tests/trainer_fixture.h"

namespace emulated {
extern uint64_t graphs_launched;
}

namespace mr::cuda {
namespace {

class Emulated : public Any {
 public:
  Emulated(const mr_trainer_config& config, uint64_t bytes) : device_(std::make_shared<Device>(bytes)), trainer_(device_, config) {}
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

constexpr uint64_t kPlenty = uint64_t{1} << 32;

void check(const Job& job, uint64_t bytes = kPlenty) {
  OnCPU cpu(job.config);
  const Outcome want = trained(cpu, job, nullptr, false);
  Emulated device(job.config, bytes);
  compare(trained(device, job, nullptr, false), want, 0);
}

TEST(EmulatedTrainer, RandomJobsAreThoseOfTheCPU) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Job job = random_job(seed);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + text_of(job));
    check(job);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(emulated::graphs_launched, 20u) << "rounds of LLOYD are graphs";
}

TEST(EmulatedTrainer, ResumedTrainingsGoOnAsTheyWould) {
  for (uint64_t seed = 1000; seed < 1030; ++seed) {
    Job job = random_job(seed);
    job.slice.max_rounds = 1;
    job.slice.budget_ns = 0;
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + text_of(job));
    OnCPU cpu(job.config);
    const Outcome want = trained(cpu, job, nullptr, true);
    for (size_t i = 0; i < want.states.size(); ++i) {
      Emulated device(job.config, kPlenty);
      compare(trained(device, job, &want.states[i], false), want, i + 1);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(EmulatedTrainer, CornersAreThoseOfTheCPU) {
  check(shaped(1, 0, 1, 1, 1));
  check(shaped(2, 0, 300, 3, 300));
  check(shaped(3, 0, 700, 4, 257));
  check(shaped(4, 0, 40, 4097, 5));
  check(shaped(5, 0, 2 * 4096 + 1, 2, 3));
  check(shaped(6, 0, 3000, 2, 1500));  // more codewords than a block counts in shared memory
  Job far = shaped(7, 7, 100, 3, 20);
  far.config.init = MR_INIT_FARTHEST;
  check(far);
  Job many = shaped(8, 0, 100, 40, 8);  // more subspaces than one unit has
  many.config.kind = MR_CODEBOOK_PRODUCT;
  many.config.subspaces = 40;
  check(many);
  Job annealed = shaped(9, 0, 5000, 2, 1100);
  annealed.config.algorithm = MR_ALGORITHM_ANNEALED;
  annealed.config.temperature = 1;
  annealed.config.learning_rate = 0.5;
  annealed.config.trim = 0.2;
  annealed.config.maintenance_interval = 2;
  annealed.config.merge_distance = 0.02;
  annealed.config.split_load = 1.5;
  check(annealed);
}

TEST(EmulatedTrainer, WideRowsGiveTheBitsOfTheCPU) {
  for (const Job& job : jobs_of_wide_rows()) {
    SCOPED_TRACE(text_of(job));
    check(job);
    if (HasFatalFailure()) return;
  }
}

TEST(EmulatedTrainer, SpooledRowsGiveTheSameBits) {
  for (int which = 0; which < 5; ++which) {
    SCOPED_TRACE(which);
    Job job = shaped(20 + static_cast<uint64_t>(which), 0, 3000, 64, 3);
    mr_trainer_config& c = job.config;
    if (which == 1) {
      c.kind = MR_CODEBOOK_PRODUCT;
      c.subspaces = 4;
    }
    if (which == 2) {
      c.metric = MR_METRIC_COSINE;
      c.init = MR_INIT_KMEANS_PLUS_PLUS;
    }
    if (which == 3) {
      c.algorithm = MR_ALGORITHM_ANNEALED;
      c.init = MR_INIT_FARTHEST;
      c.temperature = c.learning_rate = 1;
      c.trim = 0.1;
      c.maintenance_interval = 1;
      c.split_load = 1.1;
    }
    if (which == 4) {  // codewords without rows, because almost all rows are equal
      job = shaped(30, 2, 3000, 64, 40);
      c.init = MR_INIT_RANDOM;
    }
    job.chunk = 999;
    const uint64_t bytes = job.rows.size();
    const auto device = std::make_shared<Device>(bytes / 2);
    EXPECT_THROW(Trainer(device, c), Error) << "without a spool";
    c.spool_bytes = bytes - 1;
    EXPECT_THROW(Trainer(device, c), Error) << "with one that is too small";
    c.spool_bytes = bytes;
    mr_trainer_cost cost{};
    Trainer::cost(*device, c, &cost);
    EXPECT_EQ(cost.spool_bytes, bytes);
    EXPECT_LE(cost.device_bytes, bytes / 2);
    check(job, bytes / 2);
    if (HasFatalFailure()) return;
  }
}

// No SM idles in the last tiles of a range, however expensive a row is; few rows make one range.
TEST(EmulatedTrainer, RangesAreWholeWavesOfTiles) {
  const Device device(kPlenty);
  for (const int32_t type : {MR_VECTOR_F32, MR_VECTOR_F16})
    for (const int32_t codewords : {2, 256, 65536})
      for (const int32_t dimension : {1, 128, 32767})
        for (const uint64_t rows : {uint64_t{65536}, uint64_t{1} << 31}) {
          mr_trainer_config config = random_job(1).config;
          config.element_type = type;
          config.metric = MR_METRIC_L2;
          config.codewords = codewords;
          config.dimension = dimension;
          config.subspaces = 1;
          config.rows = rows;
          config.spool_bytes = 0;
          const TrainingPlan plan = TrainingPlan::of(device, config, UINT64_MAX);
          const int64_t wave = device.properties.multiProcessorCount * Search::tile_rows(plan.search(config), 0);
          EXPECT_TRUE(plan.range == static_cast<int64_t>(rows) || plan.range % wave == 0) << plan.range << " of " << wave;
          EXPECT_GE(plan.range, std::min(wave, static_cast<int64_t>(rows)));
        }
}

TEST(EmulatedTrainer, BadRowsAreRefusedWithTheirNumber) {
  for (const int32_t metric : {MR_METRIC_L2, MR_METRIC_COSINE}) {
    Job job = shaped(40, 0, 50, 4, 3);
    job.config.metric = metric;
    Emulated device(job.config, kPlenty);
    device.write(0, job.rows.data(), 20);
    std::vector<uint8_t> bad = job.rows;
    const float nan = std::nanf(""), infinity = -INFINITY;
    std::memcpy(bad.data() + (41 * 4 + 1) * sizeof nan, &nan, sizeof nan);
    std::memcpy(bad.data() + (37 * 4 + 3) * sizeof nan, &infinity, sizeof nan);
    try {
      device.write(20, bad.data() + 20 * 4 * sizeof nan, 30);
      FAIL() << "rows that are not finite";
    } catch (const Error& e) {
      EXPECT_EQ(e.code, MR_INVALID_ARGUMENT);
      EXPECT_NE(e.message.find("row 37"), std::string::npos) << e.message;
    }
    EXPECT_THROW(device.submit(job.slice), Error) << "rows are missing";
    device.write(20, job.rows.data() + 20 * 4 * sizeof nan, 30);
    device.submit(job.slice);
  }
}

}  // namespace
}  // namespace mr::cuda
