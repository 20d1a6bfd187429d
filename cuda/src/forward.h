// forward: queues a step on every rank of a model, and between its stages makes rows whole on all of them.
//
// Weights are divided by rows (division.h), so a stage gives each rank a part of every row: of attention's heads, of the residual stream,
// of the feed forward network, of the logits. A gather brings the parts together, and every rank goes on with the same bits, which are those
// of a model on one GPU. Every rank also samples, from the same logits with the same counters: nothing but parts of rows travels.
//
// A gather waits on the GPU for the same gather of the other ranks. So that they come whatever the driver makes a queueing thread wait for,
// no rank is given a kernel behind a gather before every rank has been given the gather.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/gather.h"
#include "src/error.h"
#include "src/handles.h"
#include "src/rank.h"

namespace mr::cuda {

using Lanes = std::vector<Stream>;  // by rank: each on its GPU

// Allocates its memory once; queueing allocates nothing and waits for nothing. Used by one thread at a time; stop() by any.
class Forward {
 public:
  // Throws RESOURCE_EXHAUSTED when a ledger does not allow the cache or the workspace.
  Forward(const std::shared_ptr<const Model>& model, const mr_runner_config& config, const Sizes& sizes);

  int32_t ranks() const { return static_cast<int32_t>(ranks_.size()); }
  Rank& rank(int32_t index) { return *ranks_[static_cast<size_t>(index)]; }
  const Rank& rank(int32_t index) const { return *ranks_[static_cast<size_t>(index)]; }

  // Calls what(...) for a rank while its GPU is the thread's current device. If there are several GPUs, an error names the GPU.
  template <class Do>
  void at(int32_t index, Do what) {
    const Device& device = rank(index).device();
    try {
      device.enter();
      what();
    } catch (const Error& e) {
      if (ranks() == 1) throw;
      throw Error(e.code, e.native, e.message + " on cuda:" + std::to_string(device.index));
    }
  }

  // Everything of a step whose input lies in each rank's space().input, and whose masks in its space().masks, but its
  // pre-operations. Depends on shape alone, so that it can be captured for a shape without prefill rows. Jobs of kJobNone are
  // gathered and multiplied with the head like the others, and not sampled.
  void queue(const StepShape& shape, const Lanes& on);

  // The same in two halves, for a step whose masks come between them. Its jobs are of kJobNone until the second. The first
  // half of a step whose rows of logits are kept all at once is queue() itself, so that it may be a captured graph.
  bool keeps_logits(const StepShape& shape) const { return shape.jobs <= logit_rows_; }
  void queue_before_masks(const StepShape& shape, const Lanes& on);
  void queue_behind_masks(const StepShape& shape, const Lanes& on);

  // The shape of a step of padding rows. A step of decode rows alone that is padded to as many rows and jobs has the same.
  StepShape padding_shape(int32_t rows, int32_t decode_rows, int32_t jobs) const {
    return StepShape(rows, decode_rows, jobs, states_ ? rows : 0);
  }
  // A step of padding rows, which writes nothing that lasts, run to its end: it loads the kernels that such steps use. Called while no
  // step is under way.
  void run_padding(const StepShape& shape, const Lanes& on);

  // Calls queue(), which puts a step or a half of one on the lanes, behind whatever step of whatever model was put on these GPUs before
  // (turn.h).
  void in_turn(const Lanes& on, const std::function<void()>& queue);
  // Waits until nothing is under way on the lanes. An error of one, which others may be waiting for, stops them all. Whether there
  // was none.
  bool settle(const Lanes& on);

  // Ends all waiting of ranks for each other, for good: the steps under way, and any later ones, give nothing that may be used.
  void stop();

 private:
  // Rows that lie alike on all ranks, and the part of each.
  struct Divided {
    uint8_t* rows_of[kMostRanks];
    int64_t stride;  // bytes
    GatherPart parts[kMostRanks];
  };

  template <class Base, class Range>
  Divided divided(int64_t stride, int64_t element, Base base, Range range) const;
  template <class Queue>
  void each(const Lanes& on, Queue queue);
  void queue_padding(const StepShape& shape, const Lanes& on);
  void body(const StepShape& shape, const Lanes& on);
  void heads(const StepShape& shape, const Lanes& on);
  void gather(const Divided& what, int32_t rows, int32_t index, int32_t place, const Lanes& on);

  const int32_t layers_, logit_rows_;
  const bool states_;  // layers carry them
  int32_t gathers_ = 0;  // of one step, at most
  std::vector<std::unique_ptr<Rank>> ranks_;
  Divided attention_{}, x_{}, ffn_{}, logits_{};
  Pinned stop_;  // int32_t
};

}  // namespace mr::cuda
