// types: the element types for which kernels are compiled, and the dispatch by type.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace mr::cuda {

// Activation types. GEMM inputs are of one type, and queries, keys and values are stored in one, which may be the
// other. The residual stream and every sum are f32.
enum class Act : int32_t { kF16 = 0, kBF16 = 1 };

constexpr size_t kActBytes = 2;  // of either type

// Rows of one step that decode kernels compute: the largest bucket.
constexpr int32_t kMaxDecodeRows = 256;

// Calls f with a value of the element type of act.
template <class F>
inline cudaError_t with_act(Act act, F&& f) {
  switch (act) {
    case Act::kF16: return f(__half{});
    case Act::kBF16: return f(__nv_bfloat16{});
  }
  return cudaErrorInvalidValue;
}

}  // namespace mr::cuda
