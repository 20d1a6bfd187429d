// digest: BLAKE3 of large amounts of bytes by the threads of a device.
#pragma once

#include <cstdint>
#include <functional>

#include "device.h"
#include "linear.h"

namespace mr::cpu {

// Of bytes in memory.
void digest_memory(Device& device, const uint8_t* data, uint64_t size, uint8_t out[32]);

// Digests the file bytes of a packed matrix, which it unpacks some megabytes at a time while steps may read the matrix.
// Its scratch memory is from the heap, not from the ledger: verification works on a full device.
void digest_matrix(Device& device, const Matrix& matrix, uint8_t out[32]);

}  // namespace mr::cpu
