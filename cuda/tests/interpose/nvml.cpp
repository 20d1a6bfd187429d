#include "tests/interpose/nvml.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>

#define MR_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kSuccess = 0, kInvalidArgument = 2, kNotSupported = 3, kTimeout = 10;
constexpr unsigned long long kXid = 8;

struct EventSet {
  bool registered = false;
  std::deque<uint64_t> xids;
};

struct Event {
  void* device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};

std::mutex mutex;
std::condition_variable reported;
std::set<EventSet*> sets;
bool refuse = false;
int gpu;
int asked = 0;
std::map<std::string, int> answers{{"nvmlDeviceGetPowerUsage", kNotSupported}};

struct Memory {
  unsigned long long total, free, used;
};

int answer(const char* function) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = answers.find(function);
  return found == answers.end() ? kSuccess : found->second;
}

}  // namespace

MR_EXPORT void fake_nvml_report(uint64_t xid) {
  const std::lock_guard<std::mutex> lock(mutex);
  for (EventSet* set : sets)
    if (set->registered) set->xids.push_back(xid);
  reported.notify_all();
}

MR_EXPORT void fake_nvml_refuse_events(bool refused) {
  const std::lock_guard<std::mutex> lock(mutex);
  refuse = refused;
}

MR_EXPORT int fake_nvml_event_sets() {
  const std::lock_guard<std::mutex> lock(mutex);
  return static_cast<int>(sets.size());
}

MR_EXPORT void fake_nvml_answer(const char* function, int status) {
  const std::lock_guard<std::mutex> lock(mutex);
  answers[function] = status;
}

MR_EXPORT int fake_nvml_asked() {
  const std::lock_guard<std::mutex> lock(mutex);
  return asked;
}

MR_EXPORT int nvmlInit_v2() { return kSuccess; }

MR_EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char* pci, void** device) {
  if (pci[0] == 0) return kInvalidArgument;
  *device = &gpu;
  return answer("nvmlDeviceGetHandleByPciBusId_v2");
}

MR_EXPORT int nvmlDeviceGetTemperature(void*, unsigned, unsigned* celsius) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    ++asked;
  }
  *celsius = 41;
  return answer("nvmlDeviceGetTemperature");
}

MR_EXPORT int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
  *milliwatts = 123'456;
  return answer("nvmlDeviceGetPowerUsage");
}

MR_EXPORT int nvmlDeviceGetTotalEccErrors(void*, unsigned kind, unsigned counter, unsigned long long* count) {
  if (kind > 1 || counter != 0) return kInvalidArgument;
  *count = kind == 1 ? 2 : 70;
  return answer("nvmlDeviceGetTotalEccErrors");
}

MR_EXPORT int nvmlDeviceGetMemoryInfo(void*, Memory* memory) {
  *memory = {1000, 400, 600};
  return answer("nvmlDeviceGetMemoryInfo");
}

MR_EXPORT int nvmlEventSetCreate(void** set) {
  const std::lock_guard<std::mutex> lock(mutex);
  *set = *sets.insert(new EventSet).first;
  return kSuccess;
}

MR_EXPORT int nvmlDeviceRegisterEvents(void* device, unsigned long long types, void* set) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (refuse) return kNotSupported;
  if (device != &gpu || types != kXid) return kInvalidArgument;
  static_cast<EventSet*>(set)->registered = true;
  return kSuccess;
}

MR_EXPORT int nvmlEventSetWait_v2(void* opaque, Event* event, unsigned wait_ms) {
  EventSet* const set = static_cast<EventSet*>(opaque);
  std::unique_lock<std::mutex> lock(mutex);
  if (!reported.wait_for(lock, std::chrono::milliseconds(wait_ms), [set] { return !set->xids.empty(); })) return kTimeout;
  *event = {&gpu, kXid, set->xids.front(), 0, 0};
  set->xids.pop_front();
  return kSuccess;
}

MR_EXPORT int nvmlEventSetFree(void* set) {
  const std::lock_guard<std::mutex> lock(mutex);
  sets.erase(static_cast<EventSet*>(set));
  delete static_cast<EventSet*>(set);
  return kSuccess;
}
