#include "device.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <fstream>
#include <iterator>

#include "error.h"

namespace mr::cpu {
namespace {

Isa choose_isa(const char* path) {
  Isa isa = detect();
  if (path == nullptr) return isa;
  if (!from_name(path, &isa))
    fail(MR_INVALID_ARGUMENT, "path is \"%.32s\": want portable, avx2, avx512vnni, avx512bf16, amx or null for the best", path);
  if (!runnable(isa)) fail(MR_UNIMPLEMENTED, "this processor cannot run the path %s", path);
  return isa;
}

constexpr int kMostThreads = 1024;

int choose_threads(int32_t threads) {
  if (threads < 0 || threads > kMostThreads)
    fail(MR_INVALID_ARGUMENT, "threads is %d: want 0 for the quota, or 1 to %d", threads, kMostThreads);
  return threads != 0 ? threads : std::min(allowed_cpus(), kMostThreads);
}

// The processor's name, or its architecture if the kernel does not report one.
std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, 10, "model name") != 0) continue;
    const size_t colon = line.find(':');
    if (colon != std::string::npos && colon + 2 < line.size()) return line.substr(colon + 2);
  }
#if defined(__x86_64__)
  return "x86-64 processor";
#elif defined(__aarch64__)
  return "AArch64 processor";
#else
  return "processor";
#endif
}

template <size_t kSize>
void copy_text(char (&to)[kSize], const char* from) {
  const size_t length = std::min(std::strlen(from), kSize - 1);
  std::memcpy(to, from, length);
  std::memset(to + length, 0, kSize - length);
}

int64_t next_number() {
  static std::atomic<int64_t> last{0};
  return ++last;
}

const mr_device_options& checked(const mr_device_options& options) {
  if (options.index != 0) fail(MR_NOT_FOUND, "device index is %d: the CPU engine has one device, 0", options.index);
  if (options.other_count != 0) fail(MR_UNIMPLEMENTED, "other_count is %d: the CPU engine has one device", options.other_count);
  if (options.reserved0 != 0) fail(MR_UNIMPLEMENTED, "reserved0 is %d, which this engine does not know", options.reserved0);
  return options;
}

}  // namespace

Device::Device(const mr_device_options& options)
    : isa(choose_isa(checked(options).path)), threads(choose_threads(options.threads)),
      ledger(options.bytes_limit, options.pool_limit), name_(processor_name()), number_(next_number()) {}

std::string Device::label() const { return "device " + std::to_string(number_) + " (cpu)"; }

void Device::info(mr_device_info* out) const {
  const LedgerCounts counts = ledger.counts();
  copy_text(out->kind, "cpu");
  copy_text(out->name, name_.c_str());
  copy_text(out->uuid, "");
  copy_text(out->path, cpu::name(isa));
  const std::string flavour = cpu::flavour(isa);
  copy_text(out->numerics, flavour.empty() ? kNumerics : (kNumerics + ("-" + flavour)).c_str());
  out->compute_major = out->compute_minor = 0;
  out->sm_count = threads.size();
  out->reserved0 = 0;
  out->bytes_total = counts.total;
  out->bytes_free = counts.free();
  std::copy(std::begin(counts.used), std::end(counts.used), out->bytes_used);
  out->bytes_pooled = counts.pooled;
  out->pool_hits = counts.hits;
  out->pool_misses = counts.misses;
  out->live_buffers = static_cast<uint64_t>(buffers.load());
  out->temperature_c = INT32_MIN;
  out->power_mw = INT32_MIN;
  out->errors = UINT64_MAX;
  out->physical_total = out->physical_free = out->corrected_errors = UINT64_MAX;
  out->failed_frees = counts.failed_frees;
  copy_text(out->management_problem, "");
  out->one_class = 1;
  out->hidden_rows = 1;
  out->devices = 1;
}

void Device::check_idle() const {
  const long long b = buffers.load(), m = models.load(), r = runners.load();
  if (b != 0 || m != 0 || r != 0)
    fail(MR_FAILED_PRECONDITION, "%lld buffers, %lld models and %lld runners of the device are alive: free them first", b, m,
         r);
  const long long t = trainers.load(), c = codebooks.load();
  if (t != 0 || c != 0)
    fail(MR_FAILED_PRECONDITION, "%lld trainers and %lld codebooks of the device are alive: destroy them first", t, c);
}

}  // namespace mr::cpu
