// digest_kernel: BLAKE3's chaining values of 64 KiB subtrees.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace mr::cuda {

struct Blake3Args {
  const uint8_t* data;   // subtrees * 64 KiB, 16-byte aligned
  uint64_t first_chunk;  // of the message: a multiple of 64
  int64_t subtrees;
  uint32_t* values;      // (subtrees, 8); memory of the device or pinned
};

cudaError_t launch_blake3_subtrees(const Blake3Args& args, cudaStream_t stream);

}  // namespace mr::cuda
