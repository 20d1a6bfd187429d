#include "caches.h"

#include <sched.h>

#include <cstdlib>
#include <fstream>
#include <set>

namespace mr::cpu {
namespace {

// A file's first word; empty if the file does not exist.
std::string word_of(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

// "32768K" in bytes; 0 when it is not a size.
uint64_t size_of(const std::string& word) {
  char* unit = nullptr;
  const uint64_t number = std::strtoull(word.c_str(), &unit, 10);
  switch (*unit) {
    case 0: return number;
    case 'K': return number << 10;
    case 'M': return number << 20;
    default: return 0;
  }
}

}  // namespace

std::vector<int> allowed_processors() {
  std::vector<int> processors;
  for (int most = CPU_SETSIZE; most <= (1 << 16); most *= 2) {  // a set too small for this machine is refused
    cpu_set_t* const set = CPU_ALLOC(static_cast<size_t>(most));
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(most));
    const bool known = sched_getaffinity(0, bytes, set) == 0;
    for (int i = 0; known && i < most; ++i)
      if (CPU_ISSET_S(static_cast<size_t>(i), bytes, set)) processors.push_back(i);
    CPU_FREE(set);
    if (known) break;
  }
  return processors;
}

uint64_t last_level_cache_bytes(const std::vector<int>& processors, const std::string& root) {
  std::set<std::string> seen;  // by the set of sharers
  uint64_t sum = 0;
  for (const int processor : processors) {
    const std::string caches = root + "/cpu" + std::to_string(processor) + "/cache/index";
    std::string last;
    int highest = 0;
    for (int i = 0;; ++i) {
      const std::string cache = caches + std::to_string(i);
      const int level = std::atoi(word_of(cache + "/level").c_str());
      if (level == 0) break;
      if (level > highest) {
        highest = level;
        last = cache;
      }
    }
    if (highest != 0 && seen.insert(word_of(last + "/shared_cpu_list")).second) sum += size_of(word_of(last + "/size"));
  }
  return sum;
}

}  // namespace mr::cpu
