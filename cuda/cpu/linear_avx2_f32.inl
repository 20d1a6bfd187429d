// fp32 products of F32, F16 and BF16 weights: both halves of a panel by up to six tokens, twelve chains of multiply-adds. A wider tile is
// taken in two parts.

constexpr int f32_part = 6; // tokens

// Weights of 8 rows of input k; of BF16 a cell holds inputs k and k + 1, k even, and `odd` takes the second.
template <int32_t type>
MR_INLINE __m256 weights_at(const uint8_t* w, int64_t k, int half, bool odd) {
  if constexpr (type == type_f32) return _mm256_load_ps(reinterpret_cast<const float*>(w + (k + odd) * 64 + half * 32));
  if constexpr (type == type_f16) return halves_at(w + (k + odd) * 32 + half * 16);
  const __m256i pair = _mm256_load_si256(reinterpret_cast<const __m256i*>(w + k / 2 * 64 + half * 32));
  if (!odd) return _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
  return _mm256_castsi256_ps(_mm256_and_si256(pair, _mm256_set1_epi32(int32_t(0xffff0000))));
}

// Input k, or k + 1, of C tokens.
template <int32_t type, int C>
MR_INLINE void add_input(const uint8_t* w, const uint8_t* x, int64_t k, bool odd, __m256 (&run)[2][C]) {
  const __m256 low = weights_at<type>(w, k, 0, odd), high = weights_at<type>(w, k, 1, odd);
#pragma GCC unroll 6
  for (int c = 0; c < C; ++c) {
    const __m256 v = broadcast_f32(x + c * 4);
    run[0][c] = _mm256_fmadd_ps(low, v, run[0][c]);
    run[1][c] = _mm256_fmadd_ps(high, v, run[1][c]);
  }
}

// Tokens first .. first + C of a tile of `width`, and panel p. `fetch` asks with each pair of inputs.
template <int32_t type, int C>
__attribute__((noinline)) Fetch dot_f32_part(const Dot& a, int p, int64_t first, int64_t width, Fetch fetch) {
  __m256 run[2][C];
#pragma GCC unroll 6
  for (int c = 0; c < C; ++c) run[0][c] = run[1][c] = _mm256_setzero_ps();
  const uint8_t *x = a.act + first * 4, *w = a.w[p];
  const int64_t n = a.n, step = width * 4;
  for (int64_t k = 0; k + 1 < n; k += 2, x += 2 * step) {
    fetch.ask();
    add_input<type, C>(w, x, k, false, run);
    add_input<type, C>(w, x + step, k, true, run);
  }
  if (n % 2 != 0) add_input<type, C>(w, x, n - 1, false, run);
#pragma GCC unroll 6
  for (int c = 0; c < C; ++c) {
    for (int half = 0; half < 2; ++half) {
      store_half(a, p, first + c, half, a.first ? run[half][c] : _mm256_add_ps(load_half(a, p, first + c, half), run[half][c]));
    }
  }
  return fetch;
}

template <int32_t type>
Fetch dot_f32_tokens(const Dot& a, int p, int64_t first, int64_t count, int64_t width, Fetch fetch) {
  switch (count) {
    case 1: return dot_f32_part<type, 1>(a, p, first, width, fetch);
    case 2: return dot_f32_part<type, 2>(a, p, first, width, fetch);
    case 3: return dot_f32_part<type, 3>(a, p, first, width, fetch);
    case 4: return dot_f32_part<type, 4>(a, p, first, width, fetch);
    case 5: return dot_f32_part<type, 5>(a, p, first, width, fetch);
    default: return dot_f32_part<type, 6>(a, p, first, width, fetch);
  }
}

template <int32_t type>
void dot_f32_type(int panels, int64_t width, const Dot& a) {
  const int64_t part = width > f32_part ? (width + 1) / 2 : width, visits = panels * max_of(1, a.n / 2);
  Fetch fetch{a.fetch, (a.fetch_lines + visits - 1) / visits};
  for (int p = 0; p < panels && a.rows[p] > 0; ++p) {
    fetch = dot_f32_tokens<type>(a, p, 0, part, width, fetch);
    if (part < width) dot_f32_tokens<type>(a, p, part, width - part, width, Fetch{nullptr, 0});
  }
}

MR_INLINE void dot_f32(int32_t type, int panels, int64_t width, const Dot& a) {
  switch (type) {
    case type_f32: return dot_f32_type<type_f32>(panels, width, a);
    case type_f16: return dot_f32_type<type_f16>(panels, width, a);
    case type_bf16: return dot_f32_type<type_bf16>(panels, width, a);
  }
}
