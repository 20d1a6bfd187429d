// step_queue: puts steps on the streams of all ranks of a runner: input, pre-operations, kernels, results, and the marks between.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/step_plan.h"
#include "src/blocks.h"
#include "src/forward.h"
#include "src/graphs.h"
#include "src/handles.h"
#include "src/step_input.h"
#include "src/workspace.h"

namespace mr::cuda {

// What a rank has of a step: its input on the way, and how far it is. Of late masks it is idle between `paused` and `resumed`.
struct Leg {
  Pinned input;
  EventHandle begin{cudaEventDefault}, end{cudaEventDefault}, paused{cudaEventDefault}, resumed{cudaEventDefault};
};

// A step between submit and wait. Its host memory is the devices' while submitted, the caller's thread's otherwise.
struct Flight {
  StepPlan plan;
  StepShape shape;  // the same on every rank
  Pinned masks;
  Pinned rows, candidates, hidden;  // results, of rank 0: all ranks have the same
  Pinned expert_bytes;              // uint64_t; none without mixtures
  int64_t row_count = 0;
  std::vector<Leg> legs;  // by rank
};

// Used by the submitting thread, stop() by any.
class StepQueue {
 public:
  // Takes the memory of steps, loads the kernels that prefill steps and copies of blocks use, and captures graphs if asked for.
  StepQueue(const std::shared_ptr<const Model>& model, const mr_runner_config& config, const Sizes& sizes, bool graphs, bool dependent);
  ~StepQueue();  // waits for submitted work
  StepQueue(const StepQueue&) = delete;
  StepQueue& operator=(const StepQueue&) = delete;

  void prepare(Flight& flight) const;  // host memory and marks of steps; once
  void settle() { graphs_.settle(); }

  // Throws if a plan exceeds the runner's memory. It changes nothing but host memory for blocks.
  void check(const StepPlan& plan);
  // A step: whole, or up to where it waits for its masks. Moves the views of slots along. Sets *begun once a device may have changed
  // anything that a later step reads.
  void put(Flight& flight, bool* begun);
  void put_behind_masks(Flight& flight);  // the rest of a step whose masks are in its plan now
  void take_back() { views_.swap(views_before_); }  // the views as they were before the step put last

  void stop() { forward_.stop(); }
  // Waits for all queued work of the devices, because an aborted step's work reads host memory that the next step writes.
  // Returns whether the devices still work.
  bool drained() { return forward_.settle(lanes_); }

 private:
  template <class Do>
  void each(Do what);
  void warm();
  void send(Flight& flight, size_t r, const Graphs::Bucket* bucket, bool* begun);
  void copy_blocks(const StepShape& shape, size_t r, bool* begun);
  void copy_states(const StepShape& shape, size_t r, bool* begun);
  cudaError_t send_masks(Flight& flight, size_t r);
  void end(Flight& flight);
  void fetch(Flight& flight);
  uint64_t candidate_bytes(const StepPlan& plan) const;
  Rank& rank(size_t r) { return forward_.rank(static_cast<int32_t>(r)); }

  const Sizes sizes_;
  StepInput input_;
  Forward forward_;
  std::vector<Blocks> blocks_;         // by rank, as are
  std::vector<StreamHandle> streams_;
  Lanes lanes_;                        // on the streams
  Graphs graphs_;
  std::vector<SlotView> views_, views_before_;
};

}  // namespace mr::cuda
