// transfer: bytes between host and device through pinned memory, by several callers at once.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "src/handles.h"

namespace mr::cuda {

// A fixed number of lanes, each a stream with two pinned halves: while the device copies one half, the caller fills or
// empties the other. A call holds one lane and returns when its bytes are where they should be, or throws when nothing of it
// is under way any more. Any number of threads; those beyond the lanes wait for one. A lane's memory is taken at its first use.
//
// Memory from host_alloc is pinned already: the device copies straight from it, one caller's bytes after the other's, and
// the callers sleep until their copy has ended. They need no lane.
class Transfers {
 public:
  explicit Transfers(int device);

  // Returns pinned memory to upload from, one upload at a time from each piece. Freed pieces are kept, up to a limit, for a
  // later call with the same size.
  void* host_alloc(uint64_t size);
  // Throws INVALID_ARGUMENT for what host_alloc did not give, FAILED_PRECONDITION while an upload reads it, INTERNAL when the
  // driver refuses it: then it is the caller's as before.
  void host_free(void* data);
  uint64_t failed_frees() const { return failed_frees_.load(); }  // times the driver refused host memory

  void upload(void* device_dst, const void* src, uint64_t size);
  void download(void* dst, const void* device_src, uint64_t size);
  void copy(void* device_dst, const void* device_src, uint64_t size);  // the ranges do not overlap
  void fill(void* device_dst, uint8_t value, uint64_t size);

 private:
  static constexpr int kLanes = 8;
  static constexpr uint64_t kHalf = uint64_t{4} << 20;        // bytes
  static constexpr uint64_t kMostKept = uint64_t{256} << 20;  // bytes of returned memory

  struct Lane {
    StreamHandle stream;
    EventHandle done[2];
    Pinned half[2];  // empty until used
    bool ready = false;
    void take_halves();
  };

  // A lane held by the calling thread.
  class Hold {
   public:
    explicit Hold(Transfers& transfers);
    ~Hold();
    Lane* operator->() const { return lane_; }
    void done() { waits_ = false; }  // nothing is under way on the lane's stream

   private:
    Transfers& transfers_;
    Lane* lane_;
    bool waits_ = true;
  };

  // What host_alloc gave.
  struct Given {
    Pinned memory;
    EventHandle uploaded, downloaded;  // the latest copy from it and to it; each way has one stream, so earlier ones too
    int users = 0;                     // copies under way
  };

  // A copy from or to `memory`. If host_alloc returned the memory, it cannot be freed until the copy ends.
  class Use {
   public:
    Use(Transfers& transfers, const void* memory, uint64_t size);
    ~Use();
    explicit operator bool() const { return given_ != nullptr; }
    const Given* operator->() const { return given_; }

   private:
    Transfers& transfers_;
    Given* given_;
  };

  void give_back(Lane* lane);
  Pinned pin(uint64_t size);
  Given* owner_locked(const void* memory, uint64_t size);  // of these bytes, or null
  // A copy on one of the direct streams that needs no halves, awaited by its event.
  void copy_direct(void* dst, const void* src, uint64_t size, cudaMemcpyKind way, cudaStream_t stream, cudaEvent_t copied);

  const int device_;
  std::mutex mutex_;
  std::condition_variable freed_;
  Lane lanes_[kLanes];
  std::vector<Lane*> free_;
  StreamHandle up_, down_;                 // of copies from and to memory of host_alloc; made with the first
  std::map<const uint8_t*, Given> given_;  // by address
  std::multimap<uint64_t, Given> kept_;    // by size
  uint64_t kept_bytes_ = 0;
  std::atomic<uint64_t> failed_frees_{0};
};

}  // namespace mr::cuda
