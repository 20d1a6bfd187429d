#include "linear.h"

#include <string.h>

#include "amx.h"
#include "linear_format.h"
#include "linear_kernels.h"

namespace mr::cpu {

namespace {

enum class Way { pack, unpack };

// Moves cell `c` of one row between its place in the file and its lane; `bytes` < cell only for the last cell of a plane.
template <Way way, int cell>
inline void move_cell(uint8_t* lane, uint8_t* file, int64_t bytes, uint32_t flip) {
  if (bytes >= cell) bytes = cell;
  uint32_t v = 0;
  if constexpr (way == Way::pack) {
    if (bytes == cell) memcpy(&v, file, cell); else memcpy(&v, file, size_t(bytes));
    v ^= flip;
    memcpy(lane, &v, cell);
  } else {
    memcpy(&v, lane, cell);
    v ^= flip;
    if (bytes == cell) memcpy(file, &v, cell); else memcpy(file, &v, size_t(bytes));
  }
}

template <Way way, int cell>
void move_field(const Field& f, uint32_t flip, int64_t count, int64_t block_bytes, uint8_t* plane, uint8_t* file) {
  if (f.bytes == block_bytes) { // the block is this field: the row is one run
    const int64_t bytes = count * f.bytes;
    for (int64_t at = 0; at < bytes; at += cell) {
      move_cell<way, cell>(plane + at / cell * (cell * panel_rows), file + at, bytes - at, flip);
    }
    return;
  }
  const int64_t cells = f.bytes / cell;
  for (int64_t b = 0; b < count; ++b) {
    uint8_t* lane = plane + b * cells * (cell * panel_rows);
    uint8_t* at = file + b * block_bytes + f.offset;
    for (int64_t c = 0; c < cells; ++c) move_cell<way, cell>(lane + c * (cell * panel_rows), at + c * cell, cell, flip);
  }
}

// Bit 4g+i to bit 8i+g.
inline uint32_t turn(uint32_t v) {
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    uint32_t x = v >> i & 0x11111111u;
    x = (x | x >> 3) & 0x03030303u;
    x = (x | x >> 6) & 0x000f000fu;
    out |= ((x | x >> 12) & 0xffu) << 8 * i;
  }
  return out;
}

// Bit 8i+g to bit 4g+i.
inline uint32_t turn_back(uint32_t v) {
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    uint32_t x = v >> 8 * i & 0xffu;
    x = (x | x << 12) & 0x000f000fu;
    x = (x | x << 6) & 0x03030303u;
    out |= ((x | x << 3) & 0x11111111u) << i;
  }
  return out;
}

template <Way way>
void move_bits(const Field& f, int64_t count, int64_t block_bytes, uint8_t* plane, uint8_t* file) {
  for (int64_t b = 0; b < count; ++b) {
    uint8_t* lane = plane + b * (4 * panel_rows);
    uint8_t* at = file + b * block_bytes + f.offset;
    uint32_t v;
    memcpy(&v, way == Way::pack ? at : lane, 4);
    v = way == Way::pack ? turn(v) : turn_back(v);
    memcpy(way == Way::pack ? lane : at, &v, 4);
  }
}

// One row's share of a group of `count` blocks.
template <Way way>
void move_fields(const Format& f, int64_t count, uint8_t* group, int64_t lane, uint8_t* file) {
  const int64_t block_bytes = f.coded != 0 ? f.coded : f.block_bytes;
  uint8_t* plane = group;
  for (int32_t i = 0; i < f.field_count; ++i) {
    const Field& field = f.fields[i];
    const uint32_t flip = i == 0 ? f.flip * 0x01010101u : 0;
    uint8_t* at = plane + lane * field.cell;
    if (field.turned) move_bits<way>(field, count, block_bytes, at, file);
    else if (field.cell == 4) move_field<way, 4>(field, flip, count, block_bytes, at, file);
    else if (field.cell == 2) move_field<way, 2>(field, flip, count, block_bytes, at, file);
    else move_field<way, 1>(field, flip, count, block_bytes, at, file);
    plane += plane_bytes(field, count);
  }
}

// The same from or to file bytes. Returns false if no file has what the group holds.
template <Way way>
bool move_row(const Format& f, int64_t count, uint8_t* group, int64_t lane, uint8_t* file) {
  if (f.coded == 0) {
    move_fields<way>(f, count, group, lane, file);
    return true;
  }
  uint8_t coded[most_coded_bytes]; // a group is one block
  if (way == Way::pack) code_block(f.type, file, coded);
  move_fields<way>(f, count, group, lane, coded);
  return way == Way::pack || uncode_block(f.type, coded, file);
}

template <Way way>
bool move_rows(const Matrix& m, uint8_t* file_rows, int64_t row0, int64_t n) {
  const Format& f = *find_format(m.type);
  const Layout layout(f, m);
  const int64_t row_bytes = m.in / f.block * f.block_bytes;
  bool whole = true;
  for (int64_t first = row0; first < row0 + n; first += panel_rows) {
    const int64_t rows = row0 + n - first < panel_rows ? row0 + n - first : panel_rows;
    const int64_t panel = first / panel_rows;
    uint8_t* file = file_rows + (first - row0) * row_bytes;
    for (int64_t g = 0; g < layout.groups; ++g) {
      const int64_t inputs = layout.inputs(g);
      uint8_t* group = layout.at(panel, g);
      if (way == Way::pack && rows < panel_rows) memset(group, 0, size_t(group_bytes(f, inputs)));
      for (int64_t r = 0; r < rows; ++r) {
        whole &= move_row<way>(f, inputs / f.block, group, r, file + r * row_bytes + g * f.group / f.block * f.block_bytes);
      }
    }
  }
  return whole;
}

const Kernels& kernels_of(Isa isa, Activation kind) {
  const int i = int(kind);
#if defined(__x86_64__)
  switch (isa) {
#if MR_AMX
    case Isa::amx:
      if (kind == Activation::int8) return kernels_amx;
      return kernels_of(Isa::avx512bf16, kind);
#else
    case Isa::amx: break; // not runnable
#endif
    case Isa::avx512bf16: return kind == Activation::bf16 ? kernels_avx512bf16 : kernels_avx512vnni[i];
    case Isa::avx512vnni: return kernels_avx512vnni[i];
    case Isa::avx2: return kernels_avx2[i];
    case Isa::portable: break;
  }
#endif
  (void)isa;
  return kernels_portable[i];
}

} // namespace

void pack_rows(Matrix& m, const uint8_t* file_rows, int64_t row0, int64_t n) {
  (void)move_rows<Way::pack>(m, const_cast<uint8_t*>(file_rows), row0, n); // packing only reads the file's bytes
}

bool unpack_rows(const Matrix& m, int64_t row0, int64_t n, uint8_t* file_rows) {
  return move_rows<Way::unpack>(m, file_rows, row0, n);
}

void dequantize_row(const Matrix& m, int64_t row, float* out) {
  const Format& f = *find_format(m.type);
  const Layout layout(f, m);
  uint8_t file[float_group * 4]; // no group of one row is longer: 128 F32, 256 Q8_0
  for (int64_t g = 0; g < layout.groups; ++g) {
    const int64_t count = layout.inputs(g) / f.block;
    (void)move_row<Way::unpack>(f, count, layout.at(row / panel_rows, g), row % panel_rows, file); // damage is the digest's to find
    decode_blocks(m.type, file, count, out + g * f.group);
  }
}

Activation activation_kind(Isa isa, int32_t type) {
  switch (type) {
    case type_bf16: return isa >= Isa::avx512bf16 ? Activation::bf16 : Activation::f32;
    case type_f32: case type_f16: return Activation::f32;
    default: return Activation::int8;
  }
}

uint64_t activation_size(Activation kind, int64_t in, int64_t tokens) {
  const int64_t pairs = (in + 1) / 2;
  const uint64_t bytes = uint64_t(tokens) * uint64_t(kind == Activation::f32 ? 4 * in : 4 * pairs);
  return (bytes + 63) / 64 * 64;
}

void prepare_activations(Isa isa, Activation kind, const float* x, int64_t ldx, int64_t in, int64_t tokens, int64_t t0,
                         int64_t t1, void* act) {
  kernels_of(isa, kind).prepare(x, ldx, in, tokens, t0, t1, static_cast<uint8_t*>(act));
}

const uint8_t* begin_of(const Matrix& m, int64_t panel) {
  return Layout(*find_format(m.type), m).at(panel, 0);
}

void multiply(Isa isa, const Matrix& m, const void* act, int64_t tokens, float* y, int64_t ldy, int64_t panel0,
              int64_t panel1, const uint8_t* then) {
  if (tokens <= 0 || panel0 >= panel1) return;
  kernels_of(isa, activation_kind(isa, m.type))
      .multiply(m, static_cast<const uint8_t*>(act), tokens, y, ldy, panel0, panel1, then);
}

} // namespace mr::cpu
