// device: one GPU as the engine sees it: its properties, a ledger of its bytes, and the ways to move and hash them. It may lead
// others, with which it holds models together.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "millrace/engine.h"
#include "src/handles.h"
#include "src/ledger.h"
#include "src/nvml.h"
#include "src/transfer.h"
#include "src/turn.h"

namespace mr::cuda {

class Digester;

// Version of every rule that decides bits, on every GPU.
#if MR_FREE_SPLITS
constexpr char kNumerics[] = "cuda-10, sums by the batch";
#else
constexpr char kNumerics[] = "cuda-10";
#endif

// GPUs that the driver shows this process, usable or not: their indices are the driver's, so that none shifts when another
// cannot be used. Throws UNAVAILABLE without a driver.
int32_t device_count();

// Safe for use by any number of threads.
class Device {
 public:
  // Options already completed. Throws NOT_FOUND for an index that no GPU has, UNIMPLEMENTED for a GPU that this library holds
  // no machine code for, or for GPUs that are unlike each other or cannot reach each other's memory, INVALID_ARGUMENT for one
  // named twice.
  explicit Device(const mr_device_options& options);
  ~Device();

  // Throws INTERNAL with the error's name once the GPU is lost: after a failure that every later call of the process meets, or
  // when the driver's management library says so.
  void info(mr_device_info* out) const;
  std::string label() const;  // for messages, to distinguish devices
  // Throws FAILED_PRECONDITION while buffers, models, runners, trainers or codebooks live.
  void check_idle() const;
  // An error after which the GPU may be lost: its name, its text, and the Xid that the driver reports
  // with it. May wait a tenth of a second for that.
  std::string describe(cudaError_t error) const;
  // Which GPUs of several are lost, as messages end with it: "; lost: cuda:1 with Xid 31". Empty where none is, or for a GPU by itself.
  // May wait as long for each.
  std::string losses() const;
  // Makes the GPU the calling thread's: first in every function that calls the runtime.
  void enter() const;

  // The GPUs that hold models together, this one first: their ranks.
  int32_t ranks() const { return static_cast<int32_t>(others_.size()) + 1; }
  Device& rank(int32_t index) { return index == 0 ? *this : *others_[static_cast<size_t>(index) - 1]; }
  const Device& rank(int32_t index) const { return const_cast<Device*>(this)->rank(index); }

  const int index;  // of the runtime
  const cudaDeviceProp properties;
  const std::string path;         // "sm_90"
  const bool programmatic;        // kernels may be launched as programmatic dependents
  const int priority_low, priority_high;  // of streams
  mutable Ledger ledger;
  mutable Transfers transfers;
  const std::unique_ptr<Digester> digester;
  Turns turns;  // of the GPUs that this one leads
  std::atomic<int64_t> buffers{0}, models{0}, runners{0}, trainers{0}, codebooks{0};  // alive

 private:
  cudaError_t state() const;  // an error once the GPU is lost
  void check_alive() const;
  uint64_t xid() const;  // that the driver reported lately, or reports within a tenth of a second; 0 for none
  Readings ask() const;
  void info_alone(mr_device_info* out) const;
  void join(const mr_device_options& options);  // opens the others

  const int64_t number_;   // of the devices this process has opened
  const std::string pci_;  // bus id
  EventHandle opened_;     // recorded when the device was opened: querying it returns errors since then
  mutable std::mutex xids_mutex_;
  mutable XidWatch xids_;
  mutable Management management_;
  std::vector<std::unique_ptr<Device>> others_;  // of ranks 1 and on
};

}  // namespace mr::cuda
