#include "step_cut.h"

#include <algorithm>

namespace mr::cpu {

Cut::Cut(std::initializer_list<const Matrix*> of, int64_t panels_a_task) : chunk(panels_a_task) {
  for (const Matrix* m : of) {
    if (m == nullptr) continue;
    matrices[count] = m;
    tasks += (panels(m->out) + chunk - 1) / chunk;
    end[count++] = tasks;
  }
}

Piece Cut::at(int64_t task) const {
  int32_t i = 0;
  while (task >= end[i]) ++i;
  const int64_t first = (task - (i == 0 ? 0 : end[i - 1])) * chunk;
  return Piece{i, *matrices[i], first, std::min(panels(matrices[i]->out), first + chunk)};
}

const uint8_t* Cut::begin(int64_t task) const {
  const Piece piece = at(task);
  return begin_of(piece.matrix, piece.first);
}

}  // namespace mr::cpu
