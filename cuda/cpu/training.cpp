#pragma GCC optimize("fp-contract=off")
#include "training.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "error.h"
#include "vector_config.h"
#include "vector_math.h"

namespace mr::cpu {
namespace {

constexpr int64_t kPackedValues = 128 << 10;  // by one task

int64_t pieces(int64_t count, int64_t each) { return (count + each - 1) / each; }

// *most = max(*most, v), whatever other threads do.
void raise(float* most, float v) {
  float before;
  __atomic_load(most, &before, __ATOMIC_RELAXED);
  while (v > before && !__atomic_compare_exchange(most, &before, &v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

}  // namespace

uint64_t Training::cost(const Device& device, const mr_trainer_config& config) {
  const VectorKernels& kernels = vector_kernels(device.isa);
  return TrainingMemory(TrainingShape(config, kernels, device.threads.size()), kernels, nullptr).bytes;
}

Training::Training(Device& device, const mr_trainer_config& config)
    : device_(device), config_(config), kernels_(vector_kernels(device.isa)), shape_(config, kernels_, device.threads.size()),
      memory_(device.ledger.allocate(cost(device, config), MR_PURPOSE_WORKSPACE, false)),
      at_(shape_, kernels_, memory_.as<uint8_t>()), temperature_(shape_.annealed ? config.temperature : 0) {
  for (Searchable& space : at_.spaces) space.metric = config_.metric;
  std::fill(at_.largest, at_.largest + shape_.full, 0.0f);
  for (int64_t i = 0; i < shape_.values; ++i) at_.sums[i].store(0, std::memory_order_relaxed);
}

void Training::write(uint64_t first, const void* rows, uint64_t count) {
  if (begun()) fail(MR_FAILED_PRECONDITION, "the training has begun: its rows stay as they are");
  if (first != written_)
    fail(MR_INVALID_ARGUMENT, "first is %llu: %llu rows were written before", static_cast<unsigned long long>(first),
         static_cast<unsigned long long>(written_));
  if (count > config_.rows - first)
    fail(MR_INVALID_ARGUMENT, "count is %llu: %llu of %llu rows are missing", static_cast<unsigned long long>(count),
         static_cast<unsigned long long>(config_.rows - first), static_cast<unsigned long long>(config_.rows));
  if (count == 0) return;
  if (rows == nullptr) fail(MR_INVALID_ARGUMENT, "rows is null");
  const FloatEnvironment environment;
  const uint64_t bytes = static_cast<uint64_t>(shape_.full) * element_size(config_.element_type);
  const uint8_t* const from = static_cast<const uint8_t*>(rows);
  for (uint64_t i = 0; i < count; ++i)
    if (!kernels_.finite(config_.element_type, from + i * bytes, shape_.full))
      fail(MR_INVALID_ARGUMENT, "row %llu has a NaN or an infinity: rows must be finite", static_cast<unsigned long long>(first + i));
  uint8_t* const to = at_.rows + first * shape_.row_bytes;
  float* const decoded = at_.lanes[0].rows;
  for (uint64_t i = 0; i < count; ++i) {
    kernels_.decode(config_.element_type, from + i * bytes, shape_.full, decoded);
    if (config_.metric == MR_METRIC_COSINE) {
      normalise(decoded, shape_.full, decoded);
      std::memcpy(to + i * shape_.row_bytes, decoded, shape_.row_bytes);
    }
    kernels_.largest(decoded, shape_.full, at_.largest);
  }
  if (config_.metric != MR_METRIC_COSINE) std::memcpy(to, from, count * bytes);
  written_ += count;
}

void Training::begin() {
  if (written_ != config_.rows)
    fail(MR_FAILED_PRECONDITION, "%llu of %llu rows are written", static_cast<unsigned long long>(written_),
         static_cast<unsigned long long>(config_.rows));
  if (config_.init == MR_INIT_GIVEN && !given_ && !restored_) fail(MR_FAILED_PRECONDITION, "init is 3 (given) and no codewords are");
  for (int64_t j = 0; j < shape_.full; ++j) {
    const double largest = static_cast<double>(at_.largest[j]);
    if (config_.metric == MR_METRIC_L2 && !codeword_holds(config_.codeword_type, largest))
      fail(MR_INVALID_ARGUMENT, "column %lld holds %g, which codeword_type %d does not: want 0 (F32) or 2 (BF16)",
           static_cast<long long>(j), largest, config_.codeword_type);
    at_.exponent[j] = fixed_exponent(largest, config_.rows);
    at_.scale[j] = power_of_two(at_.exponent[j]);
  }
  if (restored_) {
    seeded_ = true;
    enter(iteration_ > 0 ? Step::recall_center : Step::center);
  } else {
    enter(Step::seed);
  }
}

void Training::advance(Clock::time_point deadline, int64_t rounds, bool alone, const std::atomic<bool>& stop,
                       std::vector<mr_round>* ended) {
  const FloatEnvironment environment;
  ended_ = ended;
  const size_t until = ended->size() + static_cast<size_t>(rounds);
  do {
    if (done() || ended->size() >= until) return;
    (void)run_step(deadline, alone, stop);
  } while (Clock::now() < deadline && !stop);
}

// Lets threads take tasks of the step until all are taken or the time is over. Returns true if all are done.
template <class F>
bool Training::share(int64_t tasks, F&& task) {
  tasks_ = tasks;
  const auto work = [&](int thread) {
    do {
      const int64_t next = next_task_.fetch_add(1, std::memory_order_relaxed);
      if (next >= tasks) return;
      task(next, &at_.lanes[static_cast<size_t>(thread)]);
    } while (!*stop_ && Clock::now() < deadline_);
  };
  if (alone_ || tasks - next_task_.load() <= 1) {
    work(0);
  } else {
    device_.threads.run_present(work);
  }
  return next_task_.load() >= tasks;
}

void Training::enter(Step step) {
  step_ = step;
  next_task_.store(0);
  tasks_ = 0;
}

// Does a part of the step at hand; true when it has come to its end and the next one is entered.
bool Training::run_step(Clock::time_point deadline, bool alone, const std::atomic<bool>& stop) {
  deadline_ = deadline;
  alone_ = alone;
  stop_ = &stop;
  const int64_t runs = shape_.runs;
  const bool spread = config_.init == MR_INIT_KMEANS_PLUS_PLUS || config_.init == MR_INIT_FARTHEST;
  switch (step_) {
    case Step::write:
    case Step::done: return false;
    case Step::seed:
      if (spread) {
        space_ = 0;
        spread_begin();
        enter(shape_.codewords > 1 ? Step::spread : Step::choose);
        return true;
      }
      if (config_.init == MR_INIT_RANDOM && !share(shape_.spaces * runs, [&](int64_t t, TrainingLane*) { seed_task(t); }))
        return false;
      space_ = shape_.spaces;
      enter(Step::choose);
      return true;
    case Step::spread:
      if (!share(pieces(shape_.n, kSpreadRows), [&](int64_t t, TrainingLane* lane) { spread_task(t, lane); })) return false;
      enter(config_.init == MR_INIT_KMEANS_PLUS_PLUS ? Step::weigh : Step::choose);
      return true;
    case Step::weigh:
      if (!share(shape_.blocks, [&](int64_t b, TrainingLane*) { weigh_task(b); })) return false;
      enter(Step::choose);
      return true;
    case Step::choose: choose(); return true;
    case Step::recall_center:
    case Step::center:
    case Step::merge_center: {
      float* const book = step_ == Step::recall_center ? at_.last : step_ == Step::center ? at_.now : at_.next;
      const bool all = share(shape_.spaces, [&](int64_t s, TrainingLane*) {
        Searchable& to = at_.spaces[static_cast<size_t>(s)];
        to.values = codeword(book, s, 0);
        to.radius = 0;
        prepare_center(&to);
      });
      if (!all) return false;
      enter(step_ == Step::recall_center ? Step::recall_pack : step_ == Step::center ? Step::pack : Step::merge_pack);
      return true;
    }
    case Step::recall_pack:
    case Step::pack:
    case Step::merge_pack: {
      const int64_t some = std::max<int64_t>(1, kPackedValues / (kernels_.codewords * shape_.width)), of = pieces(shape_.panels, some);
      const bool all = share(shape_.spaces * of, [&](int64_t t, TrainingLane*) {
        Searchable& to = at_.spaces[static_cast<size_t>(t / of)];
        const int64_t first = t % of * some;
        float radius = prepare_panels(kernels_, to, first, std::min(first + some, shape_.panels));
        raise(&to.radius, radius);
      });
      if (!all) return false;
      if (step_ == Step::merge_pack) space_ = 0;
      changes_.store(0);
      enter(step_ == Step::recall_pack ? Step::recall : step_ == Step::pack ? Step::assign : Step::find);
      return true;
    }
    case Step::recall:
      if (!share(pieces(shape_.n, shape_.group), [&](int64_t t, TrainingLane* lane) { assign_task(t, lane); })) return false;
      std::swap(at_.ids, at_.new_ids);
      has_ids_ = true;
      enter(Step::center);
      return true;
    case Step::assign:
      if (!share(pieces(shape_.n, shape_.group), [&](int64_t t, TrainingLane* lane) { assign_task(t, lane); })) return false;
      std::fill(at_.new_loads, at_.new_loads + shape_.spaces * shape_.codewords, uint64_t{0});
      enter(Step::measure);
      return true;
    case Step::measure:
      if (!share(shape_.spaces * pieces(shape_.blocks, kMeasuredBlocks), [&](int64_t t, TrainingLane* lane) { measure_task(t, lane); }))
        return false;
      enter(Step::judge);
      return true;
    case Step::judge:
      judge();
      if (over_) {
        enter(Step::distance_scale);
      } else if (shape_.tallied > 0 && !trims()) {
        enter(Step::tally);
      } else {
        space_ = 0;
        sort_begin();
        enter(Step::sort);
      }
      return true;
    case Step::tally:
      if (!share(pieces(shape_.n, shape_.tallied), [&](int64_t t, TrainingLane* lane) { tally_task(t, lane); })) return false;
      enter(Step::move);
      return true;
    case Step::sort:
      if (!share(pieces(shape_.n, kSortedRows), [&](int64_t t, TrainingLane* lane) { sort_task(t, lane); })) return false;
      enter(trims() ? Step::trim : Step::add);
      return true;
    case Step::trim:
      if (!share(runs, [&](int64_t t, TrainingLane*) { trim_task(t); })) return false;
      enter(Step::add);
      return true;
    case Step::add: {
      if (!share(pieces(shape_.n, shape_.added), [&](int64_t t, TrainingLane* lane) { add_task(t, lane); })) return false;
      if (++space_ < shape_.spaces) {
        sort_begin();
        enter(Step::sort);
      } else {
        enter(Step::move);
      }
      return true;
    }
    case Step::move:
      if (!share(shape_.spaces * runs, [&](int64_t t, TrainingLane*) { move_task(t); })) return false;
      after_sums();
      return true;
    case Step::farthest:
      reseeded_ = find_farthest(space_);
      enter(Step::reseed);
      return true;
    case Step::reseed:
      if (!share(pieces(reseeded_, shape_.run), [&](int64_t t, TrainingLane*) { reseed_task(t); })) return false;
      enter(++space_ < shape_.spaces ? Step::farthest : Step::commit);
      return true;
    case Step::find:
      if (config_.merge_distance > 0 && !share(runs, [&](int64_t t, TrainingLane* lane) { find_task(t, lane); })) return false;
      enter(Step::maintain);
      return true;
    case Step::maintain:
      round_.merged += merge(space_);
      round_.split += split(space_);
      ++space_;
      enter(space_ < shape_.spaces ? Step::find : Step::commit);
      return true;
    case Step::distance_scale:
      if (!share(shape_.spaces * pieces(shape_.blocks, kMeasuredBlocks), [&](int64_t t, TrainingLane*) { distance_scale_task(t); })) return false;
      set_variance_exponents();
      enter(Step::distance_sums);
      return true;
    case Step::distance_sums:
      if (!share(shape_.spaces * pieces(shape_.n, kSummedRows), [&](int64_t t, TrainingLane*) { distance_sums_task(t); })) return false;
      enter(Step::commit);
      return true;
    case Step::commit: commit(); return true;
  }
  return false;
}

Training::Rows Training::rows_of(int64_t first, int64_t count, TrainingLane* lane) const {
  const uint8_t* const from = at_.rows + static_cast<uint64_t>(first) * shape_.row_bytes;
  if (shape_.stored == MR_VECTOR_F32) return {reinterpret_cast<const float*>(from), shape_.full};
  kernels_.decode(shape_.stored, from, count * shape_.full, lane->rows);
  return {lane->rows, shape_.full};
}

const float* Training::part_of(int64_t row, int64_t space, TrainingLane* lane) const {
  const uint64_t size = element_size(shape_.stored);
  const uint8_t* const from = at_.rows + static_cast<uint64_t>(row) * shape_.row_bytes + static_cast<uint64_t>(space * shape_.width) * size;
  if (shape_.stored == MR_VECTOR_F32) return reinterpret_cast<const float*>(from);
  kernels_.decode(shape_.stored, from, shape_.width, lane->rows);
  return lane->rows;
}

// Has a row's columns of a subspace fetched.
void Training::fetch_part(int64_t row, int64_t space) const {
  const uint64_t size = element_size(shape_.stored), bytes = static_cast<uint64_t>(shape_.width) * size;
  const uint8_t* const from = at_.rows + static_cast<uint64_t>(row) * shape_.row_bytes + static_cast<uint64_t>(space) * bytes;
  for (uint64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i);
}

void Training::assign_task(int64_t task, TrainingLane* lane) {
  const int64_t first = task * shape_.group, count = std::min(shape_.group, shape_.n - first);
  const Rows rows = rows_of(first, count, lane);
  int64_t changes = 0, settled = 0;
  for (int64_t s = 0; s < shape_.spaces; ++s) {
    const int64_t place = s * shape_.n + first;
    settled += Search(kernels_, at_.spaces[static_cast<size_t>(s)])
                   .nearest(rows.data + s * shape_.width, rows.stride, count, lane->search, at_.new_ids + place, at_.distances + place);
    if (has_ids_) {
      for (int64_t i = 0; i < count; ++i) changes += at_.ids[place + i] != at_.new_ids[place + i] ? 1 : 0;
    } else {
      changes += count;
    }
  }
  changes_.fetch_add(changes, std::memory_order_relaxed);
  recomputed_.fetch_add(static_cast<uint64_t>(settled), std::memory_order_relaxed);
  computed_.fetch_add(static_cast<uint64_t>(count * shape_.spaces), std::memory_order_relaxed);
}

void Training::measure_task(int64_t task, TrainingLane* lane) {
  const int64_t runs = pieces(shape_.blocks, kMeasuredBlocks), s = task / runs, begin = task % runs * kMeasuredBlocks;
  const int64_t end = std::min(begin + kMeasuredBlocks, shape_.blocks);
  const double plus = config_.metric == MR_METRIC_COSINE ? 1 : 0;
  const bool counted = shape_.codewords <= kCountedCodewords;
  if (counted) std::fill(lane->counts, lane->counts + shape_.codewords, 0u);
  uint64_t* const loads = at_.new_loads + s * shape_.codewords;
  for (int64_t b = begin; b < end; ++b) {
    const int64_t first = b * kBlockRows, count = std::min(kBlockRows, shape_.n - first);
    at_.block_sums[s * shape_.blocks + b] = block_sum(at_.distances + s * shape_.n + first, count, plus);
    const uint32_t* const ids = at_.new_ids + s * shape_.n + first;
    for (int64_t i = 0; i < count; ++i) {
      if (counted) ++lane->counts[ids[i]];
      else __atomic_fetch_add(&loads[ids[i]], uint64_t{1}, __ATOMIC_RELAXED);
    }
  }
  if (!counted) return;
  for (int64_t c = 0; c < shape_.codewords; ++c)
    if (lane->counts[c] != 0) __atomic_fetch_add(&loads[c], uint64_t{lane->counts[c]}, __ATOMIC_RELAXED);
}

// Measures the round and decides whether it is the last.
void Training::judge() {
  const double n = static_cast<double>(shape_.n), k = static_cast<double>(shape_.codewords);
  round_ = mr_round{};
  round_.iteration = iteration_;
  round_.temperature = temperature_;
  round_.changes = changes_.load();
  double total = 0, uneven = 0;
  for (int64_t s = 0; s < shape_.spaces; ++s) {
    double energy = 0, squares = 0;
    for (int64_t b = 0; b < shape_.blocks; ++b) energy += at_.block_sums[s * shape_.blocks + b];
    for (int64_t c = 0; c < shape_.codewords; ++c) {
      const uint64_t load = at_.new_loads[s * shape_.codewords + c];
      squares += static_cast<double>(load) * static_cast<double>(load);
      round_.empty += load == 0 ? 1 : 0;
    }
    total += energy;
    uneven += k * squares / n / n;
  }
  round_.energy = total / n;
  round_.imbalance = uneven / static_cast<double>(shape_.spaces);
  next_energy_ = round_.energy;
  const EndRule rule = end_rule(config_);
  next_stable_ = is_stable(rule, iteration_, energy_, round_.energy, round_.changes) ? stable_ + 1 : 0;
  reason_ = end_reason(rule, iteration_, next_stable_);
  over_ = reason_ != MR_REASON_NONE;
}

void Training::move_task(int64_t task) {
  const int64_t s = task / shape_.runs, begin = task % shape_.runs * shape_.run, end = std::min(begin + shape_.run, shape_.codewords);
  for (int64_t c = begin; c < end; ++c) {
    if (shape_.annealed) move_some(s, c);
    else move_mean(s, c);
  }
}

void Training::after_sums() {
  space_ = 0;
  if (!shape_.annealed) {
    enter(round_.empty > 0 ? Step::farthest : Step::commit);
  } else if (shape_.maintained && (iteration_ + 1) % config_.maintenance_interval == 0) {
    enter(Step::merge_center);
  } else {
    enter(Step::commit);
  }
}

// Ends the round and publishes its result.
void Training::commit() {
  std::swap(at_.ids, at_.new_ids);
  std::swap(at_.loads, at_.new_loads);
  has_ids_ = measured_ = true;
  ended_->push_back(round_);
  if (over_) {  // the state stays that of the round's beginning
    enter(Step::done);
    return;
  }
  std::swap(at_.last, at_.now);
  std::swap(at_.now, at_.next);
  std::swap(at_.place, at_.next_place);
  std::swap(at_.velocity, at_.next_velocity);
  ++iteration_;
  stable_ = round_.merged + round_.split > 0 ? 0 : next_stable_;
  energy_ = next_energy_;
  if (shape_.annealed) temperature_ *= 1 - config_.cooling_rate;
  enter(Step::center);
}

void Training::report(mr_training* out) const {
  const uint64_t n = config_.rows, done = static_cast<uint64_t>(std::min(next_task_.load(), tasks_));
  out->rows_total = n;
  out->rows_done = tasks_ == 0 ? 0 : static_cast<uint64_t>(static_cast<unsigned __int128>(n) * done / static_cast<uint64_t>(tasks_));
  switch (step_) {
    case Step::write:
      out->phase = MR_TRAINING_WRITING;
      out->rows_done = written_;
      break;
    case Step::seed: out->phase = MR_TRAINING_SEEDING; break;
    case Step::spread:
    case Step::weigh:
    case Step::choose: {  // every row is seen once a codeword
      out->phase = MR_TRAINING_SEEDING;
      const uint64_t steps = static_cast<uint64_t>(shape_.spaces * shape_.codewords);
      const uint64_t behind = static_cast<uint64_t>(space_ * shape_.codewords + chosen_);
      out->rows_total = steps * n;
      out->rows_done = std::min(behind * n + out->rows_done, steps * n);
      break;
    }
    case Step::recall_center:
    case Step::recall_pack:
    case Step::center:
    case Step::pack:
      out->phase = MR_TRAINING_ASSIGNING;
      out->rows_done = 0;
      break;
    case Step::recall:
    case Step::assign: out->phase = MR_TRAINING_ASSIGNING; break;
    case Step::done:
      out->phase = MR_TRAINING_DONE;
      out->rows_done = n;
      break;
    default: out->phase = MR_TRAINING_UPDATING; break;
  }
  out->reason = step_ == Step::done ? reason_ : MR_REASON_NONE;
  out->computed = computed_.load();
  out->recomputed = recomputed_.load();
}

}  // namespace mr::cpu
