#include "src/vectors/training.h"

#include <algorithm>
#include <vector>

#include "cpu/vector_config.h"
#include "src/error.h"
#include "src/event_wait.h"

namespace mr::cuda {
namespace {

constexpr uint64_t kLeastStaging = uint64_t{256} << 10;
// The wait for a unit that ends within this time does not sleep.
constexpr std::chrono::microseconds kSpin{300};
constexpr int64_t kShortSpaces = 32;       // more of them are too many launches for one unit
constexpr double kShortNear = 2e9;         // multiply-adds of float64 that a short round's maintenance takes at most
constexpr double kQuickProducts = 1e11;    // of a round that is over so soon that others are put behind it

unsigned long long ull(uint64_t v) { return v; }

// What can be taken of a device: of the ledger, and of what others leave.
uint64_t free_bytes(const Device& device) {
  const LedgerCounts counts = device.ledger.counts();
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return std::min<uint64_t>(counts.free(), free + (counts.pooled - counts.stuck));
}

TrainingPlan plan_for(const Device& device, const mr_trainer_config& config) {
  device.enter();
  const TrainingPlan plan = TrainingPlan::of(device, config, free_bytes(device));
  if (config.spool_bytes > 0 && !plan.spooled && plan.device_bytes > free_bytes(device))
    fail(MR_RESOURCE_EXHAUSTED, "a training of %llu bytes, %llu of them rows: %llu are free on the device, and spool_bytes is %llu",
         ull(plan.device_bytes), ull(plan.rows_bytes()), ull(free_bytes(device)), ull(config.spool_bytes));
  return plan;
}

TrainingParameters parameters(const mr_trainer_config& c, const TrainingShape& s) {
  TrainingParameters p{};
  p.seed = c.seed;
  p.n = s.n;
  p.full = s.full;
  p.width = s.width;
  p.spaces = s.spaces;
  p.codewords = s.codewords;
  p.blocks = s.blocks;
  p.metric = c.metric;
  p.stored = s.stored;
  p.codeword_type = c.codeword_type;
  p.annealed = s.annealed ? 1 : 0;
  p.end = end_rule(c);
  if (!s.annealed) return p;
  p.cooling_rate = c.cooling_rate;
  p.learning_rate = c.learning_rate;
  p.momentum = c.momentum;
  p.trim = c.trim;
  p.step_limit = c.step_limit;
  p.merge_distance = c.merge_distance;
  p.split_load = c.split_load;
  return p;
}

}  // namespace

void Training::cost(const Device& device, const mr_trainer_config& config, mr_trainer_cost* out) {
  device.enter();
  const TrainingPlan plan = TrainingPlan::of(device, config, free_bytes(device));
  out->device_bytes = plan.device_bytes;
  out->spool_bytes = plan.spooled ? plan.rows_bytes() : 0;
}

Training::Training(Device& device, const mr_trainer_config& config)
    : device_(device), config_(config), plan_(plan_for(device, config)), shape_(plan_.shape),
      memory_(device.ledger.allocate(plan_.device_bytes, MR_PURPOSE_WORKSPACE)),
      told_(kReports * sizeof(RoundReport) + sizeof(uint64_t) + static_cast<uint64_t>(shape_.spaces) * sizeof(uint32_t)),
      at_memory_(device, config_, plan_, memory_.data()), view_{parameters(config_, shape_), at_memory_.arrays},
      search_(plan_.search(config_), device.index, at_memory_.search), stream_(device.priority_low), copies_(device.priority_low),
      slice_begin_(cudaEventDefault), slice_end_(cudaEventDefault), temperature_(shape_.annealed ? config.temperature : 0) {
  for (Pinned& each : staging_)
    each = Pinned(std::max(kLeastStaging, static_cast<uint64_t>(plan_.piece) * shape_.given_bytes));
  if (plan_.spooled) {
    spool_ = Pinned(plan_.rows_bytes());
    view_.a.any_rows = spool_.data();
  }
  view_.a.reports = told_.as<RoundReport>();
  for (EventHandle& each : unit_done_) each = EventHandle(cudaEventDisableTiming);
  for (EventHandle& each : staged_) each = EventHandle(cudaEventDisableTiming);
  for (EventHandle& each : filled_) each = EventHandle(cudaEventDisableTiming);
  for (EventHandle& each : used_) each = EventHandle(cudaEventDisableTiming);

  const double n = static_cast<double>(shape_.n), k = static_cast<double>(shape_.codewords), full = static_cast<double>(shape_.full);
  short_ = !plan_.spooled && plan_.ranges == 1 && shape_.spaces <= kShortSpaces && (!shape_.maintained || k * k * full <= kShortNear);
  ahead_ = short_ && n * k * full <= kQuickProducts ? kUnits : 1;
  graphs_ = short_ && !shape_.annealed;

  const Rest rest(stream_);
  CUDA_CHECK(cudaMemsetAsync(at_memory_.largest, 0, static_cast<size_t>(shape_.full) * sizeof(uint32_t), stream_));
  CUDA_CHECK(cudaMemsetAsync(view_.a.sums, 0, static_cast<size_t>(shape_.values) * sizeof(int64_t), stream_));
  CUDA_CHECK(cudaMemsetAsync(view_.a.control, 0, sizeof(Control), stream_));
  CUDA_CHECK(launch_count_up(at_memory_.identity, plan_.range, on()));
  CUDA_CHECK(cudaStreamSynchronize(stream_));
}

Training::~Training() {
  (void)cudaSetDevice(device_.index);
  (void)cudaStreamSynchronize(copies_);
  (void)cudaStreamSynchronize(stream_);
  if (graph_ != nullptr) (void)cudaGraphExecDestroy(graph_);
}

void Training::begin() {
  if (written_ != config_.rows)
    fail(MR_FAILED_PRECONDITION, "%llu of %llu rows are written", ull(written_), ull(config_.rows));
  if (config_.init == MR_INIT_GIVEN && !given_ && !restored_) fail(MR_FAILED_PRECONDITION, "init is 3 (given) and no codewords are");
  device_.enter();
  const size_t full = static_cast<size_t>(shape_.full);
  std::vector<uint32_t> largest(full);
  std::vector<double> scale(full);
  std::vector<int32_t> exponent(full);
  device_.transfers.download(largest.data(), at_memory_.largest, full * sizeof(uint32_t));
  for (size_t j = 0; j < full; ++j) {
    const double most = static_cast<double>(bits_as<float>(largest[j]));
    if (config_.metric == MR_METRIC_L2 && !codeword_holds(config_.codeword_type, most))
      fail(MR_INVALID_ARGUMENT, "column %zu holds %g, which codeword_type %d does not: want 0 (F32) or 2 (BF16)", j, most,
           config_.codeword_type);
    exponent[j] = fixed_exponent(most, config_.rows);
    scale[j] = power_of_two(exponent[j]);
  }
  device_.transfers.upload(view_.a.exponent, exponent.data(), full * sizeof(int32_t));
  device_.transfers.upload(view_.a.scale, scale.data(), full * sizeof(double));
  upload_control();
  seeded_ = restored_;
  at_ = !restored_ ? At::seed : iteration_ > 0 ? At::recall : At::round;
}

void Training::upload_control() {
  Control control{};
  control.iteration = iteration_;
  control.stable = stable_;
  control.temperature = temperature_;
  control.energy = energy_;
  device_.transfers.upload(view_.a.control, &control, sizeof control);
}

// Whether the slice has more to ask for. Of rounds that have been begun the slice has the end.
bool Training::may_go_on(const Slice& slice) const {
  if (at_ == At::done) return false;
  if (!at_round_start()) return true;
  // A state may have more updates behind it than are asked for: its first round is the last.
  return static_cast<int64_t>(slice.rounds.size()) + pending_ < slice.most_rounds &&
         (pending_ == 0 || iteration_ + pending_ <= config_.max_iterations);
}

// Whether the next unit is known before those in flight have ended.
bool Training::may_launch() const {
  if (unit_count_ == 0) return true;
  if (unit_count_ == kUnits || hold_) return false;
  return !at_round_start() || (warm_ && unit_count_ < ahead_);
}

void Training::run(Slice* slice, const std::atomic<bool>& stop) {
  device_.enter();
  const Clock::time_point begin = Clock::now();
  const uint64_t budget = std::min<uint64_t>(slice->budget_ns, uint64_t{1} << 60);
  const Clock::time_point end = budget == 0 ? Clock::time_point::max() : begin + std::chrono::nanoseconds(budget);
  CUDA_CHECK(cudaEventRecord(slice_begin_, stream_));
  for (bool any = false;;) {
    const bool more = !stop && (!any || Clock::now() < end) && may_go_on(*slice);
    if (more && may_launch()) {
      launch_unit();
      any = true;
    } else if (unit_count_ > 0) {
      complete(slice);
    } else {
      break;
    }
  }
  CUDA_CHECK(cudaEventRecord(slice_end_, stream_));
  wait_for_event(slice_end_, kSpin);
  float milliseconds = 0;
  CUDA_CHECK(cudaEventElapsedTime(&milliseconds, slice_begin_, slice_end_));
  report(&slice->told);
  slice->told.device_ns = static_cast<uint64_t>(static_cast<double>(milliseconds) * 1e6);
}

// Counts what has been put on the stream as a unit in flight.
void Training::queue_unit(const Unit& unit) {
  const int place = (first_unit_ + unit_count_) % kUnits;
  units_[place] = unit;
  CUDA_CHECK(cudaEventRecord(unit_done_[place], stream_));
  ++unit_count_;
}

// Waits for the oldest unit in flight and reads its result.
void Training::complete(Slice* slice) {
  wait_for_event(unit_done_[first_unit_], kSpin);
  const Unit unit = units_[first_unit_];
  first_unit_ = (first_unit_ + 1) % kUnits;
  --unit_count_;
  computed_ += unit.computed;
  if (!unit.ends_round) return;
  const RoundReport told = told_.as<RoundReport>()[unit.report % kReports];
  recomputed_ = told.recomputed;
  if (told.ended == 0) {
    // The first report of a round that is held is its own; others are of rounds that were skipped, as behind the last one.
    if (told.done == 0 && !hold_) hold_ = true;
    else --pending_;
    return;
  }
  --pending_;
  slice->rounds.push_back(told.round);
  measured_ = true;
  iteration_ = told.iteration;
  stable_ = told.stable;
  temperature_ = told.temperature;
  energy_ = told.energy;
  reason_ = told.reason;
  if (told.done != 0) at_ = At::done;
}

void Training::report(mr_training* out) const {
  const uint64_t n = config_.rows;
  const uint64_t done = static_cast<uint64_t>(std::min(range_ * plan_.range, shape_.n));
  out->rows_total = n;
  out->rows_done = done;
  switch (at_) {
    case At::write:
      out->phase = MR_TRAINING_WRITING;
      out->rows_done = written_;
      break;
    case At::seed: out->phase = MR_TRAINING_SEEDING; break;
    case At::spread: {  // every row is seen once a codeword
      out->phase = MR_TRAINING_SEEDING;
      const uint64_t steps = static_cast<uint64_t>(shape_.spaces * shape_.codewords);
      out->rows_total = steps * n;
      out->rows_done = std::min(static_cast<uint64_t>(space_ * shape_.codewords + codeword_) * n + done, steps * n);
      break;
    }
    case At::recall: out->phase = MR_TRAINING_ASSIGNING; break;
    case At::round:
      out->phase = step_ == Step::assign && !hold_ ? MR_TRAINING_ASSIGNING : MR_TRAINING_UPDATING;
      break;
    case At::done:
      out->phase = MR_TRAINING_DONE;
      out->rows_done = n;
      break;
  }
  out->reason = at_ == At::done ? reason_ : static_cast<int32_t>(MR_REASON_NONE);
  out->computed = computed_;
  out->recomputed = recomputed_;
}

}  // namespace mr::cuda
