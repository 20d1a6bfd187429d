#include "src/nvml.h"

#include <dlfcn.h>

#include <cstdio>
#include <initializer_list>
#include <type_traits>

namespace mr::cuda {
namespace {

// The few declarations of the library's stable C interface that are used here.
using NvmlDevice = struct nvmlDevice_st*;
struct NvmlMemory {
  unsigned long long total, free, used;
};
constexpr int kSuccess = 0, kNotSupported = 3, kGpuIsLost = 15, kResetRequired = 16;
constexpr unsigned kTemperatureOfGpu = 0;
constexpr unsigned kCorrected = 0, kUncorrected = 1, kVolatile = 0;
constexpr unsigned long long kXidEvents = 8;
struct NvmlEvent {
  NvmlDevice device;
  unsigned long long type, data;  // data: the Xid
  unsigned gpu_instance, compute_instance;
};

struct Nvml {
  int (*init)() = nullptr;
  int (*device_by_bus)(const char*, NvmlDevice*) = nullptr;
  int (*temperature)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*power)(NvmlDevice, unsigned*) = nullptr;
  int (*errors)(NvmlDevice, unsigned, unsigned, unsigned long long*) = nullptr;
  int (*memory)(NvmlDevice, NvmlMemory*) = nullptr;
  int (*events_create)(void**) = nullptr;
  int (*events_register)(NvmlDevice, unsigned long long, void*) = nullptr;
  int (*events_wait)(void*, NvmlEvent*, unsigned) = nullptr;
  int (*events_free)(void*) = nullptr;
  bool usable = false;
  char problem[128] = "";  // why it is not

  explicit Nvml(std::initializer_list<const char*> names) {
    void* library = nullptr;
    for (const char* name : names)
      if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);  // stays open: it has threads of its own
    if (library == nullptr) {
      std::snprintf(problem, sizeof problem, "nvml: %s cannot be opened", *names.begin());
      return;
    }
    const auto find = [library](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    };
    find(init, "nvmlInit_v2");
    find(device_by_bus, "nvmlDeviceGetHandleByPciBusId_v2");
    find(temperature, "nvmlDeviceGetTemperature");
    find(power, "nvmlDeviceGetPowerUsage");
    find(errors, "nvmlDeviceGetTotalEccErrors");
    find(memory, "nvmlDeviceGetMemoryInfo");
    find(events_create, "nvmlEventSetCreate");
    find(events_register, "nvmlDeviceRegisterEvents");
    find(events_wait, "nvmlEventSetWait_v2");
    find(events_free, "nvmlEventSetFree");
    if (init == nullptr || device_by_bus == nullptr) {
      std::snprintf(problem, sizeof problem, "nvml: the library has no nvmlInit_v2 or nvmlDeviceGetHandleByPciBusId_v2");
      return;
    }
    const int status = init();
    usable = status == kSuccess;
    if (!usable) std::snprintf(problem, sizeof problem, "nvml: nvmlInit_v2: error %d", status);
  }
};

const Nvml& nvml() {
  static const Nvml* const library = new Nvml({"libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1"});
  return *library;
}

// Records why a function failed. A reading that this kind of device does not have does not count.
void note(Readings* readings, const char* function, int status) {
  if (status == kNotSupported) return;
  if ((status == kGpuIsLost || status == kResetRequired) && readings->lost[0] == 0)
    std::snprintf(readings->lost, sizeof readings->lost, "nvml: %s: error %d (%s)", function, status,
                  status == kGpuIsLost ? "the GPU is lost" : "the GPU has to be reset");
  if (readings->problem[0] == 0)
    std::snprintf(readings->problem, sizeof readings->problem, "nvml: %s: error %d", function, status);
}

// Whether the function, called with the arguments, gave its reading.
template <class Function, class... Arguments>
bool ask(Readings* readings, const char* name, Function function, Arguments... arguments) {
  if (function == nullptr) {
    if (readings->problem[0] == 0) std::snprintf(readings->problem, sizeof readings->problem, "nvml: the library has no %s", name);
    return false;
  }
  const int status = function(arguments...);
  if (status != kSuccess) note(readings, name, status);
  return status == kSuccess;
}

Readings read(const Nvml& library, const char* pci) {
  Readings readings;
  if (!library.usable) {
    std::snprintf(readings.problem, sizeof readings.problem, "%s", library.problem);
    return readings;
  }
  NvmlDevice device = nullptr;
  if (!ask(&readings, "nvmlDeviceGetHandleByPciBusId_v2", library.device_by_bus, pci, &device)) return readings;
  unsigned value = 0;
  if (ask(&readings, "nvmlDeviceGetTemperature", library.temperature, device, kTemperatureOfGpu, &value))
    readings.temperature_c = static_cast<int32_t>(value);
  if (ask(&readings, "nvmlDeviceGetPowerUsage", library.power, device, &value)) readings.power_mw = static_cast<int32_t>(value);
  unsigned long long count = 0;
  if (ask(&readings, "nvmlDeviceGetTotalEccErrors", library.errors, device, kUncorrected, kVolatile, &count))
    readings.errors = count;
  if (ask(&readings, "nvmlDeviceGetTotalEccErrors", library.errors, device, kCorrected, kVolatile, &count))
    readings.corrected_errors = count;
  NvmlMemory memory{};
  if (ask(&readings, "nvmlDeviceGetMemoryInfo", library.memory, device, &memory)) {
    readings.bytes_total = memory.total;
    readings.bytes_free = memory.free;
  }
  return readings;
}

}  // namespace

Readings read_nvml(const char* pci, const char* library) noexcept {
  return library == nullptr ? read(nvml(), pci) : read(Nvml({library}), pci);
}

Readings Management::read() {
  std::unique_lock<std::mutex> lock(mutex_);
  first_.wait(lock, [this] { return known_ || !asking_; });
  if (asking_ || (known_ && std::chrono::steady_clock::now() - read_at_ < age_)) return last_;
  asking_ = true;
  lock.unlock();
  const Readings now = ask_();
  lock.lock();
  last_ = now;
  read_at_ = std::chrono::steady_clock::now();
  known_ = true;
  asking_ = false;
  first_.notify_all();
  return now;
}

XidWatch::XidWatch(const char* pci, std::chrono::milliseconds recent) noexcept : recent_(recent) {
  const Nvml& library = nvml();
  NvmlDevice device = nullptr;
  const bool hears = library.events_create != nullptr && library.events_register != nullptr &&
                     library.events_wait != nullptr && library.events_free != nullptr;
  if (!library.usable || !hears || library.device_by_bus(pci, &device) != kSuccess) return;
  if (library.events_create(&events_) != kSuccess) {
    events_ = nullptr;
    return;
  }
  if (library.events_register(device, kXidEvents, events_) == kSuccess) return;
  (void)library.events_free(events_);
  events_ = nullptr;
}

XidWatch::~XidWatch() {
  if (events_ != nullptr) (void)nvml().events_free(events_);
}

void XidWatch::hear(uint32_t wait_ms) noexcept {
  NvmlEvent event{};
  for (; events_ != nullptr && nvml().events_wait(events_, &event, wait_ms) == kSuccess; wait_ms = 0) {
    last_ = event.data;
    heard_ = std::chrono::steady_clock::now();
  }
}

void XidWatch::listen() noexcept { hear(0); }

uint64_t XidWatch::last(uint32_t wait_ms) noexcept {
  const auto recent = [this] { return last_ != 0 && std::chrono::steady_clock::now() - heard_ < recent_; };
  hear(0);
  if (!recent()) hear(wait_ms);
  return recent() ? last_ : 0;
}

}  // namespace mr::cuda
