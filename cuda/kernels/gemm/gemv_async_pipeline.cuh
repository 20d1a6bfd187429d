// gemv_async_pipeline: the shared memory of a gemv_async block, how its warps fill it, and how they multiply what is in it.
#pragma once

#include "kernels/gemm/folded.cuh"
#include "kernels/gemm/gemv_tile.cuh"
#include "kernels/gemm/mxfp4_unit.cuh"
#include "kernels/gemm/targets.cuh"
#include "kernels/instructions.cuh"
#include "kernels/launch.h"

namespace mr::cuda {

// A stage holds the weights of each warp, and a stage of the second pipeline its tokens. A token that the block norms
// is stored in the place of the second pipeline as one row.
template <int32_t T, class A, class S, int32_t room>
struct GemvAsyncLayout {
  static constexpr WeightFormat f = Format<T>::f;
  static constexpr bool grouped = f.units > 1;
  static constexpr int32_t unit = f.quants + f.high + f.scales;
  // Bytes of one panel in a stage: a whole group as it is in the weight, or parts of its planes one after another.
  static constexpr int32_t panel_stage = S::units * unit + f.header;
  static constexpr int32_t token_row = S::units * kUnitCols * 2 + 16;  // 16 bytes of padding: ldmatrix meets every bank once
  static constexpr int32_t warp_stage = S::panels * panel_stage, token_stage = S::tokens * token_row;
  static constexpr int32_t stage = S::warps * warp_stage, token_slot = S::warps * token_stage;
  __device__ static constexpr int32_t quants_at(int32_t u) { return grouped ? u * f.quants : u * unit; }
  __device__ static constexpr int32_t high_at(int32_t u) {
    return grouped ? S::units * f.quants + u * f.high : u * unit + f.quants;
  }
  __device__ static constexpr int32_t scales_at(int32_t u) {
    return grouped ? S::units * (f.quants + f.high) + u * f.scales : u * unit + f.quants + f.high;
  }

  static constexpr int32_t token_bytes(int32_t stages) {
    return S::tokens > 1 || stages * token_slot > kMostNormed * 2 ? stages * token_slot : kMostNormed * 2;
  }
  static constexpr int32_t bytes_of(int32_t stages) { return stages * stage + token_bytes(stages) + 2 * S::reduction * 4; }
  // The most stages of which `blocks` fit, up to 6. With one token of a type that folds it is two on large SMs: on an
  // H100 longer pipelines cost a small model a seventh of its speed (cuda/kernels/README.md).
  static constexpr int32_t most_stages = S::tokens == 1 && kFolds<T> && room == 228 ? 2 : 6;
  static constexpr int32_t fitting_stages(int32_t blocks) {
    int32_t stages = most_stages;
    while (stages > 0 && bytes_of(stages) > room * 1024 / blocks - 1024) --stages;
    return stages;
  }
  // If not even one block of two stages fits, the kernel does not run.
  static constexpr int32_t many = fitting_stages(S::blocks_per_sm), alone = fitting_stages(1);
  static constexpr int32_t stages = many >= 2 ? many : alone >= 2 ? alone : 2;
  static constexpr int32_t tokens_at = stages * stage, partial_sums_at = tokens_at + token_bytes(stages);
  static constexpr int32_t bytes = bytes_of(stages);
};

template <int32_t T, class A, class S>
struct GemvAsyncPipeline {
  using Layout = GemvAsyncLayout<T, A, S, kGemvSharedKiB>;
  using Split = OperandSplit<T, A>;
  using E = typename Split::Element;
  static constexpr WeightFormat f = Format<T>::f;

  const GemvParams& p;
  int32_t warp, lane;
  uint32_t shared;  // address of the pipelines
  uint8_t* normed;  // the row, if norms()
  uint64_t policy;
  // This warp's slice, which is cut at whole groups.
  const int32_t unit_begin = p.groups * warp / kSlices * f.units, unit_end = p.groups * (warp + 1) / kSlices * f.units;

  // Returns whether the block norms its token.
  __device__ __forceinline__ bool norms() const { return S::tokens == 1 && p.norm.weight != nullptr; }

  // Cursor is a position in the sequence of stages of a warp's slice, item after item.
  struct Cursor {
    int32_t item, unit;
  };

  // WeightFeed is where this lane's first 16 bytes of each panel begin.
  struct WeightFeed {
    const uint8_t* panel[S::panels];
  };

  // Panels past the last are read as the last; their sums are discarded.
  __device__ __forceinline__ void aim(WeightFeed& feed, const Cursor& cursor) const {
    if (cursor.item >= p.items) return;
    int32_t within = tile_of(p, cursor.item);
    const KernelTarget& target = p.pair ? p.targets[0] : target_of(p, within, within);
#pragma unroll
    for (int32_t r = 0; r < S::panels; ++r) {
      const int32_t panel = min(p.pair ? within : within * S::panels + r, target.panels - 1);
      const uint8_t* data = p.pair && r == 1 ? p.targets[1].data : target.data;
      feed.panel[r] = data + panel * p.panel_bytes + lane * 16;
    }
  }

  __device__ __forceinline__ void aim_next(WeightFeed& feed, const Cursor& cursor) const {
    if (!p.even) return aim(feed, cursor);
#pragma unroll
    for (int32_t r = 0; r < S::panels; ++r) feed.panel[r] += p.item_bytes;
  }

  // Copies this lane's 16-byte pieces of a span.
  template <int32_t bytes>
  __device__ __forceinline__ void copy_span(uint32_t to, const uint8_t* from) const {
#pragma unroll
    for (int32_t c = 0; c < bytes; c += 512) {
      if (c + 512 <= bytes || lane * 16 < bytes - c) copy16(to + c, from + c, policy);
    }
  }

  __device__ __forceinline__ uint32_t weights_in(int32_t stage) const {
    return shared + stage * Layout::stage + warp * Layout::warp_stage;
  }
  __device__ __forceinline__ uint32_t tokens_in(int32_t stage) const {
    return shared + Layout::tokens_at + stage * Layout::token_slot + warp * Layout::token_stage;
  }

  // Requests the weights of a stage.
  __device__ __forceinline__ void fill(const WeightFeed& feed, const Cursor& cursor, int32_t stage) const {
    const uint32_t to = weights_in(stage) + lane * 16;
#pragma unroll
    for (int32_t r = 0; r < S::panels; ++r) {
      const uint32_t panel = to + r * Layout::panel_stage;
      if constexpr (!Layout::grouped) {
        const uint8_t* from = feed.panel[r] + static_cast<int64_t>(cursor.unit) * Layout::unit;
        if (S::units == 1 || cursor.unit + S::units <= unit_end) {
          copy_span<S::units * Layout::unit>(panel, from);
        } else {
          for (int32_t u = 0; u < unit_end - cursor.unit; ++u) copy_span<Layout::unit>(panel + u * Layout::unit, from + u * Layout::unit);
        }
      } else {
        const uint8_t* from = feed.panel[r] + static_cast<int64_t>(cursor.unit / f.units) * Format<T>::group_bytes;
        if constexpr (S::units == f.units) {
          copy_span<Format<T>::group_bytes>(panel, from);
        } else {
          const int32_t u = cursor.unit % f.units;
          copy_span<S::units * f.quants>(panel, from + u * f.quants);
          if constexpr (f.high > 0) copy_span<S::units * f.high>(panel + Layout::high_at(0), from + Format<T>::high_at(u));
          if constexpr (f.scales > 0) copy_span<S::units * f.scales>(panel + Layout::scales_at(0), from + Format<T>::scales_at(u));
          if (u == 0) copy_span<f.header>(panel + S::units * Layout::unit, from + Format<T>::header_plane);
        }
      }
    }
  }

  // TokenFeed is where this lane's 16 bytes of its first row of tokens begin, in unit 0; several lanes copy one row.
  struct TokenFeed {
    const uint8_t* row;
    int32_t rows;  // rows left from that row on
  };
  static constexpr int32_t row_lanes = S::units * 8;  // lanes that copy one row
  static constexpr int32_t rows_at_once = 32 / row_lanes;
  static constexpr int32_t row_steps = (S::tokens + rows_at_once - 1) / rows_at_once;
  __device__ __forceinline__ int32_t own_row() const { return lane / row_lanes; }
  __device__ __forceinline__ int32_t own_piece() const { return lane % row_lanes * 16; }

  __device__ __forceinline__ void aim(TokenFeed& feed, const Cursor& cursor) const {
    const int32_t token = first_token<S>(p, cursor.item) + own_row();
    feed.rows = min(p.tokens - token, S::tokens - own_row());
    feed.row = static_cast<const uint8_t*>(p.x) + token * p.x_stride * 2 + own_piece();
  }

  __device__ __forceinline__ void aim_next(TokenFeed& feed, const Cursor& cursor) const {
    if (p.token_tiles > 1) aim(feed, cursor);
  }

  // Rows past the last token keep what they hold, because their sums are discarded; columns past the last become zeros.
  __device__ __forceinline__ void fill(const TokenFeed& feed, const Cursor& cursor, int32_t stage) const {
    const uint32_t to = tokens_in(stage) + own_row() * Layout::token_row + own_piece();
    const uint8_t* from = feed.row + static_cast<int64_t>(cursor.unit) * (kUnitCols * 2);
    const bool whole = (cursor.unit + S::units) * kUnitCols <= p.cols;
    const int32_t left = (p.cols - cursor.unit * kUnitCols) * 2 - own_piece();
#pragma unroll
    for (int32_t i = 0; i < row_steps; ++i) {
      if (i * rows_at_once >= feed.rows) continue;
      const uint8_t* row = from + i * rows_at_once * p.x_stride * 2;
      const uint32_t place = to + i * rows_at_once * Layout::token_row;
      if (whole) copy16_through(place, row);
      else copy16_or_zero(place, left > 0 ? row : static_cast<const uint8_t*>(p.x), static_cast<uint32_t>(min(max(left, 0), 16)));
    }
  }

  // Returns where this lane's row of a stage's tokens begins, for load_matrices.
  __device__ __forceinline__ uint32_t tokens_at(int32_t stage, int32_t unit) const {
    const uint32_t row = norms() ? shared + Layout::tokens_at + unit * (kUnitCols * 2)
                                 : tokens_in(stage) + (S::tokens == 1 ? 0 : lane & 7) * Layout::token_row;
    return row + (lane >> 3) * 16;
  }

  // Advances to the next stage of the slice, and moves the feeds if it belongs to another item.
  template <class... Feeds>
  __device__ __forceinline__ void advance(Cursor& cursor, Feeds&... feeds) const {
    cursor.unit += S::units;
    if (cursor.unit < unit_end) return;
    cursor.unit = unit_begin;
    cursor.item += p.item_stride;
    if (cursor.item < p.items) (aim_next(feeds, cursor), ...);
  }
};

// GemvAsyncMma multiplies a warp's stages by mma.m16n8k16.
template <int32_t T, class A, class S>
struct GemvAsyncMma {
  using Pipeline = GemvAsyncPipeline<T, A, S>;
  using E = typename Pipeline::E;
  using Layout = typename Pipeline::Layout;
  using Split = typename Pipeline::Split;
  static constexpr WeightFormat f = Pipeline::f;

  const Pipeline& pipeline;
  const int32_t lane = pipeline.lane;

  using Sums = float[S::panels][4];

  // Group is the state from a group's first unit to its last.
  struct Group {
    std::conditional_t<kFolds<T>, FoldedHeader, GroupHeader<T>> headers[S::panels];
    Sums products;     // products and inputs are used only if scales fold
    InputSums inputs;
  };

  // Adds the products of a stage's units to acc.
  __device__ __forceinline__ void multiply(Sums& acc, Group& group, int32_t stage, int32_t unit) const {
    const uint32_t weights = pipeline.weights_in(stage), tokens = pipeline.tokens_at(stage, unit);
    if (Layout::grouped && unit % f.units == 0) {
#pragma unroll
      for (int32_t r = 0; r < S::panels; ++r) group.headers[r].load(weights + r * Layout::panel_stage + S::units * Layout::unit, lane);
    }
    if constexpr (kFolds<T>) {
      multiply_folded(acc, group, weights, tokens, unit);
    } else {
#pragma unroll
      for (int32_t u = 0; u < S::units; ++u) {
        if (u > 0 && !Layout::grouped && unit + u >= pipeline.unit_end) break;
        multiply_unit(acc, group.headers, weights, tokens + u * kUnitCols * 2, u);
      }
    }
  }

  // Unit u of the stage: float weights, or quantised ones that are rounded to f16. A unit of MXFP4 is unpacked as a whole.
  __device__ __forceinline__ void multiply_unit(Sums& acc, const GroupHeader<T> (&headers)[S::panels], uint32_t weights, uint32_t tokens,
                                                int32_t u) const {
    if constexpr (T == kMXFP4) {
      uint32_t b[2][4];
      load_matrices(b[0], tokens);
      load_matrices(b[1], tokens + 64);
#pragma unroll
      for (int32_t r = 0; r < S::panels; ++r) {
        const uint32_t panel = weights + r * Layout::panel_stage;
        uint32_t a[4][4];
        take_mxfp4_unit(a, panel + Layout::quants_at(u), panel + Layout::scales_at(u), lane);
#pragma unroll
        for (int32_t step = 0; step < 4; ++step) mma16816<E>(acc[r], a[step], b[step / 2][step % 2 * 2], b[step / 2][step % 2 * 2 + 1]);
      }
    } else {
      std::conditional_t<Format<T>::is_float, NoUnit, RoundedUnit<T>> units[S::panels];
#pragma unroll
      for (int32_t r = 0; r < S::panels; ++r) {
        const uint32_t panel = weights + r * Layout::panel_stage;
        units[r].begin(panel + Layout::quants_at(u), panel + Layout::high_at(u), panel + Layout::scales_at(u), headers[r], lane);
      }
      multiply_half<0>(acc, units, weights + Layout::quants_at(u), tokens);
      multiply_half<1>(acc, units, weights + Layout::quants_at(u), tokens + 64);
    }
  }

  struct NoUnit {
    __device__ __forceinline__ void begin(uint32_t, uint32_t, uint32_t, const GroupHeader<T>&, int32_t) {}
  };

  // Inputs [32 * half, 32 * half + 32) of a unit; `quants` is the address of its first panel's quants, `tokens` of the inputs.
  template <int32_t half, class Unit>
  __device__ __forceinline__ void multiply_half(Sums& acc, Unit (&units)[S::panels], uint32_t quants, uint32_t tokens) const {
    uint32_t b[4];
    load_matrices(b, tokens);
#pragma unroll
    for (int32_t r = 0; r < S::panels; ++r) {
      uint32_t a[2][Split::weights][4];
      if constexpr (Format<T>::is_float) {
#pragma unroll
        for (int32_t s = 0; s < 2; ++s) load_terms<T>(a[s], quants + r * Layout::panel_stage, half * 2 + s, lane);
      } else {
        units[r].template take<half * 2>(a[0][0]);
        units[r].template take<half * 2 + 1>(a[1][0]);
      }
      product(acc[r], a[0], b[0], b[1]);
      product(acc[r], a[1], b[2], b[3]);
    }
  }

  __device__ __forceinline__ static void product(float (&acc)[4], const uint32_t (&a)[Split::weights][4], uint32_t b0, uint32_t b1) {
    if constexpr (Split::inputs == 1) {
#pragma unroll
      for (int32_t w = 0; w < Split::weights; ++w) mma16816<E>(acc, a[w], b0, b1);
    } else {
      uint32_t head[2], tail[2];
      split_half2(b0, head[0], tail[0]);
      split_half2(b1, head[1], tail[1]);
#pragma unroll
      for (int32_t w = 0; w < Split::weights; ++w) mma16816<E>(acc, a[w], head[0], head[1]);
#pragma unroll
      for (int32_t w = 0; w < Split::weights; ++w) mma16816<E>(acc, a[w], tail[0], tail[1]);
    }
  }

  __device__ __forceinline__ void multiply_folded(Sums& acc, Group& group, uint32_t weights, uint32_t tokens, int32_t unit) const {
    static_assert(S::units == 2 || S::units == 4, "scales of half a group are found without an index");
    const bool upper = S::units == 2 && unit % f.units != 0;  // second half of the group
    if (!upper) {
#pragma unroll
      for (int32_t r = 0; r < S::panels; ++r) {
#pragma unroll
        for (float& c : group.products[r]) c = 0;
      }
      group.inputs.clear();
    }
    multiply_folded_unit<0>(group, weights, tokens, upper);
    multiply_folded_unit<1>(group, weights, tokens, upper);
    if constexpr (S::units == 4) {
      multiply_folded_unit<2>(group, weights, tokens, upper);
      multiply_folded_unit<3>(group, weights, tokens, upper);
    }
    if (S::units == 2 && !upper) return;
    uint32_t input_sums[3];
    group.inputs.split(input_sums);
#pragma unroll
    for (int32_t r = 0; r < S::panels; ++r) group.headers[r].add_with_mins(acc[r], group.products[r], input_sums);
  }

  // Unit u of the stage; upper: it is in the second half of the group.
  template <int32_t u>
  __device__ __forceinline__ void multiply_folded_unit(Group& group, uint32_t weights, uint32_t tokens, bool upper) const {
    uint32_t x[2][4];
    load_matrices(x[0], tokens + u * kUnitCols * 2);
    load_matrices(x[1], tokens + u * kUnitCols * 2 + 64);
    group.inputs.add(x[0], u * 2 + upper * 4, lane);
    group.inputs.add(x[1], u * 2 + 1 + upper * 4, lane);
#pragma unroll
    for (int32_t r = 0; r < S::panels; ++r) {
      const uint32_t panel = weights + r * Layout::panel_stage;
      UnitQuants<T> quants;
      quants.begin(panel + Layout::quants_at(u), panel + Layout::high_at(u), lane);
      uint32_t a[4][4];
      folded_unit<T, u>(group.headers[r], quants, upper, a);
#pragma unroll
      for (int32_t step = 0; step < 4; ++step) {
        mma16816<E>(group.products[r], a[step], x[step / 2][step % 2 * 2], x[step / 2][step % 2 * 2 + 1]);
      }
    }
  }
};

}  // namespace mr::cuda
