#include "src/step_chains.h"

#include <algorithm>
#include <numeric>

namespace mr::cuda {

void StepChains::pack(const std::vector<mr_segment>& segments, int32_t chain_count, int32_t rows, const Arrays& to) {
  order_.resize(segments.size());
  first_row_.resize(segments.size());
  std::iota(order_.begin(), order_.end(), 0);
  const auto segment = [&segments](int32_t i) -> const mr_segment& { return segments[static_cast<size_t>(i)]; };
  std::sort(order_.begin(), order_.end(), [&segment](int32_t a, int32_t b) {
    return segment(a).slot != segment(b).slot ? segment(a).slot < segment(b).slot : a < b;
  });
  int32_t row = 0;
  for (const int32_t kernel_class : {MR_CLASS_DECODE, MR_CLASS_PREFILL}) {
    for (size_t i = 0; i < segments.size(); ++i) {
      if (segments[i].kernel_class != kernel_class) continue;
      first_row_[i] = row;
      row += segments[i].count;
    }
  }
  std::fill(to.chain_of + row, to.chain_of + rows, -1);
  std::fill(to.segment_of + row, to.segment_of + rows, 0);
  int32_t chains = 0, placed = 0;
  for (const int32_t i : order_) {
    const mr_segment& s = segment(i);
    if (placed == 0 || s.slot != segment(order_[static_cast<size_t>(placed - 1)]).slot) to.chains[chains++] = {placed, 0};
    ++to.chains[chains - 1].segments;
    const int32_t first = first_row_[static_cast<size_t>(i)];
    to.segments[placed] = {first, s.count, s.first_position == 0 ? -1 : s.state_from, s.state_to};
    std::fill_n(to.chain_of + first, s.count, chains - 1);
    std::fill_n(to.segment_of + first, s.count, placed);
    ++placed;
  }
  std::fill(to.chains + chains, to.chains + chain_count, StateChain{});
  std::fill(to.segments + placed, to.segments + chain_count, StateSegment{});
}

}  // namespace mr::cuda
