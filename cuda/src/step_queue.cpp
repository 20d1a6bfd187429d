#include "src/step_queue.h"

#include <algorithm>
#include <cstring>

#include "kernels/block_copy.h"
#include "src/device_memory.h"
#include "src/error.h"
#include "src/hang.h"

namespace mr::cuda {
namespace {

uint64_t job_bytes(const StepShape& shape) { return static_cast<uint64_t>(shape.jobs) * sizeof(SampleJob); }

uint64_t hidden_bytes(const Sizes& sizes, int32_t rows) {
  return static_cast<uint64_t>(rows) * static_cast<uint64_t>(sizes.hidden) * sizeof(float);
}

template <class Call>
void twice(const char* what, Call call) {
  cudaError_t error = call();
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    error = call();
  }
  check(error, what);
}

}  // namespace

StepQueue::StepQueue(const std::shared_ptr<const Model>& model, const mr_runner_config& c, const Sizes& sizes, bool graphs,
                     bool dependent)
    : sizes_(sizes), input_(model->shard(0).desc(), c, sizes, model->device()->properties.multiProcessorCount),
      forward_(model, c, sizes), views_(static_cast<size_t>(c.max_sequences)) {
  for (int32_t r = 0; r < forward_.ranks(); ++r) {
    Rank& rank = forward_.rank(r);
    rank.device().enter();
    blocks_.emplace_back(rank.device().ledger, rank.cache(), rank.states(), c, sizes);
    streams_.emplace_back(rank.device().priority_high);
    lanes_.push_back({streams_.back(), dependent});
    check_device_memory(rank.cache(), rank.device().index, "the cache of keys and values");
    check_device_memory(rank.states(), rank.device().index, "the memory of states");
    check_device_memory(rank.space().x, rank.device().index, "the workspace of steps");
  }
  views_before_.reserve(views_.size());
  try {
    warm();
    if (graphs) graphs_.capture(forward_, sizes.decode_rows, sizes.logit_rows, lanes_);
  } catch (...) {
    forward_.stop();
    (void)drained();  // queued work uses memory that is freed now
    throw;
  }
}

StepQueue::~StepQueue() { (void)drained(); }

void StepQueue::prepare(Flight& flight) const {
  for (int32_t r = 0; r < forward_.ranks(); ++r) {
    forward_.rank(r).device().enter();
    flight.legs.emplace_back();
    flight.legs.back().input = Pinned(sizes_.input_bytes);
  }
  forward_.rank(0).device().enter();
  flight.masks = Pinned(sizes_.mask_bytes);
  flight.rows = Pinned(static_cast<uint64_t>(sizes_.rows_wanted) * sizeof(mr_row_result));
  if (sizes_.candidates > 0) flight.candidates = Pinned(static_cast<uint64_t>(sizes_.candidates) * sizeof(mr_candidate));
  if (sizes_.hidden_rows > 0) flight.hidden = Pinned(hidden_bytes(sizes_, sizes_.hidden_rows));
  if (forward_.rank(0).space().experts.bytes != nullptr) flight.expert_bytes = Pinned(sizeof(uint64_t));
  flight.plan.hidden_rows = flight.hidden.as<float>();
}

// For every rank, with its GPU the thread's own. Ends with that of rank 0.
template <class Do>
void StepQueue::each(Do what) {
  for (size_t r = streams_.size(); r-- > 0;) forward_.at(static_cast<int32_t>(r), [&] { what(r); });
}

// A step of one padding row, its hidden row if steps have some, and a copy of bytes to where they are, which write nothing that lasts.
void StepQueue::warm() {
  each([&](size_t r) {
    uint8_t* const at = rank(r).space().input;
    const BlockCopy still{{at, -1}, {at, -1}};
    rank(r).device().transfers.upload(at, &still, sizeof still);
    CUDA_CHECK(launch_block_copies({reinterpret_cast<const BlockCopy*>(at), 1, {1, 16, 0, 0, 0}}, {streams_[r], false}));
  });
  StepShape row = forward_.padding_shape(1, 0, 1);
  row.hidden = row.position;  // zeros, like all of the input after the copy: the only row
  row.hidden_rows = std::min(sizes_.hidden_rows, 1);
  CUDA_CHECK(rank(0).hidden_rows(row, {streams_[0], false}));
  forward_.run_padding(row, lanes_);
}

void StepQueue::check(const StepPlan& plan) {
  input_.check(plan);
  for (Blocks& blocks : blocks_) blocks.hold(plan);
}

void StepQueue::put(Flight& flight, bool* begun) {
  views_before_.assign(views_.begin(), views_.end());
  const StepPlan& plan = flight.plan;
  const int32_t tokens = static_cast<int32_t>(plan.tokens.size());
  const int32_t jobs = static_cast<int32_t>(plan.samples.size() + plan.scores.size());
  const bool decode = std::all_of(plan.segments.begin(), plan.segments.end(),
                                  [](const mr_segment& s) { return s.kernel_class == MR_CLASS_DECODE; });
  const Graphs::Bucket* const bucket = decode && tokens > 0 ? graphs_.find(tokens, jobs) : nullptr;
  flight.row_count = jobs;
  each([&](size_t r) { send(flight, r, bucket, begun); });
  forward_.in_turn(lanes_, [&] {
    if (bucket != nullptr) {
      each([&](size_t r) {
        CUDA_CHECK(cudaGraphLaunch(bucket->execs[r], streams_[r]));  // whole or not at all
        *begun = true;
      });
    } else {
      *begun = true;
      if (plan.masks_late) forward_.queue_before_masks(flight.shape, lanes_);
      else forward_.queue(flight.shape, lanes_);
    }
  });
  if (!plan.masks_late) return end(flight);
  each([&](size_t r) {
    twice("marking where a step waits", [&] { return cudaEventRecord(flight.legs[r].paused, streams_[r]); });
  });
}

// A step's input to a rank, and its pre-operations there.
void StepQueue::send(Flight& flight, size_t r, const Graphs::Bucket* bucket, bool* begun) {
  const StepPlan& plan = flight.plan;
  const Workspace& space = rank(r).space();
  const cudaStream_t stream = streams_[r];
  Leg& leg = flight.legs[r];
  // The views end the same however often they are moved along.
  flight.shape = input_.pack(plan, bucket == nullptr ? 0 : bucket->rows, bucket == nullptr ? 0 : bucket->jobs, views_, blocks_[r],
                             leg.input.data(), space.input);
  const StepShape& shape = flight.shape;
  CUDA_CHECK(cudaEventRecord(leg.begin, stream));
  if (shape.bytes > 0)
    CUDA_CHECK(cudaMemcpyAsync(space.input, leg.input.data(), shape.bytes, cudaMemcpyHostToDevice, stream));
  // Jobs of kJobNone, which is 0, until their masks are there.
  if (plan.masks_late && shape.jobs > 0) CUDA_CHECK(cudaMemsetAsync(space.input + shape.job, 0, job_bytes(shape), stream));
  if (!plan.masks.empty()) CUDA_CHECK(send_masks(flight, r));
  copy_blocks(shape, r, begun);
  copy_states(shape, r, begun);
  rank(r).set_slots(shape, stream);
  *begun = *begun || shape.sets > 0;
}

void StepQueue::copy_blocks(const StepShape& shape, size_t r, bool* begun) {
  for (const bool window : {false, true}) {
    const BlockCopy* const copies = reinterpret_cast<const BlockCopy*>(rank(r).space().input + (window ? shape.window_copy : shape.copy));
    int32_t first = 0;
    for (const int32_t end : input_.copy_ends(window)) {
      for (const BlockGroup& group : window ? sizes_.window_groups : sizes_.cache_groups)
        CUDA_CHECK(launch_block_copies({copies + first, end - first, group}, {streams_[r], false}));
      *begun = true;
      first = end;
    }
  }
}

void StepQueue::copy_states(const StepShape& shape, size_t r, bool* begun) {
  const BlockCopy* const copies = reinterpret_cast<const BlockCopy*>(rank(r).space().input + shape.state_copy);
  const BlockGroup whole{1, static_cast<int64_t>(sizes_.state_bytes()), 0, 0, 0};
  int32_t first = 0;
  for (const int32_t end : input_.state_copy_ends()) {
    CUDA_CHECK(launch_block_copies({copies + first, end - first, whole}, {streams_[r], false}));
    *begun = true;
    first = end;
  }
}

cudaError_t StepQueue::send_masks(Flight& flight, size_t r) {
  const std::vector<uint32_t>& masks = flight.plan.masks;
  const uint64_t bytes = masks.size() * sizeof(uint32_t);
  std::memcpy(flight.masks.data(), masks.data(), bytes);
  return cudaMemcpyAsync(rank(r).space().masks, flight.masks.data(), bytes, cudaMemcpyHostToDevice, streams_[r]);
}

void StepQueue::put_behind_masks(Flight& flight) {
  const StepShape& shape = flight.shape;
  each([&](size_t r) {
    twice("marking where a step goes on", [&] { return cudaEventRecord(flight.legs[r].resumed, streams_[r]); });
    twice("sending a step's masks", [&] { return send_masks(flight, r); });
    if (shape.jobs > 0)
      twice("sending a step's jobs", [&] {
        return cudaMemcpyAsync(rank(r).space().input + shape.job, flight.legs[r].input.data() + shape.job, job_bytes(shape),
                               cudaMemcpyHostToDevice, streams_[r]);
      });
  });
  // Plain launches: the sampler reads jobs before it waits for its predecessor, which is their copy here.
  Lanes plain = lanes_;
  for (Stream& lane : plain) lane.dependent = false;
  forward_.in_turn(plain, [&] { forward_.queue_behind_masks(shape, plain); });
  end(flight);
}

// The step is on its way and cannot be taken back: what only fetches its results is tried twice.
void StepQueue::end(Flight& flight) {
  each([&](size_t r) {
    if (r == 0) fetch(flight);
    twice("marking a step's end", [&] { return cudaEventRecord(flight.legs[r].end, streams_[r]); });
  });
}

void StepQueue::fetch(Flight& flight) {
  const StepPlan& plan = flight.plan;
  const Workspace& space = forward_.rank(0).space();
  if (flight.row_count > 0)
    twice("fetching a step's rows", [&] {
      return cudaMemcpyAsync(flight.rows.data(), space.results, static_cast<uint64_t>(flight.row_count) * sizeof(mr_row_result),
                             cudaMemcpyDeviceToHost, streams_[0]);
    });
  if (const uint64_t bytes = candidate_bytes(plan); bytes > 0)
    twice("fetching a step's candidates", [&] {
      return cudaMemcpyAsync(flight.candidates.data(), space.candidates, bytes, cudaMemcpyDeviceToHost, streams_[0]);
    });
  if (const StepShape& shape = flight.shape; shape.hidden_rows > 0) {
    // A plain launch: the kernel before it may be a graph's.
    twice("computing a step's hidden rows", [&] { return forward_.rank(0).hidden_rows(shape, {streams_[0], false}); });
    twice("fetching a step's hidden rows", [&] {
      return cudaMemcpyAsync(flight.hidden.data(), space.hidden, hidden_bytes(sizes_, shape.hidden_rows), cudaMemcpyDeviceToHost,
                             streams_[0]);
    });
  }
  if (space.experts.bytes != nullptr)
    twice("fetching a step's count of expert bytes", [&] {
      return cudaMemcpyAsync(flight.expert_bytes.data(), space.experts.bytes, sizeof(uint64_t), cudaMemcpyDeviceToHost, streams_[0]);
    });
  if (plan.hang_ns != 0) CUDA_CHECK(launch_hang(plan.hang_ns, streams_[0]));
}

uint64_t StepQueue::candidate_bytes(const StepPlan& plan) const {
  uint64_t count = 0;
  for (const mr_sample_row& r : plan.samples) count += static_cast<uint64_t>(views_[static_cast<size_t>(r.slot)].top_n);
  for (const mr_score_row& r : plan.scores) count += static_cast<uint64_t>(r.top_n);
  return count * sizeof(mr_candidate);
}

}  // namespace mr::cuda
