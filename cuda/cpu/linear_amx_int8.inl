// A tile of up to 16 tokens meets two panels over a group of inputs: the matrix unit leaves an exact int32 sum for every scale of a
// row in a scratch that the first-level cache holds, and the vector units add those to fp32 sums, block after block. They take
// turns: interleaved they were measured to take a half longer than one after the other.

constexpr int64_t amx_tile = 16;             // tokens
constexpr int64_t amx_least = 8;             // tokens; for fewer a tile, which takes as long, is more than VNNI needs
constexpr int amx_panels = 2;                // that share a tile's activations
constexpr int amx_rows = 8;                  // tokens whose fp32 sums are in registers at once
constexpr int amx_parts = 8;                 // scales of a row whose sums wait in the scratch
constexpr int64_t amx_band = 192;            // tokens whose fp32 sums wait at once; whole tiles
constexpr int64_t amx_sums = 1024;           // bytes of 16 x 16 sums
constexpr int64_t amx_fetch_ahead = 32 << 10; // bytes between a weight that is asked for and one that is read, where tokens are few

// Activations of a tile of w tokens over a group lie block after block in the w * 64 bytes of its ActBlocks: w times 32 int8, w
// scales, w sums, w times what sums of unsigned weights start from, and twice w times bias32, of inputs 0..15 and of 16..31. A kernel
// reads eight of each whatever w is, which stays in the block.
static_assert(amx_least >= 8, "no tile is narrower, and of nine tokens the last eight of sixteen begin at 48 * 9 + 32");
static_assert(48 * 9 + 32 + 4 * 8 <= 64 * 9 && 48 * 8 + 4 * 8 <= 64 * 8, "a block holds what is read of it");

MR_INLINE uint8_t* scales_of(uint8_t* block, int64_t w) { return block + 32 * w; }
MR_INLINE uint8_t* sums_of(uint8_t* block, int64_t w) { return block + 36 * w; }
MR_INLINE uint8_t* biases_of(uint8_t* block, int64_t w) { return block + 40 * w; }
MR_INLINE uint8_t* half_sums_of(uint8_t* block, int64_t w, int64_t half) { return block + (44 + 4 * half) * w; }

void prepare_tiles(const float* x, int64_t ldx, int64_t in, int64_t tokens, int64_t t0, int64_t t1, uint8_t* act) {
  if (tokens < amx_least) return kernels_avx512vnni[1].prepare(x, ldx, in, tokens, t0, t1, act);
  for (int64_t t = t0; t < t1; ++t) {
    const Tile tile = tile_of(amx_tile, tokens, t);
    const int64_t w = tile.width, place = t - tile.first;
    for (int64_t k = 0; k < in; k += quant_group) {
      const int64_t n = min_of(quant_group, in - k) / 32;
      uint8_t* out = act + (k / 32 * tokens + tile.first * n) * 64;
      for (int64_t b = 0; b < n; ++b, out += w * 64) {
        ActBlock block;
        quantize_block(x + t * ldx + k + 32 * b, &block);
        __builtin_memcpy(out + 32 * place, block.q, 32);
        __builtin_memcpy(scales_of(out, w) + 4 * place, &block.d, 4);
        __builtin_memcpy(sums_of(out, w) + 4 * place, &block.s, 4);
        __builtin_memcpy(biases_of(out, w) + 4 * place, &block.bias128, 4);
        for (int half = 0; half < 2; ++half) __builtin_memcpy(half_sums_of(out, w, half) + 4 * place, &block.bias32[half], 4);
      }
    }
  }
}

// Shapes of this thread's tiles, given back when a product ends: a thread that holds tiles has 8 KiB more to be switched with.
class Tiles {
 public:
  // Tiles 0 to 3 are sums of `width` tokens, 4 and 5 their inputs, 6 and 7 weights. What they held is gone.
  MR_INLINE void shape(Tiles* self, int64_t width, int64_t inputs) {
    if (self->width_ == width) return;
    self->width_ = width;
    Config c;
    for (int i = 0; i < 8; ++i) {
      c.rows[i] = uint8_t(i < 6 ? width : inputs / 4);
      c.row_bytes[i] = uint16_t(i == 4 || i == 5 ? inputs : 64);
    }
    before_tiles_read(&c);
    _tile_loadconfig(&c);
  }
  ~Tiles() { _tile_release(); }

 private:
  struct alignas(64) Config {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  };
  int64_t width_ = 0;
};

struct AmxDot {
  uint8_t* act;                   // of the first block
  int64_t width;                  // tokens, 3 to 16
  int64_t parts;                  // scales of a row, at most amx_parts
  const uint8_t* w[amx_panels];   // weights as signed bytes
  const float* d[amx_panels];     // [part][16]
  const float* m[amx_panels];     // [part][16]
  float* sums[amx_panels];        // of the tile's first token, 16 tokens
  bool first, last;               // sums hold nothing yet; results go to y
  float* y[amx_panels];           // of the tile's first token
  int64_t ldy;
  int64_t rows[amx_panels];       // of y in each panel, 0 to 16
  uint8_t* dots;                  // [part][panel][16 tokens][16 rows] int32
  const uint8_t* fetch;           // weights wanted soon, asked for in passing
  int64_t fetch_lines;            // at each of AmxKernel::steps
};

// Asks for weights, a few lines at a time: all at once they would fill the queue that everything else comes through.
struct AmxFetch {
  const uint8_t* at;
  int64_t lines;
  MR_INLINE void step(AmxFetch& f) {
    for (int64_t i = 0; i < f.lines; ++i, f.at += 64) _mm_prefetch(reinterpret_cast<const char*>(f.at), _MM_HINT_T1);
  }
};

// A product of tiles; their names are part of an instruction's text and cannot be parameters of a template.
#define MR_TILE_DOT(c, a, b)                          \
  do {                                                \
    if constexpr (in_place) _tile_dpbsud(c, a, b);    \
    else _tile_dpbssd(c, a, b);                       \
  } while (0)

// in_place: weights are read where they lie, unsigned, and what was added to them is taken out of each sum again. Few tokens do
// not repay a signed copy.
template <Mode mode, bool in_place>
struct AmxKernel {
  static constexpr int parts = parts_of(mode), inputs = 32 / parts; // of a block; of a part

  MR_INLINE uint8_t* block_of(const AmxDot& a, int64_t k) { return a.act + k / parts * a.width * 64; }

  // int32 sums of every part. A tile is stored two products after it was begun, when it is ready.
  MR_INLINE void multiply(const AmxDot& a, AmxFetch& fetch) {
    before_tiles_read(a.act);
    uint8_t* to = a.dots;
    const uint8_t *w0 = a.w[0], *w1 = a.w[1];
    for (int64_t k = 0; k < a.parts; k += 2, w0 += 2 * inputs * 16, w1 += 2 * inputs * 16, to += 4 * amx_sums) {
      _tile_loadd(4, block_of(a, k) + k % parts * inputs, 32);
      _tile_loadd(6, w0, 64);
      _tile_zero(0);
      MR_TILE_DOT(0, 4, 6);
      if (k != 0) _tile_stored(2, to - 2 * amx_sums, 64);
      AmxFetch::step(fetch);
      _tile_loadd(7, w1, 64);
      _tile_zero(1);
      MR_TILE_DOT(1, 4, 7);
      if (k != 0) _tile_stored(3, to - amx_sums, 64);
      AmxFetch::step(fetch);
      if (k + 1 < a.parts) {
        _tile_loadd(5, block_of(a, k + 1) + (k + 1) % parts * inputs, 32);
        _tile_loadd(6, w0 + inputs * 16, 64);
        _tile_zero(2);
        MR_TILE_DOT(2, 5, 6);
        _tile_stored(0, to, 64);
        AmxFetch::step(fetch);
        _tile_loadd(7, w1 + inputs * 16, 64);
        _tile_zero(3);
        MR_TILE_DOT(3, 5, 7);
        _tile_stored(1, to + amx_sums, 64);
        AmxFetch::step(fetch);
      } else {
        _tile_stored(0, to, 64);
        _tile_stored(1, to + amx_sums, 64);
      }
    }
    if (a.parts % 2 == 0) {
      _tile_stored(2, to - 2 * amx_sums, 64);
      _tile_stored(3, to - amx_sums, 64);
    }
  }

  // Adds the sums of eight tokens from token t on; of those beyond the tile's width nothing is kept.
  MR_INLINE void add(const AmxDot& a, int64_t t, AmxFetch& fetch) {
    __m512 sum[amx_panels][amx_rows];
#pragma GCC unroll 2
    for (int p = 0; p < amx_panels; ++p) {
      const float* from = a.sums[p] + t * panel_rows;
#pragma GCC unroll 8
      for (int c = 0; c < amx_rows; ++c) sum[p][c] = a.first ? _mm512_setzero_ps() : _mm512_load_ps(from + c * panel_rows);
    }
    const uint8_t* dots = a.dots + t * 64;
    const float *d0 = a.d[0], *d1 = a.d[1], *m0 = a.m[0], *m1 = a.m[1];
    for (int64_t k = 0; k < a.parts; ++k, dots += amx_panels * amx_sums) {
      AmxFetch::step(fetch);
      uint8_t* block = block_of(a, k);
      const uint8_t *d = scales_of(block, a.width) + t * 4, *s = sums_of(block, a.width) + t * 4;
      const __m512 scale0 = _mm512_load_ps(d0 + k * panel_rows), scale1 = _mm512_load_ps(d1 + k * panel_rows);
#pragma GCC unroll 8
      for (int c = 0; c < amx_rows; ++c) {
        const __m512 x = _mm512_set1_ps(load_as<float>(d + 4 * c));
        __m512i dot0 = _mm512_load_si512(dots + c * 64), dot1 = _mm512_load_si512(dots + amx_sums + c * 64);
        if constexpr (in_place) {
          const __m512i bias = _mm512_set1_epi32(load_as<int32_t>(biases_of(block, a.width) + (t + c) * 4));
          dot0 = _mm512_add_epi32(dot0, bias);
          dot1 = _mm512_add_epi32(dot1, bias);
        }
        sum[0][c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot0), _mm512_mul_ps(scale0, x), sum[0][c]);
        sum[1][c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot1), _mm512_mul_ps(scale1, x), sum[1][c]);
        if (c == 3) AmxFetch::step(fetch);
      }
      if constexpr (mode == Mode::halves_mins) {
        const uint8_t* halves = half_sums_of(block, a.width, k % parts) + t * 4;
        const __m512 least0 = _mm512_load_ps(m0 + k * panel_rows), least1 = _mm512_load_ps(m1 + k * panel_rows);
#pragma GCC unroll 8
        for (int c = 0; c < amx_rows; ++c) {
          const __m512 x = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_set1_epi32(load_as<int32_t>(halves + 4 * c))),
                                         _mm512_set1_ps(load_as<float>(d + 4 * c)));
          sum[0][c] = _mm512_fmadd_ps(least0, x, sum[0][c]);
          sum[1][c] = _mm512_fmadd_ps(least1, x, sum[1][c]);
        }
      }
      if constexpr (mode == Mode::mins) {
        const __m512 least0 = _mm512_load_ps(m0 + k * panel_rows), least1 = _mm512_load_ps(m1 + k * panel_rows);
#pragma GCC unroll 8
        for (int c = 0; c < amx_rows; ++c) {
          const __m512 x = _mm512_set1_ps(load_as<float>(s + 4 * c));
          sum[0][c] = _mm512_fmadd_ps(least0, x, sum[0][c]);
          sum[1][c] = _mm512_fmadd_ps(least1, x, sum[1][c]);
        }
      }
    }
#pragma GCC unroll 2
    for (int p = 0; p < amx_panels; ++p) {
      const __mmask16 mask = __mmask16((1u << a.rows[p]) - 1);
      float* to = a.sums[p] + t * panel_rows;
#pragma GCC unroll 8
      for (int c = 0; c < amx_rows; ++c) {
        if (!a.last) _mm512_store_ps(to + c * panel_rows, sum[p][c]);
        else if (t + c < a.width) _mm512_mask_storeu_ps(a.y[p] + (t + c) * a.ldy, mask, sum[p][c]);
      }
    }
  }

  // Weights are asked for so often.
  MR_INLINE int64_t steps(int64_t width, int64_t parts) { return 2 * parts * (width > amx_rows ? 3 : 2); }

  // Gives what is to be asked for next.
  __attribute__((noinline)) static const uint8_t* run(const AmxDot& a) {
    AmxFetch fetch{a.fetch, a.fetch_lines};
    multiply(a, fetch);
    add(a, 0, fetch);
    if (a.width > amx_rows) add(a, amx_rows, fetch);
    return fetch.at;
  }
};

// What was added to the signed quants of a type to store them unsigned, modulo 256.
MR_INLINE uint8_t bias_of(int32_t type) {
  switch (type) {
    case type_q8_0: case type_iq4_nl: case type_iq4_xs: case type_iq3_xxs: case type_iq3_s: case type_iq2_xxs: return 128;
    case type_q4_0: return 8;
    case type_q5_0: case type_mxfp4: return 16;
    case type_q3_k: case type_q6_k: case type_nvfp4: return 32;
    case type_iq2_xs: case type_iq2_s: return 64;
    default: return 0;
  }
}

// A group's quants as signed bytes in e.w, its scales and mins.
MR_INLINE void expand_signed(int32_t type, const uint8_t* group, int64_t n, Expanded& e) {
  const uint8_t* from = expand(type, group, n, e);
  const uint8_t bias = bias_of(type);
  if (bias == 0) return;
  for (int64_t i = 0; i < n * 512; i += vector_bytes) store_as(e.w + i, load_as<u8v>(from + i) - bias);
}

template <Mode mode, bool in_place>
void multiply_mode(const Matrix& m, uint8_t* act, int64_t tokens, float* y, int64_t ldy, int64_t panel0, int64_t panel1,
                   const uint8_t* then) {
  using Kernel = AmxKernel<mode, in_place>;
  constexpr int wide = amx_panels, parts = Kernel::parts;
  const Layout layout(*find_format(m.type), m);
  // Sixteen tokens a tile, whatever its width: what is added beyond that is thrown away. Of a band the last two may be thin.
  alignas(64) float sums[stack_panels][amx_band + 2 * amx_tile][panel_rows];
  alignas(64) uint8_t dots[amx_parts * amx_panels * amx_sums];
  alignas(64) Expanded expanded[wide];
  int64_t widths[amx_band / amx_tile + 2];
  Tiles shapes;
  AmxDot a = {};
  a.ldy = ldy;
  a.dots = dots;
  for (int64_t t0 = 0; t0 < tokens;) {
    int64_t t1 = t0, tiles = 0;
    for (; t1 < tokens && t1 < t0 + amx_band; ++tiles) t1 += widths[tiles] = tile_of(amx_tile, tokens, t1).width;
    // Few tokens wait for memory, which gives most where it is read in one stream: whole stacks, pair by pair of each group.
    const int64_t step = tiles == 1 ? stack_panels : wide;
    const int64_t lines = wide * layout.full_bytes / 64;
    Upcoming upcoming{layout, panel0, 0, panel1, step, then};
    for (int64_t at = 0; at < (tiles == 1 ? amx_fetch_ahead : 1); at += step * layout.full_bytes) upcoming.advance();
    for (int64_t panel = panel0; panel < panel1; panel += step) {
      const int64_t stack = min_of(panel + step, panel1);
      for (int64_t g = 0; g < layout.groups; ++g) {
        const int64_t blocks = layout.inputs(g) / 32;
        for (int64_t pair = panel; pair < stack; pair += wide) {
          const int64_t count = min_of(wide, panel1 - pair);
          for (int64_t i = 0; i < count; ++i) {
            if constexpr (in_place) halves(layout.at(pair + i, g) + blocks * 512, blocks, expanded[i].d);
            else expand_signed(m.type, layout.at(pair + i, g), blocks, expanded[i]);
          }
          const uint8_t* fetch = upcoming.at() + (pair - panel) * layout.full_bytes;
          int64_t t = t0;
          for (int64_t tile = 0; tile < tiles; ++tile) {
            a.width = widths[tile];
            Tiles::shape(&shapes, a.width, Kernel::inputs);
            const int64_t turns = Kernel::steps(a.width, blocks * parts) * tiles;
            a.fetch_lines = (lines + turns - 1) / turns;
            for (int64_t part = 0; part < blocks * parts; part += amx_parts) {
              a.act = act + (g * (quant_group / 32) * tokens + t * blocks + part / parts * a.width) * 64;
              a.parts = min_of(amx_parts, blocks * parts - part);
              for (int64_t i = 0; i < wide; ++i) { // where one panel is left it is multiplied twice
                const int64_t from = min_of(i, count - 1);
                a.w[i] = (in_place ? layout.at(pair + from, g) : expanded[from].w) + part * Kernel::inputs * 16;
                a.d[i] = expanded[from].d[part];
                a.m[i] = mode == Mode::mins || mode == Mode::halves_mins ? expanded[from].m[part] : nullptr;
                a.sums[i] = sums[pair - panel + i][tile * amx_tile];
                a.y[i] = y + t * ldy + (pair + from) * panel_rows;
                a.rows[i] = i < count ? min_of(panel_rows, m.out - (pair + i) * panel_rows) : 0;
              }
              a.first = g == 0 && part == 0;
              a.last = g + 1 == layout.groups && part + a.parts == blocks * parts;
              a.fetch = fetch;
              fetch = Kernel::run(a);
            }
            t += a.width;
          }
        }
        upcoming.advance();
      }
    }
    t0 = t1;
  }
}

void multiply_tiles(const Matrix& m, const uint8_t* act, int64_t tokens, float* y, int64_t ldy, int64_t panel0, int64_t panel1,
                    const uint8_t* then) {
  if (tokens < amx_least) return kernels_avx512vnni[1].multiply(m, act, tokens, y, ldy, panel0, panel1, then);
  uint8_t* blocks = const_cast<uint8_t*>(act); // only read
  if (m.type == type_q8_0 && tokens <= amx_tile) {
    return multiply_mode<Mode::plain, true>(m, blocks, tokens, y, ldy, panel0, panel1, then);
  }
  switch (m.type) {
    case type_q2_k: return multiply_mode<Mode::halves_mins, false>(m, blocks, tokens, y, ldy, panel0, panel1, then);
    case type_q3_k: case type_q6_k: case type_iq2_xs: case type_iq2_s: case type_nvfp4:
      return multiply_mode<Mode::halves, false>(m, blocks, tokens, y, ldy, panel0, panel1, then);
    case type_q4_1: case type_q5_1: case type_q4_k: case type_q5_k:
      return multiply_mode<Mode::mins, false>(m, blocks, tokens, y, ldy, panel0, panel1, then);
    default: return multiply_mode<Mode::plain, false>(m, blocks, tokens, y, ldy, panel0, panel1, then);
  }
}
