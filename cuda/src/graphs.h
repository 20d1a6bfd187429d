// graphs: steps of decode segments alone, captured once for each size of batch.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "src/forward.h"
#include "src/handles.h"

namespace mr::cuda {

// Every graph is made once and never changed: the smallest before the runner is used, the others by a thread of their own
// while steps may run already. Those of several ranks are all made before: the driver may make a thread that instantiates one wait for
// a GPU, which waits for another, which waits for the thread that queues. A step whose graph is not there yet is launched kernel by kernel,
// with the same results.
class Graphs {
 public:
  Graphs() = default;
  ~Graphs();  // waits for the graph in the making
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;

  // Captures the first bucket's graph, which is first run without capture on padding rows alone, so that its kernels are
  // loaded, and begins with the others. Rows of a bucket are at most most_rows, its jobs at most most_jobs. forward outlives
  // this; a graph that the driver refuses is left out, with those behind it.
  void capture(Forward& forward, int32_t most_rows, int32_t most_jobs, const Lanes& on);
  void settle();  // waits until the others are made too

  struct Bucket {
    int32_t rows = 0, jobs = 0;
    cudaGraphExec_t execs[kMostRanks] = {};  // by rank
  };
  // The smallest bucket that holds a step, if its graph is there, or null.
  const Bucket* find(int32_t rows, int32_t jobs) const;

 private:
  void capture_others(Forward& forward, const Lanes& on);

  std::vector<Bucket> buckets_;  // ascending
  std::atomic<size_t> made_{0};  // of the first buckets, whose graphs are there
  std::atomic<bool> ending_{false};
  std::thread others_;
};

}  // namespace mr::cuda
