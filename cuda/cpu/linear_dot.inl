// What a path's kernels compute: one tile of tokens against 1, 2 or 4 panels over one group of inputs. Between groups the
// sums of a tile wait in `sums`, 16 floats a panel and token; after the last they go to y.

// What a block's dot product meets: a scale; also a min; two scales; two scales, and quants of seven bits with 64 added; two
// scales and two mins; a min, and quants that share
// their bytes with those of the block before it, which have the low halves, or after it; quants and an f16 scale as a group
// of Q8_0 holds them.
enum class Mode { plain, mins, halves, halves_wide, halves_mins, nibbles, bytes };

// Scales of a block.
static constexpr int parts_of(Mode mode) {
  return mode == Mode::halves || mode == Mode::halves_wide || mode == Mode::halves_mins ? 2 : 1;
}

constexpr int max_panels = 4; // that a kernel takes at once

struct Dot {
  const uint8_t* w[max_panels];  // int8: [block][8][64], nibbles: [two blocks][8][64]; f32: packed
  const float* d[max_panels];    // int8: [block][part][16], not of bytes
  const uint8_t* f16[max_panels]; // bytes: scales, [block][16]
  const float* m[max_panels];    // int8: [block][part][16]
  const uint8_t* act;            // int8: ActBlock [block][width]; f32: float [input][width]
  int64_t n;                     // blocks or inputs
  int64_t bias;                  // int8: offset in ActBlock of what a block's sum starts from, in halves_wide twice; in halves_mins of what mins are times
  int bits;                      // int8: of a weight, 2 to 8; those of 8 are stored with 128 added
  float* sums[max_panels];       // of the tile's first token
  bool first, last;              // of the groups: sums hold nothing yet; results go to y
  float* y[max_panels];          // of the tile's first token
  int64_t ldy;
  int64_t rows[max_panels];      // of y in each panel, 1..16
  const uint8_t* fetch;          // weights wanted next, to be asked for in passing and in this order
  int64_t fetch_lines;           // cache lines a block of int8; of f32 any number, for the whole run; 0 = none
};
