// forward: queues the kernels of a step on a stream: token ids through the layers into logits, and from there to results.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>

#include "kernels/launch.h"
#include "kernels/linear/product.h"
#include "millrace/engine.h"
#include "src/activations.h"
#include "src/model.h"
#include "src/step_input.h"
#include "src/workspace.h"

namespace mr::cuda {

// Allocates its memory once; queueing allocates nothing and waits for nothing.
class Forward {
 public:
  // Throws RESOURCE_EXHAUSTED when the ledger does not allow the cache or the workspace.
  Forward(std::shared_ptr<const Model> model, const mr_runner_config& config, const Sizes& sizes);

  const Workspace& space() const { return space_; }
  uint8_t* cache() const { return kv_.data(); }

  // Pre-operation, before everything that follows on the stream.
  void set_slots(const StepShape& shape, cudaStream_t stream);

  // Everything of a step whose input lies in space().input, and whose masks in space().masks, but its pre-operations. Depends
  // on shape alone, so that it can be captured for a shape without prefill rows. Jobs of kJobNone are gathered and multiplied
  // with the head like the others, and not sampled.
  void queue(const StepShape& shape, const Stream& on);

  // The same in two halves, for a step whose masks come between them. Its jobs are of kJobNone until the second. The first
  // half of a step whose rows of logits are kept all at once is queue() itself, so that it may be a captured graph.
  bool keeps_logits(const StepShape& shape) const { return shape.jobs <= sizes_.logit_rows; }
  void queue_before_masks(const StepShape& shape, const Stream& on);
  void queue_behind_masks(const StepShape& shape, const Stream& on);

 private:
  struct Span {  // rows of one kernel class
    int32_t first, count;
    ProductClass kind;
  };

  Rows rows_from(const StepShape& shape, int32_t first) const;
  void body(const StepShape& shape, const Stream& on);
  void begin(const StepShape& shape, const Stream& on);
  void layer(const StepShape& shape, int32_t index, const Stream& on);
  void attend(const StepShape& shape, int32_t index, const Stream& on);
  void feed_forward(const Span& span, const Layer& l, const Stream& on);
  void down_product(const Span& span, const Layer& l, const Stream& on);
  void norm(const float* weight, const Span& span, const Stream& on);
  // The product of rows [span.first, + count) of x with weights that end alike; out of each target is its row 0. Of the residual
  // stream, normed with `weight`, in the second.
  void product(const Span& span, const void* x, int64_t x_stride, ProductEnd end, int32_t count, const ProductTarget* targets,
               const Stream& on);
  void normed_product(const Span& span, const float* weight, ProductEnd end, int32_t count, const ProductTarget* targets,
                      const Stream& on);
  ProductArgs product_args(const Span& span, const void* x, int64_t x_stride, ProductEnd end, int32_t count,
                           const ProductTarget* targets) const;
  void heads(const StepShape& shape, const Stream& on);
  void sample(const StepShape& shape, int32_t first, int32_t count, const Stream& on);

  const std::shared_ptr<const Model> model_;
  const mr_model_desc& desc_;
  const mr_runner_config config_;
  const Sizes sizes_;
  const Activations activations_;
  const Memory kv_;
  const Memory memory_;
  const Workspace space_;
  const uint64_t plane_;  // bytes of all keys of one layer
};

}  // namespace mr::cuda
