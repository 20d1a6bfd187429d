// digest: BLAKE3 of bytes in device memory.
//
// A message comes in pieces, in order. The device gives one chaining value for each kDigestPiece bytes, and one for each
// chunk (1024 bytes) of what ends the message; digest_finish folds them on the host, which takes microseconds.
#pragma once

#include <cstdint>

#include "kernels/launch.h"

namespace mr::cuda {

constexpr int64_t kDigestPiece = int64_t{1} << 20;

struct DigestValue {
  uint32_t words[8];
};

struct DigestArgs {
  const void* data;     // device memory, 16-byte aligned
  int64_t size;         // bytes, >= 1; a multiple of kDigestPiece unless last
  uint64_t offset;      // of these bytes in the message, a multiple of kDigestPiece
  bool last;            // the message ends with these bytes
  DigestValue* values;  // device memory: digest_values(size, last) entries are written
};
cudaError_t launch_digest(const DigestArgs& args, const Stream& on);

// How many values a piece gives. Whole: size / kDigestPiece. Last: one for each kDigestPiece bytes but the final 1 ..
// kDigestPiece bytes, then one for each chunk of those.
int64_t digest_values(int64_t size, bool last);

// The digest of a message of `size` >= 1 bytes from the values of all its pieces, in order, in host memory.
void digest_finish(const DigestValue* values, uint64_t size, uint8_t out[32]);

}  // namespace mr::cuda
