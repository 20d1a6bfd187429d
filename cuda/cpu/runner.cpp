#include "runner.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "error.h"
#include "host_blocks.h"
#include "host_piece.h"
#include "kv.h"
#include "runner_config.h"
#include "spin.h"
#include "step_forward.h"
#include "step_plan.h"
#include "step_workspace.h"
#include "threads.h"

namespace mr::cpu {
namespace {

constexpr uint64_t kInFlight = 2;

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch()).count());
}

// What this engine has no kernels for, after what no engine has.
void check_own(const mr_runner_config& config, const Description& model) {
  check_config(config, model);
  if (config.kv_type == MR_KV_F8)
    fail(MR_UNIMPLEMENTED, "runner configuration: kv_type is 256 (f8), the CPU engine keeps keys and values as 0 (f32), 1 (f16) or "
         "30 (bf16)");
  if (config.act_type != 0)
    fail(MR_UNIMPLEMENTED, "runner configuration: act_type is %d, the CPU engine keeps activations as f32 only: want 0",
         config.act_type);
}

std::shared_ptr<const Model> usable(std::shared_ptr<const Model> model, const mr_runner_config& config) {
  if (!model->sealed()) fail(MR_FAILED_PRECONDITION, "runner: the model is not sealed");
  check_own(config, model->desc());
  return model;
}

// Floats of the hidden rows of one step.
uint64_t hidden_floats(const Model& model, const mr_runner_config& config) {
  return static_cast<uint64_t>(config.max_hidden_rows) * static_cast<uint64_t>(model.desc().hidden);
}

uint64_t state_bytes(const Model& model) { return static_cast<uint64_t>(state_floats(model.desc())) * sizeof(float); }

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
  Presence(const Presence& ) = delete;
  Presence& operator=(const Presence& ) = delete;

 private:
  const std::shared_ptr<const Model> model_;
};

}  // namespace

struct Runner::State {
  State(std::shared_ptr<const Model> m, const mr_runner_config& c)
      : model(usable(std::move(m), c)),
        presence(model),
        config(c),
        checker(c, model->desc(), static_cast<int32_t>(StepWorkspace::history_positions(model->desc(), c))),
        forward(model, c),
        host(c.host_blocks, KvCache::bytes_per_block(model->desc(), c, false)),
        host_window(c.host_window_blocks, KvCache::bytes_per_block(model->desc(), c, true), MR_PRE_BLOCK_OUT, true),
        host_states(c.host_states, std::max<uint64_t>(state_bytes(*model), 1), MR_PRE_STATE_OUT),
        hidden(model->device()->ledger.allocate(kInFlight * hidden_floats(*model, c) * sizeof(float), MR_PURPOSE_WORKSPACE, false)) {
    for (uint64_t i = 0; i < kInFlight; ++i) {
      checker.reserve(plans[i]);
      plans[i].hidden_rows = hidden.as<float>() + i * hidden_floats(*model, c);
    }
    thread = std::thread([this] { work(); });
  }

  ~State() {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      stop = true;
    }
    changed.notify_all();
    thread.join();
  }

  // Runs steps in order until stopped and out of steps.
  void work() {
    const FloatEnvironment environment;
    model->device()->threads.adopt_caller();
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      lock.unlock();
      spin([this] { return submitted.load() != completed.load(); });  // a loop of steps sends the next one soon
      lock.lock();
      changed.wait(lock, [this] { return stop || done < submitted.load(); });
      if (done == submitted.load()) return;
      StepPlan& plan = plans[done % kInFlight];
      const bool run = !broken;
      lock.unlock();
      const uint64_t begin = now_ns();
      running_since.store(begin);
      std::string trouble;
      if (run) {
        try {
          forward.run(plan, masks_there);
        } catch (const std::exception& e) {
          trouble = e.what();
        } catch (...) {
          trouble = "unknown exception";
        }
        if (plan.hang_ns != 0) std::this_thread::sleep_for(std::chrono::nanoseconds(plan.hang_ns));
      }
      plan.device_ns = now_ns() - begin - std::exchange(masks_ns, 0);
      running_since.store(0);
      lock.lock();
      if (!trouble.empty()) {
        broken = true;
        failure = trouble;
        failed_from = done;
      }
      ++done;
      completed.store(done);
      changed.notify_all();
    }
  }

  // Waits until the step in progress has its masks. Returns false if the runner is destroyed first. The step's time does not
  // include this wait.
  bool await_masks() {
    const auto there = [this, step = done + 1] { return masks_wanted.load() != step; };
    if (there()) return true;
    const uint64_t begin = now_ns();
    spin(there);
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return stop || there(); });
    masks_ns = now_ns() - begin;
    return there();
  }

  [[noreturn]] void report_failure() const {
    fail(MR_INTERNAL, "step %llu failed: %s; destroy the runner", static_cast<unsigned long long>(failed_from + 1),
         failure.c_str());
  }

  const std::shared_ptr<const Model> model;
  const Presence presence;
  const mr_runner_config config;
  StepChecker checker;   // submitting thread only
  StepForward forward;   // runner's thread only
  HostBlocks<HostPiece> host;  // submitting thread only, but for the blocks' bytes: those are the steps'
  HostBlocks<HostPiece> host_window, host_states;  // the same of the window group, and of states
  Memory hidden;               // rows of both plans
  const std::function<bool()> masks_there = [this] { return await_masks(); };
  uint64_t masks_ns = 0;  // runner's thread only: how long the step in progress waited for masks
  uint64_t next_hang_ns = 0;
  int32_t next_nan_row = -1;

  StepPlan plans[kInFlight];  // step n (from 0) is in plans[n % kInFlight]: the runner's while done <= n < submitted
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t done = 0;        // steps run; done <= submitted
  uint64_t collected = 0;   // steps whose results were taken; collected <= done, submitted <= collected + kInFlight
  bool stop = false, broken = false;
  std::string failure;
  uint64_t failed_from = 0;
  std::atomic<uint64_t> submitted{0}, completed{0}, running_since{0};
  std::atomic<uint64_t> masks_wanted{0};  // which step, counted from 1, waits for its masks: the one submitted last; 0 = none
  std::thread thread;
};

void Runner::cost(const Model& model, const mr_runner_config& config, mr_runner_cost* out) {
  check_own(config, model.desc());
  out->bytes_per_block = out->host_bytes_per_block = KvCache::bytes_per_block(model.desc(), config, false);
  out->bytes_per_window_block = out->host_bytes_per_window_block = KvCache::bytes_per_block(model.desc(), config, true);
  out->bytes_per_state = out->host_bytes_per_state = state_bytes(model);
  if (__builtin_add_overflow(KvCache::bytes(model.desc(), config), states_bytes(config, state_bytes(model)), &out->kv_bytes))
    fail(MR_RESOURCE_EXHAUSTED, "runner configuration: its blocks and states are beyond any memory");
  out->workspace_bytes = StepWorkspace(model, config, model.device()->threads.size(), nullptr).bytes +
                         kInFlight * hidden_floats(model, config) * sizeof(float);
}

Runner::Runner(std::shared_ptr<const Model> model, const mr_runner_config& config)
    : state_(std::make_unique<State>(std::move(model), config)) {}

Runner::~Runner() = default;

void Runner::submit(const mr_step& step) {
  State& s = *state_;
  {
    const std::lock_guard<std::mutex> lock(s.mutex);
    if (s.broken) s.report_failure();
    if (s.submitted.load() - s.collected >= kInFlight)
      fail(MR_FAILED_PRECONDITION, "%llu steps are in flight; wait for one first",
           static_cast<unsigned long long>(kInFlight));
  }
  if (s.masks_wanted.load() != 0) fail(MR_FAILED_PRECONDITION, "the step before waits for its masks; give them first");
  StepPlan& plan = s.plans[s.submitted.load() % kInFlight];
  s.checker.accept(step, plan, [&s](const StepPlan& p) {
    const auto piece = [&s](uint64_t bytes) { return std::make_unique<HostPiece>(s.model->device()->ledger, bytes); };
    const std::vector<size_t> taken = s.host.hold(p, piece);
    std::vector<size_t> taken_window;
    try {
      taken_window = s.host_window.hold(p, piece);
      s.host_states.hold(p, piece);
    } catch (...) {
      s.host_window.give_back(taken_window);  // a refused step has changed nothing
      s.host.give_back(taken);
      throw;
    }
  });
  for (StepPlan::PreOp& op : plan.pre_ops) {
    const HostBlocks<HostPiece>& blocks = op.window ? s.host_window : s.host;
    if (op.kind == MR_PRE_BLOCK_OUT) op.host = blocks.block(op.dst);
    if (op.kind == MR_PRE_BLOCK_IN) op.host = blocks.block(op.src);
    if (op.kind == MR_PRE_STATE_OUT) op.host = s.host_states.block(op.dst);
    if (op.kind == MR_PRE_STATE_IN) op.host = s.host_states.block(op.src);
  }
  plan.hang_ns = std::exchange(s.next_hang_ns, 0);
  plan.nan_row = std::exchange(s.next_nan_row, -1);
  plan.device_ns = plan.bytes_read = 0;
  {
    const std::lock_guard<std::mutex> lock(s.mutex);
    if (plan.masks_late) s.masks_wanted.store(s.submitted.load() + 1);
    s.submitted.store(s.submitted.load() + 1);
  }
  s.changed.notify_all();
}

void Runner::masks(const uint32_t* masks, int64_t words) {
  State& s = *state_;
  {
    const std::lock_guard<std::mutex> lock(s.mutex);
    if (s.broken) s.report_failure();
  }
  if (s.masks_wanted.load() == 0) fail(MR_FAILED_PRECONDITION, "no step waits for masks");
  StepChecker::accept_masks(masks, words, s.plans[(s.submitted.load() - 1) % kInFlight]);  // which the runner's thread leaves alone
  {
    const std::lock_guard<std::mutex> lock(s.mutex);
    s.masks_wanted.store(0);
  }
  s.changed.notify_all();
}

void Runner::wait(uint64_t timeout_ns, mr_step_result* result) {
  State& s = *state_;
  std::unique_lock<std::mutex> lock(s.mutex);
  if (s.collected == s.submitted.load()) fail(MR_FAILED_PRECONDITION, "no step is in flight");
  const auto ready = [&s] { return s.done > s.collected; };
  // A wait of a century is one without end, and stays clear of the clock's own limit.
  const uint64_t limit = std::min<uint64_t>(timeout_ns, 3'000'000'000'000'000'000u);
  if (!s.changed.wait_for(lock, std::chrono::nanoseconds(limit), ready))
    fail(MR_DEADLINE_EXCEEDED, "the oldest step is not done after %llu ns; wait again",
         static_cast<unsigned long long>(timeout_ns));
  if (s.broken && s.collected >= s.failed_from) s.report_failure();
  const StepPlan& plan = s.plans[s.collected % kInFlight];
  lock.unlock();

  give_results(plan, s.model->desc().hidden, result);
  lock.lock();
  ++s.collected;
}

void Runner::progress(mr_progress* out) const {
  const State& s = *state_;
  // Between two equal readings of completed, submitted was at most kInFlight above it.
  uint64_t completed = s.completed.load();
  for (;;) {
    out->submitted = s.submitted.load();
    const uint64_t again = s.completed.load();
    if (again == completed) break;
    completed = again;
  }
  out->completed = completed;
  const uint64_t since = s.running_since.load(), now = now_ns();
  out->running_ns = since == 0 ? 0 : std::max<uint64_t>(1, now > since ? now - since : 0);
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

}  // namespace mr::cpu
