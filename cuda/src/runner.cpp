#include "src/runner.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cpu/runner_config.h"
#include "cpu/step_plan.h"
#include "kernels/block_copy.h"
#include "src/blocks.h"
#include "src/error.h"
#include "src/forward.h"
#include "src/graphs.h"
#include "src/handles.h"
#include "src/hang.h"
#include "src/place.h"
#include "src/step_bytes.h"
#include "src/step_input.h"
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
  cpu::check_config(config);
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
  // What a rank has of a step: its input on the way, and how far it is. Of late masks it is idle between `paused` and `resumed`.
  struct Leg {
    Pinned input;
    EventHandle begin{cudaEventDefault}, end{cudaEventDefault}, paused{cudaEventDefault}, resumed{cudaEventDefault};
  };

  // A step between submit and wait. Its host memory is the device's while submitted, the caller's thread's otherwise.
  struct Flight {
    cpu::StepPlan plan;
    StepShape shape;  // the same on every rank
    Pinned masks;
    Pinned rows, candidates;  // results, of rank 0: all ranks have the same
    int64_t row_count = 0;
    std::vector<Leg> legs;  // by rank
  };

  State(std::shared_ptr<const Model> m, const mr_runner_config& c, RunnerOptions options)
      : model(usable(std::move(m), c)), presence(model), config(c), sizes(model->desc(), c, model->ranks()),
        dependent(options.dependent && model->device()->programmatic),
        checker(c, model->desc().vocab, model->desc().context, sizes.positions),
        input(model->shard(0).desc(), c, sizes, model->device()->properties.multiProcessorCount),
        forward(model, c, sizes), views(static_cast<size_t>(c.max_sequences)) {
    for (int32_t r = 0; r < forward.ranks(); ++r) {
      Rank& rank = forward.rank(r);
      rank.device().enter();
      blocks.emplace_back(rank.device().ledger, rank.cache(), model->desc().layers, c, sizes);
      streams.emplace_back(rank.device().priority_high);
      lanes.push_back({streams.back(), dependent});
      check_place(rank.cache(), rank.device().index, "the cache of keys and values");
      check_place(rank.space().x, rank.device().index, "the workspace of steps");
      for (Flight& flight : flights) {
        flight.legs.emplace_back();
        flight.legs.back().input = Pinned(sizes.input_bytes);
      }
    }
    model->device()->enter();
    for (Flight& flight : flights) {
      checker.reserve(flight.plan);
      flight.masks = Pinned(sizes.mask_bytes);
      flight.rows = Pinned(static_cast<uint64_t>(sizes.rows_wanted) * sizeof(mr_row_result));
      if (sizes.candidates > 0) flight.candidates = Pinned(static_cast<uint64_t>(sizes.candidates) * sizeof(mr_candidate));
    }
    views_before.reserve(views.size());
    try {
      warm();
      if (options.graphs) graphs.capture(forward, sizes.decode_rows, sizes.logit_rows, lanes);
    } catch (...) {
      forward.stop();
      (void)drained();  // what is queued uses memory that is given back now
      throw;
    }
  }

  ~State() { (void)drained(); }

  // Loads the kernels that prefill steps and copies of blocks use: a step of one padding row and a copy of bytes to where they
  // are, which write nothing that lasts.
  void warm() {
    each([&](size_t r) {
      uint8_t* const at = forward.rank(static_cast<int32_t>(r)).space().input;
      const BlockCopy still{at, at, 0, 0};
      forward.rank(static_cast<int32_t>(r)).device().transfers.upload(at, &still, sizeof still);
      CUDA_CHECK(launch_block_copies({reinterpret_cast<const BlockCopy*>(at), 1, 1, 16}, {streams[r], false}));
    });
    forward.run_padding(StepShape(1, 0, 1), lanes);
  }

  // For every rank, with its GPU the thread's own. Ends with that of rank 0.
  template <class Do>
  void each(Do what) const {
    for (size_t r = streams.size(); r-- > 0;) {
      model->shard(static_cast<int32_t>(r)).device().enter();
      what(r);
    }
  }

  // Puts a step on the streams: whole, or up to where it waits for its masks. Sets *begun once a device may have changed
  // anything that a later step reads.
  void queue(Flight& flight, bool* begun) {
    const cpu::StepPlan& plan = flight.plan;
    const int32_t tokens = static_cast<int32_t>(plan.tokens.size());
    const int32_t jobs = static_cast<int32_t>(plan.samples.size() + plan.scores.size());
    const bool decode = std::all_of(plan.segments.begin(), plan.segments.end(),
                                    [](const mr_segment& s) { return s.kernel_class == MR_CLASS_DECODE; });
    const Graphs::Bucket* const bucket = decode && tokens > 0 ? graphs.find(tokens, jobs) : nullptr;
    flight.row_count = jobs;
    each([&](size_t r) { send(flight, r, bucket, begun); });
    if (bucket != nullptr) {
      each([&](size_t r) {
        CUDA_CHECK(cudaGraphLaunch(bucket->execs[r], streams[r]));  // whole or not at all
        *begun = true;
      });
    } else {
      *begun = true;
      if (plan.masks_late) forward.queue_before_masks(flight.shape, lanes);
      else forward.queue(flight.shape, lanes);
    }
    if (!plan.masks_late) return queue_end(flight);
    each([&](size_t r) {
      twice("marking where a step waits", [&] { return cudaEventRecord(flight.legs[r].paused, streams[r]); });
    });
  }

  // A step's input to a rank, and its pre-operations there.
  void send(Flight& flight, size_t r, const Graphs::Bucket* bucket, bool* begun) {
    const cpu::StepPlan& plan = flight.plan;
    const Workspace& space = forward.rank(static_cast<int32_t>(r)).space();
    const cudaStream_t stream = streams[r];
    Leg& leg = flight.legs[r];
    // The views end the same however often they are moved along.
    flight.shape = input.pack(plan, bucket == nullptr ? 0 : bucket->rows, bucket == nullptr ? 0 : bucket->jobs, views, blocks[r],
                              leg.input.data(), space.input);
    const StepShape& shape = flight.shape;
    CUDA_CHECK(cudaEventRecord(leg.begin, stream));
    if (shape.bytes > 0)
      CUDA_CHECK(cudaMemcpyAsync(space.input, leg.input.data(), shape.bytes, cudaMemcpyHostToDevice, stream));
    // Jobs of kJobNone, which is 0, until their masks are there.
    if (plan.masks_late && shape.jobs > 0) CUDA_CHECK(cudaMemsetAsync(space.input + shape.job, 0, job_bytes(shape), stream));
    if (!plan.masks.empty()) CUDA_CHECK(upload_masks(flight, r));
    copy_blocks(shape, r, begun);
    forward.rank(static_cast<int32_t>(r)).set_slots(shape, stream);
    *begun = *begun || shape.sets > 0;
  }

  // The rest of a step whose masks are in its plan now.
  void queue_behind_masks(Flight& flight) {
    const StepShape& shape = flight.shape;
    each([&](size_t r) {
      const cudaStream_t stream = streams[r];
      twice("marking where a step goes on", [&] { return cudaEventRecord(flight.legs[r].resumed, stream); });
      twice("sending a step's masks", [&] { return upload_masks(flight, r); });
      if (shape.jobs > 0)
        twice("sending a step's jobs", [&] {
          return cudaMemcpyAsync(forward.rank(static_cast<int32_t>(r)).space().input + shape.job,
                                 flight.legs[r].input.data() + shape.job, job_bytes(shape), cudaMemcpyHostToDevice, stream);
        });
    });
    // Plain launches: the sampler reads jobs before it waits for its predecessor, which is their copy here.
    Lanes plain = lanes;
    for (Stream& lane : plain) lane.dependent = false;
    forward.queue_behind_masks(shape, plain);
    queue_end(flight);
  }

  // The step is on its way and cannot be taken back: what only fetches its results is tried twice.
  void queue_end(Flight& flight) {
    each([&](size_t r) {
      if (r == 0) fetch(flight);
      twice("marking a step's end", [&] { return cudaEventRecord(flight.legs[r].end, streams[r]); });
    });
  }

  void fetch(Flight& flight) {
    const cpu::StepPlan& plan = flight.plan;
    const Workspace& space = forward.rank(0).space();
    if (flight.row_count > 0)
      twice("fetching a step's rows", [&] {
        return cudaMemcpyAsync(flight.rows.data(), space.results, static_cast<uint64_t>(flight.row_count) * sizeof(mr_row_result),
                               cudaMemcpyDeviceToHost, streams[0]);
      });
    if (const uint64_t bytes = candidate_bytes(plan); bytes > 0)
      twice("fetching a step's candidates", [&] {
        return cudaMemcpyAsync(flight.candidates.data(), space.candidates, bytes, cudaMemcpyDeviceToHost, streams[0]);
      });
    if (plan.hang_ns != 0) CUDA_CHECK(launch_hang(plan.hang_ns, streams[0]));
  }

  static uint64_t job_bytes(const StepShape& shape) { return static_cast<uint64_t>(shape.jobs) * sizeof(SampleJob); }

  cudaError_t upload_masks(Flight& flight, size_t r) {
    const std::vector<uint32_t>& masks = flight.plan.masks;
    const uint64_t bytes = masks.size() * sizeof(uint32_t);
    std::memcpy(flight.masks.data(), masks.data(), bytes);
    return cudaMemcpyAsync(forward.rank(static_cast<int32_t>(r)).space().masks, flight.masks.data(), bytes, cudaMemcpyHostToDevice,
                           streams[r]);
  }

  void copy_blocks(const StepShape& shape, size_t r, bool* begun) {
    const Blocks& of = blocks[r];
    const BlockCopy* const copies =
        reinterpret_cast<const BlockCopy*>(forward.rank(static_cast<int32_t>(r)).space().input + shape.copy);
    int32_t first = 0;
    for (const int32_t end : input.copy_ends()) {
      CUDA_CHECK(launch_block_copies({copies + first, end - first, of.planes(), of.plane_bytes()}, {streams[r], false}));
      *begun = true;
      first = end;
    }
  }

  template <class Call>
  static void twice(const char* what, Call call) {
    cudaError_t error = call();
    if (error != cudaSuccess) {
      (void)cudaGetLastError();
      error = call();
    }
    check(error, what);
  }

  uint64_t candidate_bytes(const cpu::StepPlan& plan) const {
    uint64_t count = 0;
    for (const mr_sample_row& r : plan.samples) count += static_cast<uint64_t>(views[static_cast<size_t>(r.slot)].top_n);
    for (const mr_score_row& r : plan.scores) count += static_cast<uint64_t>(r.top_n);
    return count * sizeof(mr_candidate);
  }

  // Counts the steps that have ended on every rank. The one that waits for masks has not; its `end` is still of an earlier step.
  void look_locked() {
    while (completed < submitted && !broken) {
      const bool waits = late && completed + 1 == submitted;
      for (const Leg& leg : flights[completed % kInFlight].legs) {
        const cudaError_t error = cudaEventQuery(waits ? leg.paused : leg.end);
        if (error == cudaErrorNotReady) {
          (void)cudaGetLastError();
          return;
        }
        if (error != cudaSuccess) {
          break_locked(error, model->device()->describe(error));
          return;
        }
      }
      if (waits) return;
      ++completed;
      running_since = now_ns();  // of the step behind it
    }
  }

  // Waits for what the devices were given, which an aborted step may have begun: that reads host memory which the next step writes.
  // Whether they still do what they are asked for.
  bool drained() const {
    bool alive = true;
    for (size_t r = streams.size(); r-- > 0;) {
      (void)cudaSetDevice(model->shard(static_cast<int32_t>(r)).device().index);
      if (cudaStreamSynchronize(streams[r]) == cudaSuccess) continue;
      (void)cudaGetLastError();
      alive = false;
    }
    return alive;
  }

  void break_locked(int64_t code, std::string text) {
    forward.stop();
    broken = true;
    native = code;
    failure = std::move(text);
    failed_from = completed;
  }

  [[noreturn]] void report_failure_locked() const {
    throw Error(MR_INTERNAL, native,
                "step " + std::to_string(failed_from + 1) + " failed: " + failure + "; destroy the runner");
  }

  // Results of a finished step as the CPU engine's plan has them: in order, with candidates by offset.
  void read_results(Flight& flight) const {
    cpu::StepPlan& plan = flight.plan;
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
    plan.bytes_read = step_bytes(*model, sizes.kv, plan);
  }

  static uint64_t between(cudaEvent_t first, cudaEvent_t second) {  // ns
    float milliseconds = 0;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, first, second));
    return static_cast<uint64_t>(static_cast<double>(milliseconds) * 1e6);
  }

  const std::shared_ptr<const Model> model;
  const Presence presence;
  const mr_runner_config config;
  const Sizes sizes;
  const bool dependent;
  cpu::StepChecker checker;
  StepInput input;
  Forward forward;
  std::vector<Blocks> blocks;         // by rank, as are
  std::vector<StreamHandle> streams;
  Lanes lanes;                        // on the streams
  Graphs graphs;
  std::vector<SlotView> views, views_before;  // views_before: as they were before the step being submitted
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
};

void Runner::cost(const Model& model, const mr_runner_config& config, mr_runner_cost* out) {
  cpu::check_config(config);
  const Sizes sizes(model.desc(), config, model.ranks());
  const uint64_t ranks = static_cast<uint64_t>(model.ranks());
  out->bytes_per_block = ranks * sizes.kv_block_bytes;
  out->kv_bytes = cpu::pool_bytes(config, ranks * sizes.kv_block_bytes);
  out->workspace_bytes = ranks * Workspace(model, config, sizes, nullptr).bytes;
  out->host_bytes_per_block = ranks * sizes.kv_block_bytes;
  // The products with the fewest rows, which are as many as the model is wide, are the hardest to fill the device with.
  model.device()->enter();
  out->prefill_grain = prefill_grain(model.shard(0).hidden().count);
}

Runner::Runner(std::shared_ptr<const Model> model, const mr_runner_config& config, RunnerOptions options)
    : state_(std::make_unique<State>(std::move(model), config, options)) {}

Runner::~Runner() = default;

void Runner::settle() { state_->graphs.settle(); }

void Runner::submit(const mr_step& step) {
  State& s = *state_;
  s.model->device()->enter();
  {
    const std::lock_guard<std::mutex> lock(s.mutex);
    if (s.broken) s.report_failure_locked();
    if (s.late) fail(MR_FAILED_PRECONDITION, "the step before waits for its masks: give them first, by step_masks");
    if (s.submitted - s.collected >= kInFlight)
      fail(MR_FAILED_PRECONDITION, "%llu steps are in flight; wait for one first", static_cast<unsigned long long>(kInFlight));
  }
  State::Flight& flight = s.flights[s.submitted % kInFlight];
  s.checker.accept(step, flight.plan, [&s](const cpu::StepPlan& plan) {
    s.input.check(plan);
    for (Blocks& blocks : s.blocks) blocks.hold(plan);
  });
  flight.plan.hang_ns = std::exchange(s.next_hang_ns, 0);
  flight.plan.nan_row = std::exchange(s.next_nan_row, -1);
  s.views_before.assign(s.views.begin(), s.views.end());
  bool begun = false;
  try {
    s.queue(flight, &begun);
  } catch (const Error& e) {
    if (begun) s.forward.stop();  // a rank may wait for what another was not given
    const bool untouched = s.drained() && !begun;
    const std::lock_guard<std::mutex> lock(s.mutex);
    s.look_locked();  // a launch also fails of what an earlier step did: then that one is named
    if (!s.broken && untouched) {
      s.views.swap(s.views_before);
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
  s.model->device()->enter();
  {
    const std::lock_guard<std::mutex> lock(s.mutex);
    if (s.broken) s.report_failure_locked();
    if (!s.late) fail(MR_FAILED_PRECONDITION, "no step waits for masks");
  }
  const uint64_t step = s.submitted - 1;
  State::Flight& flight = s.flights[step % kInFlight];
  cpu::StepChecker::accept_masks(masks, words, flight.plan);
  try {
    s.queue_behind_masks(flight);
  } catch (const Error& e) {
    s.forward.stop();
    (void)s.drained();  // what the driver took of it ends, and the step before it
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
  s.model->device()->enter();
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
  State::Flight& flight = s.flights[s.collected % kInFlight];
  s.read_results(flight);
  cpu::give_results(flight.plan, result);
  lock.lock();
  ++s.collected;
}

void Runner::progress(mr_progress* out) const {
  State& s = *state_;
  s.model->device()->enter();
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
