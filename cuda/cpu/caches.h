// caches: how much the caches of this process's processors hold. Reads the kernel's own files below /sys.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mr::cpu {

// The numbers of the processors that this process may run on.
std::vector<int> allowed_processors();

// Bytes of the last-level caches that serve these processors, one that several share counted once; 0 = not known.
// sysconf is not used: on some processors it returns the cache of a whole package, of which a small machine has a part.
// root: the folder that holds cpu0, cpu1 and so on, each with cache/index0 and so on inside it.
uint64_t last_level_cache_bytes(const std::vector<int>& processors, const std::string& root = "/sys/devices/system/cpu");

}  // namespace mr::cpu
