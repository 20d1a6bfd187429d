// The loops around a path's kernels. Panels are taken up to four at a time, inputs by groups, tokens by tiles: a group's
// weights stay in the first-level cache while every tile passes over them, and activations stream from the second level.
//
// Where fewer panels are left than a kernel takes at once, the last is given again with no rows of y, so that there is one
// kernel for each width.

constexpr int64_t token_band = 192; // tokens whose sums wait at once; whole tiles
constexpr int64_t sum_slots = token_band + 2 * f32_tile; // the last band may end inside a shared remainder

constexpr int64_t fetch_tiles = 6; // int8 tiles that ask for the weights wanted next; one f32 tile asks for all

// How far ahead of their use weights are asked for where tokens are few: what a core reads while memory answers. Many tokens
// take longer over a group than that.
constexpr int64_t fetch_ahead = 16 << 10; // bytes

// The groups that a product will read, in its order, and behind them those of the panels that the caller reads then.
struct Upcoming {
  const Layout& layout;
  int64_t panel, group, panel1, wide;
  const uint8_t* then;

  __attribute__((always_inline)) void advance() {
    if (panel >= panel1) then += stack_panels * layout.full_bytes; // taken to be as large as these
    else if (++group == layout.groups) {
      group = 0;
      panel += wide;
    }
  }
  __attribute__((always_inline)) const uint8_t* at() const { return panel < panel1 ? layout.at(panel, group) : then; }
};

// Everything but the kernels: expand_panel(a, i, group) readies a.w, a.d and a.m of panel i of a group, dot(panels, width,
// a) multiplies a tile. `wide` panels go at once; `unit` inputs of a token take unit_bytes; weights wanted next are asked for
// in fetch_units parts a tile.
template <class Expand, class Kernel>
MR_INLINE void each_tile(const Matrix& m, const uint8_t* act, int64_t tokens, float* y, int64_t ldy, int64_t panel0,
                         int64_t panel1, const uint8_t* then, int64_t wide, int64_t tile_width, int64_t unit,
                         int64_t unit_bytes, int64_t fetch_units, Expand expand_panel, Kernel dot) {
  const Format& f = *find_format(m.type);
  const Layout layout(f, m);
  alignas(64) float sums[max_panels][sum_slots][panel_rows];
  Dot a = {};
  a.ldy = ldy;
  int64_t widths[sum_slots]; // of the band's tiles: told once, since the rule divides
  for (int64_t t0 = 0; t0 < tokens;) {
    int64_t t1 = t0, tiles = 0;
    for (; t1 < tokens && t1 < t0 + token_band; ++tiles) t1 += widths[tiles] = tile_of(tile_width, tokens, t1).width;
    Upcoming upcoming{layout, panel0, 0, panel1, wide, then};
    const int64_t step = wide * layout.full_bytes;
    for (int64_t at = 0; at < (tiles > fetch_tiles ? 1 : fetch_ahead); at += step) upcoming.advance();
    for (int64_t panel = panel0; panel < panel1; panel += wide) {
      const int64_t count = min_of(wide, panel1 - panel);
      for (int64_t g = 0; g < layout.groups; ++g) {
        const int64_t inputs = layout.inputs(g);
        a.fetch = upcoming.at();
        upcoming.advance();
        a.n = (inputs + unit - 1) / unit;
        a.first = g == 0;
        a.last = g + 1 == layout.groups;
        // Asked for during the last tiles: earlier, it would be gone again; all at once, it would fill the queue that the
        // activations come through.
        const int64_t wanted = wide * layout.full_bytes / 64, askers = min_of(tiles, fetch_units == 1 ? 1 : fetch_tiles);
        const int64_t each = (wanted + askers * fetch_units - 1) / (askers * fetch_units);
        for (int64_t i = 0; i < wide; ++i) {
          if (i < count) {
            expand_panel(a, i, layout.at(panel + i, g));
          } else {
            a.w[i] = a.w[count - 1];
            a.d[i] = a.d[count - 1];
            a.f16[i] = a.f16[count - 1];
            a.m[i] = a.m[count - 1];
          }
          a.rows[i] = i < count ? min_of(panel_rows, m.out - (panel + i) * panel_rows) : 0;
        }
        const uint8_t* run = act + g * (f.group / unit) * tokens * unit_bytes;
        int64_t t = t0;
        for (int64_t tile = 0; tile < tiles; ++tile) {
          const int64_t left = tiles - tile; // tiles not done yet
          a.act = run + t * a.n * unit_bytes;
          for (int64_t i = 0; i < wide; ++i) {
            a.sums[i] = sums[i][t - t0];
            a.y[i] = y + t * ldy + (panel + min_of(i, count - 1)) * panel_rows;
          }
          a.fetch_lines = left <= askers ? each : 0;
          dot(int(wide), widths[tile], a);
          if (left <= askers) a.fetch += each * fetch_units * 64;
          t += widths[tile];
        }
      }
    }
    t0 = t1;
  }
}
