// search: certified assignment, as docs/decisions/029-vector-numerics.md has it: ids are those of the binary64 sums, whatever the
// fast pass in f32 rounds to.
//
// The fast score of a row x and a codeword c is s = x'.c' - |c'|^2 / 2, with x' and c' less a fixed vector (L2: about the
// codewords' mean; inner products: 0, and without |c'|^2). It stands for the same with real numbers, a. Every term of a carries
// into s at most: the rounding of x' and of c' (twice where squared), of the product where it is not fused, and of the half in
// binary64 and to f32: less than 6; one for each addition in its block, and one for each block. With u = 2^-24,
// t = min(width, 256) + ceil(width / 256) + 8 and y = t u / (1 - t u):
//     |s - a| <= y (|x'| R + R^2 / 2) + (2 width + 2) 2^-149,    R the largest |c'|.
// The last term is what products below the normal numbers lose, one rounding each, carried along. That is e.
#pragma once

#include <cstdint>

#include "vector_kernels.h"

namespace mr::cpu {

// One subspace's codewords, prepared. The caller owns the arrays.
struct Searchable {
  int32_t metric = 0;           // MR_METRIC_*
  int64_t codewords = 0, width = 0;
  const float* values = nullptr;  // (codewords, width): exact
  float* panels = nullptr;      // (panels, width, kernel codewords): less center
  float* halves = nullptr;      // (panels * kernel codewords): |c'|^2 / 2, infinite behind the last codeword
  float* center = nullptr;      // (width)
  float radius = 0;             // at least the largest |c'|; infinite where one is not finite
};

inline int64_t panel_count(const VectorKernels& k, int64_t codewords) { return (codewords + k.codewords - 1) / k.codewords; }

// Chooses the center from the values.
void prepare_center(Searchable* s);
// Packs panels begin .. end - 1 and returns the largest |c'| of theirs, rounded up.
float prepare_panels(const VectorKernels& k, const Searchable& s, int64_t begin, int64_t end);

// What one thread needs to search with.
struct SearchScratch {
  float* packed;                        // (tiles * kernel rows * width)
  float *best, *second, *squares, *limits;  // (tiles * kernel rows)
  int32_t* id;                          // (tiles * kernel rows)
  float* row;                           // (width)
  float* scores;                        // kScoresAtOnce, or for neighbours one for each codeword and its panel's others
  static constexpr int64_t kScoresAtOnce = 1024;
};

class Search {
 public:
  Search(const VectorKernels& kernels, const Searchable& codewords);

  // The ids of `count` rows, `stride` floats apart, and if `distances` is not null the Q of each. Returns how many of them had
  // more than one candidate; -1 where an element is not finite. count is at most the scratch's tiles * kernel rows.
  int64_t nearest(const float* rows, int64_t stride, int64_t count, const SearchScratch& scratch, uint32_t* ids,
                  double* distances) const;

  struct Neighbour {
    double distance;
    uint32_t id;
  };
  // The `wanted` first codewords of a row in the order (Q, id) into out, which has room for all of them. True: float64 decided.
  bool neighbours(const float* row, int64_t wanted, const SearchScratch& scratch, float* order, Neighbour* out) const;

  // Calls found(id), in ascending order, for every codeword whose `squared` to the row may be below `limit`. L2.
  template <class F>
  void within(const float* row, double limit, const SearchScratch& scratch, F found) const {
    const float least = within_score(row, limit, scratch);
    const int64_t wide = k_.codewords, all = panel_count(k_, s_.codewords), step = SearchScratch::kScoresAtOnce / wide;
    for (int64_t first = 0; first < all; first += step) {
      const int64_t count = all - first < step ? all - first : step;
      k_.score(scratch.row, s_.width, s_.panels + first * wide * s_.width, s_.halves + first * wide, count, scratch.scores);
      for (int64_t i = 0; i < count * wide && first * wide + i < s_.codewords; ++i)
        if (!(scratch.scores[i] < least)) found(static_cast<uint32_t>(first * wide + i));
    }
  }

  const Margin& margin() const { return margin_; }

  // Q.
  double distance(const float* row, uint32_t codeword) const;

 private:
  void pack(int64_t t, const float* rows, int64_t stride, int64_t count, const SearchScratch& scratch) const;
  float within_score(const float* row, double limit, const SearchScratch& scratch) const;
  uint32_t settle(const float* row, float threshold, const SearchScratch& scratch, double* distance) const;

  const VectorKernels& k_;
  const Searchable& s_;
  Margin margin_;
};

}  // namespace mr::cpu
