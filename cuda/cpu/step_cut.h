// step_cut: how the products of a phase are cut into tasks: which panels of which matrix a task multiplies.
#pragma once

#include <algorithm>
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
  static constexpr int32_t most = 4;  // matrices

  const Matrix* matrices[most] = {};
  int32_t count = 0;
  int64_t chunk;
  int64_t end[most] = {};  // the task behind each matrix's last
  int64_t tasks = 0;

  // panels_a_task >= 1; at least one and at most four matrices, which must outlive the cut. Null ones are left out.
  Cut(std::initializer_list<const Matrix*> of, int64_t panels_a_task);

  Piece at(int64_t task) const;  // 0 <= task < tasks
  // Where the weights of a task begin.
  const uint8_t* begin(int64_t task) const;
};

// The same of the matrices of a stack, each cut alike: those of the `index`th of some experts, panels [first, last).
struct ExpertCut {
  struct Task {
    int64_t index, first, last;
  };
  const int64_t chunk, all, each, tasks;  // each: tasks of a matrix

  ExpertCut(const Matrix& matrix, int64_t experts, int64_t panels_a_task)
      : chunk(panels_a_task), all(panels(matrix.out)), each((all + chunk - 1) / chunk), tasks(experts * each) {}

  Task at(int64_t task) const {
    const int64_t first = task % each * chunk;
    return {task / each, first, std::min(all, first + chunk)};
  }
};

}  // namespace mr::cpu
