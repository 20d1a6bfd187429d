#include "training_memory.h"

#include <algorithm>

#include "vector_config.h"
#include "vector_math.h"

namespace mr::cpu {
namespace {

// Hands out parts of a block, one after another.
class Carver {
 public:
  explicit Carver(uint8_t* base) : base_(base) {}
  template <class T>
  void take(T** out, int64_t count) {
    bytes = (bytes + 63) / 64 * 64;
    *out = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + bytes);
    bytes += static_cast<uint64_t>(count) * sizeof(T);
  }
  uint64_t bytes = 0;

 private:
  uint8_t* const base_;
};

constexpr int64_t kGroupFloats = 64 << 10;      // of a group's columns at once: they stay in a cache of the core
constexpr int64_t kMovedValues = 32 << 10;      // by one task
constexpr int64_t kAddedValues = 512 << 10;     // by one task
constexpr int64_t kTalliedValues = 32 << 10;    // sums of one thread: they stay in a cache of the core
constexpr int64_t kGroupProducts = 128 << 20;   // of a task: some milliseconds

int64_t group_rows(int64_t n, int64_t full, int64_t codewords, int64_t tile, int threads) {
  const int64_t fair = n / (4 * threads);  // each thread has some tasks
  const int64_t most = std::min({kGroupFloats / full, kGroupProducts / (codewords * full), fair});
  return std::max<int64_t>(1, most / tile) * tile;
}

}  // namespace

TrainingShape::TrainingShape(const mr_trainer_config& c, const VectorKernels& k, int team)
    : n(static_cast<int64_t>(c.rows)), full(c.dimension), width(c.dimension / c.subspaces), spaces(c.subspaces),
      codewords(c.codewords), panels(panel_count(k, c.codewords)), values(int64_t{c.codewords} * c.dimension),
      stored(c.metric == MR_METRIC_COSINE ? MR_VECTOR_F32 : c.element_type),
      row_bytes(static_cast<uint64_t>(c.dimension) * element_size(stored)),
      group(group_rows(n, full, codewords, k.rows, team)), run(std::max<int64_t>(1, kMovedValues / width)),
      runs((codewords + run - 1) / run), added(std::clamp<int64_t>(kAddedValues / width, 16, 4096)),
      tallied(values <= kTalliedValues ? std::clamp<int64_t>(n / (2 * team), 1024, 16384) : 0), blocks((n + kBlockRows - 1) / kBlockRows), threads(team),
      annealed(c.algorithm == MR_ALGORITHM_ANNEALED),
      maintained(annealed && c.maintenance_interval > 0 && (c.merge_distance > 0 || c.split_load > 0)) {}

TrainingMemory::TrainingMemory(const TrainingShape& s, const VectorKernels& k, uint8_t* base)
    : spaces(static_cast<size_t>(s.spaces)), lanes(static_cast<size_t>(s.threads)) {
  Carver all(base);
  const int64_t moving = s.annealed ? s.values : 0, book = s.spaces * s.codewords;
  all.take(&rows, s.n * static_cast<int64_t>(s.row_bytes));
  all.take(&largest, s.full);
  all.take(&scale, s.full);
  all.take(&exponent, s.full);
  for (float** book_values : {&now, &last, &next}) all.take(book_values, s.values);
  for (double** state : {&place, &next_place, &velocity, &next_velocity}) all.take(state, moving);
  all.take(&ids, s.spaces * s.n);
  all.take(&new_ids, s.spaces * s.n);
  all.take(&loads, book);
  all.take(&new_loads, book);
  all.take(&distances, s.spaces * s.n);
  all.take(&block_sums, s.spaces * s.blocks);
  all.take(&spread_most, (s.n + kSpreadRows - 1) / kSpreadRows);
  all.take(&order, s.n);
  all.take(&starts, s.codewords + 1);
  all.take(&cursors, s.codewords);
  all.take(&sums, s.values);
  all.take(&variance_exponent, s.spaces);
  all.take(&farthest, s.maintained ? book : 0);
  all.take(&nearest, s.maintained ? s.codewords : 0);
  all.take(&left, s.maintained ? s.codewords : 0);
  all.take(&touched, s.maintained ? s.codewords : 0);
  all.take(&listed, s.codewords);
  float *panels = nullptr, *halves = nullptr, *centers = nullptr;
  all.take(&panels, s.spaces * s.panels * k.codewords * s.width);
  all.take(&halves, s.spaces * s.panels * k.codewords);
  all.take(&centers, s.full);
  for (TrainingLane& lane : lanes) {
    all.take(&lane.rows, s.stored == MR_VECTOR_F32 ? s.full : s.group * s.full);
    all.take(&lane.search.packed, s.group * s.width);
    all.take(&lane.search.best, s.group);
    all.take(&lane.search.second, s.group);
    all.take(&lane.search.squares, s.group);
    all.take(&lane.search.limits, s.group);
    all.take(&lane.search.id, s.group);
    all.take(&lane.search.row, s.width);
    all.take(&lane.search.scores, SearchScratch::kScoresAtOnce);
    all.take(&lane.distances, s.group);
    all.take(&lane.ids, s.group);
    all.take(&lane.sums, s.width);
    all.take(&lane.tally, s.tallied > 0 ? s.values : 0);
    all.take(&lane.counts, kCountedCodewords);
  }
  bytes = all.bytes;
  if (base == nullptr) return;
  for (int64_t i = 0; i < s.spaces; ++i) {
    Searchable& to = spaces[static_cast<size_t>(i)];
    to.codewords = s.codewords;
    to.width = s.width;
    to.panels = panels + i * s.panels * k.codewords * s.width;
    to.halves = halves + i * s.panels * k.codewords;
    to.center = centers + i * s.width;
  }
}

}  // namespace mr::cpu
