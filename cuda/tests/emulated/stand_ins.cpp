// Simple replacements of the certified search and the device's sorts, put on streams like the originals.
#include <algorithm>
#include <vector>

#include "cpu/vector_rules.h"
#include "kernels/vectors/search.h"
#include "kernels/vectors/sort.h"

namespace mr::cuda {
namespace {

template <bool l2>
double distance(const float* x, const float* c, int64_t n) {
  double partial[8] = {};
  const auto add = [&](int64_t j, int64_t k) {
    const double a = static_cast<double>(x[j + k]), b = static_cast<double>(c[j + k]);
    partial[k] += l2 ? (a - b) * (a - b) : a * b;
  };
  int64_t j = 0;
  for (; j + 8 <= n; j += 8)
    for (int64_t k = 0; k < 8; ++k) add(j, k);
  for (int64_t k = 0; j + k < n; ++k) add(j, k);
  return l2 ? fold_eight(partial) : -fold_eight(partial);
}

}  // namespace

uint64_t Search::bytes(const SearchShape&, int) { return 256; }
int64_t Search::tile_rows(const SearchShape&, int) { return 320; }

// The memory stores the prepared codewords.
Search::Search(const SearchShape& shape, int device, void* memory)
    : shape_(shape), device_(device), memory_(static_cast<char*>(memory)) {}

void Search::prepare(const float* codewords, const Stream&) {
  (void)emulated::put([=, at = memory_] { memcpy(at, &codewords, sizeof codewords); });
}

void Search::nearest(const void* rows, int64_t count, uint32_t* ids, double* distances, int64_t stride, uint64_t* recomputed,
                     const Stream&) {
  (void)emulated::put([=, s = shape_, at = memory_] {
    const float* book;
    memcpy(&book, at, sizeof book);
    std::vector<float> x(static_cast<size_t>(s.width));
    for (int64_t i = 0; i < count; ++i)
      for (int64_t space = 0; space < s.spaces; ++space) {
        for (int64_t j = 0; j < s.width; ++j)
          x[static_cast<size_t>(j)] = decode_element(s.row_type, rows, (i * s.spaces + space) * s.width + j);
        double least = 0;
        for (int64_t c = 0; c < s.codewords; ++c) {
          const float* const word = book + (space * s.codewords + c) * s.width;
          const double q = s.metric == MR_METRIC_L2 ? distance<true>(x.data(), word, s.width) : distance<false>(x.data(), word, s.width);
          if (c != 0 && !(q < least)) continue;
          least = q;
          ids[space * stride + i] = static_cast<uint32_t>(c);
        }
        if (distances != nullptr) distances[space * stride + i] = least;
      }
    *recomputed += 1;
  });
}

int bits_of(uint64_t most) { return most == 0 ? 1 : 64 - leading_zeros(most); }

cudaError_t sort_bytes(int64_t, uint64_t* bytes) {
  *bytes = 256;
  return cudaSuccess;
}
cudaError_t sort_pair_bytes(int64_t, uint64_t* bytes) { return sort_bytes(0, bytes); }

cudaError_t launch_count_up(uint32_t* order, int64_t count, const Stream&) {
  return emulated::put([=] {
    for (int64_t i = 0; i < count; ++i) order[i] = static_cast<uint32_t>(i);
  });
}

cudaError_t launch_distance_keys(const double* v, uint64_t* keys, int64_t count, bool descending, const Stream&) {
  return emulated::put([=] {
    for (int64_t i = 0; i < count; ++i) keys[i] = descending ? ~order_of(v[i]) : order_of(v[i]);
  });
}

namespace {

// Stable, by the low bits alone. Like the device's, it may or may not preserve its sources.
template <class Key>
void sort_rows(const Key* keys, Key* sorted_keys, const uint32_t* rows, uint32_t* order, int64_t count, int bits) {
  const Key mask = bits == static_cast<int>(8 * sizeof(Key)) ? ~Key{0} : static_cast<Key>((Key{1} << bits) - 1);
  std::vector<int64_t> places(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) places[static_cast<size_t>(i)] = i;
  std::stable_sort(places.begin(), places.end(), [&](int64_t a, int64_t b) { return (keys[a] & mask) < (keys[b] & mask); });
  for (int64_t i = 0; i < count; ++i) {
    sorted_keys[i] = keys[places[static_cast<size_t>(i)]];
    order[i] = rows[places[static_cast<size_t>(i)]];
  }
}

template <class Key>
cudaError_t sort_pair(SortPair<Key>* pair, int64_t count, int bits) {
  Key *const keys = pair->sorted_keys(), *const to = pair->keys[1 - pair->keys_current];
  uint32_t *const rows = pair->sorted_order(), *const order = pair->order[1 - pair->order_current];
  pair->keys_current ^= 1;
  pair->order_current ^= 1;
  return emulated::put([=] {
    sort_rows(keys, to, rows, order, count, bits);
    std::fill(keys, keys + count, Key{7});
    std::fill(rows, rows + count, 0u);
  });
}

}  // namespace

cudaError_t launch_sort(void*, uint64_t, const uint32_t* keys, uint32_t* sorted_keys, const uint32_t* identity, uint32_t* order,
                        int64_t count, int bits, const Stream&) {
  return emulated::put([=] { sort_rows(keys, sorted_keys, identity, order, count, bits); });
}

cudaError_t launch_sort_pair(void*, uint64_t, SortPair<uint64_t>* pair, int64_t count, const Stream&) {
  return sort_pair(pair, count, 64);
}

cudaError_t launch_sort_pair(void*, uint64_t, SortPair<uint32_t>* pair, int64_t count, int bits, const Stream&) {
  return sort_pair(pair, count, bits);
}

}  // namespace mr::cuda
