#include "repack.h"

#include <cstring>

#include "linear_format.h"

namespace mr::cpu {
namespace {

static_assert(panel_rows == 16, "tiles are cut for panels of 16 rows");

enum class Way { pack, restore };

typedef uint32_t Words __attribute__((vector_size(16)));
typedef uint16_t Halves __attribute__((vector_size(16)));

template <class V>
inline V load(const uint8_t* from) {
  V v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

template <class V>
inline void store(uint8_t* to, V v) {
  std::memcpy(to, &v, sizeof v);
}

// Four words of four rows: rows become columns. Its own inverse.
inline void transpose(Words (&r)[4]) {
  const Words low = {0, 4, 1, 5}, high = {2, 6, 3, 7};
  const Words a = __builtin_shuffle(r[0], r[2], low), b = __builtin_shuffle(r[1], r[3], low);
  const Words c = __builtin_shuffle(r[0], r[2], high), d = __builtin_shuffle(r[1], r[3], high);
  r[0] = __builtin_shuffle(a, b, low);
  r[1] = __builtin_shuffle(a, b, high);
  r[2] = __builtin_shuffle(c, d, low);
  r[3] = __builtin_shuffle(c, d, high);
}

// Eight halves of eight rows, the same way.
inline void transpose(Halves (&r)[8]) {
  const Halves low = {0, 8, 1, 9, 2, 10, 3, 11}, high = {4, 12, 5, 13, 6, 14, 7, 15};
  for (int round = 0; round < 3; ++round) {
    Halves t[8];
    for (int i = 0; i < 4; ++i) {
      t[2 * i] = __builtin_shuffle(r[i], r[i + 4], low);
      t[2 * i + 1] = __builtin_shuffle(r[i], r[i + 4], high);
    }
    for (int i = 0; i < 8; ++i) r[i] = t[i];
  }
}

// `cells` cells of the 16 rows that begin at file and lie row_bytes apart: 16 lanes a cell in the plane.
template <Way way, class V, int kRows>
inline void move_tiles(uint8_t* plane, uint8_t* file, int64_t row_bytes, int64_t cells, V flip) {
  constexpr int64_t kCell = 16 / kRows, kStride = kCell * panel_rows;
  for (int64_t c = 0; c < cells; c += kRows)
    for (int64_t row = 0; row < panel_rows; row += kRows) {
      V tile[kRows];
      uint8_t* const lanes = plane + c * kStride + row * kCell;
      uint8_t* const rows = file + row * row_bytes + c * kCell;
      for (int i = 0; i < kRows; ++i) tile[i] = load<V>(way == Way::pack ? rows + i * row_bytes : lanes + i * kStride) ^ flip;
      transpose(tile);
      for (int i = 0; i < kRows; ++i) store(way == Way::pack ? lanes + i * kStride : rows + i * row_bytes, tile[i]);
    }
}

template <Way way, int kCell>
inline void move_cells(uint8_t* plane, uint8_t* file, int64_t row_bytes, int64_t cells) {
  for (int64_t row = 0; row < panel_rows; ++row)
    for (int64_t c = 0; c < cells; ++c) {
      uint8_t* const lane = plane + (c * panel_rows + row) * kCell;
      uint8_t* const at = file + row * row_bytes + c * kCell;
      std::memcpy(way == Way::pack ? lane : at, way == Way::pack ? at : lane, kCell);
    }
}

// A run of `bytes` bytes of each row; the cells that fill no tile follow one by one.
template <Way way>
void move_run(uint8_t* plane, uint8_t* file, int64_t row_bytes, int64_t bytes, int32_t cell, uint8_t flip) {
  const int64_t cells = bytes / cell, tiled = cell == 4 ? cells & -4 : cell == 2 ? cells & -8 : 0;
  if (cell == 4) {
    move_tiles<way, Words, 4>(plane, file, row_bytes, tiled, Words{} + flip * 0x01010101u);
  } else if (cell == 2) {
    move_tiles<way, Halves, 8>(plane, file, row_bytes, tiled, Halves{});
  }
  plane += tiled * cell * panel_rows;
  file += tiled * cell;
  if (cell == 4) move_cells<way, 4>(plane, file, row_bytes, cells - tiled);
  if (cell == 2) move_cells<way, 2>(plane, file, row_bytes, cells - tiled);
  if (cell == 1) move_cells<way, 1>(plane, file, row_bytes, cells - tiled);
}

// Whether whole tiles and whole cells make up the format: single bits are another layout, a flipped cell has no
// leftovers, and a run of rows that do not end with a cell is left to the general code.
bool tiled(const Format& f, int64_t in) {
  for (int32_t i = 0; i < f.field_count; ++i) {
    const Field& field = f.fields[i];
    if (field.turned || field.bytes % field.cell != 0) return f.field_count == 1 && in * field.bytes % field.cell == 0;
  }
  return f.flip == 0 || (f.fields[0].cell == 4 && f.fields[0].bytes % 16 == 0);
}

template <Way way>
bool move_panel(const Format& f, const Layout& layout, int64_t panel, uint8_t* file, int64_t row_bytes) {
  bool whole = true;
  const int64_t block_bytes = f.coded != 0 ? f.coded : f.block_bytes;
  uint8_t coded[panel_rows * most_coded_bytes];  // the blocks of a group, which is one a row
  for (int64_t g = 0; g < layout.groups; ++g) {
    const int64_t count = layout.inputs(g) / f.block;
    uint8_t* const in_file = file + g * f.group / f.block * f.block_bytes;
    uint8_t* const blocks = f.coded != 0 ? coded : in_file;
    const int64_t stride = f.coded != 0 ? f.coded : row_bytes;
    for (int64_t row = 0; way == Way::pack && f.coded != 0 && row < panel_rows; ++row)
      code_block(f.type, in_file + row * row_bytes, coded + row * f.coded);
    uint8_t* plane = layout.at(panel, g);
    for (int32_t i = 0; i < f.field_count; ++i) {
      const Field& field = f.fields[i];
      const uint8_t flip = i == 0 ? f.flip : 0;
      if (field.bytes == block_bytes) {  // nothing between the blocks: one run
        move_run<way>(plane, blocks, stride, count * field.bytes, field.cell, flip);
      } else {
        for (int64_t b = 0; b < count; ++b)
          move_run<way>(plane + b * field.bytes * panel_rows, blocks + b * block_bytes + field.offset, stride, field.bytes,
                        field.cell, flip);
      }
      plane += plane_bytes(field, count);
    }
    for (int64_t row = 0; way == Way::restore && f.coded != 0 && row < panel_rows; ++row)
      whole &= uncode_block(f.type, coded + row * f.coded, in_file + row * row_bytes);
  }
  return whole;
}

// Calls whole(format, layout, panel, file, row_bytes) for each full panel and rest(row0, rows, file) for the rows that remain.
// Returns whether all of them returned true.
template <class Whole, class Rest>
bool each_panel(const Matrix& m, int64_t row0, int64_t n, Whole whole, Rest rest) {
  const Format& f = *find_format(m.type);
  const int64_t row_bytes = m.in / f.block * f.block_bytes;
  const Layout layout(f, m);
  if (!tiled(f, m.in)) return rest(row0, n, int64_t{0});
  bool all = true;
  int64_t row = row0;
  for (; row + panel_rows <= row0 + n; row += panel_rows)
    all &= whole(f, layout, row / panel_rows, (row - row0) * row_bytes, row_bytes);
  if (row < row0 + n) all &= rest(row, row0 + n - row, (row - row0) * row_bytes);
  return all;
}

}  // namespace

void repack_rows(Matrix& m, const uint8_t* file_rows, int64_t row0, int64_t n) {
  uint8_t* const file = const_cast<uint8_t*>(file_rows);  // packing only reads it
  (void)each_panel(
      m, row0, n,
      [&](const Format& f, const Layout& layout, int64_t panel, int64_t at, int64_t row_bytes) {
        return move_panel<Way::pack>(f, layout, panel, file + at, row_bytes);
      },
      [&](int64_t row, int64_t rows, int64_t at) {
        pack_rows(m, file_rows + at, row, rows);
        return true;
      });
}

bool restore_rows(const Matrix& m, int64_t row0, int64_t n, uint8_t* file_rows) {
  return each_panel(
      m, row0, n,
      [&](const Format& f, const Layout& layout, int64_t panel, int64_t at, int64_t row_bytes) {
        return move_panel<Way::restore>(f, layout, panel, file_rows + at, row_bytes);
      },
      [&](int64_t row, int64_t rows, int64_t at) { return unpack_rows(m, row, rows, file_rows + at); });
}

}  // namespace mr::cpu
