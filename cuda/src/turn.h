// turn: the order of steps on GPUs that hold models together, and when a call that makes the driver wait for all GPUs may run.
//
// A gather spins on one GPU until another has come to it. Two things could keep the other from coming, and are kept away:
//
//   Steps of two models that begin in a different order on two GPUs: each would hold the GPU on which the other's gather is wanted. So
//   every step, of whatever model, is queued behind the one before it on all GPUs.
//
//   A call of another thread in the middle of a step's queueing that waits for all GPUs, as giving memory back does: it keeps the driver
//   until the gather ends, and the queueing thread waits for the driver. So such calls and the queueing of a step exclude each other,
//   and take turns (fair_mutex.h).
#pragma once

#include <vector>

#include "src/handles.h"

namespace mr::cuda {

// The order of steps on the GPUs that a device leads. Used while slow_calls() is held.
class Turns {
 public:
  // What comes on the stream of a rank, whose GPU is the thread's own, waits for the end of the step before.
  void begin(size_t rank, cudaStream_t stream) {
    if (ends_.size() <= rank) ends_.resize(rank + 1);
    if (ends_[rank] == nullptr) ends_[rank] = EventHandle(cudaEventDisableTiming);
    CUDA_CHECK(cudaStreamWaitEvent(stream, ends_[rank], 0));
  }
  void end(size_t rank, cudaStream_t stream) { CUDA_CHECK(cudaEventRecord(ends_[rank], stream)); }

 private:
  std::vector<EventHandle> ends_;  // by rank
};

}  // namespace mr::cuda
