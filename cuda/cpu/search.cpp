#pragma GCC optimize("fp-contract=off")
#include "search.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "millrace/vectors.h"

namespace mr::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kCacheBytes = 256 << 10;  // of panels that tile after tile is scanned against

}  // namespace

void prepare_center(Searchable* s) {
  if (s->metric != MR_METRIC_L2) {
    std::fill(s->center, s->center + s->width, 0.0f);
    return;
  }
  // Any vector will do; the mean of some codewords is near that of all.
  constexpr int64_t kSome = 256;
  const int64_t some = std::min(s->codewords, kSome);
  for (int64_t j = 0; j < s->width; ++j) {
    double sum = 0;
    for (int64_t i = 0; i < some; ++i) sum += static_cast<double>(s->values[i * s->codewords / some * s->width + j]);
    const float mean = static_cast<float>(sum / static_cast<double>(some));
    s->center[j] = std::isfinite(mean) ? mean : 0.0f;
  }
}

float prepare_panels(const VectorKernels& k, const Searchable& s, int64_t begin, int64_t end) {
  const int64_t wide = k.codewords;
  double most = 0;
  for (int64_t c = begin * wide; c < end * wide; ++c) {
    float* const to = s.panels + c / wide * wide * s.width + c % wide;
    if (c >= s.codewords) {
      for (int64_t j = 0; j < s.width; ++j) to[j * wide] = 0;
      s.halves[c] = kInfinity;
      continue;
    }
    double square = 0;
    for (int64_t j = 0; j < s.width; ++j) {
      const float v = s.values[c * s.width + j] - s.center[j];
      to[j * wide] = v;
      square += static_cast<double>(v) * static_cast<double>(v);
    }
    s.halves[c] = s.metric == MR_METRIC_L2 ? static_cast<float>(square / 2) : 0.0f;
    most = square >= most ? square : !(square < most) ? INFINITY : most;  // a NaN makes it infinite
  }
  return static_cast<float>(std::sqrt(most)) * kMarginUp;
}

Search::Search(const VectorKernels& kernels, const Searchable& codewords) : k_(kernels), s_(codewords) {
  const double width = static_cast<double>(s_.width), radius = static_cast<double>(s_.radius), up = static_cast<double>(kMarginUp);
  const double terms = std::min<double>(width, kScoreBlock) + std::ceil(width / kScoreBlock) + 8;
  const double y = terms * 0x1p-24 / (1 - terms * 0x1p-24);
  margin_.radius = s_.radius;
  const bool l2 = s_.metric == MR_METRIC_L2;
  const double m = std::ceil(width / 8) + (l2 ? 6 : 4), g = m * 0x1p-53 / (1 - m * 0x1p-53);
  margin_.slope = static_cast<float>((2 * y * radius + (l2 ? 0 : 2 * g * radius)) * up);
  margin_.base = static_cast<float>(((l2 ? y * radius * radius : 0) + 2 * (2 * width + 2) * 0x1p-149) * up) + kLeastSquare;
  margin_.curve = l2 ? static_cast<float>(g / (1 - g) * up) : 0.0f;
}

double Search::distance(const float* row, uint32_t codeword) const {
  const float* const c = s_.values + static_cast<int64_t>(codeword) * s_.width;
  return s_.metric == MR_METRIC_L2 ? k_.squared(row, c, s_.width) : -k_.dot(row, c, s_.width);
}

// Computes Q of every candidate, in ascending order of ids.
uint32_t Search::settle(const float* row, float threshold, const SearchScratch& scratch, double* least) const {
  const int64_t wide = k_.codewords, all = panel_count(k_, s_.codewords), step = SearchScratch::kScoresAtOnce / wide;
  for (int64_t j = 0; j < s_.width; ++j) scratch.row[j] = row[j] - s_.center[j];
  uint32_t id = 0;
  *least = std::numeric_limits<double>::infinity();
  for (int64_t first = 0; first < all; first += step) {
    const int64_t count = std::min(step, all - first), codewords = std::min(count * wide, s_.codewords - first * wide);
    k_.score(scratch.row, s_.width, s_.panels + first * wide * s_.width, s_.halves + first * wide, count, scratch.scores);
    for (int64_t i = 0; i < codewords; ++i) {
      if (scratch.scores[i] < threshold) continue;
      const uint32_t c = static_cast<uint32_t>(first * wide + i);
      if (const double q = distance(row, c); q < *least) {
        *least = q;
        id = c;
      }
    }
  }
  return id;
}

// Packs a tile, and has the next one fetched while this one is scanned.
void Search::pack(int64_t t, const float* rows, int64_t stride, int64_t count, const SearchScratch& scratch) const {
  const int64_t tile = k_.rows;
  const float* pointers[kMostTileRows];
  for (int64_t i = 0; i < tile; ++i) pointers[i] = rows + std::min(t * tile + i, count - 1) * stride;
  k_.pack(pointers, s_.width, s_.center, scratch.packed + t * tile * s_.width, scratch.squares + t * tile);
  for (int64_t i = (t + 1) * tile; i < std::min((t + 2) * tile, count); ++i)
    for (int64_t j = 0; j < s_.width; j += 16) __builtin_prefetch(rows + i * stride + j);
}

int64_t Search::nearest(const float* rows, int64_t stride, int64_t count, const SearchScratch& scratch, uint32_t* ids,
                        double* distances) const {
  const int64_t tile = k_.rows, wide = k_.codewords, tiles = (count + tile - 1) / tile, all = panel_count(k_, s_.codewords);
  std::fill(scratch.best, scratch.best + tiles * tile, -kInfinity);
  std::fill(scratch.second, scratch.second + tiles * tile, -kInfinity);
  std::fill(scratch.id, scratch.id + tiles * tile, 0);
  const int64_t step = std::max<int64_t>(1, kCacheBytes / (wide * s_.width * 4));
  for (int64_t first = 0; first < all; first += step)
    for (int64_t t = 0; t < tiles; ++t) {
      if (first == 0) pack(t, rows, stride, count, scratch);
      k_.scan(scratch.packed + t * tile * s_.width, s_.width, s_.panels + first * wide * s_.width, s_.halves + first * wide,
              first * wide, std::min(step, all - first), scratch.best + t * tile, scratch.second + t * tile, scratch.id + t * tile);
    }
  // A square is not finite if the row is too large for f32, or has a value that is not finite.
  if (!std::all_of(scratch.squares, scratch.squares + tiles * tile, [](float v) { return v < kInfinity; }))
    for (int64_t i = 0; i < count; ++i)
      if (!k_.finite(MR_VECTOR_F32, rows + i * stride, s_.width)) return -1;
  k_.limit(margin_, scratch.best, scratch.squares, tiles * tile, scratch.limits);
  std::copy(scratch.id, scratch.id + count, ids);
  int64_t settled = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (scratch.second[i] < scratch.limits[i] || s_.codewords == 1) {
      if (distances != nullptr) distances[i] = distance(rows + i * stride, ids[i]);
      continue;
    }
    double q = 0;
    ids[i] = settle(rows + i * stride, scratch.limits[i], scratch, &q);
    if (distances != nullptr) distances[i] = q;
    ++settled;
  }
  return settled;
}

bool Search::neighbours(const float* row, int64_t wanted, const SearchScratch& scratch, float* order, Neighbour* out) const {
  for (int64_t j = 0; j < s_.width; ++j) scratch.row[j] = row[j] - s_.center[j];
  float square = 0;
  for (int64_t block = 0; block < s_.width; block += kScoreBlock) {
    float sum = 0;
    for (int64_t j = block; j < std::min(s_.width, block + kScoreBlock); ++j) sum += scratch.row[j] * scratch.row[j];
    square += sum;
  }
  k_.score(scratch.row, s_.width, s_.panels, s_.halves, panel_count(k_, s_.codewords), scratch.scores);
  std::fill(scratch.squares, scratch.squares + k_.rows, square);
  std::fill(scratch.best, scratch.best + k_.rows, 0.0f);
  k_.limit(margin_, scratch.best, scratch.squares, k_.rows, scratch.limits);
  if (scratch.limits[0] > -kInfinity) {  // else a score may be no number
    std::copy(scratch.scores, scratch.scores + s_.codewords, order);
    std::nth_element(order, order + wanted - 1, order + s_.codewords, [](float a, float b) { return a > b; });
    std::fill(scratch.best, scratch.best + k_.rows, order[wanted - 1]);
    k_.limit(margin_, scratch.best, scratch.squares, k_.rows, scratch.limits);
  }
  const float limit = scratch.limits[0];
  int64_t count = 0;
  for (int64_t c = 0; c < s_.codewords; ++c)
    if (!(scratch.scores[c] < limit)) out[count++] = {distance(row, static_cast<uint32_t>(c)), static_cast<uint32_t>(c)};
  const auto before = [](const Neighbour& a, const Neighbour& b) {
    // A codeword that a fault made no number is behind all others.
    const bool p = std::isnan(a.distance), q = std::isnan(b.distance);
    if (p != q) return q;
    if (!p && a.distance != b.distance) return a.distance < b.distance;
    return a.id < b.id;
  };
  std::partial_sort(out, out + wanted, out + count, before);
  return count > wanted;
}

// D_c = |x'|^2 - 2 a_c, so that a codeword with squared below the limit has a score of at least (|x'|^2 - limit) / 2 - e, but for
// the roundings of squared and of |x'|^2, which a share of 2^-10 is far above.
float Search::within_score(const float* row, double limit, const SearchScratch& scratch) const {
  double square = 0;
  for (int64_t j = 0; j < s_.width; ++j) {
    scratch.row[j] = row[j] - s_.center[j];
    square += static_cast<double>(scratch.row[j]) * static_cast<double>(scratch.row[j]);
  }
  const double length = std::sqrt(square) * static_cast<double>(kMarginUp);
  if (!(length + static_cast<double>(s_.radius) < static_cast<double>(kMostLength))) return -kInfinity;
  // The rounding of x' moves |x'|^2, and the binary64 sum its own, by less than 2^-20 of it.
  const double margin = static_cast<double>(margin_.slope) * length + static_cast<double>(margin_.base) + square * 0x1p-20;
  const double score = (square - limit * (1 + 0x1p-10)) / 2 - margin;
  const float least = static_cast<float>(std::max(score, -0x1p126));
  return least - std::fabs(least) * 0x1p-22f - 0x1p-149f;
}

}  // namespace mr::cpu
