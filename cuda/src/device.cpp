#include "src/device.h"

#include <dlfcn.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "kernels/experts/experts.h"
#include "kernels/gather.h"
#include "kernels/gemm/mma_agreement.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/round_times.h"
#include "src/digest.h"
#include "src/error.h"
#include "src/images.h"
#include "src/nvml.h"

namespace mr::cuda {
namespace {

constexpr int kLeastMajor = 8;  // compute capability

// Opens the driver in places that the loader does not search: the runtime then finds the open library by name.
void find_driver() {
  static const bool once = [] {
    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) == nullptr)
      (void)dlopen("/usr/lib/wsl/lib/libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    return true;
  }();
  (void)once;
}

int gpus() {
  find_driver();
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice) {
    (void)cudaGetLastError();
    return 0;
  }
  check(error, "looking for GPUs");
  return count;
}

cudaDeviceProp properties_of(int index) {
  cudaDeviceProp properties{};
  CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  return properties;
}

// The GPU asked for, made the calling thread's. One that no code here is for is refused before it gets a context.
int find_device(const mr_device_options& options) {
  if (options.reserved0 != 0) fail(MR_UNIMPLEMENTED, "reserved0 is %d, which this engine does not know", options.reserved0);
  if (options.other_count < 0 || (options.other_count > 0 && options.others == nullptr))
    fail(MR_INVALID_ARGUMENT, "other_count is %d: want as many indices as `others` names", options.other_count);
  if (options.other_count >= kMostRanks)
    fail(MR_UNIMPLEMENTED, "other_count is %d: this engine divides a model among at most %d GPUs", options.other_count, kMostRanks);
  if (options.path != nullptr)
    fail(MR_INVALID_ARGUMENT, "path is \"%.32s\": a GPU has no instruction-set path to force", options.path);
  const int count = gpus();
  if (options.index < 0 || options.index >= count)
    fail(MR_NOT_FOUND, "device index is %d: the driver shows %d GPUs", options.index, count);
  const cudaDeviceProp p = properties_of(options.index);
  if (p.major < kLeastMajor)
    fail(MR_UNIMPLEMENTED, "GPU %d, %s, compute capability %d.%d: this engine runs on %d.0 and newer", options.index, p.name,
         p.major, p.minor, kLeastMajor);
  cudaError_t error = cudaErrorNoKernelImageForDevice;
  if (code_is_built(p.major, p.minor)) {
    CUDA_CHECK(cudaSetDevice(options.index));
    error = find_code();
  }
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction)
    fail(MR_UNIMPLEMENTED, "GPU %d, %s, compute capability %d.%d: this library holds machine code for %s only; build it with "
         "CUDA_ARCHITECTURES=%d%d", options.index, p.name, p.major, p.minor, built_code().c_str(), p.major, p.minor);
  check(error, "looking for the library's machine code");
  return options.index;
}

int64_t next_number() {
  static std::atomic<int64_t> last{0};
  return ++last;
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

// Returns the requested limit (0: all), at most the free memory less a margin for allocations of the driver and the libraries
// outside the ledger: kernels' code, graphs, streams.
uint64_t ledger_limit(int index, uint64_t wanted) {
  CUDA_CHECK(cudaSetDevice(index));
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  const uint64_t margin = std::max<uint64_t>(uint64_t{512} << 20, total / 64);
  const uint64_t most = free > 2 * margin ? free - margin : free / 2;
  return wanted == 0 ? most : std::min(wanted, most);
}

// The bytes that the device can still give this ledger: those free when it was read, those that the ledger has returned since then or
// taken, and the blocks of the pool.
uint64_t bytes_left(const Readings& readings, const LedgerCounts& counts) {
  if (readings.bytes_free == UINT64_MAX) return UINT64_MAX;
  const uint64_t mine = readings.bytes_free + readings.held + (counts.pooled - counts.stuck);
  return mine - std::min(mine, counts.held);
}

// What each GPU has of a size that is meant for all; 0 stays "no limit".
uint64_t share_of(uint64_t size, const mr_device_options& options) {
  return size == 0 ? 0 : std::max<uint64_t>(1, size / (static_cast<uint64_t>(std::max(options.other_count, 0)) + 1));
}

uint64_t pool_share(const mr_device_options& options) {
  return options.pool_limit == UINT64_MAX ? UINT64_MAX : share_of(options.pool_limit, options);
}

// Lets `from` read and write the memory of `to`.
void reach(const Device& from, const Device& to) {
  int can = 0;
  CUDA_CHECK(cudaDeviceCanAccessPeer(&can, from.index, to.index));
  if (can == 0)
    fail(MR_UNIMPLEMENTED, "GPU %d cannot reach the memory of GPU %d: they cannot hold a model together", from.index, to.index);
  from.enter();
  const cudaError_t error = cudaDeviceEnablePeerAccess(to.index, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) (void)cudaGetLastError();
  else check(error, "cudaDeviceEnablePeerAccess");
}

template <size_t kSize>
void copy_text(char (&to)[kSize], const char* from) {
  const size_t length = std::min(std::strlen(from), kSize - 1);
  std::memcpy(to, from, length);
  std::memset(to + length, 0, kSize - length);
}

}  // namespace

int32_t device_count() { return gpus(); }

Device::Device(const mr_device_options& options)
    : index(find_device(options)), properties(properties_of(index)),
      path("sm_" + std::to_string(properties.major) + std::to_string(properties.minor)), programmatic(properties.major >= 9),
      priority_low(stream_priority(false)), priority_high(stream_priority(true)),
      ledger(index, ledger_limit(index, share_of(options.bytes_limit, options)), pool_share(options)),
      transfers(index), digester(std::make_unique<Digester>(*this)), number_(next_number()), pci_(bus_id(index)),
      xids_(pci_.c_str()), management_([this] { return ask(); }) {
  enter();
  opened_ = EventHandle(cudaEventDisableTiming);
  const StreamHandle stream(priority_low);
  CUDA_CHECK(cudaEventRecord(opened_, stream));
  CUDA_CHECK(cudaEventSynchronize(opened_));
  CUDA_CHECK(prepare_gemms());
  CUDA_CHECK(prepare_expert_gemms());
  bool alike = false;
  CUDA_CHECK(mma_and_wgmma_agree(stream, false, &alike));
  if (!alike)
    fail(MR_UNIMPLEMENTED, "GPU %d, %s: mma and wgmma add products in different ways here, so that a row's bits would depend on how many "
         "stand beside it; a library built with CUDA_ARCHITECTURES=%d%d does without wgmma", index, properties.name, properties.major,
         properties.minor);
  CUDA_CHECK(measure_round_times(stream));
  join(options);
}

void Device::join(const mr_device_options& options) {
  for (int32_t i = 0; i < options.other_count; ++i) {
    for (int32_t r = 0; r < ranks(); ++r)
      if (rank(r).index == options.others[i])
        fail(MR_INVALID_ARGUMENT, "GPU %d is named twice among those that hold a model together", options.others[i]);
    mr_device_options one = options;
    one.index = options.others[i];
    one.others = nullptr;
    one.other_count = 0;
    one.bytes_limit = share_of(options.bytes_limit, options);
    one.pool_limit = pool_share(options);
    auto other = std::make_unique<Device>(one);
    const cudaDeviceProp &a = properties, &b = other->properties;
    if (a.major != b.major || a.minor != b.minor || a.multiProcessorCount != b.multiProcessorCount)
      fail(MR_UNIMPLEMENTED, "GPU %d (%s, %d.%d, %d SMs) and GPU %d (%s, %d.%d, %d SMs) are unlike: they cannot hold a model together",
           index, a.name, a.major, a.minor, a.multiProcessorCount, other->index, b.name, b.major, b.minor, b.multiProcessorCount);
    for (int32_t r = 0; r < ranks(); ++r) {
      reach(rank(r), *other);
      reach(*other, rank(r));
    }
    others_.push_back(std::move(other));
  }
  enter();
}

Device::~Device() { (void)cudaSetDevice(index); }

void Device::enter() const {
  if (const cudaError_t error = cudaSetDevice(index); error != cudaSuccess)
    check(error, ("cudaSetDevice(" + std::to_string(index) + ")").c_str());
}

std::string Device::label() const {
  std::string indices = std::to_string(index);
  for (int32_t r = 1; r < ranks(); ++r) indices += "," + std::to_string(rank(r).index);
  return "device " + std::to_string(number_) + " (cuda:" + indices + ", " + properties.name + ")";
}

std::string Device::describe(cudaError_t error) const {
  const uint64_t number = xid();
  return number == 0 ? text_of(error) : text_of(error) + ", Xid " + std::to_string(number);
}

// A fault of one GPU may take the process's contexts on all of them: then it was that of those of which the driver reports an Xid, if it
// reports any.
std::string Device::losses() const {
  if (ranks() == 1) return "";
  std::string lost, reported;
  for (int32_t r = 0; r < ranks(); ++r) {
    const Device& each = rank(r);
    if (each.state() == cudaSuccess) continue;
    const std::string name = "cuda:" + std::to_string(each.index);
    const uint64_t number = each.xid();
    lost += (lost.empty() ? "" : ", ") + name;
    if (number != 0) reported += (reported.empty() ? "" : ", ") + name + " with Xid " + std::to_string(number);
  }
  (void)cudaSetDevice(index);
  return lost.empty() ? "" : "; lost: " + (reported.empty() ? lost : reported);
}

uint64_t Device::xid() const {
  const std::lock_guard<std::mutex> lock(xids_mutex_);
  return xids_.last(100);
}

cudaError_t Device::state() const {
  (void)cudaSetDevice(index);  // another GPU's loss is not this one's
  const cudaError_t error = cudaEventQuery(opened_);
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error;
}

void Device::check_alive() const {
  const cudaError_t error = state();
  if (error == cudaSuccess) return;
  throw Error(MR_INTERNAL, error, "the GPU is lost: " + describe(error) + " on cuda:" + std::to_string(index));
}

// The readings of the management library; the device's bytes come from the runtime if the library has none.
Readings Device::ask() const {
  const uint64_t held = ledger.counts().held;
  Readings readings = read_nvml(pci_.c_str());
  readings.held = held;
  size_t free = 0, total = 0;
  if (readings.bytes_total == UINT64_MAX) {
    if (cudaSetDevice(index) == cudaSuccess && cudaMemGetInfo(&free, &total) == cudaSuccess) {
      readings.bytes_total = total;
      readings.bytes_free = free;
    } else {
      (void)cudaGetLastError();
    }
  }
  const std::lock_guard<std::mutex> lock(xids_mutex_);
  xids_.listen();
  return readings;
}

// For GPUs that hold models together: the smallest value times the number of GPUs, because each holds about the same.
void Device::info(mr_device_info* out) const {
  info_alone(out);
  for (int32_t r = 1; r < ranks(); ++r) {
    mr_device_info other{};
    other.struct_size = sizeof other;
    rank(r).info_alone(&other);
    out->bytes_total = std::min(out->bytes_total, other.bytes_total);
    out->bytes_free = std::min(out->bytes_free, other.bytes_free);
    for (int32_t purpose = 0; purpose < MR_PURPOSE_COUNT; ++purpose) out->bytes_used[purpose] += other.bytes_used[purpose];
    out->bytes_pooled += other.bytes_pooled;
    out->pool_hits += other.pool_hits;
    out->pool_misses += other.pool_misses;
    out->temperature_c = std::max(out->temperature_c, other.temperature_c);
    const auto add = [](auto& to, auto more, auto unknown) { to = to == unknown || more == unknown ? unknown : to + more; };
    add(out->power_mw, other.power_mw, INT32_MIN);
    add(out->errors, other.errors, UINT64_MAX);
    add(out->corrected_errors, other.corrected_errors, UINT64_MAX);
    add(out->physical_total, other.physical_total, UINT64_MAX);
    add(out->physical_free, other.physical_free, UINT64_MAX);
    out->failed_frees += other.failed_frees;
    if (out->management_problem[0] == 0) copy_text(out->management_problem, other.management_problem);
  }
  out->bytes_total *= static_cast<uint64_t>(ranks());
  out->bytes_free *= static_cast<uint64_t>(ranks());
  out->devices = ranks();
}

void Device::info_alone(mr_device_info* out) const {
  check_alive();
  const Readings readings = management_.read();
  if (readings.lost[0] != 0) throw Error(MR_INTERNAL, 0, std::string("the GPU is lost: ") + readings.lost);
  const LedgerCounts counts = ledger.counts();
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
  out->bytes_free = std::min(counts.free(), bytes_left(readings, counts));
  std::copy(std::begin(counts.used), std::end(counts.used), out->bytes_used);
  out->bytes_pooled = counts.pooled;
  out->pool_hits = counts.hits;
  out->pool_misses = counts.misses;
  out->live_buffers = static_cast<uint64_t>(buffers.load());
  out->temperature_c = readings.temperature_c;
  out->power_mw = readings.power_mw;
  out->errors = readings.errors;
  out->physical_total = readings.bytes_total;
  out->physical_free = readings.bytes_free;
  out->corrected_errors = readings.corrected_errors;
  out->failed_frees = counts.failed_frees + transfers.failed_frees();
  copy_text(out->management_problem, readings.problem);
  out->one_class = 0;  // GEMMs and attention of the two classes add in different orders
  out->hidden_rows = 1;
  out->devices = 1;
}

void Device::check_idle() const {
  const long long b = buffers.load(), m = models.load(), r = runners.load(), t = trainers.load(), c = codebooks.load();
  if (b != 0 || m != 0 || r != 0)
    fail(MR_FAILED_PRECONDITION, "%lld buffers, %lld models and %lld runners of the device are alive: free them first", b, m,
         r);
  if (t != 0 || c != 0)
    fail(MR_FAILED_PRECONDITION, "%lld trainers and %lld codebooks of the device are alive: destroy them first", t, c);
}

}  // namespace mr::cuda
