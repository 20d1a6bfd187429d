// Every input that fuzzing has kept, one after another, without clang: fuzz/testdata holds them.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "fuzz/engine_abi.h"

int main() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator("fuzz/testdata")) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  fuzz::require(!files.empty(), "the corpus has inputs");
  for (const std::filesystem::path& file : files) {
    std::ifstream stream(file, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
    std::fprintf(stderr, "%s\n", file.c_str());  // the last one is at fault
    fuzz::run(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
  return 0;
}
