// The weight formats as data: which fields a block has in its file, and how 16 rows of them lie in a panel.
//
// A panel is a sequence of groups, each holding the same inputs of 16 rows. Four panels make a stack: their groups alternate
// (the first group of each, then the second of each), so that a product that takes four panels at once reads memory in one
// forward stream; four streams side by side get three quarters of its rate. Within a group each field is a plane: cell 0 of
// the 16 rows, then cell 1, ... A cell is what one row contributes to one lane: 4 bytes of quants (four inputs, or four
// pairs of nibbles), a 2-byte scale, a 1-byte scale. Planes of wide fields come first, so that they start at multiples of
// 64 bytes. Groups are padded to 64 bytes.
#ifndef MILLRACE_CPU_LINEAR_FORMAT_H
#define MILLRACE_CPU_LINEAR_FORMAT_H

#include <stdint.h>

#include "linear.h"
#include "linear_codes.h"

namespace mr {

struct Field {
  int32_t offset; // bytes from the start of a block in the file
  int32_t bytes;  // of a block
  int32_t cell;   // bytes: 1, 2 or 4
  bool turned = false; // 32 single bits, one an input: in memory bit g of byte i belongs to input 4g+i
};

struct Format {
  int32_t type;
  int32_t block;       // inputs
  int32_t block_bytes; // of one row in the file
  int32_t group;       // inputs of a full group; a multiple of block
  uint8_t flip;        // xor of every byte of the first field: signed quants are stored biased by 128
  int32_t field_count;
  Field fields[5];     // in the order of the planes
  int32_t coded = 0;   // bytes of the block that the fields are of, if memory has another than the file; 0: block_bytes
};

constexpr int32_t quant_group = 256; // inputs, quantised types
constexpr int32_t float_group = 128; // inputs, F32, F16, BF16: the length of a run

// BF16 cells are pairs of inputs: the even one lies in the low half of its lane.
constexpr Format formats[] = {
    {type_f32, 1, 4, float_group, 0, 1, {{0, 4, 4}}},
    {type_f16, 1, 2, float_group, 0, 1, {{0, 2, 2}}},
    {type_bf16, 1, 2, float_group, 0, 1, {{0, 2, 4}}},
    {type_q8_0, 32, 34, quant_group, 0x80, 2, {{2, 32, 4}, {0, 2, 2}}},
    {type_q4_0, 32, 18, quant_group, 0, 2, {{2, 16, 4}, {0, 2, 2}}},
    {type_iq4_nl, 32, 18, quant_group, 0, 2, {{2, 16, 4}, {0, 2, 2}}},
    {type_mxfp4, 32, 17, quant_group, 0, 2, {{1, 16, 4}, {0, 1, 1}}},
    {type_nvfp4, 64, 36, quant_group, 0, 2, {{4, 32, 4}, {0, 4, 1}}},
    {type_q4_1, 32, 20, quant_group, 0, 3, {{4, 16, 4}, {0, 2, 2}, {2, 2, 2}}},
    {type_q5_0, 32, 22, quant_group, 0, 3, {{6, 16, 4}, {2, 4, 4, true}, {0, 2, 2}}},
    {type_q5_1, 32, 24, quant_group, 0, 4, {{8, 16, 4}, {4, 4, 4, true}, {0, 2, 2}, {2, 2, 2}}},
    {type_q2_k, 256, 84, quant_group, 0, 4, {{16, 64, 4}, {0, 16, 1}, {80, 2, 2}, {82, 2, 2}}},
    {type_q3_k, 256, 110, quant_group, 0, 4, {{32, 64, 4}, {0, 32, 4}, {96, 12, 1}, {108, 2, 2}}},
    {type_q4_k, 256, 144, quant_group, 0, 4, {{16, 128, 4}, {4, 12, 1}, {0, 2, 2}, {2, 2, 2}}},
    {type_q5_k, 256, 176, quant_group, 0, 5, {{48, 128, 4}, {16, 32, 4}, {4, 12, 1}, {0, 2, 2}, {2, 2, 2}}},
    {type_q6_k, 256, 210, quant_group, 0, 4, {{0, 128, 4}, {128, 64, 4}, {192, 16, 1}, {208, 2, 2}}},
    {type_iq4_xs, 256, 136, quant_group, 0, 4, {{8, 128, 4}, {4, 4, 1}, {2, 2, 1}, {0, 2, 2}}},
    {type_iq3_xxs, 256, 98, quant_group, 0, 3, {{0, 128, 4}, {128, 4, 1}, {132, 2, 2}}, iq3_coded_bytes},
    {type_iq3_s, 256, 110, quant_group, 0, 3, {{0, 128, 4}, {128, 4, 1}, {132, 2, 2}}, iq3_coded_bytes},
    {type_iq2_xxs, 256, 66, quant_group, 0, 4, {{0, 64, 4}, {64, 32, 4}, {96, 4, 1}, {100, 2, 2}}, iq2_xxs_coded_bytes},
    {type_iq2_xs, 256, 74, quant_group, 0, 4, {{0, 64, 4}, {64, 32, 4}, {96, 8, 1}, {104, 2, 2}}, iq2_coded_bytes},
    {type_iq2_s, 256, 82, quant_group, 0, 4, {{0, 64, 4}, {64, 32, 4}, {96, 8, 1}, {104, 2, 2}}, iq2_coded_bytes},
};

// NULL for an unknown type.
static inline const Format* find_format(int32_t type) {
  for (const Format& f : formats) {
    if (f.type == type) return &f;
  }
  return nullptr;
}

// Bytes of a field's plane in a group of `count` blocks.
static constexpr int64_t plane_bytes(const Field& f, int64_t count) {
  return (count * f.bytes + f.cell - 1) / f.cell * f.cell * panel_rows;
}

// Bytes of a group of `inputs` inputs, a multiple of f.block and at most f.group.
static constexpr int64_t group_bytes(const Format& f, int64_t inputs) {
  int64_t sum = 0;
  for (int32_t i = 0; i < f.field_count; ++i) sum += plane_bytes(f.fields[i], inputs / f.block);
  return (sum + 63) / 64 * 64;
}

// Per translation unit: files compiled for different instruction sets must not share one compiled copy of what follows.
namespace {

struct GroupSizes {
  int64_t bytes[sizeof formats / sizeof formats[0]];
  constexpr GroupSizes() : bytes() {
    for (const Format& f : formats) bytes[&f - formats] = group_bytes(f, f.group);
  }
};
constexpr GroupSizes group_sizes;

// group_bytes of a full group, without its divisions.
inline int64_t full_group_bytes(const Format& f) { return group_sizes.bytes[&f - formats]; }

constexpr int64_t panel_bytes(const Format& f, int64_t in) {
  const int64_t tail = in % f.group;
  return in / f.group * group_bytes(f, f.group) + (tail == 0 ? 0 : group_bytes(f, tail));
}

// Where the groups of a matrix lie.
struct Layout {
  uint8_t* data;
  int64_t panels;
  int64_t groups, last;            // of a panel; inputs of its last group
  int64_t full_bytes, last_bytes;  // of a group, and of the last
  int64_t panel_bytes;
  int64_t full;                    // inputs of a group

  Layout(const Format& f, const Matrix& m)
      : data(m.data), panels(mr::panels(m.out)), groups((m.in + f.group - 1) / f.group),
        last(m.in - (groups - 1) * f.group), full_bytes(full_group_bytes(f)),
        last_bytes(last == f.group ? full_bytes : group_bytes(f, last)),
        panel_bytes((groups - 1) * full_bytes + last_bytes), full(f.group) {}

  int64_t inputs(int64_t group) const { return group + 1 < groups ? full : last; }
  uint8_t* at(int64_t panel, int64_t group) const {
    const int64_t place = panel % stack_panels, first = panel - place;
    const int64_t members = panels - first < stack_panels ? panels - first : stack_panels;
    return data + first * panel_bytes + group * members * full_bytes + place * (group + 1 < groups ? full_bytes : last_bytes);
  }
};

}  // namespace

// The sixteen values of IQ4_NL and IQ4_XS.
constexpr int8_t iq4_nl_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Twice the values of MXFP4 and NVFP4. The scale of MXFP4 is half of 2^(e - 127) for the byte e.
constexpr int8_t mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

struct HalvedPowers {
  float of[256];
  constexpr HalvedPowers() : of() {
    of[0] = 0x1p-128f;
    for (int e = 1; e < 256; ++e) of[e] = 2 * of[e - 1];
  }
};
constexpr HalvedPowers mxfp4_scales;

// Half of the scales of NVFP4, by byte: E4M3 without its sign bit, which is ignored. ggml reads 0x7f, a NaN of E4M3, as 0.
struct HalvedE4M3 {
  float of[256];
  constexpr HalvedE4M3() : of() {
    for (int b = 0; b < 256; ++b) {
      float power = 0x1p-10f;
      for (int e = 1; e < (b >> 3 & 15); ++e) power *= 2;
      of[b] = b == 0x7f ? 0.0f : power * float((b & 7) + ((b & 0x78) == 0 ? 0 : 8));
    }
  }
};
constexpr HalvedE4M3 nvfp4_scales;

// What a code of linear_codes.h stands for. IQ2 has codes of three bits; no block has a magnitude of 3.
constexpr int8_t iq3_xxs_values[16] = {4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62};
constexpr int8_t iq3_s_values[16] = {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15};
constexpr int8_t iq2_values[16] = {8, 25, 43, 0, -8, -25, -43, 0};

} // namespace mr

#endif
