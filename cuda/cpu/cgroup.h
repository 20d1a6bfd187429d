// cgroup: the limits of this process's control groups (v2 or v1). Reads the kernel's own files below /proc and /sys.
#pragma once

#include <cstdint>

namespace mr::cpu {

// CPUs' worth of time a second, the least over this group and those above it; 0 = no limit.
double cpu_quota();
// Bytes left below the lowest limit over this group and those above it; UINT64_MAX = no limit.
uint64_t cgroup_memory_left();

}  // namespace mr::cpu
