// runner: the KV cache, the slots and the workspace of one model, and the thread that runs its steps.
#pragma once

#include <cstdint>
#include <memory>

#include "millrace/engine.h"
#include "model.h"

namespace mr::cpu {

// Used by one thread at a time, progress excepted, which any thread may call. Arguments are complete structs of this
// version (shorter ones already padded with zeros); the elements of a step's arrays keep their own strides, and nested
// slot parameters their own struct_size. Functions throw Error as engine.h documents their C faces.
class Runner {
 public:
  // Bytes a runner takes; allocates nothing. Throws INVALID_ARGUMENT naming the field and its value.
  static void cost(const Model& model, const mr_runner_config& config, mr_runner_cost* out);

  // Takes all of its memory at once: nothing is allocated by a step later, slot parameters, histories and blocks of host memory
  // excepted. Counts itself in model->runners and in the device's runners while it lives. Throws FAILED_PRECONDITION for an
  // unsealed model, RESOURCE_EXHAUSTED when the ledger does not allow it, UNIMPLEMENTED for types it does not keep.
  Runner(std::shared_ptr<const Model> model, const mr_runner_config& config);
  ~Runner();  // waits for the steps in flight; one without its masks is abandoned
  Runner(const Runner& ) = delete;
  Runner& operator=(const Runner& ) = delete;

  void submit(const mr_step& step);
  void masks(const uint32_t* masks, int64_t words);
  void wait(uint64_t timeout_ns, mr_step_result* result);
  void progress(mr_progress* out) const;
  void fault(int32_t fault, int32_t index, uint64_t value);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mr::cpu
