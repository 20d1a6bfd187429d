// experts_gemm_fixture: stacks of matrices and choices of experts for the tests of grouped GEMMs.
#pragma once

#include <algorithm>

#include "kernels/experts/experts.h"
#include "tests/gemm_fixture.h"

namespace mr::cuda {

// Stack is matrices of random blocks that follow one another.
struct Stack {
  Stack(int32_t type, int64_t rows, int64_t cols, int32_t experts, std::mt19937& random)
      : file_each(weight_file_bytes(type, rows, cols)), memory(weight_packed_bytes(type, rows, cols) * static_cast<uint64_t>(experts)),
        weight{type, rows, cols, memory.data()} {
    for (int32_t e = 0; e < experts; ++e) {
      files.push_back(ordinary_file(type, rows, cols, random));
      Guarded source(files.back());
      EXPECT_EQ(launch_repack(source.data(), matrix_of(weight, e), Stream{}), cudaSuccess);
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
  }
  // Rows [first, first + rows) of each matrix of another stack.
  Stack(const Stack& whole, int64_t first, int64_t rows)
      : file_each(whole.file_each / static_cast<uint64_t>(whole.weight.rows) * static_cast<uint64_t>(rows)),
        memory(weight_packed_bytes(whole.weight.type, rows, whole.weight.cols) * whole.files.size()),
        weight{whole.weight.type, rows, whole.weight.cols, memory.data()} {
    const auto begin = static_cast<int64_t>(whole.file_each) / whole.weight.rows * first;
    for (size_t e = 0; e < whole.files.size(); ++e) {
      files.emplace_back(whole.files[e].begin() + begin, whole.files[e].begin() + begin + static_cast<int64_t>(file_each));
      Guarded source(files.back());
      EXPECT_EQ(launch_repack(source.data(), matrix_of(weight, static_cast<int64_t>(e)), Stream{}), cudaSuccess);
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
  }
  uint64_t file_each;
  std::vector<std::vector<uint8_t>> files;
  Guarded memory;
  PackedWeight weight;
};

// Choice is which experts each row uses: `used` ascending ids a row.
struct Choice {
  int32_t rows, used, experts;
  std::vector<int32_t> ids;
  int32_t pairs() const { return rows * used; }
};

inline Choice random_choice(int32_t rows, int32_t used, int32_t experts, std::mt19937& random) {
  Choice c{rows, used, experts, {}};
  for (int32_t r = 0; r < rows; ++r) {
    std::vector<int32_t> all(static_cast<size_t>(experts));
    for (int32_t e = 0; e < experts; ++e) all[static_cast<size_t>(e)] = e;
    std::shuffle(all.begin(), all.end(), random);
    all.resize(static_cast<size_t>(used));
    std::sort(all.begin(), all.end());
    c.ids.insert(c.ids.end(), all.begin(), all.end());
  }
  return c;
}

}  // namespace mr::cuda
