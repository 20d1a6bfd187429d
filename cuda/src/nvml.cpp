#include "src/nvml.h"

#include <dlfcn.h>

#include <initializer_list>
#include <type_traits>

namespace mr::cuda {
namespace {

// The few declarations of the library's stable C interface that are used here.
using NvmlDevice = struct nvmlDevice_st*;
struct NvmlMemory {
  unsigned long long total, free, used;
};
constexpr unsigned kTemperatureOfGpu = 0;
constexpr unsigned kUncorrected = 1, kVolatile = 0;
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

  Nvml() {
    void* library = nullptr;
    for (const char* name : {"libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1"})
      if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);  // stays open: it has threads of its own
    if (library == nullptr) return;
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
    usable = init != nullptr && device_by_bus != nullptr && init() == 0;
  }
};

const Nvml& nvml() {
  static const Nvml* const library = new Nvml;
  return *library;
}

}  // namespace

XidWatch::XidWatch(const char* pci, std::chrono::milliseconds recent) noexcept : recent_(recent) {
  const Nvml& library = nvml();
  NvmlDevice device = nullptr;
  const bool hears = library.events_create != nullptr && library.events_register != nullptr &&
                     library.events_wait != nullptr && library.events_free != nullptr;
  if (!library.usable || !hears || library.device_by_bus(pci, &device) != 0) return;
  if (library.events_create(&events_) != 0) {
    events_ = nullptr;
    return;
  }
  if (library.events_register(device, kXidEvents, events_) == 0) return;
  (void)library.events_free(events_);
  events_ = nullptr;
}

XidWatch::~XidWatch() {
  if (events_ != nullptr) (void)nvml().events_free(events_);
}

void XidWatch::hear(uint32_t wait_ms) noexcept {
  NvmlEvent event{};
  for (; events_ != nullptr && nvml().events_wait(events_, &event, wait_ms) == 0; wait_ms = 0) {
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

Readings read_nvml(const char* pci) noexcept {
  Readings readings;
  const Nvml& library = nvml();
  NvmlDevice device = nullptr;
  if (!library.usable || library.device_by_bus(pci, &device) != 0) return readings;
  unsigned value = 0;
  if (library.temperature != nullptr && library.temperature(device, kTemperatureOfGpu, &value) == 0)
    readings.temperature_c = static_cast<int32_t>(value);
  if (library.power != nullptr && library.power(device, &value) == 0) readings.power_mw = static_cast<int32_t>(value);
  unsigned long long count = 0;
  if (library.errors != nullptr && library.errors(device, kUncorrected, kVolatile, &count) == 0) readings.errors = count;
  NvmlMemory memory{};
  if (library.memory != nullptr && library.memory(device, &memory) == 0) {
    readings.bytes_total = memory.total;
    readings.bytes_free = memory.free;
  }
  return readings;
}

}  // namespace mr::cuda
