// trainer_fixture: trainings and their outcomes, on the CPU engine and on another engine that must give the same bits.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/vector_config.h"
#include "cpu/vector_math.h"
#include "cpu/vector_rules.h"
#include "millrace/engine.h"
#include "millrace/vectors.h"

extern "C" const mr_api* mr_engine_api(uint32_t abi_major, uint32_t* supported);  // of the CPU engine

namespace mr::cuda {

using Random = std::mt19937_64;

struct Job {
  mr_trainer_config config{};
  std::vector<uint8_t> rows, given;
  uint64_t chunk = 1;
  mr_slice slice{sizeof(mr_slice), 0, 1, 0};
};

struct Outcome {
  std::vector<mr_round> rounds;
  int32_t reason = 0;
  std::vector<uint8_t> codewords, ids, loads, variances, state;
  std::vector<std::vector<uint8_t>> states;  // before each slice, if something is seeded
};

inline int64_t one_of(Random& r, std::initializer_list<int64_t> of) { return *(of.begin() + r() % of.size()); }
inline double number_of(Random& r, std::initializer_list<double> of) { return *(of.begin() + r() % of.size()); }

// Returns an element of a row, in shapes chosen to be hard.
inline double value(Random& r, int shape, int64_t i, int64_t j) {
  const double normal = std::normal_distribution<double>()(r);
  switch (shape) {
    case 0: return normal;
    case 1: return static_cast<double>(r() % 3);
    case 2: return static_cast<double>((i % 5 * 7 + j * 3) % 11) - 4;
    case 3: return static_cast<double>(j) + 0.5;
    case 4: return 0;
    case 5: return 1e6 + normal;
    case 6: return normal * std::pow(10.0, static_cast<double>(i % 7) - 3);
    case 7: return static_cast<double>(static_cast<int64_t>(r() % 200) - 100) * 0x1p-149;
    case 8: return normal * std::pow(2.0, static_cast<double>(j % 40) - 20);
    default: return static_cast<double>((i * 2654435761 >> 7) % 9 * j % 13) + normal / 8;
  }
}

inline std::vector<uint8_t> encoded(Random& r, int32_t type, int32_t codeword_type, int shape, int64_t rows, int64_t width) {
  std::vector<uint8_t> out(static_cast<size_t>(rows * width) * element_size(type));
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < width; ++j) {
      double v = value(r, shape, i, j);
      uint8_t* const to = out.data() + static_cast<size_t>(i * width + j) * element_size(type);
      if (type == MR_VECTOR_U8 || type == MR_VECTOR_I8) {
        *to = static_cast<uint8_t>(static_cast<int64_t>(std::fmod(v * 16, 256)));
        continue;
      }
      while ((type == MR_VECTOR_F16 || codeword_type == MR_VECTOR_F16) && std::fabs(v) > 60000) v /= 1024;
      const float f = round_codeword(type, v);
      encode_codewords(type, &f, 1, to);
    }
  return out;
}

inline Job random_job(uint64_t seed) {
  Random r(seed);
  Job job;
  mr_trainer_config& c = job.config;
  c.struct_size = sizeof c;
  c.dimension = static_cast<int32_t>(one_of(r, {1, 2, 3, 5, 8, 13, 16, 31, 33, 64, 100}));
  c.codewords = static_cast<int32_t>(one_of(r, {1, 2, 3, 4, 7, 16, 17, 33, 64}));
  c.subspaces = 1;
  c.codeword_type = static_cast<int32_t>(r() % 3);
  c.metric = static_cast<int32_t>(one_of(r, {0, 0, 0, 0, 1, 2}));
  c.element_type = static_cast<int32_t>(r() % 5);
  c.init = static_cast<int32_t>(r() % 4);
  c.rows = static_cast<uint64_t>(c.codewords + one_of(r, {0, 1, 3, 50, 200, 700}));
  if (r() % 5 == 0) {
    c.rows += static_cast<uint64_t>(one_of(r, {4096, 5000}));
    c.dimension = std::min(c.dimension, 5);
    c.codewords = std::min(c.codewords, 16);
  }
  c.max_iterations = static_cast<int32_t>(one_of(r, {0, 1, 2, 5, 9}));
  c.stable_iterations = static_cast<int32_t>(one_of(r, {1, 1, 2, 3}));
  c.seed = r();
  c.min_changes = r() % 3 == 0 ? one_of(r, {0, 5}) : -1;
  c.energy_tolerance = r() % 3 == 0 ? number_of(r, {0, 1e-3, 0.5}) : -1;
  c.temperature = std::nan("");
  c.maintenance_interval = -1;
  if (c.metric == MR_METRIC_L2) {
    if (r() % 2 == 0) {
      c.kind = MR_CODEBOOK_PRODUCT;
      c.subspaces = 1 + static_cast<int32_t>(r() % static_cast<uint64_t>(c.dimension));
      while (c.dimension % c.subspaces != 0) ++c.subspaces;
    }
    if (r() % 2 == 0) {
      c.algorithm = MR_ALGORITHM_ANNEALED;
      c.temperature = number_of(r, {1, 0.7});
      c.cooling_rate = number_of(r, {0, 0.05, 0.3});
      c.learning_rate = number_of(r, {1, 0.5, 0.2});
      c.momentum = number_of(r, {0, 0.3, 0.9});
      c.trim = number_of(r, {0, 0.1, 0.5});
      c.step_limit = number_of(r, {0, 0.05, 3});
      c.maintenance_interval = static_cast<int32_t>(r() % 3);
      c.merge_distance = number_of(r, {0, 0.5, 5});
      c.split_load = number_of(r, {0, 1.1, 2});
    }
  }
  if (c.metric == MR_METRIC_INNER_PRODUCT && (c.init == MR_INIT_KMEANS_PLUS_PLUS || c.init == MR_INIT_FARTHEST)) c.init = MR_INIT_RANDOM;
  const int shape = static_cast<int>(r() % 10);
  job.rows = encoded(r, c.element_type, c.codeword_type, shape, static_cast<int64_t>(c.rows), c.dimension);
  if (c.init == MR_INIT_GIVEN) job.given = encoded(r, c.codeword_type, c.codeword_type, 0, c.codewords, c.dimension);
  job.chunk = static_cast<uint64_t>(one_of(r, {7, 64, 100'000}));
  job.slice.max_rounds = 1 + static_cast<int32_t>(r() % 3);
  job.slice.budget_ns = static_cast<uint64_t>(one_of(r, {0, 1, 1'000'000}));
  return job;
}

inline std::string text_of(const Job& job) {
  const mr_trainer_config& c = job.config;
  char text[512];
  std::snprintf(text, sizeof text, "rows %llu dimension %d element %d codewords %d subspaces %d of type %d, metric %d algorithm %d init %d "
                "iterations %d trim %g maintenance %d merge %g split %g",
                static_cast<unsigned long long>(c.rows), c.dimension, c.element_type, c.codewords, c.subspaces, c.codeword_type, c.metric,
                c.algorithm, c.init, c.max_iterations, c.trim, c.maintenance_interval, c.merge_distance, c.split_load);
  return text;
}

// Any is one interface to both engines.
class Any {
 public:
  virtual ~Any() = default;
  virtual void write(uint64_t first, const void* rows, uint64_t count) = 0;
  virtual void give(const std::vector<uint8_t>& codewords) = 0;
  virtual void restore(const std::vector<uint8_t>& state) = 0;
  virtual void submit(const mr_slice& slice) = 0;
  virtual void wait(mr_training* out) = 0;
  virtual uint64_t size(int32_t what) = 0;
  virtual void read(int32_t what, uint64_t offset, void* dst, uint64_t size) = 0;
};

inline void must(mr_error* error) {
  if (error != nullptr) throw std::runtime_error(mr_engine_api(MR_ABI_MAJOR, nullptr)->error_message(error));
}

class OnCPU : public Any {
 public:
  explicit OnCPU(const mr_trainer_config& c) {
    mr_trainer_config config = c;
    config.spool_bytes = 0;
    mr_device_options options{};
    options.struct_size = sizeof options;
    options.threads = 1;
    must(api_.device_open(&options, &device_));
    must(v_.trainer_create(device_, &config, &trainer_));
  }
  ~OnCPU() override {
    must(v_.trainer_destroy(trainer_));
    must(api_.device_close(device_));
  }
  void write(uint64_t first, const void* rows, uint64_t count) override { must(v_.trainer_write(trainer_, first, rows, count)); }
  void give(const std::vector<uint8_t>& codewords) override { must(v_.trainer_give(trainer_, codewords.data(), codewords.size())); }
  void restore(const std::vector<uint8_t>& state) override { must(v_.trainer_restore(trainer_, state.data(), state.size())); }
  void submit(const mr_slice& slice) override { must(v_.trainer_submit(trainer_, &slice)); }
  void wait(mr_training* out) override { must(v_.trainer_wait(trainer_, UINT64_MAX, out)); }
  uint64_t size(int32_t what) override {
    uint64_t size = 0;
    must(v_.trainer_size(trainer_, what, &size));
    return size;
  }
  void read(int32_t what, uint64_t offset, void* dst, uint64_t size) override { must(v_.trainer_read(trainer_, what, offset, dst, size)); }

 private:
  const mr_api& api_ = *mr_engine_api(MR_ABI_MAJOR, nullptr);
  const mr_vector_api& v_ = *api_.vectors;
  mr_device* device_ = nullptr;
  mr_trainer* trainer_ = nullptr;
};

inline std::vector<uint8_t> all_of(Any& trainer, int32_t what, uint64_t step = UINT64_MAX) {
  std::vector<uint8_t> out(trainer.size(what));
  for (uint64_t at = 0; at < out.size();) {
    const uint64_t some = std::min<uint64_t>(step, out.size() - at);
    trainer.read(what, at, out.data() + at, some);
    at += some;
  }
  return out;
}

inline Outcome trained(Any& trainer, const Job& job, const std::vector<uint8_t>* from, bool states) {
  const mr_trainer_config& c = job.config;
  if (from != nullptr) trainer.restore(*from);
  else if (c.init == MR_INIT_GIVEN) trainer.give(job.given);
  const uint64_t bytes = static_cast<uint64_t>(c.dimension) * element_size(c.element_type);
  for (uint64_t first = 0; first < c.rows; first += job.chunk)
    trainer.write(first, job.rows.data() + first * bytes, std::min(job.chunk, c.rows - first));
  Outcome out;
  bool done = false;
  for (int turn = 0; !done; ++turn) {
    const int in_flight = states ? 1 : 1 + turn % 2;
    for (int i = 0; i < in_flight; ++i) trainer.submit(job.slice);
    for (int i = 0; i < in_flight; ++i) {
      std::vector<mr_round> rounds(static_cast<size_t>(job.slice.max_rounds));
      mr_training told{};
      told.struct_size = sizeof told;
      told.round_stride = sizeof(mr_round);
      told.rounds = rounds.data();
      told.round_capacity = job.slice.max_rounds;
      trainer.wait(&told);
      if (told.round_count > job.slice.max_rounds || told.rows_done > told.rows_total || told.recomputed > told.computed)
        throw std::runtime_error("a slice tells more than was asked");
      out.rounds.insert(out.rounds.end(), rounds.begin(), rounds.begin() + told.round_count);
      if (told.computed < out.rounds.size() * c.rows * static_cast<uint64_t>(c.subspaces)) throw std::runtime_error("ids without being computed");
      out.reason = told.reason;
      done = told.phase == MR_TRAINING_DONE;
    }
    if (states && !done && !out.rounds.empty()) out.states.push_back(all_of(trainer, MR_TRAINER_STATE));
  }
  out.codewords = all_of(trainer, MR_TRAINER_CODEWORDS);
  out.ids = all_of(trainer, MR_TRAINER_IDS, 1001);
  out.loads = all_of(trainer, MR_TRAINER_LOADS);
  out.variances = all_of(trainer, MR_TRAINER_VARIANCES, 24);
  out.state = all_of(trainer, MR_TRAINER_STATE, 777);
  return out;
}

inline void compare(const Outcome& got, const Outcome& want, size_t from) {
  ASSERT_EQ(got.rounds.size() + from, want.rounds.size());
  for (size_t i = 0; i < got.rounds.size(); ++i) {
    const mr_round &g = got.rounds[i], &w = want.rounds[i + from];
    ASSERT_EQ(0, std::memcmp(&g, &w, sizeof g))
        << "round " << i << ": energy " << g.energy << " for " << w.energy << ", changes " << g.changes << " for " << w.changes << ", empty "
        << g.empty << " for " << w.empty << ", merged " << g.merged << " for " << w.merged << ", split " << g.split << " for " << w.split
        << ", imbalance " << g.imbalance << " for " << w.imbalance << ", temperature " << g.temperature << " for " << w.temperature;
  }
  ASSERT_EQ(got.reason, want.reason);
  ASSERT_EQ(got.ids, want.ids);
  ASSERT_EQ(got.loads, want.loads);
  ASSERT_EQ(got.variances, want.variances);
  ASSERT_EQ(got.codewords, want.codewords);
  ASSERT_EQ(got.state, want.state);
}

inline Job shaped(uint64_t seed, int shape, int64_t rows, int32_t dimension, int32_t codewords, int32_t type = MR_VECTOR_F32) {
  Random r(seed);
  Job job;
  mr_trainer_config& c = job.config;
  c.struct_size = sizeof c;
  c.rows = static_cast<uint64_t>(rows);
  c.dimension = dimension;
  c.codewords = codewords;
  c.subspaces = 1;
  c.max_iterations = 3;
  c.stable_iterations = 1;
  c.min_changes = -1;
  c.energy_tolerance = -1;
  c.seed = UINT64_MAX;
  c.element_type = type;
  job.rows = encoded(r, type, MR_VECTOR_F32, shape, rows, dimension);
  job.chunk = c.rows;
  job.slice.max_rounds = 2;
  return job;
}

// Shapes whose sums and distances come from one pass over the rows, and shapes on both sides of each limit of that.
inline std::vector<Job> jobs_of_wide_rows() {
  std::vector<Job> jobs;
  for (const int32_t type : {MR_VECTOR_F32, MR_VECTOR_F16, MR_VECTOR_BF16, MR_VECTOR_U8, MR_VECTOR_I8})
    for (const int32_t width : {24, 32, 64, 72, 128, 136, 256, 264}) {
      const uint64_t seed = jobs.size() + 1;
      const int64_t rows = std::initializer_list<int64_t>{1024, 1025, 1500, 4096 + 3}.begin()[seed % 4];
      Job job = shaped(seed, std::initializer_list<int>{0, 2, 8, 6, 5}.begin()[seed % 5], rows, width, seed % 3 == 0 ? 300 : 5, type);
      job.config.metric = std::initializer_list<int32_t>{0, 0, 0, 1, 2}.begin()[seed % 5];
      if (seed % 5 == 1) {
        job.config.kind = MR_CODEBOOK_PRODUCT;
        job.config.dimension = 2 * width;
        job.config.rows = static_cast<uint64_t>(rows / 2);
        job.config.subspaces = 2;
        job.chunk = job.config.rows;
      }
      jobs.push_back(job);
    }
  return jobs;
}

}  // namespace mr::cuda
