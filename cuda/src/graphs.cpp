#include "src/graphs.h"

#include <algorithm>

#include "src/error.h"

namespace mr::cuda {
namespace {

constexpr int32_t kBuckets[] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256};

// Captures what queue() puts on the stream, and makes it ready for launches.
template <class Queue>
cudaGraphExec_t captured(cudaStream_t stream, cudaStreamCaptureMode mode, Queue&& queue) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  CUDA_CHECK(cudaStreamBeginCapture(stream, mode));
  try {
    queue();
  } catch (...) {
    (void)cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    throw;
  }
  CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  cudaError_t error = cudaGraphInstantiateWithFlags(&exec, graph, 0);
  (void)cudaGraphDestroy(graph);
  check(error, "cudaGraphInstantiateWithFlags");
  error = cudaGraphUpload(exec, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (error != cudaSuccess) (void)cudaGraphExecDestroy(exec);
  check(error, "cudaGraphUpload");
  return exec;
}

}  // namespace

Graphs::~Graphs() {
  ending_.store(true);
  settle();
  for (const Bucket& bucket : buckets_)
    if (bucket.exec != nullptr) (void)cudaGraphExecDestroy(bucket.exec);
}

void Graphs::settle() {
  if (others_.joinable()) others_.join();
}

void Graphs::capture(int device, Forward& forward, int32_t most_rows, int32_t most_jobs, bool dependent, cudaStream_t stream) {
  for (const int32_t rows : kBuckets)
    if (rows <= most_rows) buckets_.push_back({rows, std::min(rows, most_jobs), nullptr});
  if (buckets_.empty()) return;
  Bucket& first = buckets_.front();
  const StepShape shape(first.rows, first.rows, first.jobs);
  // Padding: slots and gathered rows of -1, and jobs of no kind.
  uint8_t* const input = forward.space().input;
  CUDA_CHECK(cudaMemsetAsync(input, 0, shape.bytes, stream));
  CUDA_CHECK(cudaMemsetAsync(input + shape.slot, 0xff, static_cast<size_t>(first.rows) * sizeof(int32_t), stream));
  CUDA_CHECK(cudaMemsetAsync(input + shape.gather, 0xff, static_cast<size_t>(first.jobs) * sizeof(int32_t), stream));
  forward.queue(shape, {stream, dependent});
  CUDA_CHECK(cudaStreamSynchronize(stream));
  first.exec = captured(stream, cudaStreamCaptureModeThreadLocal, [&] { forward.queue(shape, {stream, dependent}); });
  made_.store(1, std::memory_order_release);
  others_ = std::thread([this, device, &forward, dependent] { capture_others(device, forward, dependent); });
}

// Nothing runs here. Kernels that no step has used yet are loaded while they are captured, which only the relaxed mode
// allows.
void Graphs::capture_others(int device, Forward& forward, bool dependent) {
  try {
    CUDA_CHECK(cudaSetDevice(device));
    const StreamHandle stream(0);
    for (size_t i = 1; i < buckets_.size() && !ending_.load(); ++i) {
      Bucket& bucket = buckets_[i];
      const StepShape shape(bucket.rows, bucket.rows, bucket.jobs);
      bucket.exec = captured(stream, cudaStreamCaptureModeRelaxed, [&] { forward.queue(shape, {stream, dependent}); });
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
