// step_cut: how the products of a phase are cut into tasks: which panels of which matrix a task multiplies.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <vector>

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

struct ActiveExpert {  // of a piece of a step's tokens
  int32_t expert;
  int32_t first, rows;  // among the piece's rows, which are listed by expert
};

// The same of a stack's matrices, each cut alike: of the `index`th active expert, panels [first, last).
struct ExpertCut {
  struct Task {
    int64_t index, first, last;
  };
  const Matrix* const stack;  // by expert
  const std::vector<ActiveExpert>& active;
  const int64_t chunk, all, each, tasks;  // each: tasks of a matrix

  // The stack and the list must outlive the cut. panels_a_task >= 1.
  ExpertCut(const Matrix* matrices, const std::vector<ActiveExpert>& experts, int64_t panels_a_task)
      : stack(matrices), active(experts), chunk(panels_a_task), all(panels(matrices->out)), each((all + chunk - 1) / chunk),
        tasks(static_cast<int64_t>(experts.size()) * each) {}

  Task at(int64_t task) const {
    const int64_t first = task % each * chunk;
    return {task / each, first, std::min(all, first + chunk)};
  }
  // Where the weights of a task begin.
  const uint8_t* begin(int64_t task) const {
    const Task t = at(task);
    return begin_of(stack[active[static_cast<size_t>(t.index)].expert], t.first);
  }
};

}  // namespace mr::cpu
