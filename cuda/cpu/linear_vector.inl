// Vectors as the compiler's own vector types. To be included inside the anonymous namespace of one path's file, after its target is chosen
// and after `lanes` of four bytes are said: as many as one of its registers holds. A wider vector would be kept in memory.

#pragma GCC diagnostic ignored "-Wpsabi" // vectors are passed between inlined functions of one file only

constexpr int vector_bytes = 4 * lanes;
constexpr int panel_vectors = int(panel_rows) / lanes; // of one number a row

typedef uint8_t u8v __attribute__((vector_size(vector_bytes)));
typedef uint16_t u16v __attribute__((vector_size(vector_bytes)));
typedef int32_t i32v __attribute__((vector_size(vector_bytes)));
typedef float f32v __attribute__((vector_size(vector_bytes)));

#define MR_INLINE static inline __attribute__((always_inline))

template <class V>
MR_INLINE V load_as(const void* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

template <class V>
MR_INLINE void store_as(void* p, const V& v) {
  __builtin_memcpy(p, &v, sizeof v);
}

MR_INLINE int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
[[maybe_unused]] MR_INLINE int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

template <int distance, class V, int... lane>
MR_INLINE V exchanged(const V& v, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(v, v, (lane ^ distance)...);
}

// Folds n vectors into one value as a balanced tree: of all their lanes, lane i with the one that lies half of them behind it.
template <int n, class V, class Both>
MR_INLINE auto fold(const V (&vectors)[n], Both both) {
  V v[n];
  for (int i = 0; i < n; ++i) v[i] = vectors[i];
#pragma GCC unroll 4
  for (int left = n / 2; left > 0; left /= 2) {
#pragma GCC unroll 4
    for (int i = 0; i < left; ++i) v[i] = both(v[i], v[i + left]);
  }
  constexpr std::make_integer_sequence<int, lanes> all{};
  if constexpr (lanes > 8) v[0] = both(v[0], exchanged<8>(v[0], all));
  if constexpr (lanes > 4) v[0] = both(v[0], exchanged<4>(v[0], all));
  v[0] = both(v[0], exchanged<2>(v[0], all));
  return both(v[0], exchanged<1>(v[0], all))[0];
}
