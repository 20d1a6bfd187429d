// step_chains: the segments of a step as the kernels of layers that carry a state see them (kernels/states/states.h).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/states/states.h"
#include "millrace/engine.h"

namespace mr::cuda {

constexpr int32_t kMostChains = 65535;  // of a step: the height of a grid

class StepChains {
 public:
  struct Arrays {
    StateChain* chains;      // (chain_count)
    StateSegment* segments;  // (chain_count)
    int32_t *chain_of, *segment_of;  // (rows)
  };

  // Fills the arrays with a chain for each slot of the segments, in which they keep their order. Chains and rows that are left are padding.
  // States are by state_index. Rows of decode segments come first, then those of prefill segments, each in the segments' order.
  // chain_count is at least the number of segments, rows at least the sum of their counts.
  void pack(const std::vector<mr_segment>& segments, int32_t chain_count, int32_t rows, const Arrays& to);

 private:
  // Of the step being packed.
  std::vector<int32_t> order_;      // segments by slot
  std::vector<int32_t> first_row_;  // by segment
};

}  // namespace mr::cuda
