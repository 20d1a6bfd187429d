// What a training puts on its stream.
#include <algorithm>

#include "src/error.h"
#include "src/vectors/training.h"

namespace mr::cuda {
namespace {

constexpr double kSpreadBytes = 4e9;    // that a unit of seeding reads
constexpr int64_t kSpreadSteps = 256;   // codewords that it takes at most
constexpr double kNearProducts = 2e10;  // multiply-adds of float64 of a unit that looks for near codewords

}  // namespace

bool Training::maintains() const { return shape_.maintained && (round_ + 1) % config_.maintenance_interval == 0; }
bool Training::trims() const { return shape_.annealed && (config_.trim > 0 || maintains()); }

void Training::launch_unit() {
  switch (at_) {
    case At::write:
    case At::done: return;
    case At::seed: launch_seed(); return;
    case At::spread: launch_spread_unit(); return;
    case At::recall: launch_recall(); return;
    case At::round:
      if (hold_) launch_reseed_unit();
      else launch_round();
      return;
  }
}

// ---- rows ------------------------------------------------------------------------------------------------------------

template <class F>
void Training::with_range(int64_t range, F&& f) {
  const int64_t first = range * plan_.range, count = std::min(plan_.range, shape_.n - first);
  const uint64_t at = static_cast<uint64_t>(first) * shape_.row_bytes;
  if (!plan_.spooled) {
    f(at_memory_.rows + at, first, count);
    return;
  }
  const uint64_t place = ring_++ % kRing;
  CUDA_CHECK(cudaStreamWaitEvent(copies_, used_[place], 0));  // no kernel still reads the old content
  CUDA_CHECK(cudaMemcpyAsync(at_memory_.ring[place], spool_.data() + at, static_cast<uint64_t>(count) * shape_.row_bytes,
                             cudaMemcpyHostToDevice, copies_));
  CUDA_CHECK(cudaEventRecord(filled_[place], copies_));
  CUDA_CHECK(cudaStreamWaitEvent(stream_, filled_[place], 0));
  f(at_memory_.ring[place], first, count);
  CUDA_CHECK(cudaEventRecord(used_[place], stream_));
}

// ---- the first codewords ---------------------------------------------------------------------------------------------

void Training::launch_seed() {
  switch (config_.init) {
    case MR_INIT_RANDOM: CUDA_CHECK(launch_seed_random(view_, on())); break;
    case MR_INIT_GIVEN: break;
    default:
      at_ = At::spread;
      space_ = codeword_ = range_ = 0;
      launch_spread_unit();
      return;
  }
  end_seeding();
  queue_unit({});
}

void Training::end_seeding() {
  if (shape_.annealed) CUDA_CHECK(launch_places(view_, on()));
  seeded_ = true;
  at_ = At::round;
  step_ = Step::assign;
  space_ = codeword_ = range_ = 0;
}

void Training::launch_spread_unit() {
  const double bytes = static_cast<double>(plan_.rows_bytes()) / static_cast<double>(shape_.spaces);
  const int64_t steps = plan_.spooled ? 1 : std::clamp<int64_t>(static_cast<int64_t>(kSpreadBytes / bytes), 1, kSpreadSteps);
  for (int64_t i = 0; i < steps; ++i)
    if (!spread_step()) {
      end_seeding();
      break;
    }
  queue_unit({});
}

// Takes one more codeword of the subspace, or of spooled rows goes on with a range of them; false behind the last.
bool Training::spread_step() {
  const bool far = config_.init == MR_INIT_FARTHEST;
  if (codeword_ > 0) {
    const int64_t until = plan_.spooled ? range_ + 1 : plan_.ranges;
    for (; range_ < until; ++range_)
      with_range(range_, [&](const void* rows, int64_t first, int64_t count) {
        CUDA_CHECK(launch_spread(view_, rows, first, count, space_, codeword_, on()));
      });
    if (range_ < plan_.ranges) return true;
    range_ = 0;
  }
  CUDA_CHECK(launch_choose(view_, far, space_, codeword_, on()));
  if (++codeword_ < shape_.codewords) return true;
  codeword_ = 0;
  return ++space_ < shape_.spaces;
}

// ---- a round ---------------------------------------------------------------------------------------------------------

void Training::queue_assign(int64_t range, double* distances) {
  with_range(range, [&](const void* rows, int64_t first, int64_t count) {
    const bool adds = distances != nullptr && !trims(), together = adds && adds_rows_with_distances(view_.p);
    search_.nearest(rows, count, view_.a.new_ids + first, distances == nullptr || together ? nullptr : distances + first, shape_.n,
                    &view_.a.control->recomputed, on());
    if (adds) queue_add(rows, first, count, view_.a.new_ids, together);
  });
}

// Adds rows of a range to the sums of the codewords that ids, (spaces, n), name; `together`: and finds their distances.
void Training::queue_add(const void* rows, int64_t first, int64_t count, const uint32_t* ids, bool together) {
  const int processors = device_.properties.multiProcessorCount;
  const int bits = bits_of(static_cast<uint64_t>(trims() ? shape_.codewords : shape_.codewords - 1));  // k: of no codeword
  for (int64_t s = 0; s < shape_.spaces; ++s) {
    CUDA_CHECK(launch_sort(at_memory_.sort_scratch, at_memory_.sort_bytes, ids + s * shape_.n + first, at_memory_.keys,
                           at_memory_.identity, at_memory_.order, count, bits, on()));
    if (together)
      CUDA_CHECK(launch_add_rows_with_distances(view_, rows, at_memory_.keys, at_memory_.order, count, first, s, processors, on()));
    else
      CUDA_CHECK(launch_add_rows(view_, rows, at_memory_.keys, at_memory_.order, count, s, processors, on()));
  }
}

// Which rows of a subspace are kept: rows in the order of their distances, then stably of their codewords.
void Training::queue_trim(int64_t space) {
  TrainingMemory& m = at_memory_;
  SortPair<uint64_t> by_distance{{m.wide_keys[0], m.wide_keys[1]}, {m.wide_order[0], m.wide_order[1]}};
  CUDA_CHECK(launch_distance_keys(view_.a.distances + space * shape_.n, by_distance.keys[0], shape_.n, false, on()));
  CUDA_CHECK(launch_count_up(by_distance.order[0], shape_.n, on()));
  CUDA_CHECK(launch_sort_pair(m.sort_scratch, m.sort_bytes, &by_distance, shape_.n, on()));
  SortPair<uint32_t> by_codeword{{reinterpret_cast<uint32_t*>(m.wide_keys[0]), reinterpret_cast<uint32_t*>(m.wide_keys[1])},
                                 {m.wide_order[0], m.wide_order[1]}};
  by_codeword.order_current = by_distance.order_current;
  CUDA_CHECK(launch_keys_of(view_, by_codeword.sorted_order(), by_codeword.keys[0], space, on()));
  CUDA_CHECK(launch_sort_pair(m.sort_scratch, m.sort_bytes, &by_codeword, shape_.n,
                              bits_of(static_cast<uint64_t>(shape_.codewords - 1)), on()));
  CUDA_CHECK(launch_trim(view_, by_codeword.sorted_keys(), by_codeword.sorted_order(), space, on()));
}

void Training::queue_end(Unit* unit) {
  CUDA_CHECK(launch_end_round(view_, on()));
  unit->ends_round = true;
  unit->report = sequence_++;
}

// Assigns rows to the previous codebook: changes are counted against these ids.
void Training::launch_recall() {
  Unit unit;
  if (range_ == 0) search_.prepare(view_.a.last, on());
  queue_assign(range_, nullptr);
  unit.computed = static_cast<uint64_t>(std::min(plan_.range, shape_.n - range_ * plan_.range) * shape_.spaces);
  if (++range_ == plan_.ranges) {
    CUDA_CHECK(launch_adopt_ids(view_, on()));
    range_ = 0;
    at_ = At::round;
    step_ = Step::assign;
  }
  queue_unit(unit);
}

void Training::launch_round() {
  Unit unit;
  if (at_round_start()) {
    round_ = iteration_ + pending_;
    ++pending_;
    if (graphs_ && warm_ && graph_ == nullptr) capture();
    if (graph_ != nullptr) {
      CUDA_CHECK(cudaGraphLaunch(graph_, stream_));
      unit.computed = static_cast<uint64_t>(shape_.n * shape_.spaces);
      unit.ends_round = true;
      unit.report = sequence_++;
      queue_unit(unit);
      return;
    }
  }
  do launch_step(&unit);
  while (short_ && !unit.ends_round);
  queue_unit(unit);
}

// One step of a round, which is the next one's beginning behind the last.
void Training::launch_step(Unit* unit) {
  switch (step_) {
    case Step::assign:
      if (range_ == 0) {
        CUDA_CHECK(launch_begin_round(view_, on()));
        search_.prepare(view_.a.now, on());
      }
      queue_assign(range_, view_.a.distances);
      unit->computed += static_cast<uint64_t>(std::min(plan_.range, shape_.n - range_ * plan_.range) * shape_.spaces);
      if (++range_ < plan_.ranges) return;
      range_ = 0;
      step_ = Step::measure;
      return;
    case Step::measure:
      CUDA_CHECK(launch_measure(view_, on()));
      space_ = 0;
      step_ = trims() ? Step::trim : Step::move;
      return;
    case Step::trim:
      queue_trim(space_);
      if (++space_ < shape_.spaces) return;
      space_ = 0;
      step_ = Step::add;
      return;
    case Step::add:
      with_range(range_, [&](const void* rows, int64_t first, int64_t count) { queue_add(rows, first, count, view_.a.sum_ids, false); });
      if (++range_ < plan_.ranges) return;
      range_ = 0;
      step_ = Step::move;
      return;
    case Step::move:
      CUDA_CHECK(launch_move(view_, on()));
      space_ = codeword_ = 0;
      step_ = !maintains() ? Step::end : config_.merge_distance > 0 ? Step::near : Step::merge;
      return;
    case Step::near: {
      const double each = static_cast<double>(shape_.codewords) * static_cast<double>(shape_.width);
      const int64_t some = std::max<int64_t>(1, static_cast<int64_t>(kNearProducts / each));
      const int64_t count = std::min(some, shape_.codewords - codeword_);
      CUDA_CHECK(launch_find_near(view_, space_, codeword_, count, on()));
      codeword_ += count;
      if (codeword_ < shape_.codewords) return;
      codeword_ = 0;
      step_ = Step::merge;
      return;
    }
    case Step::merge:
      CUDA_CHECK(launch_merge_and_split(view_, space_, on()));
      if (++space_ < shape_.spaces) {
        step_ = config_.merge_distance > 0 ? Step::near : Step::merge;
        return;
      }
      space_ = 0;
      step_ = Step::end;
      return;
    case Step::end:
      queue_end(unit);
      step_ = Step::assign;
      warm_ = true;
      return;
  }
}

// Every launch of a short round of LLOYD, in their order.
void Training::queue_short_round() {
  CUDA_CHECK(launch_begin_round(view_, on()));
  search_.prepare(view_.a.now, on());
  queue_assign(0, view_.a.distances);
  CUDA_CHECK(launch_measure(view_, on()));
  CUDA_CHECK(launch_move(view_, on()));
  CUDA_CHECK(launch_end_round(view_, on()));
}

// Makes a graph of a round, behind one that was launched kernel by kernel, so that all code is loaded. Where the driver refuses,
// rounds go on like that one.
void Training::capture() {
  graphs_ = false;
  cudaGraph_t graph = nullptr;
  try {
    CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    try {
      queue_short_round();
    } catch (...) {
      (void)cudaStreamEndCapture(stream_, &graph);
      throw;
    }
    CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
    CUDA_CHECK(cudaGraphInstantiateWithFlags(&graph_, graph, 0));
    CUDA_CHECK(cudaGraphUpload(graph_, stream_));
  } catch (const Error&) {
    (void)cudaGetLastError();
    if (graph_ != nullptr) (void)cudaGraphExecDestroy(graph_);
    graph_ = nullptr;
  }
  if (graph != nullptr) (void)cudaGraphDestroy(graph);
}

// Of a round that is held: one subspace's codewords without rows take the rows farthest from theirs; behind the last the round
// ends. Nothing is in flight before the first.
void Training::launch_reseed_unit() {
  uint32_t* const empty = reinterpret_cast<uint32_t*>(told_.data() + kReports * sizeof(RoundReport) + sizeof(uint64_t));
  if (reseeding_ < 0) {
    CUDA_CHECK(cudaMemcpyAsync(empty, view_.a.space_empty, static_cast<size_t>(shape_.spaces) * sizeof(uint32_t),
                               cudaMemcpyDeviceToHost, stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    reseeding_ = 0;
  }
  while (reseeding_ < shape_.spaces && empty[reseeding_] == 0) ++reseeding_;
  Unit unit;
  if (reseeding_ < shape_.spaces) {
    TrainingMemory& m = at_memory_;
    SortPair<uint64_t> farthest{{m.wide_keys[0], m.wide_keys[1]}, {m.wide_order[0], m.wide_order[1]}};
    CUDA_CHECK(launch_distance_keys(view_.a.distances + reseeding_ * shape_.n, farthest.keys[0], shape_.n, true, on()));
    CUDA_CHECK(launch_count_up(farthest.order[0], shape_.n, on()));
    CUDA_CHECK(launch_sort_pair(m.sort_scratch, m.sort_bytes, &farthest, shape_.n, on()));
    CUDA_CHECK(launch_reseed(view_, farthest.sorted_order(), reseeding_, on()));
    ++reseeding_;
  } else {
    CUDA_CHECK(launch_release(view_, on()));
    queue_end(&unit);
    reseeding_ = -1;
    hold_ = false;
  }
  queue_unit(unit);
}

}  // namespace mr::cuda
