// runner: the KV cache, the slots and the workspace of one model, and the streams that run its steps.
//
// A step passes through these files. submit queues all of its work on one stream for each GPU and waits for no device, so
// that the next step can be prepared while this one runs.
//
//   submit      cpu/step_plan  checks the step against engine.h's rules and makes a StepPlan; a refused step changes nothing
//     |
//   put         step_input     packs rows, jobs and block tables into one region of pinned memory
//     |         step_queue     copies the region to every GPU, copies KV blocks, sets slots
//     |
//     +-- decode rows alone, and a captured graph is large enough -->  graphs: one launch
//     +-- otherwise  ----------------------------------------------->  forward: a launch for each kernel
//     |
//   queue       rank           the kernels on one GPU: mix_tokens *  project *  feed_forward *  project_down *  for every layer, or
//     |                        gate_experts *  project_experts *; then head *  sample  for a few rows of logits at a time
//     |         forward        at each * the GPUs that hold a model together exchange their parts of the rows (gather)
//     |
//   end         step_queue     copies the results of the first GPU to pinned memory and records the end events
//     |
//   wait        runner         polls the end events and copies the results into the caller's arrays
//
// A step with late masks pauses before it samples, until Runner::masks. A step that the driver refuses before a device may have
// changed anything is undone (MR_ABORTED); any later failure breaks the runner.
#pragma once

#include <cstdint>
#include <memory>

#include "millrace/engine.h"
#include "src/model.h"

namespace mr::cuda {

// What tests vary: neither changes results.
struct RunnerOptions {
  bool graphs = true;     // steps of decode segments alone run as captured graphs
  bool dependent = true;  // kernels are programmatic dependents of each other, where the device has them
};

// Used by one thread at a time, progress excepted, which any thread may call. Arguments are complete structs of this
// version (shorter ones already padded with zeros); the elements of a step's arrays keep their own strides, and nested
// slot parameters their own struct_size. Functions throw Error as engine.h documents their C faces.
class Runner {
 public:
  // Bytes a runner takes; allocates nothing. Throws INVALID_ARGUMENT naming the field and its value.
  static void cost(const Model& model, const mr_runner_config& config, mr_runner_cost* out);

  // Takes all of its memory at once, host memory for blocks excepted: no device memory is allocated by a step later. Captures
  // its first graph, and the others in a thread of its own; the driver allocates their memory, from the margin that the ledger
  // leaves. Counts itself in model->runners and in the device's runners while it lives. Throws FAILED_PRECONDITION
  // for an unsealed model, RESOURCE_EXHAUSTED if the ledger has no room, UNIMPLEMENTED naming what no kernel runs.
  Runner(std::shared_ptr<const Model> model, const mr_runner_config& config, RunnerOptions options = {});
  ~Runner();  // waits for the steps in flight
  Runner(const Runner& ) = delete;
  Runner& operator=(const Runner& ) = delete;

  void settle();  // waits for the graphs: what tests and measurements of them begin with

  void submit(const mr_step& step);
  void masks(const uint32_t* masks, int64_t words);  // of the step submitted last, which waits for them
  void wait(uint64_t timeout_ns, mr_step_result* result);
  void progress(mr_progress* out) const;
  void fault(int32_t fault, int32_t index, uint64_t value);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mr::cuda
