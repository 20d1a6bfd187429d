// read_once: counts the experts that a layer reads, each once however many pieces of rows use it. A thread has an expert, so no order
// decides the sum.
#pragma once

#include "kernels/experts/plan.h"

namespace mr::cuda {

// Returns 1 if the expert is active in this piece and was in no earlier one of the layer, else 0.
__device__ __forceinline__ int32_t read_once(const ExpertBytes& bytes, int32_t expert, bool active) {
  if (bytes.read == nullptr) return active ? 1 : 0;
  const bool before = !bytes.first && bytes.read[expert] != 0;
  if (bytes.first || active) bytes.read[expert] = active ? 1 : 0;
  return active && !before ? 1 : 0;
}

// Adds the bytes of this number of experts. One thread of a launch calls it.
__device__ __forceinline__ void count_read(const ExpertBytes& bytes, int32_t experts) {
  // An atomic addition, because nothing waits for its result.
  if (bytes.total != nullptr)
    atomicAdd(reinterpret_cast<unsigned long long*>(bytes.total), static_cast<unsigned long long>(experts) * bytes.each);
}

}  // namespace mr::cuda
