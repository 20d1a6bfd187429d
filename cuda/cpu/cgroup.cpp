#include "cgroup.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace mr::cpu {
namespace {

// Reads a control file's first word as a number. Returns false if the file does not exist or contains "max".
bool read_number(const std::string& path, double* value) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word)) return false;
  char* end = nullptr;
  *value = std::strtod(word.c_str(), &end);
  return end != word.c_str() && *end == 0;
}

// Calls visit(folder) for this process's group of a controller and each group above it. Inside a container the path
// that /proc names may lie outside the mount: then the root of the mount is the container's own group.
template <class Visit>
void each_group(const std::string& controller, const std::string& mount, Visit visit) {
  std::ifstream file("/proc/self/cgroup");
  std::string line, path = "/";
  while (std::getline(file, line)) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    std::stringstream names(line.substr(first + 1, second - first - 1));
    std::string name;
    bool match = controller.empty() && second == first + 1;
    while (std::getline(names, name, ',')) match = match || name == controller;
    if (match) path = line.substr(second + 1);
  }
  for (; path.size() > 1; path.resize(path.find_last_of('/'))) visit(mount + path);
  visit(mount);
}

}  // namespace

double cpu_quota() {
  double quota = 0;
  const auto note = [&](double used, double period) {
    if (used > 0 && period > 0) quota = quota == 0 ? used / period : std::min(quota, used / period);
  };
  each_group("", "/sys/fs/cgroup", [&](const std::string& folder) {
    std::ifstream file(folder + "/cpu.max");
    std::string used;
    double period = 0;
    if (file >> used >> period && used != "max") note(std::atof(used.c_str()), period);
  });
  each_group("cpu", "/sys/fs/cgroup/cpu", [&](const std::string& folder) {
    double used = 0, period = 0;
    if (read_number(folder + "/cpu.cfs_quota_us", &used) && read_number(folder + "/cpu.cfs_period_us", &period))
      note(used, period);
  });
  return quota;
}

uint64_t cgroup_memory_left() {
  double left = -1;
  const auto note = [&](const std::string& folder, const char* limit_name, const char* current_name, const char* cache) {
    double limit = 0, current = 0;
    // Version 1 says "no limit" with a number near 2^63.
    if (!read_number(folder + limit_name, &limit) || limit > 0x1p60) return;
    if (!read_number(folder + current_name, &current)) return;
    // File pages not in active use, such as a model file just read, are given up before anything fails.
    std::ifstream stat(folder + "/memory.stat");
    std::string key;
    double value = 0, reclaimable = 0;
    while (stat >> key >> value)
      if (key == cache) reclaimable = value;
    const double rest = std::max(0.0, limit - std::max(0.0, current - reclaimable));
    left = left < 0 ? rest : std::min(left, rest);
  };
  each_group("", "/sys/fs/cgroup", [&](const std::string& folder) {
    note(folder, "/memory.max", "/memory.current", "inactive_file");
  });
  each_group("memory", "/sys/fs/cgroup/memory", [&](const std::string& folder) {
    note(folder, "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file");
  });
  return left < 0 ? UINT64_MAX : static_cast<uint64_t>(left);
}

}  // namespace mr::cpu
