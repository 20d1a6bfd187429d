#include "src/runner.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cpu/runner_config.h"
#include "cpu/step_plan.h"
#include "src/error.h"
#include "src/step_bytes.h"
#include "src/step_queue.h"
#include "src/workspace.h"

namespace mr::cuda {
namespace {

constexpr uint64_t kInFlight = 2;
// How long a waiting thread looks without pause, and then gives its processor away between looks, before it sleeps.
constexpr uint64_t kSpin = 200'000, kYield = 20'000'000;  // ns
constexpr std::chrono::microseconds kSleep{100};

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch()).count());
}

std::shared_ptr<const Model> usable(std::shared_ptr<const Model> model, const mr_runner_config& config) {
  if (!model->sealed()) fail(MR_FAILED_PRECONDITION, "runner: the model is not sealed");
  check_config(config, model->desc());
  model->device()->enter();
  return model;
}

// Counts a runner in its model and device while it lives.
class Presence {
 public:
  explicit Presence(std::shared_ptr<const Model> model) : model_(std::move(model)) {
    ++model_->runners;
    ++model_->device()->runners;
  }
  ~Presence() {
    --model_->runners;
    --model_->device()->runners;
  }
  Presence(const Presence&) = delete;
  Presence& operator=(const Presence&) = delete;

 private:
  const std::shared_ptr<const Model> model_;
};

}  // namespace

struct Runner::State {
  State(std::shared_ptr<const Model> m, const mr_runner_config& c, RunnerOptions options)
      : model(usable(std::move(m), c)), presence(model), config(c), sizes(model->desc(), c, model->ranks()),
        checker(c, model->desc(), sizes.positions),
        queue(model, c, sizes, options.graphs, options.dependent && model->device()->programmatic) {
    for (Flight& flight : flights) {
      checker.reserve(flight.plan);
      queue.prepare(flight);
    }
  }

  // Makes the first GPU the calling thread's current device. A lost GPU may refuse; the error is dropped here, because the next
  // call fails too and its message names the step.
  void enter() const {
    if (cudaSetDevice(model->device()->index) != cudaSuccess) (void)cudaGetLastError();
  }

  // Counts the steps that have ended on every rank. The one that waits for masks has not; its `end` is still of an earlier step.
  void look_locked() {
    while (completed < submitted && !broken) {
      const bool waits = late && completed + 1 == submitted;
      const Look look = look_at(flights[completed % kInFlight], waits);
      if (look.error == cudaErrorNotReady || (look.error == cudaSuccess && waits)) return;
      if (look.error != cudaSuccess) {
        const Device& device = model->device()->rank(static_cast<int32_t>(look.rank));
        return break_locked(look.error, model->ranks() == 1 ? device.describe(look.error)
                                                            : text_of(look.error) + " on cuda:" + std::to_string(device.index));
      }
      ++completed;
      running_since = now_ns();  // of the step behind it
    }
  }

  // What the driver says of a step's end on all ranks, or of where it waits for masks: not ready if one is not. An error of one comes
  // first: others may be waiting for it.
  struct Look {
    cudaError_t error = cudaSuccess;
    size_t rank = 0;
  };
  static Look look_at(const Flight& flight, bool paused) {
    Look look;
    for (size_t r = 0; r < flight.legs.size(); ++r) {
      const cudaError_t error = cudaEventQuery(paused ? flight.legs[r].paused : flight.legs[r].end);
      if (error == cudaSuccess) continue;
      (void)cudaGetLastError();
      look = {error, r};
      if (error != cudaErrorNotReady) break;
    }
    return look;
  }

  // Ends what may be waiting for a step that did not come to all ranks. The step before did, and ends first: its results stand.
  void stop_behind(uint64_t step) {
    while (step > 0 && look_at(flights[(step - 1) % kInFlight], false).error == cudaErrorNotReady) std::this_thread::sleep_for(kSleep);
    queue.stop();
  }

  void break_locked(int64_t code, const std::string& text) {
    queue.stop();
    broken = true;
    native = code;
    failure = text + model->device()->losses();
    failed_from = completed;
  }

  [[noreturn]] void report_failure_locked() const {
    throw Error(MR_INTERNAL, native,
                "step " + std::to_string(failed_from + 1) + " failed: " + failure + "; destroy the runner");
  }

  // Results of a finished step as the CPU engine's plan has them: in order, with candidates by offset.
  void read_results(Flight& flight) const {
    StepPlan& plan = flight.plan;
    const mr_row_result* const rows = flight.rows.as<mr_row_result>();
    plan.sample_results.assign(rows, rows + plan.samples.size());
    plan.score_results.assign(rows + plan.samples.size(), rows + flight.row_count);
    int64_t candidates = 0;
    for (const auto* results : {&plan.sample_results, &plan.score_results})
      for (const mr_row_result& r : *results)
        candidates = std::max<int64_t>(candidates, int64_t{r.candidate_offset} + r.candidate_count);
    const mr_candidate* const first = flight.candidates.as<mr_candidate>();
    plan.candidates.assign(first, first + candidates);
    const Leg& leg = flight.legs[0];
    plan.device_ns = plan.masks_late ? between(leg.begin, leg.paused) + between(leg.resumed, leg.end) : between(leg.begin, leg.end);
    plan.bytes_read = step_bytes(*model, sizes.layouts[0].kv, plan);
    if (!plan.tokens.empty() && flight.expert_bytes.data() != nullptr) plan.bytes_read += *flight.expert_bytes.as<uint64_t>();
  }

  // ns; 0 if the GPU was lost after the step and cannot say. The step's results are valid nevertheless.
  static uint64_t between(cudaEvent_t first, cudaEvent_t second) {
    float milliseconds = 0;
    if (cudaEventElapsedTime(&milliseconds, first, second) != cudaSuccess) {
      (void)cudaGetLastError();
      return 0;
    }
    return static_cast<uint64_t>(static_cast<double>(milliseconds) * 1e6);
  }

  const std::shared_ptr<const Model> model;
  const Presence presence;
  const mr_runner_config config;
  const Sizes sizes;
  StepChecker checker;
  uint64_t next_hang_ns = 0;
  int32_t next_nan_row = -1;

  Flight flights[kInFlight];  // step n (from 0) is in flights[n % kInFlight]
  mutable std::mutex mutex;   // guards what follows
  uint64_t submitted = 0, completed = 0;
  uint64_t collected = 0;     // steps whose results were taken; collected <= completed, submitted <= collected + kInFlight
  uint64_t running_since = 0; // when the oldest step in flight began to be that
  bool late = false;          // the step submitted last waits for its masks
  bool broken = false;
  int64_t native = 0;
  std::string failure;
  uint64_t failed_from = 0;

  StepQueue queue;  // destroyed first: it waits for what reads the flights' memory
};

void Runner::cost(const Model& model, const mr_runner_config& config, mr_runner_cost* out) {
  check_config(config, model.desc());
  model.device()->enter();
  const Sizes sizes(model.desc(), config, model.ranks());
  const uint64_t ranks = static_cast<uint64_t>(model.ranks());
  out->bytes_per_block = ranks * sizes.kv_block_bytes;
  out->bytes_per_window_block = out->host_bytes_per_window_block = ranks * sizes.window_block_bytes;
  out->bytes_per_state = out->host_bytes_per_state = ranks * sizes.state_bytes();
  if (__builtin_add_overflow(pool_bytes(config, false, ranks * sizes.kv_block_bytes),
                             pool_bytes(config, true, ranks * sizes.window_block_bytes), &out->kv_bytes) ||
      __builtin_add_overflow(out->kv_bytes, states_bytes(config, out->bytes_per_state), &out->kv_bytes))
    fail(MR_RESOURCE_EXHAUSTED, "runner configuration: its blocks and states are beyond any memory");
  out->workspace_bytes = ranks * Workspace(model, config, sizes, nullptr).bytes;
  out->host_bytes_per_block = ranks * sizes.kv_block_bytes;
  // The GEMMs with the fewest rows, which are as many as the model is wide, are the hardest to fill the device with.
  out->prefill_grain = prefill_grain(model.shard(0).hidden().count);
}

Runner::Runner(std::shared_ptr<const Model> model, const mr_runner_config& config, RunnerOptions options)
    : state_(std::make_unique<State>(std::move(model), config, options)) {}

Runner::~Runner() = default;

void Runner::settle() { state_->queue.settle(); }

void Runner::submit(const mr_step& step) {
  State& s = *state_;
  s.enter();
  {
    const std::lock_guard<std::mutex> lock(s.mutex);
    if (s.broken) s.report_failure_locked();
    if (s.late) fail(MR_FAILED_PRECONDITION, "the step before waits for its masks: give them first, by step_masks");
    if (s.submitted - s.collected >= kInFlight)
      fail(MR_FAILED_PRECONDITION, "%llu steps are in flight; wait for one first", static_cast<unsigned long long>(kInFlight));
  }
  Flight& flight = s.flights[s.submitted % kInFlight];
  s.checker.accept(step, flight.plan, [&s](const StepPlan& plan) {
    s.queue.check(plan);
  });
  flight.plan.hang_ns = std::exchange(s.next_hang_ns, 0);
  flight.plan.nan_row = std::exchange(s.next_nan_row, -1);
  bool begun = false;
  try {
    s.queue.put(flight, &begun);
  } catch (const Error& e) {
    if (begun) s.stop_behind(s.submitted);  // a rank may wait for what another was not given
    const bool untouched = s.queue.drained() && !begun;
    const std::lock_guard<std::mutex> lock(s.mutex);
    s.look_locked();  // a launch also fails of what an earlier step did: then that one is named
    if (!s.broken && untouched) {
      s.queue.take_back();
      s.checker.take_back();
      s.next_hang_ns = flight.plan.hang_ns;
      s.next_nan_row = flight.plan.nan_row;
      throw Error(MR_ABORTED, e.native, "the driver did not take the step, submit it again: " + e.message);
    }
    if (!s.broken) {
      s.break_locked(e.native, e.message);
      s.failed_from = s.submitted;
    }
    s.report_failure_locked();
  }
  const std::lock_guard<std::mutex> lock(s.mutex);
  s.look_locked();
  if (s.completed == s.submitted) s.running_since = now_ns();
  ++s.submitted;
  s.late = flight.plan.masks_late;
}

void Runner::masks(const uint32_t* masks, int64_t words) {
  State& s = *state_;
  s.enter();
  {
    const std::lock_guard<std::mutex> lock(s.mutex);
    if (s.broken) s.report_failure_locked();
    if (!s.late) fail(MR_FAILED_PRECONDITION, "no step waits for masks");
  }
  const uint64_t step = s.submitted - 1;
  Flight& flight = s.flights[step % kInFlight];
  StepChecker::accept_masks(masks, words, flight.plan);
  try {
    s.queue.put_behind_masks(flight);
  } catch (const Error& e) {
    s.stop_behind(step);
    (void)s.queue.drained();  // the part that the driver accepted ends, and the step before it
    const std::lock_guard<std::mutex> lock(s.mutex);
    s.look_locked();
    if (!s.broken) {
      s.break_locked(e.native, e.message);
      s.failed_from = step;
    }
    s.report_failure_locked();
  }
  const std::lock_guard<std::mutex> lock(s.mutex);
  s.late = false;
}

void Runner::wait(uint64_t timeout_ns, mr_step_result* result) {
  State& s = *state_;
  s.enter();
  std::unique_lock<std::mutex> lock(s.mutex);
  if (s.broken && s.collected >= s.failed_from) s.report_failure_locked();
  if (s.collected == s.submitted) fail(MR_FAILED_PRECONDITION, "no step is in flight");
  const uint64_t begin = now_ns();
  for (;;) {
    s.look_locked();
    if (s.completed > s.collected) break;
    if (s.broken) s.report_failure_locked();
    if (s.late && s.collected + 1 == s.submitted)
      fail(MR_DEADLINE_EXCEEDED, "the oldest step waits for its masks: give them by step_masks, and wait again");
    const uint64_t waited = now_ns() - begin;
    if (waited >= timeout_ns)
      fail(MR_DEADLINE_EXCEEDED, "the oldest step is not done after %llu ns; wait again",
           static_cast<unsigned long long>(timeout_ns));
    lock.unlock();
    if (waited > kYield) {
      std::this_thread::sleep_for(kSleep);
    } else if (waited > kSpin) {
      (void)sched_yield();
    }
    lock.lock();
  }
  lock.unlock();
  Flight& flight = s.flights[s.collected % kInFlight];
  s.read_results(flight);
  give_results(flight.plan, s.sizes.hidden, result);
  lock.lock();
  ++s.collected;
}

void Runner::progress(mr_progress* out) const {
  State& s = *state_;
  s.enter();
  const std::lock_guard<std::mutex> lock(s.mutex);
  s.look_locked();
  out->submitted = s.submitted;
  out->completed = s.completed;
  const uint64_t now = now_ns();
  out->running_ns = s.completed == s.submitted ? 0 : std::max<uint64_t>(1, now > s.running_since ? now - s.running_since : 0);
}

void Runner::fault(int32_t fault, int32_t index, uint64_t value) {
  State& s = *state_;
  switch (fault) {
    case MR_FAULT_HANG_STEP:
      s.next_hang_ns = value;
      break;
    case MR_FAULT_NAN_LOGITS:
      if (index < 0 || index >= s.config.max_sample_rows)
        fail(MR_INVALID_ARGUMENT, "runner fault: sample row %d, wanted 0 .. %d", index, s.config.max_sample_rows - 1);
      s.next_nan_row = index;
      break;
    default:
      fail(MR_INVALID_ARGUMENT, "runner fault: unknown fault %d", fault);
  }
}

}  // namespace mr::cuda
