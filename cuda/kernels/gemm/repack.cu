// repack: file bytes to the packed layout (one block for a group of a panel, one thread for a word of 4 bytes), the
// packed layout to file bytes (one thread for 4 bytes), and rows as f32 (one block for a row). Each thread gathers what
// its output needs; the reads of a block stay within a few cache lines. A kernel selects the type once, outside its loops.
#include "kernels/gemm/repack.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <type_traits>

#include "kernels/gemm/codes.cuh"

namespace mr::cuda {
namespace {

constexpr int32_t kThreads = 256;

// GroupFile is the file of one matrix as a panel's group sees it: rows and inputs are counted from the group's start.
template <int32_t T>
struct FileGroup {
  static constexpr WeightFormat f = Format<T>::f;
  const uint8_t* file;
  int64_t rows, cols, row0, col0;

  __device__ bool inside(int32_t row, int32_t k) const { return row0 + row < rows && col0 + k < cols; }
  __device__ const uint8_t* block(int32_t row, int32_t k) const {
    return file + ((row0 + row) * (cols / f.block) + (col0 + k) / f.block) * f.block_bytes;
  }
  __device__ int32_t low(int32_t row, int32_t k) const {
    if (!inside(row, k)) return 0;
    if constexpr (f.codes) return CodedFile<T>::code(block(row, k), static_cast<int32_t>((col0 + k) % f.block));
    const FileQuant q = file_quant<T>(static_cast<int32_t>((col0 + k) % f.block));
    const int32_t byte = block(row, k)[q.low_byte];
    return Format<T>::nibbles ? byte >> q.low_shift & 15 : Format<T>::pairs ? byte >> q.low_shift & 3 : byte ^ 0x80;
  }
  __device__ uint32_t high(int32_t row, int32_t k) const {
    if (!inside(row, k)) return 0;
    const FileQuant q = file_quant<T>(static_cast<int32_t>((col0 + k) % f.block));
    return block(row, k)[q.high_byte] >> q.high_shift & ((1 << Format<T>::high_bits) - 1);
  }
  __device__ uint32_t half(int32_t row, int32_t k, int32_t byte) const {
    return inside(row, k) ? *reinterpret_cast<const uint16_t*>(block(row, k) + byte) : 0;
  }
};

// Returns the input of register i's low half, and its row: see packed_access.cuh.
__device__ int32_t input_of(int32_t lane, int32_t step, int32_t i) { return step * 16 + (i >> 1) * 8 + (lane & 3) * 2; }
__device__ int32_t row_of(int32_t lane, int32_t i) { return (lane >> 2) + (i & 1) * 8; }

// Returns a word of a plane with `bits` bits for each input; bits_of(row, k) has them.
template <int32_t bits, class F>
__device__ uint32_t bits_word(int32_t unit, int32_t word, F bits_of) {
  const int32_t lane = word / bits, first = bits == 1 ? 0 : (word % bits) * 2;  // step
  uint32_t out = 0;
  for (int32_t j = 0; j < 16 / bits; ++j) {
    const int32_t row = row_of(lane, j & 3), k = unit * kUnitCols + input_of(lane, first + j / 4, j & 3);
    out |= static_cast<uint32_t>(bits_of(row, k)) << j * bits | static_cast<uint32_t>(bits_of(row, k + 1)) << (16 + j * bits);
  }
  return out;
}

// Returns a word of a plane of Q6_K (packed_six); by_steps: of the quants plane.
template <int32_t T>
__device__ uint32_t sixes_word(const FileGroup<T>& in, int32_t unit, int32_t word, bool by_steps) {
  const auto six = [&](int32_t step, int32_t i, int32_t half) {
    const int32_t lane = word / (by_steps ? 4 : 2), row = row_of(lane, i), k = unit * kUnitCols + input_of(lane, step, i) + half;
    return static_cast<uint32_t>(in.low(row, k)) | in.high(row, k) << 4;
  };
  uint32_t out = 0;
  for (int32_t half = 0; half < 2; ++half) {
    const int32_t step = by_steps ? word % 4 : word % 2 * 2;
    const uint32_t even = six(step, 3, half), odd = by_steps ? 0 : six(step + 1, 3, half);
    const uint32_t bits = by_steps ? (even & 15) | six(step, 0, half) << 4 | six(step, 1, half) << 10
                                   : even >> 4 | odd >> 4 << 2 | six(step, 2, half) << 4 | six(step + 1, 2, half) << 10;
    out |= bits << half * 16;
  }
  return out;
}

template <int32_t T>
__device__ uint32_t quants_word(const FileGroup<T>& in, int32_t unit, int32_t word) {
  const int32_t k0 = unit * kUnitCols;
  if constexpr (T == kQ6_K) {
    return sixes_word(in, unit, word, true);
  } else if constexpr (Format<T>::pairs) {
    return bits_word<2>(unit, word, [&](int32_t row, int32_t k) { return in.low(row, k); });
  } else if constexpr (Format<T>::is_float) {
    const int32_t lane = word / 4 % 32, chunk = word / 128, i = word % 4;
    if constexpr (Format<T>::f.block_bytes == 2) {
      const int32_t row = row_of(lane, i), k = k0 + input_of(lane, chunk, i);
      return in.half(row, k, 0) | in.half(row, k + 1, 0) << 16;
    } else {
      const int32_t row = (lane >> 2) + (chunk & 1) * 8;
      const int32_t k = k0 + input_of(lane, chunk >> 1, i & 2) + (i & 1);
      return in.half(row, k, 0) | in.half(row, k, 2) << 16;
    }
  } else if constexpr (Format<T>::nibbles) {
    const int32_t lane = word / 4, step = word % 4;
    uint32_t out = 0;
    for (int32_t byte = 0; byte < 4; ++byte) {
      const int32_t k = k0 + input_of(lane, step, (byte & 1) * 2) + (byte >> 1);
      out |= static_cast<uint32_t>(in.low(lane >> 2, k) | in.low((lane >> 2) + 8, k) << 4) << byte * 8;
    }
    return out;
  } else {
    const int32_t lane = word / 4 % 32, step = word / 128 * 2 + (word >> 1 & 1), row = row_of(lane, word & 1);
    uint32_t out = 0;
    for (int32_t byte = 0; byte < 4; ++byte) {
      out |= static_cast<uint32_t>(in.low(row, k0 + input_of(lane, step, byte & 2) + (byte & 1))) << byte * 8;
    }
    return out;
  }
}

template <int32_t T>
__device__ uint32_t high_word(const FileGroup<T>& in, int32_t unit, int32_t word) {
  if constexpr (T == kQ6_K) return sixes_word(in, unit, word, false);
  else return bits_word<1>(unit, word, [&](int32_t row, int32_t k) { return in.high(row, k); });
}

template <int32_t T>
__device__ uint32_t scales_word(const FileGroup<T>& in, int32_t unit, int32_t word) {
  const int32_t k0 = unit * kUnitCols;
  if constexpr (Format<T>::sixteens) {
    const int32_t row = word / 2 + (word & 1) * 8;
    uint32_t out = 0;
    for (int32_t j = 0; j < 4; ++j) {
      const int32_t k = k0 + j * 16, index = static_cast<int32_t>((in.col0 + k) % 256 / 16);
      if (!in.inside(row, k)) continue;
      const uint8_t* const block = in.block(row, k);
      if constexpr (Format<T>::f.codes) out |= (static_cast<uint32_t>(CodedFile<T>::scale(block, index)) & 255) << j * 8;
      else out |= static_cast<uint32_t>(block[T == kQ6_K ? 192 + index : T == kNVFP4 ? j : index]) << j * 8;
    }
    return out;
  } else if constexpr (T == kMXFP4) {
    uint32_t out = 0;
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t row = word + i / 2 * 8, k = k0 + i % 2 * 32;
      out |= in.inside(row, k) ? static_cast<uint32_t>(in.block(row, k)[0]) << i * 8 : 0;
    }
    return out;
  } else {
    constexpr int32_t words = Format<T>::f.scales / 32;  // of a row pair
    const int32_t at = word % words, row = word / words + (at & 1) * 8, byte = at / 2 * 2;
    return in.half(row, k0, byte) | in.half(row, k0 + 32, byte) << 16;
  }
}

template <int32_t T>
__device__ uint32_t header_word(const FileGroup<T>& in, int32_t word) {
  if constexpr (T == kQ6_K) {
    return in.half(word, 0, 208) | in.half(word + 8, 0, 208) << 16;
  } else if constexpr (T == kQ2_K) {
    const int32_t row = word / 2 + (word & 1) * 8;
    return in.half(row, 0, 80) | in.half(row, 0, 82) << 16;
  } else if constexpr (Format<T>::f.codes) {
    if (word >= kCodebookAt / 4) return header_word_of<T>(word - kCodebookAt / 4);
    return in.half(word, 0, CodedFile<T>::d_at) | in.half(word + 8, 0, CodedFile<T>::d_at) << 16;
  } else {
    const int32_t row = word / 4, at = word % 4;
    if (!in.inside(row, 0)) return 0;
    const uint8_t* block = in.block(row, 0);
    if (at == 0) return in.half(row, 0, 0) | in.half(row, 0, 2) << 16;
    uint32_t out = 0;
    for (int32_t j = 0; j < 8; ++j) {
      const uint32_t scale = file_six_bits(block + 4, j, 0), min = file_six_bits(block + 4, j, 1);
      const uint32_t nibble = at == 1 ? scale & 15 : at == 2 ? min & 15 : scale >> 4 | min >> 4 << 2;
      out |= nibble << j * 4;
    }
    return out;
  }
}

// Calls f(T as a type with a `value`) for a type of weight_format.
template <class F>
__device__ __forceinline__ void with_type(int32_t type, F&& f) {
  switch (type) {
#define MR_CASE(T) \
  case T: return f(std::integral_constant<int32_t, T>{});
    MR_CASE(kF32) MR_CASE(kF16) MR_CASE(kBF16) MR_CASE(kQ8_0) MR_CASE(kQ4_0) MR_CASE(kQ4_1)
    MR_CASE(kQ5_0) MR_CASE(kQ5_1) MR_CASE(kQ4_K) MR_CASE(kQ5_K) MR_CASE(kQ6_K) MR_CASE(kIQ4_NL) MR_CASE(kMXFP4) MR_CASE(kNVFP4)
    MR_CASE(kQ2_K) MR_CASE(kQ3_K) MR_CASE(kIQ4_XS) MR_CASE(kIQ3_S) MR_CASE(kIQ3_XXS) MR_CASE(kIQ2_S) MR_CASE(kIQ2_XS) MR_CASE(kIQ2_XXS)
#undef MR_CASE
  }
}

template <int32_t T>
__device__ void pack_group(const uint8_t* file, const PackedWeight& to, int64_t groups) {
  constexpr WeightFormat f = Format<T>::f;
  const int64_t panel = blockIdx.x / groups, group = blockIdx.x % groups;
  const FileGroup<T> in{file, to.rows, to.cols, panel * kPanelRows, group * f.units * kUnitCols};
  auto* out = reinterpret_cast<uint32_t*>(to.data + static_cast<int64_t>(blockIdx.x) * Format<T>::group_bytes);
  for (int32_t w = threadIdx.x; w < Format<T>::group_bytes / 4; w += kThreads) {
    const int32_t byte = w * 4;
    uint32_t value = 0;
    if (byte < Format<T>::high_plane) {
      value = quants_word<T>(in, byte / f.quants, byte % f.quants / 4);
    } else if (byte < Format<T>::scales_plane) {
      if constexpr (f.high > 0) value = high_word<T>(in, (byte - Format<T>::high_plane) / f.high, (byte - Format<T>::high_plane) % f.high / 4);
    } else if (byte < Format<T>::header_plane) {
      if constexpr (f.scales > 0) {
        value = scales_word<T>(in, (byte - Format<T>::scales_plane) / f.scales, (byte - Format<T>::scales_plane) % f.scales / 4);
      }
    } else {
      if constexpr (f.header > 0) value = header_word<T>(in, (byte - Format<T>::header_plane) / 4);
    }
    out[w] = value;
  }
}

__global__ void __launch_bounds__(kThreads) group_per_block(const uint8_t* file, PackedWeight to, int64_t groups) {
  grid_wait();
  grid_trigger();
  with_type(to.type, [&](auto type) { pack_group<type.value>(file, to, groups); });
}

// PackedRow is a row of the packed matrix.
template <int32_t T>
struct PackedRow {
  static constexpr WeightFormat f = Format<T>::f;
  const uint8_t* data;
  int64_t row, groups;

  __device__ int32_t in_panel() const { return static_cast<int32_t>(row % kPanelRows); }
  __device__ const uint8_t* group(int64_t k) const {
    return data + group_at<T>(row, k / (f.units * kUnitCols), groups);
  }
  __device__ static int32_t unit(int64_t k) { return static_cast<int32_t>(k / kUnitCols % f.units); }
  __device__ Place place(int64_t k) const { return place_of(in_panel(), static_cast<int32_t>(k % kUnitCols)); }

  __device__ const uint8_t* number(int64_t k) const { return group(k) + float_at<T>(place(k)); }
  __device__ int32_t six(int64_t k) const {  // Q6_K
    return packed_six(group(k) + Format<T>::quants_at(unit(k)), group(k) + Format<T>::high_at(unit(k)), place(k));
  }
  __device__ int32_t low(int64_t k) const {
    if constexpr (T == kQ6_K) return six(k) & 15;
    else return packed_low<T>(group(k) + Format<T>::quants_at(unit(k)), place(k));
  }
  __device__ int32_t high(int64_t k) const {
    if constexpr (f.high == 0) return 0;
    else if constexpr (T == kQ6_K) return six(k) >> 4;
    else return packed_high(group(k) + Format<T>::high_at(unit(k)), place(k));
  }
  __device__ uint16_t half(int64_t k, int32_t field) const {  // d or m of k's block of 32
    const int32_t b = static_cast<int32_t>(k / 32 % 2);
    return *reinterpret_cast<const uint16_t*>(group(k) + Format<T>::scales_at(unit(k)) + scale_at<T>(in_panel(), b, field));
  }
  __device__ uint8_t exponent(int64_t k) const {  // MXFP4
    return group(k)[Format<T>::scales_at(unit(k)) + exponent_at(in_panel(), static_cast<int32_t>(k / 32 % 2))];
  }
  __device__ uint8_t scale16_byte(int64_t k) const {
    const int32_t j = static_cast<int32_t>(k % kUnitCols / 16);
    return group(k)[Format<T>::scales_at(unit(k)) + scale16_at(in_panel(), j)];
  }
  __device__ int8_t scale16(int64_t k) const { return static_cast<int8_t>(scale16_byte(k)); }  // Q6_K, codes
  __device__ const uint32_t* header(int64_t k) const {  // Q4_K, Q5_K
    return reinterpret_cast<const uint32_t*>(group(k) + Format<T>::header_plane + in_panel() * 16);
  }
  __device__ uint16_t header_d(int64_t k) const {  // Q6_K, codes
    return *reinterpret_cast<const uint16_t*>(group(k) + Format<T>::header_plane + header_d_at(in_panel()));
  }
  __device__ uint32_t header_pair(int64_t k) const {  // Q2_K
    return *reinterpret_cast<const uint32_t*>(group(k) + Format<T>::header_plane + header_pair_at(in_panel()));
  }

  // Returns byte `byte` of the file block that begins at input k.
  __device__ uint32_t file_byte(int64_t k, int32_t byte) const {
    if constexpr (Format<T>::is_float) {
      return number(k)[byte];
    } else {
      const auto halves = [&](uint16_t v) { return static_cast<uint32_t>(v >> byte % 2 * 8 & 255); };
      if constexpr (f.codes) {
        if (byte >= CodedFile<T>::d_at && byte < CodedFile<T>::d_at + 2) return halves(header_d(k)) ^ (has_book(k) ? 0 : 255);
        const Block codes{*this, k};
        return CodeBlock<T, Block>{codes}.byte(byte);
      } else if constexpr (T == kMXFP4) {
        if (byte == 0) return exponent(k);
      } else if constexpr (T == kNVFP4) {
        if (byte < 4) return scale16_byte(k + byte * 16);
      } else if constexpr (T == kQ2_K) {
        if (byte >= 80) return header_pair(k) >> (byte - 80) * 8 & 255;
        if (byte < 16) return scale16_byte(k + byte * 16);
      } else if constexpr (T == kQ6_K) {
        if (byte >= 208) return halves(header_d(k));
        if (byte >= 192) return static_cast<uint8_t>(scale16(k + (byte - 192) * 16));
      } else if constexpr (Format<T>::superblock) {
        if (byte < 4) return header(k)[0] >> byte * 8 & 255;
        if (byte < 16) return six_bits_byte(header(k) + 1, byte - 4);
      } else {
        if (byte < 2) return halves(half(k, 0));
        if (Format<T>::has_min && byte < 4) return halves(half(k, 1));
      }
      return quant_byte(k, byte);
    }
  }

 private:
  __device__ static uint32_t six_bits_byte(const uint32_t* words, int32_t byte) {
    const int32_t low = byte & 3;
    if (byte >= 8) {
      return (packed_six_bits(words, 4 + low, 0) & 15) | (packed_six_bits(words, 4 + low, 1) & 15) << 4;
    }
    const int32_t field = byte >> 2;
    return packed_six_bits(words, low, field) | packed_six_bits(words, 4 + low, field) >> 4 << 6;
  }

  // Block is the block of codes that begins at input k.
  struct Block {
    const PackedRow& row;
    int64_t k;

    __device__ int32_t code(int32_t i) const { return row.low(k + i); }
    __device__ int32_t scale(int32_t j) const { return row.scale16(k + j * 16); }
  };

  // Returns whether a group's header has the values that codes stand for.
  __device__ bool has_book(int64_t k) const {
    const auto* words = reinterpret_cast<const uint32_t*>(group(k) + Format<T>::header_plane + kCodebookAt);
    bool same = true;
    for (int32_t i = 0; i < (f.header - kCodebookAt) / 4; ++i) same = same && words[i] == header_word_of<T>(i);
    return same;
  }

  // Returns a byte of low or high quant bits. The inputs that it serves are 32 / fields apart, see file_quant.
  __device__ uint32_t quant_byte(int64_t k, int32_t byte) const {
    if constexpr (Format<T>::pairs) {
      const int64_t i = k + (byte - 16) / 32 * 128 + (byte - 16) % 32;
      return low(i) | low(i + 32) << 2 | low(i + 64) << 4 | low(i + 96) << 6;
    } else if constexpr (T == kQ8_0) {
      return low(k + byte - 2) ^ 0x80;
    } else if constexpr (T == kNVFP4) {
      const int64_t i = k + (byte - 4) / 8 * 16 + (byte - 4) % 8;
      return low(i) | low(i + 8) << 4;
    } else if constexpr (T == kQ6_K) {
      if (byte < 128) {
        const int64_t i = k + byte / 64 * 128 + byte % 64;
        return low(i) | low(i + 64) << 4;
      }
      const int64_t i = k + (byte - 128) / 32 * 128 + byte % 32;
      return high(i) | high(i + 32) << 2 | high(i + 64) << 4 | high(i + 96) << 6;
    } else if constexpr (Format<T>::superblock) {
      constexpr int32_t quants = T == kQ4_K ? 16 : 48;
      if (byte >= quants) {
        const int64_t i = k + (byte - quants) / 32 * 64 + (byte - quants) % 32;
        return low(i) | low(i + 32) << 4;
      }
      uint32_t out = 0;
      for (int32_t b = 0; b < 8; ++b) out |= static_cast<uint32_t>(high(k + b * 32 + byte - 16)) << b;
      return out;
    } else {
      constexpr int32_t bits = T == kMXFP4 ? 1 : Format<T>::has_min ? 4 : 2, quants = bits + (f.high > 0 ? 4 : 0);
      if (byte >= quants) return low(k + byte - quants) | low(k + byte - quants + 16) << 4;
      uint32_t out = 0;
      for (int32_t b = 0; b < 8; ++b) out |= static_cast<uint32_t>(high(k + (byte - bits) * 8 + b)) << b;
      return out;
    }
  }
};

// Restores bytes [first, first + 4) of the `count` bytes of the file from `offset` on.
template <int32_t T>
__device__ void unpack_bytes(const PackedWeight& from, int64_t groups, uint64_t offset, uint64_t first, uint64_t count, uint8_t* out) {
  constexpr WeightFormat f = Format<T>::f;
  const uint64_t row_bytes = static_cast<uint64_t>(from.cols / f.block) * f.block_bytes;
  PackedRow<T> row{from.data, static_cast<int64_t>((offset + first) / row_bytes), groups};
  const uint64_t within = (offset + first) % row_bytes;
  int64_t k = static_cast<int64_t>(within / f.block_bytes) * f.block;
  int32_t byte = static_cast<int32_t>(within % f.block_bytes);
  const int32_t n = count - first < 4 ? static_cast<int32_t>(count - first) : 4;
  uint32_t word = 0;
  for (int32_t i = 0; i < n; ++i) {
    word |= row.file_byte(k, byte) << i * 8;
    if (++byte < f.block_bytes) continue;
    byte = 0;
    k += f.block;
    if (k < from.cols) continue;
    k = 0;
    ++row.row;
  }
  uint8_t* to = out + first;
  if (n == 4 && reinterpret_cast<uintptr_t>(to) % 4 == 0) {
    *reinterpret_cast<uint32_t*>(to) = word;
  } else {
    for (int32_t i = 0; i < n; ++i) to[i] = static_cast<uint8_t>(word >> i * 8);
  }
}

__global__ void __launch_bounds__(kThreads) four_bytes_per_thread(PackedWeight from, int64_t groups, uint64_t offset,
                                                                  uint64_t count, uint8_t* out) {
  grid_wait();
  grid_trigger();
  const uint64_t first = (static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x) * 4;
  if (first >= count) return;
  with_type(from.type, [&](auto type) { unpack_bytes<type.value>(from, groups, offset, first, count, out); });
}

__device__ float half_bits(uint16_t v) { return __half2float(__ushort_as_half(v)); }

template <int32_t T>
__device__ float value_of(const PackedRow<T>& row, int64_t k) {
  if constexpr (T == kF32) {
    return *reinterpret_cast<const float*>(row.number(k));
  } else if constexpr (T == kF16) {
    return half_bits(*reinterpret_cast<const uint16_t*>(row.number(k)));
  } else if constexpr (T == kBF16) {
    return __uint_as_float(static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(row.number(k))) << 16);
  } else if constexpr (T == kQ6_K) {
    const int32_t q = row.six(k) - 32;
    return half_bits(row.header_d(k)) * static_cast<float>(row.scale16(k)) * static_cast<float>(q);
  } else if constexpr (Format<T>::f.codes) {
    constexpr float power = kCodebook<T>.power;
    return half_bits(row.header_d(k)) * power * static_cast<float>(row.scale16(k)) * static_cast<float>(value_of_code<T>(row.low(k)));
  } else if constexpr (T == kQ2_K) {
    const uint32_t pair = row.header_pair(k), scales = row.scale16_byte(k);
    const float d = half_bits(static_cast<uint16_t>(pair)), dmin = half_bits(static_cast<uint16_t>(pair >> 16));
    return fmaf(d * static_cast<float>(scales & 15), static_cast<float>(row.low(k)), -(dmin * static_cast<float>(scales >> 4)));
  } else if constexpr (Format<T>::superblock) {
    const uint32_t* header = row.header(k);
    const int32_t block = static_cast<int32_t>(k / 32 % 8);
    const float d = half_bits(static_cast<uint16_t>(header[0])), dmin = half_bits(static_cast<uint16_t>(header[0] >> 16));
    const float scale = d * static_cast<float>(packed_six_bits(header + 1, block, 0));
    const float min = dmin * static_cast<float>(packed_six_bits(header + 1, block, 1));
    return fmaf(scale, static_cast<float>(row.low(k) | row.high(k) << 4), -min);
  } else if constexpr (T == kNVFP4) {
    return nvfp4_scale(row.scale16_byte(k)) * static_cast<float>(mxfp4_value(row.low(k)));
  } else if constexpr (T == kMXFP4) {
    return mxfp4_scale(row.exponent(k)) * static_cast<float>(mxfp4_value(row.low(k)));
  } else {
    const float d = half_bits(row.half(k, 0));
    if constexpr (Format<T>::has_min) {
      return fmaf(d, static_cast<float>(row.low(k) | row.high(k) << 4), half_bits(row.half(k, 1)));
    } else if constexpr (T == kIQ4_NL) {
      return d * static_cast<float>(iq4_nl_value(row.low(k)));
    } else {
      constexpr int32_t zero = T == kQ8_0 ? 128 : T == kQ5_0 ? 16 : 8;
      return d * static_cast<float>((row.low(k) | row.high(k) << 4) - zero);
    }
  }
}

template <int32_t T>
__device__ void dequantise_row(const DequantRowsArgs& a, int64_t groups, int32_t id, float* out) {
  const PackedRow<T> row{a.weight.data, id, groups};
  for (int64_t k = int64_t{blockIdx.y} * kThreads + threadIdx.x; k < a.weight.cols; k += int64_t{gridDim.y} * kThreads)
    out[k] = value_of<T>(row, k) * a.scale;
}

// Dequantises some columns of row blockIdx.x. If rows are few a thread has one element, so that no load waits for
// another.
__global__ void __launch_bounds__(kThreads) columns_per_block(DequantRowsArgs a, int64_t groups) {
  grid_wait();
  grid_trigger();
  const int32_t id = a.row_ids[blockIdx.x];
  float* out = a.out + static_cast<int64_t>(blockIdx.x) * a.out_stride;
  if (id >= 0 && id < a.weight.rows) return with_type(a.weight.type, [&](auto type) { dequantise_row<type.value>(a, groups, id, out); });
  for (int64_t k = int64_t{blockIdx.y} * kThreads + threadIdx.x; k < a.weight.cols; k += int64_t{gridDim.y} * kThreads)
    out[k] = __int_as_float(0x7fffffff);
}

int64_t groups_of(const PackedWeight& w) {
  const int64_t group = kWeightFormats[weight_format_index(w.type)].units * int64_t{kUnitCols};
  return (w.cols + group - 1) / group;
}

bool valid(const PackedWeight& w) { return weight_supported(w.type, w.rows, w.cols) && w.data != nullptr; }

}  // namespace

cudaError_t launch_repack(const void* file, const PackedWeight& to, const Stream& on) {
  if (!valid(to) || file == nullptr) return cudaErrorInvalidValue;
  const int64_t groups = groups_of(to), blocks = (to.rows + kPanelRows - 1) / kPanelRows * groups;
  if (blocks > INT32_MAX) return cudaErrorInvalidValue;
  return launch(on, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, group_per_block, static_cast<const uint8_t*>(file), to, groups);
}

cudaError_t launch_unpack(const PackedWeight& from, uint64_t offset, uint64_t count, void* out, const Stream& on) {
  if (!valid(from)) return cudaErrorInvalidValue;
  const uint64_t size = weight_file_bytes(from.type, from.rows, from.cols);
  if (offset > size || count > size - offset) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  const uint64_t blocks = (count + kThreads * 4 - 1) / (kThreads * 4);
  if (blocks > INT32_MAX) return cudaErrorInvalidValue;
  return launch(on, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, four_bytes_per_thread, from, groups_of(from), offset, count,
                static_cast<uint8_t*>(out));
}

cudaError_t launch_dequant_rows(const DequantRowsArgs& args, const Stream& on) {
  if (!valid(args.weight)) return cudaErrorInvalidValue;
  if (args.count <= 0) return args.count == 0 ? cudaSuccess : cudaErrorInvalidValue;
  const int64_t columns = (args.weight.cols + kThreads - 1) / kThreads;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(columns, std::max(1, 1024 / args.count)));
  return launch(on, dim3(static_cast<unsigned>(args.count), blocks), dim3(kThreads), 0, columns_per_block, args, groups_of(args.weight));
}

}  // namespace mr::cuda
