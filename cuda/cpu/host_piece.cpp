#include "host_piece.h"

#include <sys/mman.h>

#include <cerrno>

#include "error.h"

namespace mr::cpu {

HostPiece::HostPiece(Ledger& ledger, uint64_t bytes) : bytes_(bytes), data_(MAP_FAILED) {
  const uint64_t available = available_memory();
  int error = ENOMEM;
  if (!ledger.refuses_outside() && bytes <= available) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    error = errno;
  }
  if (data_ == MAP_FAILED)
    fail_errno(MR_RESOURCE_EXHAUSTED, error,
               "%llu bytes of host memory for blocks asked, %llu bytes available: the system refuses",
               static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(available));
  (void)madvise(data_, bytes, MADV_HUGEPAGE);  // advice: a kernel without huge pages is only slower
}

// A mapping of this object's own can be unmapped.
HostPiece::~HostPiece() { (void)munmap(data_, bytes_); }

}  // namespace mr::cpu
