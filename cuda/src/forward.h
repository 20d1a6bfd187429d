// forward: queues a step on every rank of a model, and between its stages makes rows whole on all of them.
//
// Weights are divided by rows (division.h), so a stage gives each rank a part of every row: of attention's heads, of the residual stream,
// of the feed forward network, of the logits. A gather brings the parts together, and every rank goes on with the same bits, which are those
// of a model on one GPU. Every rank also samples, from the same logits with the same counters: nothing but parts of rows travels.
//
// A mixture of experts takes some rows at a time, and each piece of rows ends with a gather, after which the next may overwrite what the
// other ranks have read:
//
//   x whole --> router, choice, plan: alike on all ranks --> gate and up of the rank's rows of each expert --gather--> ffn, by pair
//     --> down, the rank's columns --> sum over a row's experts --> x or branch --gather-->
//                                      norms or a shared gate follow: sums --gather--> the branch, alike on all ranks
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
  template <class Queue>
  void each(const Lanes& on, Queue queue);
  // Makes `rows` rows whole on all ranks. base gives a rank's first row, part the elements of a row that it holds; stride is elements.
  struct Gather {
    int64_t stride, element;  // element: bytes
    int32_t rows, index, place;
  };
  template <class Base, class Part>
  void gather(const Gather& what, const Lanes& on, Base base, Part part);
  // Of rows [first, first + rows) of the residual stream, or of space().branch.
  void gather_hidden(bool branch, int32_t first, int32_t rows, int32_t index, const Lanes& on);
  void gather_logits(int32_t rows, int32_t index, int32_t place, const Lanes& on);
  // Each returns the index of the gather after its own.
  int32_t gather_heads(const StepShape& shape, int32_t layer, int32_t index, const Lanes& on);
  int32_t dense(const StepShape& shape, int32_t layer, int32_t index, const Lanes& on);
  int32_t mixture(const StepShape& shape, int32_t layer, int32_t index, const Lanes& on);
  int32_t mix(const StepShape& shape, const Rank::Span& rows, int32_t layer, int32_t index, const Lanes& on);
  void queue_padding(const StepShape& shape, const Lanes& on);
  void body(const StepShape& shape, const Lanes& on);
  void heads(const StepShape& shape, const Lanes& on);

  const Description& desc_;  // of the model, which the ranks keep
  const int64_t hidden_stride_, vocab_stride_, heads_stride_;
  const int32_t logit_rows_;
  const bool states_;  // layers carry them
  // Gathers are numbered from 0 on in each step: those of layers, at most layer_gathers_, and from there on those of logits, so that a
  // captured first half of a step need not have been queued by the same call as the second.
  int32_t layer_gathers_ = 0, gathers_ = 0;
  std::vector<std::unique_ptr<Rank>> ranks_;
  Pinned stop_;  // int32_t
};

}  // namespace mr::cuda
