// graphs: steps of decode segments alone, captured once for each size of batch.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "src/forward.h"
#include "src/handles.h"

namespace mr::cuda {

// Every graph is made by capture(), before the runner is used; none is made or changed while steps run.
class Graphs {
 public:
  Graphs() = default;
  ~Graphs();
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;

  // Captures one graph a bucket. Rows of a bucket are at most most_rows, its jobs at most most_jobs. Each is first run
  // without capture on padding rows alone, so that every kernel it holds is loaded.
  void capture(Forward& forward, int32_t most_rows, int32_t most_jobs, bool dependent, cudaStream_t stream);

  struct Bucket {
    int32_t rows = 0, jobs = 0;
    cudaGraphExec_t exec = nullptr;
  };
  // The smallest bucket that holds a step, or null.
  const Bucket* find(int32_t rows, int32_t jobs) const;

 private:
  std::vector<Bucket> buckets_;  // ascending
};

}  // namespace mr::cuda
