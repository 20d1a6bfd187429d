// How much the last-level caches hold: folders like the kernel's, and this machine's own.
#include "caches.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "b2_check.h"

using namespace mr;
using namespace mr::cpu;

namespace {

std::filesystem::path root;

void put(int processor, int index, const char* level, const char* size, const char* shared) {
  const auto folder = root / ("cpu" + std::to_string(processor)) / "cache" / ("index" + std::to_string(index));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "level") << level << "\n";
  std::ofstream(folder / "size") << size << "\n";
  std::ofstream(folder / "shared_cpu_list") << shared << "\n";
}

void expect(const std::vector<int>& processors, uint64_t want) {
  const uint64_t got = last_level_cache_bytes(processors, root.string());
  CHECK(got == want, "%zu processors: %llu bytes, want %llu", processors.size(), static_cast<unsigned long long>(got),
        static_cast<unsigned long long>(want));
}

void caches_are_counted_once() {
  for (int processor = 0; processor < 4; ++processor) {
    put(processor, 0, "1", "48K", "0");
    put(processor, 1, "1", "32K", "0");
    put(processor, 2, "2", "1024K", "0");
    put(processor, 3, "3", "32768K", processor < 2 ? "0-1" : "2-3");
  }
  expect({0, 1, 2, 3}, uint64_t{64} << 20);
  expect({0, 1}, uint64_t{32} << 20);
  expect({3}, uint64_t{32} << 20);
  expect({}, 0);
}

void other_machines() {
  put(10, 0, "1", "64K", "10");
  put(10, 1, "2", "2M", "10-11");
  put(11, 0, "1", "64K", "11");
  put(11, 1, "2", "2M", "10-11");
  expect({10, 11}, uint64_t{2} << 20);  // no third level
  put(12, 0, "1", "4096", "12");
  expect({12}, 4096);
  put(13, 0, "1", "many", "13");
  put(14, 0, "", "32K", "14");
  expect({13, 14, 99}, 0);
}

}  // namespace

int main() {
  std::string name = (std::filesystem::temp_directory_path() / "cachesXXXXXX").string();
  CHECK(mkdtemp(name.data()) != nullptr, "no folder");
  root = name;
  caches_are_counted_once();
  other_machines();
  std::filesystem::remove_all(root);

  const std::vector<int> processors = allowed_processors();
  CHECK(!processors.empty() && processors.front() >= 0, "%zu processors", processors.size());
  const uint64_t here = last_level_cache_bytes(processors);
  CHECK(here < uint64_t{1} << 40, "%llu bytes here", static_cast<unsigned long long>(here));
  return check::failures == 0 ? 0 : 1;
}
