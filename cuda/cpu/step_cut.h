// step_cut: how the products of a phase are cut into tasks: which panels of which matrix a task multiplies.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "linear.h"

namespace mr::cpu {

struct Piece {  // panels [first, last) of the matrix that is `index`th in its cut
  int32_t index;
  const Matrix& matrix;
  int64_t first, last;
};

// Tasks of `chunk` panels each (a matrix's last may have fewer), the matrices one after another.
struct Cut {
  static constexpr int32_t most = 3;  // matrices

  const Matrix* matrices[most] = {};
  int32_t count = 0;
  int64_t chunk;
  int64_t end[most] = {};  // the task behind each matrix's last
  int64_t tasks = 0;

  // panels_a_task >= 1; at least one and at most three matrices, which must outlive the cut. Null ones are left out.
  Cut(std::initializer_list<const Matrix*> of, int64_t panels_a_task);

  Piece at(int64_t task) const;  // 0 <= task < tasks
  // Where the weights of a task begin.
  const uint8_t* begin(int64_t task) const;
};

}  // namespace mr::cpu
