#include "src/graphs.h"

#include <algorithm>

#include "src/error.h"

namespace mr::cuda {
namespace {

constexpr int32_t kBuckets[] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256};

}  // namespace

Graphs::~Graphs() {
  for (const Bucket& bucket : buckets_)
    if (bucket.exec != nullptr) (void)cudaGraphExecDestroy(bucket.exec);
}

void Graphs::capture(Forward& forward, int32_t most_rows, int32_t most_jobs, bool dependent, cudaStream_t stream) {
  for (const int32_t rows : kBuckets) {
    if (rows > most_rows) break;
    buckets_.push_back({rows, std::min(rows, most_jobs), nullptr});
    Bucket& bucket = buckets_.back();
    const StepShape shape(rows, rows, bucket.jobs);
    // Padding: slots and gathered rows of -1, and jobs of no kind.
    uint8_t* const input = forward.space().input;
    CUDA_CHECK(cudaMemsetAsync(input, 0, shape.bytes, stream));
    CUDA_CHECK(cudaMemsetAsync(input + shape.slot, 0xff, static_cast<size_t>(rows) * sizeof(int32_t), stream));
    CUDA_CHECK(cudaMemsetAsync(input + shape.gather, 0xff, static_cast<size_t>(bucket.jobs) * sizeof(int32_t), stream));
    forward.queue(shape, {stream, dependent});
    CUDA_CHECK(cudaStreamSynchronize(stream));

    cudaGraph_t graph = nullptr;
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    try {
      forward.queue(shape, {stream, dependent});
    } catch (...) {
      (void)cudaStreamEndCapture(stream, &graph);
      if (graph != nullptr) (void)cudaGraphDestroy(graph);
      throw;
    }
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    const cudaError_t error = cudaGraphInstantiateWithFlags(&bucket.exec, graph, 0);
    (void)cudaGraphDestroy(graph);
    check(error, "cudaGraphInstantiateWithFlags");
    CUDA_CHECK(cudaGraphUpload(bucket.exec, stream));
  }
  CUDA_CHECK(cudaStreamSynchronize(stream));
}

const Graphs::Bucket* Graphs::find(int32_t rows, int32_t jobs) const {
  for (const Bucket& bucket : buckets_)
    if (bucket.rows >= rows && bucket.jobs >= jobs) return &bucket;
  return nullptr;
}

}  // namespace mr::cuda
