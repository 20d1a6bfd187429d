#include "src/graphs.h"

#include <algorithm>

#include "src/error.h"

namespace mr::cuda {
namespace {

constexpr int32_t kBuckets[] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256};

// Captures what queue() puts on the lanes, and makes it ready for launches.
template <class Queue>
void capture_into(Graphs::Bucket& bucket, Forward& forward, const Lanes& on, cudaStreamCaptureMode mode, Queue&& queue) {
  const size_t ranks = on.size();
  cudaGraph_t graphs[kMostRanks] = {};
  size_t begun = 0;
  const auto enter = [&](size_t rank) { forward.rank(static_cast<int32_t>(rank)).device().enter(); };
  const auto end = [&]() -> cudaError_t {
    cudaError_t error = cudaSuccess;
    for (size_t r = 0; r < begun; ++r) {
      enter(r);
      const cudaError_t one = cudaStreamEndCapture(on[r].stream, &graphs[r]);
      if (error == cudaSuccess) error = one;
    }
    return error;
  };
  const auto drop = [&] {
    for (cudaGraph_t& graph : graphs)
      if (graph != nullptr) (void)cudaGraphDestroy(graph);
  };
  try {
    for (; begun < ranks; ++begun) {
      enter(begun);
      CUDA_CHECK(cudaStreamBeginCapture(on[begun].stream, mode));
    }
    queue();
  } catch (...) {
    (void)end();
    drop();
    throw;
  }
  cudaError_t error = end();
  const SlowCall alone(slow_calls());
  for (size_t r = 0; r < ranks && error == cudaSuccess; ++r) {
    enter(r);
    error = cudaGraphInstantiateWithFlags(&bucket.execs[r], graphs[r], 0);
    if (error == cudaSuccess) error = cudaGraphUpload(bucket.execs[r], on[r].stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(on[r].stream);
  }
  drop();
  check(error, "making a step's graph");
}

}  // namespace

Graphs::~Graphs() {
  ending_.store(true);
  settle();
  const SlowCall alone(slow_calls());
  for (const Bucket& bucket : buckets_)
    for (const cudaGraphExec_t exec : bucket.execs)
      if (exec != nullptr) (void)cudaGraphExecDestroy(exec);
}

void Graphs::settle() {
  if (others_.joinable()) others_.join();
}

void Graphs::capture(Forward& forward, int32_t most_rows, int32_t most_jobs, const Lanes& on) {
  for (const int32_t rows : kBuckets)
    if (rows <= most_rows) buckets_.push_back({rows, std::min(rows, most_jobs), {}});
  if (buckets_.empty()) return;
  Bucket& first = buckets_.front();
  const StepShape shape = forward.padding_shape(first.rows, first.rows, first.jobs);
  forward.run_padding(shape, on);
  capture_into(first, forward, on, cudaStreamCaptureModeThreadLocal, [&] { forward.queue(shape, on); });
  made_.store(1, std::memory_order_release);
  if (forward.ranks() > 1) return capture_others(forward, on);
  others_ = std::thread([this, &forward, dependent = on[0].dependent] {
    try {
      forward.rank(0).device().enter();
      const StreamHandle stream(0);
      capture_others(forward, {{stream, dependent}});
    } catch (...) {
      (void)cudaGetLastError();
    }
  });
}

// Nothing runs here. Kernels that no step has used yet are loaded while they are captured, which only the relaxed mode
// allows.
void Graphs::capture_others(Forward& forward, const Lanes& on) {
  try {
    for (size_t i = 1; i < buckets_.size() && !ending_.load(); ++i) {
      Bucket& bucket = buckets_[i];
      const StepShape shape = forward.padding_shape(bucket.rows, bucket.rows, bucket.jobs);
      capture_into(bucket, forward, on, cudaStreamCaptureModeRelaxed, [&] { forward.queue(shape, on); });
      made_.store(i + 1, std::memory_order_release);
    }
  } catch (...) {
    (void)cudaGetLastError();  // steps of these sizes are launched kernel by kernel
  }
}

const Graphs::Bucket* Graphs::find(int32_t rows, int32_t jobs) const {
  const size_t made = made_.load(std::memory_order_acquire);
  for (size_t i = 0; i < made; ++i)
    if (buckets_[i].rows >= rows && buckets_[i].jobs >= jobs) return &buckets_[i];
  return nullptr;
}

}  // namespace mr::cuda
