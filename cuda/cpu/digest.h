// digest: BLAKE3 of large amounts of bytes by the threads of a device.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "device.h"
#include "linear.h"

namespace mr::cpu {

// Of bytes in memory.
void digest_memory(Device& device, const uint8_t* data, uint64_t size, uint8_t out[32]);

// Digests the file bytes of packed matrices of one type and size, one after another. It unpacks some megabytes at a time, while steps
// may read the matrices. Its scratch memory is from the heap, not from the ledger: verification works on a full device.
void digest_matrices(Device& device, const std::vector<Matrix>& matrices, uint8_t out[32]);

}  // namespace mr::cpu
