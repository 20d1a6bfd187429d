// Vectors of 16 lanes as the compiler's own vector types: on each path they become the widest registers there are. To be
// included inside the anonymous namespace of one path's file, after its target is chosen.

#pragma GCC diagnostic ignored "-Wpsabi" // vectors are passed between inlined functions of one file only

typedef uint8_t u8x64 __attribute__((vector_size(64)));
typedef uint16_t u16x32 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef float f32x8 __attribute__((vector_size(32)));

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

// Sum of the lanes as a balanced tree: lane i with i+8, then i+4, i+2, i+1.
template <class V, class Half>
MR_INLINE auto tree_sum(const V& v) {
  Half h = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) + __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  h += __builtin_shufflevector(h, h, 4, 5, 6, 7, 0, 1, 2, 3);
  h += __builtin_shufflevector(h, h, 2, 3, 0, 1, 6, 7, 4, 5);
  h += __builtin_shufflevector(h, h, 1, 0, 3, 2, 5, 4, 7, 6);
  return h[0];
}

MR_INLINE int32_t lane_max(const i32x16& v) {
  i32x8 a = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7), b = __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  a = a > b ? a : b;
  b = __builtin_shufflevector(a, a, 4, 5, 6, 7, 0, 1, 2, 3);
  a = a > b ? a : b;
  b = __builtin_shufflevector(a, a, 2, 3, 0, 1, 6, 7, 4, 5);
  a = a > b ? a : b;
  b = __builtin_shufflevector(a, a, 1, 0, 3, 2, 5, 4, 7, 6);
  a = a > b ? a : b;
  return a[0];
}
