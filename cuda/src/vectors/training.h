// training: one training on a device, in units of at most some milliseconds that may stop between any two.
//
// Units are queued on a stream of low priority ahead of the device, so that the device does not wait for the host: a unit reads
// the results of earlier units on the device. A short round is one graph. Nothing is allocated after construction.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "cpu/slices.h"
#include "millrace/vectors.h"
#include "src/device.h"
#include "src/handles.h"
#include "src/vectors/training_memory.h"

namespace mr::cuda {

class Training {
 public:
  static void cost(const Device& device, const mr_trainer_config& config, mr_trainer_cost* out);

  Training(Device& device, const mr_trainer_config& config);  // the configuration is checked; throws RESOURCE_EXHAUSTED
  ~Training();                                                // waits for the units in flight
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  // Before begin; each throws as trainer_write, trainer_give and trainer_restore say.
  void write(uint64_t first, const void* rows, uint64_t count);
  void give(const void* codewords, uint64_t size);
  void restore(const void* state, uint64_t size);
  // Throws where rows, given codewords or room for the largest value are missing; changes nothing then.
  void begin();
  // Does a slice, one unit at least unless all is done.
  void run(Slice* slice, const std::atomic<bool>& stop);

  // Throws FAILED_PRECONDITION if there is nothing yet, INVALID_ARGUMENT for an unknown part, OUT_OF_RANGE.
  uint64_t size(int32_t what) const;
  void read(int32_t what, uint64_t offset, void* dst, uint64_t size);

 private:
  using Clock = std::chrono::steady_clock;
  // What comes next: a whole part of the training, and within a round its steps.
  enum class At { write, seed, spread, recall, round, done };
  enum class Step { assign, measure, trim, add, move, near, merge, end };
  // Work in flight: its results for the host.
  struct Unit {
    uint64_t computed = 0;
    bool ends_round = false;
    uint64_t report = 0;  // its place
  };
  static constexpr int kUnits = 3;

  bool begun() const { return at_ != At::write; }
  Stream on() const { return {stream_, false}; }
  bool may_go_on(const Slice& slice) const;
  bool may_launch() const;
  bool at_round_start() const { return at_ == At::round && step_ == Step::assign && range_ == 0 && !hold_; }
  void launch_unit();
  void queue_unit(const Unit& unit);
  void complete(Slice* slice);
  void report(mr_training* out) const;

  // Rows of a range in device memory, f(rows, first, count); of spooled ones a copy is put before.
  template <class F>
  void with_range(int64_t range, F&& f);
  void upload_codewords(const uint8_t* from, float* to);
  void upload_numbers(const uint8_t* from, double* to, int64_t count);
  void upload_control();

  void launch_seed();
  void launch_spread_unit();
  bool spread_step();
  void end_seeding();
  void launch_recall();
  void launch_round();
  void launch_step(Unit* unit);
  void launch_reseed_unit();
  void queue_end(Unit* unit);
  void queue_assign(int64_t range, double* distances);
  void queue_add(const void* rows, int64_t first, int64_t count, const uint32_t* ids, bool together);
  void queue_trim(int64_t space);
  void queue_short_round();
  void capture();
  bool maintains() const;
  bool trims() const;

  Device& device_;
  const mr_trainer_config config_;
  const TrainingPlan plan_;
  const TrainingShape& shape_;
  const Memory memory_;
  Pinned staging_[kRing], told_, spool_;
  TrainingMemory at_memory_;
  TrainingView view_;
  Search search_;
  StreamHandle stream_, copies_;
  EventHandle unit_done_[kUnits], staged_[kRing], filled_[kRing], used_[kRing], slice_begin_, slice_end_;

  // Before the first round.
  uint64_t written_ = 0;
  bool given_ = false, restored_ = false;

  // What can be read: the training as of the last round's end that was completed.
  int64_t iteration_ = 0, stable_ = 0;
  double temperature_ = 0, energy_ = 0;
  bool seeded_ = false, measured_ = false;
  bool variances_ready_ = false;  // sums hold the codewords' variances
  int32_t reason_ = MR_REASON_NONE;
  uint64_t computed_ = 0, recomputed_ = 0;

  // Where the work is, as it has been put on the stream.
  At at_ = At::write;
  Step step_ = Step::assign;
  int64_t range_ = 0, space_ = 0, codeword_ = 0;
  int64_t round_ = 0;          // iteration of the round at work
  int64_t pending_ = 0;        // rounds begun that have not ended
  int64_t reseeding_ = -1;     // the subspace to look at next, -1: none yet
  bool hold_ = false;          // a round waits for its codewords without rows
  uint64_t sequence_ = 0;      // reports asked for
  uint64_t ring_ = 0;          // copies of ranges
  bool short_ = false;         // a round is one unit
  int ahead_ = 1;              // such rounds in flight at once
  bool graphs_ = false;        // rounds may be captured
  bool warm_ = false;          // a round has run
  cudaGraphExec_t graph_ = nullptr;

  Unit units_[kUnits];
  int first_unit_ = 0, unit_count_ = 0;
};

}  // namespace mr::cuda
