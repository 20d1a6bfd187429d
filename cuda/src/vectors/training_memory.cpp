#include "src/vectors/training_memory.h"

#include <algorithm>

#include "cpu/vector_config.h"
#include "src/error.h"

namespace mr::cuda {
namespace {

// Hands out parts of a block, one after another.
class Carver {
 public:
  explicit Carver(uint8_t* base) : base_(base) {}
  template <class T>
  void take(T** out, uint64_t count) {
    bytes = (bytes + 255) / 256 * 256;
    *out = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + bytes);
    bytes += count * sizeof(T);
  }
  uint64_t bytes = 0;

 private:
  uint8_t* const base_;
};

constexpr double kUnitProducts = 5e11;           // multiply-adds of 16 bits of one unit of work on a Hopper: about 3 ms
constexpr int64_t kMostRange = int64_t{1} << 30;  // rows
constexpr uint64_t kRingBytes = uint64_t{64} << 20, kPieceBytes = uint64_t{4} << 20;  // of one of kRing
constexpr int64_t kLeastSpooled = 64;            // rows of a range that comes from the host

uint64_t unsign(int64_t v) { return static_cast<uint64_t>(v); }

// Rows that are worked on at once: as many as give every multiprocessor as many tiles of a search, because the last tile of a range
// takes as long with one multiprocessor at work as with all of them.
int64_t range_rows(const Device& device, const mr_trainer_config& config) {
  const TrainingShape s(config);
  double products = kUnitProducts;
  if (s.stored == MR_VECTOR_F32) products /= 3;
  if (device.properties.major < 9) products /= 4;
  const double rows = std::min(products / (static_cast<double>(s.codewords) * static_cast<double>(s.full)), static_cast<double>(kMostRange));
  const int64_t wave = device.properties.multiProcessorCount * Search::tile_rows(TrainingPlan{s}.search(config), device.index);
  const int64_t waves = std::max(static_cast<int64_t>(rows / static_cast<double>(wave) + 0.5), int64_t{1});
  return std::min(waves * wave, s.n);
}

TrainingPlan planned(const Device& device, const mr_trainer_config& config, bool spooled, int64_t range) {
  TrainingPlan plan{TrainingShape(config)};
  const TrainingShape& s = plan.shape;
  plan.spooled = spooled;
  plan.range = range;
  plan.ranges = (s.n + range - 1) / range;
  const int64_t most = static_cast<int64_t>(kPieceBytes / std::max(s.given_bytes, s.row_bytes));
  plan.piece = std::clamp<int64_t>(most, 1, spooled ? range : s.n);
  plan.device_bytes = TrainingMemory(device, config, plan, nullptr).bytes;
  return plan;
}

}  // namespace

TrainingShape::TrainingShape(const mr_trainer_config& c)
    : n(static_cast<int64_t>(c.rows)), full(c.dimension), width(c.dimension / c.subspaces), spaces(c.subspaces),
      codewords(c.codewords), values(int64_t{c.codewords} * c.dimension), blocks((n + kBlockRows - 1) / kBlockRows),
      stored(c.metric == MR_METRIC_COSINE ? static_cast<int32_t>(MR_VECTOR_F32) : c.element_type),
      given_bytes(static_cast<uint64_t>(c.dimension) * element_size(c.element_type)),
      row_bytes(static_cast<uint64_t>(c.dimension) * element_size(stored)), annealed(c.algorithm == MR_ALGORITHM_ANNEALED),
      maintained(annealed && c.maintenance_interval > 0 && (c.merge_distance > 0 || c.split_load > 0)),
      trimmed(annealed && (c.trim > 0 || maintained)) {}

TrainingPlan TrainingPlan::of(const Device& device, const mr_trainer_config& config, uint64_t free) {
  const TrainingShape shape(config);
  const int64_t range = range_rows(device, config);
  const TrainingPlan resident = planned(device, config, false, range);
  if (resident.device_bytes <= free || config.spool_bytes < resident.rows_bytes()) return resident;
  const auto whole = [&](int64_t rows) { return std::min(std::max(rows / kLeastSpooled * kLeastSpooled, kLeastSpooled), shape.n); };
  int64_t some = whole(std::min(range, static_cast<int64_t>(kRingBytes / shape.row_bytes)));
  for (;; some = whole(some / 2)) {
    const TrainingPlan spooled = planned(device, config, true, some);
    if (spooled.device_bytes <= free) return spooled;
    if (some <= kLeastSpooled) return resident;
  }
}

SearchShape TrainingPlan::search(const mr_trainer_config& config) const {
  SearchShape out;
  out.metric = config.metric;
  out.row_type = shape.stored;
  out.codeword_type = config.codeword_type;
  out.spaces = shape.spaces;
  out.codewords = shape.codewords;
  out.width = shape.width;
  out.most_rows = range;
  return out;
}

TrainingMemory::TrainingMemory(const Device& device, const mr_trainer_config& config, const TrainingPlan& plan, uint8_t* base) {
  const TrainingShape& s = plan.shape;
  Carver all(base);
  const uint64_t n = unsign(s.n), spaces = unsign(s.spaces), k = unsign(s.codewords), values = unsign(s.values), full = unsign(s.full);
  const uint64_t range = unsign(plan.range), moving = s.annealed ? values : 0, trimmed = s.trimmed ? n : 0, kept = s.maintained ? k : 0;
  all.take(&rows, plan.spooled ? 0 : plan.rows_bytes());
  for (uint8_t*& each : ring) all.take(&each, plan.spooled ? range * s.row_bytes : 0);
  const bool straight = !plan.spooled && config.metric != MR_METRIC_COSINE;
  for (uint8_t*& each : pieces) all.take(&each, straight ? 0 : unsign(plan.piece) * s.given_bytes);
  all.take(&largest, full);
  all.take(&piece_largest, full);
  all.take(&bad, 1);
  TrainingArrays& a = arrays;
  all.take(&a.scale, full);
  all.take(&a.exponent, full);
  for (float** book : {&a.now, &a.last, &a.next}) all.take(book, values);
  for (double** state : {&a.place, &a.next_place, &a.velocity, &a.next_velocity}) all.take(state, moving);
  all.take(&a.ids, spaces * n);
  all.take(&a.new_ids, spaces * n);
  all.take(&a.sum_ids, spaces * trimmed);
  all.take(&a.distances, spaces * n);
  all.take(&a.loads, spaces * k);
  all.take(&a.new_loads, spaces * k);
  all.take(&a.sums, values);
  all.take(&a.block_values, spaces * unsign(s.blocks));
  all.take(&a.block_rows, unsign(s.blocks));
  all.take(&a.space_energy, spaces);
  all.take(&a.space_squares, spaces);
  all.take(&a.space_exponent, spaces);
  all.take(&a.space_empty, spaces);
  all.take(&a.farthest, s.trimmed ? spaces * k : 0);
  all.take(&a.starts, s.trimmed ? k : 0);
  all.take(&a.nearest, kept);
  all.take(&a.listed, kept);
  all.take(&a.left, kept);
  all.take(&a.touched, kept);
  all.take(&a.control, 1);
  all.take(&identity, range);
  all.take(&keys, range);
  all.take(&order, range);
  // Of a sort by distance: what LLOYD needs for codewords without rows, and ANNEALED for those that it trims.
  const uint64_t wide = s.annealed && !s.trimmed ? 0 : n;
  for (uint64_t*& each : wide_keys) all.take(&each, wide);
  for (uint32_t*& each : wide_order) all.take(&each, wide);
  uint64_t narrow_bytes = 0, wide_bytes = 0;
  CUDA_CHECK(mr::cuda::sort_bytes(plan.range, &narrow_bytes));
  if (wide > 0) CUDA_CHECK(sort_pair_bytes(s.n, &wide_bytes));
  sort_bytes = std::max(narrow_bytes, wide_bytes);
  all.take(&sort_scratch, sort_bytes);
  all.take(&search, Search::bytes(plan.search(config), device.index));
  bytes = all.bytes;
  a.any_rows = rows;
}

}  // namespace mr::cuda
