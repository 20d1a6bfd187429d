#include "src/device.h"

#include <dlfcn.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstring>
#include <vector>

#include "kernels/linear/product.h"
#include "src/digest.h"
#include "src/error.h"
#include "src/nvml.h"

namespace mr::cuda {
namespace {

constexpr int kLeastMajor = 8;  // compute capability

// Opens the driver where the loader does not look for it: the runtime finds by name what is open already.
void find_driver() {
  static const bool once = [] {
    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) == nullptr)
      (void)dlopen("/usr/lib/wsl/lib/libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    return true;
  }();
  (void)once;
}

// The runtime's indices of usable GPUs, in its order.
std::vector<int> usable_devices() {
  find_driver();
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice) {
    (void)cudaGetLastError();
    return {};
  }
  check(error, "looking for GPUs");
  std::vector<int> usable;
  for (int i = 0; i < count; ++i) {
    int major = 0;
    CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, i));
    if (major >= kLeastMajor) usable.push_back(i);
  }
  return usable;
}

int find_device(const mr_device_options& options) {
  if (options.path != nullptr)
    fail(MR_INVALID_ARGUMENT, "path is \"%.32s\": a GPU has no instruction-set path to force", options.path);
  const std::vector<int> usable = usable_devices();
  if (options.index < 0 || static_cast<size_t>(options.index) >= usable.size())
    fail(MR_NOT_FOUND, "device index is %d: this machine has %zu GPUs of compute capability %d.0 or newer", options.index,
         usable.size(), kLeastMajor);
  return usable[static_cast<size_t>(options.index)];
}

cudaDeviceProp properties_of(int index) {
  cudaDeviceProp properties{};
  CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  return properties;
}

std::string bus_id(int index) {
  char pci[32] = {};
  CUDA_CHECK(cudaDeviceGetPCIBusId(pci, sizeof pci, index));
  return pci;
}

int stream_priority(bool high) {
  int least = 0, greatest = 0;
  CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  return high ? greatest : least;
}

// What is wanted (0: all), but at most what is free now, less a margin for what the driver and the libraries take beside the
// ledger: kernels' code, graphs, streams.
uint64_t ledger_limit(int index, uint64_t wanted) {
  CUDA_CHECK(cudaSetDevice(index));
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  const uint64_t margin = std::max<uint64_t>(uint64_t{512} << 20, total / 64);
  const uint64_t most = free > 2 * margin ? free - margin : free / 2;
  return wanted == 0 ? most : std::min(wanted, most);
}

template <size_t kSize>
void copy_text(char (&to)[kSize], const char* from) {
  const size_t length = std::min(std::strlen(from), kSize - 1);
  std::memcpy(to, from, length);
  std::memset(to + length, 0, kSize - length);
}

}  // namespace

int32_t device_count() { return static_cast<int32_t>(usable_devices().size()); }

Device::Device(const mr_device_options& options)
    : index(find_device(options)), properties(properties_of(index)),
      path("sm_" + std::to_string(properties.major) + std::to_string(properties.minor)), programmatic(properties.major >= 9),
      priority_low(stream_priority(false)), priority_high(stream_priority(true)),
      ledger(index, ledger_limit(index, options.bytes_limit), options.pool_limit),
      transfers(index), digester(std::make_unique<Digester>(*this)), pci_(bus_id(index)), xids_(pci_.c_str()) {
  enter();
  opened_ = EventHandle(cudaEventDisableTiming);
  const StreamHandle stream(priority_low);
  CUDA_CHECK(cudaEventRecord(opened_, stream));
  CUDA_CHECK(cudaEventSynchronize(opened_));
  CUDA_CHECK(prepare_products());
}

Device::~Device() { (void)cudaSetDevice(index); }

void Device::enter() const { CUDA_CHECK(cudaSetDevice(index)); }

std::string Device::describe(cudaError_t error) const {
  std::string text = std::string(cudaGetErrorName(error)) + " (" + cudaGetErrorString(error) + ")";
  const std::lock_guard<std::mutex> lock(xids_mutex_);
  if (const uint64_t xid = xids_.last(100); xid != 0) text += ", Xid " + std::to_string(xid);
  return text;
}

void Device::check_alive() const {
  const cudaError_t error = cudaEventQuery(opened_);
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();
  throw Error(MR_INTERNAL, error, "the GPU is lost: " + describe(error));
}

void Device::info(mr_device_info* out) const {
  check_alive();
  const LedgerCounts counts = ledger.counts();
  const Readings readings = read_nvml(pci_.c_str());
  {
    const std::lock_guard<std::mutex> lock(xids_mutex_);
    xids_.listen();
  }
  copy_text(out->kind, "cuda");
  copy_text(out->name, properties.name);
  char uuid[64];
  const auto* const u = reinterpret_cast<const unsigned char*>(properties.uuid.bytes);
  std::snprintf(uuid, sizeof uuid, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
                u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
  copy_text(out->uuid, uuid);
  copy_text(out->path, path.c_str());
  copy_text(out->numerics, kNumerics);
  out->compute_major = properties.major;
  out->compute_minor = properties.minor;
  out->sm_count = properties.multiProcessorCount;
  out->reserved0 = 0;
  out->bytes_total = counts.total;
  out->bytes_free = counts.total;
  for (int purpose = 0; purpose < MR_PURPOSE_COUNT; ++purpose) {
    out->bytes_used[purpose] = counts.used[purpose];
    out->bytes_free -= counts.used[purpose];  // every pooled byte is given up before an allocation fails
  }
  out->bytes_pooled = counts.pooled;
  out->pool_hits = counts.hits;
  out->pool_misses = counts.misses;
  out->live_buffers = static_cast<uint64_t>(buffers.load());
  out->temperature_c = readings.temperature_c;
  out->power_mw = readings.power_mw;
  out->errors = readings.errors;
  out->physical_total = readings.bytes_total != 0 ? readings.bytes_total : UINT64_MAX;
  out->physical_free = readings.bytes_total != 0 ? readings.bytes_free : UINT64_MAX;
  out->corrected_errors = UINT64_MAX;
  out->failed_frees = counts.failed_frees;
  copy_text(out->management_problem, "");
}

void Device::check_idle() const {
  const long long b = buffers.load(), m = models.load(), r = runners.load();
  if (b != 0 || m != 0 || r != 0)
    fail(MR_FAILED_PRECONDITION, "%lld buffers, %lld models and %lld runners of the device are alive: free them first", b, m,
         r);
}

}  // namespace mr::cuda
