// training: the computation of one training, in units of at most some milliseconds that may stop between any two.
//
// A round works on new ids, new loads and the next codebook; only its end makes them what can be read, so that a reader sees
// the last round's end whenever the work pauses. What is shared between threads are integers and blocks of rows that do not
// depend on how many threads there are: bits are those of docs/decisions/029-vector-numerics.md.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "device.h"
#include "millrace/vectors.h"
#include "training_memory.h"

namespace mr::cpu {

class Training {
 public:
  using Clock = std::chrono::steady_clock;

  // Bytes of the ledger that a training takes.
  static uint64_t cost(const Device& device, const mr_trainer_config& config);

  Training(Device& device, const mr_trainer_config& config);  // the configuration is checked; throws RESOURCE_EXHAUSTED
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  // Before begin; each throws as trainer_write, trainer_give and trainer_restore say.
  void write(uint64_t first, const void* rows, uint64_t count);
  void give(const void* codewords, uint64_t size);
  void restore(const void* state, uint64_t size);
  // Throws where rows, given codewords or room for the largest value are missing; changes nothing then.
  void begin();
  bool begun() const { return step_ != Step::write; }

  // Works until the deadline has passed, `rounds` have ended, the training is done or `stop` is set, one unit at least, on the
  // device's team, or where `alone` is set on the calling thread. Ended rounds are appended to `ended`.
  void advance(Clock::time_point deadline, int64_t rounds, bool alone, const std::atomic<bool>& stop, std::vector<mr_round>* ended);
  bool done() const { return step_ == Step::done; }

  // Phase, reason, rows and counts.
  void report(mr_training* out) const;
  // Throws FAILED_PRECONDITION if there is nothing yet, INVALID_ARGUMENT for an unknown part, OUT_OF_RANGE.
  uint64_t size(int32_t what) const;
  void read(int32_t what, uint64_t offset, void* dst, uint64_t size) const;

 private:
  // What advance does next. Each step but the last ones is cut into tasks that threads share.
  enum class Step {
    write, seed, spread, weigh, choose, recall_center, recall_pack, recall, center, pack, assign, measure, judge, tally, sort, trim,
    add, move, farthest, reseed, merge_center, merge_pack, find, maintain, distance_scale, distance_sums, commit,
    done
  };
  struct Rows {
    const float* data;
    int64_t stride;
  };

  bool run_step(Clock::time_point deadline, bool alone, const std::atomic<bool>& stop);
  template <class F>
  bool share(int64_t tasks, F&& task);
  void enter(Step step);

  Rows rows_of(int64_t first, int64_t count, TrainingLane* lane) const;
  const float* part_of(int64_t row, int64_t space, TrainingLane* lane) const;  // one row's columns of a subspace
  void fetch_part(int64_t row, int64_t space) const;
  float* codeword(float* book, int64_t space, int64_t c) const { return book + (space * shape_.codewords + c) * shape_.width; }
  void decode_part(int64_t row, int64_t space, float* to) const;
  void take_row(int64_t row, int64_t space, float* to) const;
  void as_codeword(const float* x, float* to) const;

  // Seeding.
  void seed_task(int64_t task);
  void spread_begin();
  void spread_task(int64_t task, TrainingLane* lane);
  void weigh_task(int64_t block);
  void choose();
  int64_t weighted(uint64_t bits) const;
  int64_t farthest() const;

  // A round.
  bool pack(const float* book, bool center);
  void assign_task(int64_t task, TrainingLane* lane);
  void measure_task(int64_t task, TrainingLane* lane);
  void judge();
  void tally_task(int64_t task, TrainingLane* lane);
  void sort_begin();
  void sort_task(int64_t task, TrainingLane* lane);
  void add_task(int64_t task, TrainingLane* lane);
  void move_task(int64_t task);
  void after_sums();
  void commit();

  // The last round: the variance of each codeword's rows.
  double reported_distance(int64_t row, int64_t space) const;
  void distance_scale_task(int64_t task);
  void set_variance_exponents();
  void distance_sums_task(int64_t task);
  double variance(int64_t i) const;

  // LLOYD.
  void move_mean(int64_t space, int64_t c);
  int64_t find_farthest(int64_t space);
  void reseed_task(int64_t task);
  // ANNEALED.
  uint64_t kept(uint64_t load) const;
  bool trims() const;
  void trim_task(int64_t task);
  void move_some(int64_t space, int64_t c);
  void place(int64_t space, int64_t c);
  void find_task(int64_t task, TrainingLane* lane);
  int64_t merge(int64_t space);
  int64_t split(int64_t space);

  Device& device_;
  const mr_trainer_config config_;
  const VectorKernels& kernels_;
  const TrainingShape shape_;
  const Memory memory_;
  TrainingMemory at_;

  // Before the first round.
  uint64_t written_ = 0;
  bool given_ = false, restored_ = false;

  // What can be read: the training before the round at work.
  int64_t iteration_ = 0, stable_ = 0;
  double temperature_ = 0, energy_ = 0;
  bool seeded_ = false, measured_ = false, has_ids_ = false;
  int32_t reason_ = MR_REASON_NONE;

  // The work.
  Step step_ = Step::write;
  int64_t space_ = 0;      // of steps that go through the subspaces
  int64_t chosen_ = 0;     // codewords seeded
  int64_t reseeded_ = 0;   // codewords of a subspace that get rows
  int64_t next_stable_ = 0;
  double next_energy_ = 0;
  mr_round round_{};
  bool over_ = false;      // the round at work is the last
  std::vector<mr_round>* ended_ = nullptr;

  // The step's tasks.
  std::atomic<int64_t> next_task_{0};
  int64_t tasks_ = 0;
  Clock::time_point deadline_;
  bool alone_ = false;
  const std::atomic<bool>* stop_ = nullptr;
  std::atomic<int64_t> changes_{0};
  std::atomic<uint64_t> computed_{0}, recomputed_{0};
};

}  // namespace mr::cpu
