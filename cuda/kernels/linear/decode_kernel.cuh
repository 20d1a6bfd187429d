// decode_kernel: the decode class of products; see product.h for what it promises.
//
// The kernels of one and of eight tokens, which take more in tiles; wide_kernel.cuh is for many. A block takes one tile of
// `panels` panels of 16 rows after another, and each of its 8 warps one of the 8 segments of the columns. A warp streams its
// segment's units, and the tokens', through a ring in shared memory that it alone fills and reads, `units` of them a stage,
// and does not empty it between tiles. Weights come by cp.async past the first level cache. Segments are joined as a balanced
// tree of 8 through shared memory. Gate and up are the two panels of a tile.
#pragma once

#include "kernels/launch.h"
#include "kernels/linear/decode.h"
#include "kernels/linear/folded.cuh"
#include "kernels/linear/fragment.cuh"
#include "kernels/linear/mma.cuh"
#include "kernels/norm_row.cuh"

namespace mr::cuda {

constexpr int32_t kSegments = 8;

// What a decode kernel is compiled for.
template <int32_t panels_, int32_t tokens_, int32_t units_, int32_t blocks_>
struct DecodeShape {
  static constexpr int32_t panels = panels_;
  static constexpr int32_t tokens = tokens_;  // of a tile; of 1, the rest of the tensor cores' 8 columns repeats it
  static constexpr int32_t units = units_;    // of a stage: 1, 2 or 4
  static constexpr int32_t blocks_per_sm = blocks_;  // registers are limited so that as many fit
  static constexpr int32_t warps = kSegments, threads = warps * 32;
  static constexpr int32_t rows = panels * kPanelRows;
  static_assert(tokens == 1 || tokens == 8);
};

// KiB of shared memory of the multiprocessors that run machine code of a compute capability.
constexpr int32_t decode_room(int32_t capability) { return capability >= 90 ? 228 : capability >= 86 ? 100 : 164; }
#ifdef __CUDA_ARCH__
constexpr int32_t kDecodeRoom = decode_room(__CUDA_ARCH__ / 10);
#else
constexpr int32_t kDecodeRoom = 0;  // host code names the room
#endif

// The rings: a stage of one holds each warp's weights, of the other each warp's tokens. A token that a block norms lies in the
// other's place as one row.
template <int32_t T, class A, class S, int32_t room>
struct DecodeLayout {
  static constexpr WeightFormat f = Format<T>::f;
  static constexpr bool grouped = f.units > 1;
  static constexpr int32_t unit = f.quants + f.high + f.scales;
  // Bytes of one panel in a stage. A whole group lies as in the weight; part of one as its planes' parts.
  static constexpr int32_t panel_stage = S::units * unit + f.header;
  static constexpr int32_t token_row = S::units * kUnitCols * 2 + 16;  // 16 more than the data: ldmatrix meets every bank once
  static constexpr int32_t warp_stage = S::panels * panel_stage, token_stage = S::tokens * token_row;
  static constexpr int32_t stage = S::warps * warp_stage, token_slot = S::warps * token_stage;
  __device__ static constexpr int32_t quants_at(int32_t u) { return grouped ? u * f.quants : u * unit; }
  __device__ static constexpr int32_t high_at(int32_t u) {
    return grouped ? S::units * f.quants + u * f.high : u * unit + f.quants;
  }
  __device__ static constexpr int32_t scales_at(int32_t u) {
    return grouped ? S::units * (f.quants + f.high) + u * f.scales : u * unit + f.quants + f.high;
  }

  static constexpr bool publishes = Format<T>::superblock && Format<T>::has_min && !kFolds<T, A>;
  static constexpr int32_t published = S::units < 2 ? 1 : 2;  // units at a time
  static constexpr int32_t warp_exchange = publishes ? S::panels * published * 256 : 0;
  static constexpr int32_t exchange = S::warps * warp_exchange;
  static constexpr int32_t columns = S::tokens, join_stride = S::rows + 4;  // floats; a token's column
  static constexpr int32_t join = kSegments * columns * join_stride * 4;  // twice: tiles alternate
  static constexpr int32_t token_bytes(int32_t stages) {
    return S::tokens > 1 || stages * token_slot > kMostNormed * 2 ? stages * token_slot : kMostNormed * 2;
  }
  static constexpr int32_t bytes_of(int32_t stages) { return stages * stage + token_bytes(stages) + exchange + 2 * join; }
  // The most stages of which `blocks` fit, up to 6.
  static constexpr int32_t fitting_stages(int32_t blocks) {
    int32_t stages = 6;
    while (stages > 0 && bytes_of(stages) > room * 1024 / blocks - 1024) --stages;
    return stages;
  }
  // Where not even one block of two stages fits, the kernel does not run.
  static constexpr int32_t many = fitting_stages(S::blocks_per_sm), alone = fitting_stages(1);
  static constexpr int32_t stages = many >= 2 ? many : alone >= 2 ? alone : 2;
  static constexpr int32_t tokens_at = stages * stage, exchange_at = tokens_at + token_bytes(stages), joins_at = exchange_at + exchange;
  static constexpr int32_t bytes = bytes_of(stages);
};

template <int32_t T, class A, class S>
struct DecodeBlock {
  using Layout = DecodeLayout<T, A, S, kDecodeRoom>;
  using Split = Terms<T, A>;
  using E = typename Split::Element;
  static constexpr WeightFormat f = Format<T>::f;

  const DecodeParams& p;
  uint32_t shared;  // the rings' address
  float* joins;
  uint8_t* normed;  // the row, where norms()
  int32_t warp, lane;
  int32_t unit_begin, unit_end;  // of this warp's segment
  uint64_t policy;

  // A place in the sequence of stages that a warp's segment takes, item after item.
  struct Cursor {
    int32_t item, unit;
  };

  __device__ __forceinline__ int32_t tile_of(int32_t item) const { return p.token_tiles == 1 ? item : item / p.token_tiles; }
  __device__ __forceinline__ int32_t first_token(int32_t item) const {
    return p.token_tiles == 1 ? 0 : item % p.token_tiles * S::tokens;
  }

  // The target of a tile, and the tile within it.
  __device__ __forceinline__ const DecodeTarget& target_of(int32_t tile, int32_t& within) const {
    const int32_t i = (p.count > 1 && tile >= p.targets[1].first_tile) + (p.count > 2 && tile >= p.targets[2].first_tile);
    within = tile - p.targets[i].first_tile;
    return p.targets[i];
  }

  // Where this lane's first 16 bytes of each panel begin.
  struct WeightFeed {
    const uint8_t* panel[S::panels];
  };

  // Panels past the last are read as the last; their sums go nowhere.
  __device__ __forceinline__ void aim(WeightFeed& feed, const Cursor& at) const {
    if (at.item >= p.items) return;
    int32_t within = tile_of(at.item);
    const DecodeTarget& target = p.pair ? p.targets[0] : target_of(within, within);
#pragma unroll
    for (int32_t r = 0; r < S::panels; ++r) {
      const int32_t panel = min(p.pair ? within : within * S::panels + r, target.panels - 1);
      const uint8_t* data = p.pair && r == 1 ? p.targets[1].data : target.data;
      feed.panel[r] = data + panel * p.panel_bytes + lane * 16;
    }
  }

  __device__ __forceinline__ void aim_next(WeightFeed& feed, const Cursor& at) const {
    if (!p.even) return aim(feed, at);
#pragma unroll
    for (int32_t r = 0; r < S::panels; ++r) feed.panel[r] += p.item_bytes;
  }

  // This lane's 16-byte pieces of a span.
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

  // Asks for the weights of a stage.
  __device__ __forceinline__ void fill(const WeightFeed& feed, const Cursor& at, int32_t stage) const {
    const uint32_t to = weights_in(stage) + lane * 16;
#pragma unroll
    for (int32_t r = 0; r < S::panels; ++r) {
      const uint32_t panel = to + r * Layout::panel_stage;
      if constexpr (!Layout::grouped) {
        const uint8_t* from = feed.panel[r] + static_cast<int64_t>(at.unit) * Layout::unit;
        if (S::units == 1 || at.unit + S::units <= unit_end) {
          copy_span<S::units * Layout::unit>(panel, from);
        } else {
          for (int32_t u = 0; u < unit_end - at.unit; ++u) copy_span<Layout::unit>(panel + u * Layout::unit, from + u * Layout::unit);
        }
      } else {
        const uint8_t* from = feed.panel[r] + static_cast<int64_t>(at.unit / f.units) * Format<T>::group_bytes;
        if constexpr (S::units == f.units) {
          copy_span<Format<T>::group_bytes>(panel, from);
        } else {
          const int32_t u = at.unit % f.units;
          copy_span<S::units * f.quants>(panel, from + u * f.quants);
          if constexpr (f.high > 0) copy_span<S::units * f.high>(panel + Layout::high_at(0), from + Format<T>::high_at(u));
          if constexpr (f.scales > 0) copy_span<S::units * f.scales>(panel + Layout::scales_at(0), from + Format<T>::scales_at(u));
          if (u == 0) copy_span<f.header>(panel + S::units * Layout::unit, from + Format<T>::header_plane);
        }
      }
    }
  }

  // Where this lane's 16 bytes of its first row of tokens begin, in unit 0; several lanes a row.
  struct TokenFeed {
    const uint8_t* row;
    int32_t rows;  // left from that row on
  };
  static constexpr int32_t row_lanes = S::units * 8;  // that copy one row
  static constexpr int32_t rows_at_once = 32 / row_lanes;
  static constexpr int32_t row_steps = (S::tokens + rows_at_once - 1) / rows_at_once;
  __device__ __forceinline__ int32_t own_row() const { return lane / row_lanes; }
  __device__ __forceinline__ int32_t own_piece() const { return lane % row_lanes * 16; }

  __device__ __forceinline__ void aim(TokenFeed& feed, const Cursor& at) const {
    const int32_t token = first_token(at.item) + own_row();
    feed.rows = min(p.tokens - token, S::tokens - own_row());
    feed.row = static_cast<const uint8_t*>(p.x) + token * p.x_stride * 2 + own_piece();
  }

  __device__ __forceinline__ void aim_next(TokenFeed& feed, const Cursor& at) const {
    if (p.token_tiles > 1) aim(feed, at);
  }

  // Rows beyond the last token stay as they are; columns beyond the last become zeros.
  __device__ __forceinline__ void fill(const TokenFeed& feed, const Cursor& at, int32_t stage) const {
    const uint32_t to = tokens_in(stage) + own_row() * Layout::token_row + own_piece();
    const uint8_t* from = feed.row + static_cast<int64_t>(at.unit) * (kUnitCols * 2);
    const bool whole = (at.unit + S::units) * kUnitCols <= p.cols;
    const int32_t left = (p.cols - at.unit * kUnitCols) * 2 - own_piece();
#pragma unroll
    for (int32_t i = 0; i < row_steps; ++i) {
      if (i * rows_at_once >= feed.rows) continue;
      const uint8_t* row = from + i * rows_at_once * p.x_stride * 2;
      const uint32_t place = to + i * rows_at_once * Layout::token_row;
      if (whole) copy16_through(place, row);
      else copy16_or_zero(place, left > 0 ? row : static_cast<const uint8_t*>(p.x), static_cast<uint32_t>(min(max(left, 0), 16)));
    }
  }

  // The next stage of the segment; the feeds are aimed anew where that is in another item.
  template <class... Feeds>
  __device__ __forceinline__ void advance(Cursor& at, Feeds&... feeds) const {
    at.unit += S::units;
    if (at.unit < unit_end) return;
    at.unit = unit_begin;
    at.item += p.item_stride;
    if (at.item < p.items) (aim_next(feeds, at), ...);
  }

  using Sums = float[S::panels][4];

  // What lasts from a group's first unit to its last.
  struct Group {
    std::conditional_t<kFolds<T, E>, FoldedHeader, GroupHeader<T, E>> headers[S::panels];
    Sums products;     // these two only where scales fold
    InputSums inputs;
  };

  // Adds the products of a stage's units.
  __device__ __forceinline__ void multiply(Sums& acc, Group& group, int32_t stage, int32_t unit) const {
    const uint32_t weights = weights_in(stage), tokens = tokens_at(stage, unit);
    if constexpr (kFolds<T, E>) return multiply_folded(acc, group, weights, tokens, unit);
    else return multiply_units(acc, group.headers, weights, tokens, unit);
  }

  // Where this lane's row of the tokens' inputs of a stage begins, for load_matrices.
  __device__ __forceinline__ uint32_t tokens_at(int32_t stage, int32_t unit) const {
    const uint32_t row = norms() ? shared + Layout::tokens_at + unit * (kUnitCols * 2)
                                 : tokens_in(stage) + (S::tokens == 1 ? 0 : lane & 7) * Layout::token_row;
    return row + (lane >> 3) * 16;
  }

  __device__ __forceinline__ void multiply_folded(Sums& acc, Group& group, uint32_t weights, uint32_t tokens, int32_t unit) const {
    static_assert(S::units == 2 || S::units == 4, "scales of half a group are found without an index");
    const bool upper = S::units == 2 && unit % f.units != 0;  // half of the group
    if (!upper) {
#pragma unroll
      for (int32_t r = 0; r < S::panels; ++r) {
        group.headers[r].load(weights + r * Layout::panel_stage + S::units * Layout::unit, lane);
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
    uint32_t terms[3];
    group.inputs.split(terms);
#pragma unroll
    for (int32_t r = 0; r < S::panels; ++r) {
      const FoldedHeader& header = group.headers[r];
      const uint32_t mins[4] = {header.mins[0], header.mins[1], header.mins[0], header.mins[1]};
      float c[4] = {0, 0, 0, 0};
      mma16816<__nv_bfloat16>(c, mins, terms[0], terms[1]);
      mma16816<__nv_bfloat16>(c, mins, terms[2], 0);
      header.add(acc[r], group.products[r], c);
    }
  }

  // Unit u of the stage; upper: of the group's last two.
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
      UnitQuants<T, E, 1> quants;
      quants.begin(panel + Layout::quants_at(u), panel + Layout::high_at(u), lane);
      const FoldedHeader& header = group.headers[r];
      uint32_t a[4][4];
      uint32_t g = header.template scale<u * 2>(0, upper), g8 = header.template scale<u * 2>(1, upper);
      folded_fragment<T, 0>(quants, g, g8, a[0]);
      folded_fragment<T, 1>(quants, g, g8, a[1]);
      g = header.template scale<u * 2 + 1>(0, upper);
      g8 = header.template scale<u * 2 + 1>(1, upper);
      folded_fragment<T, 2>(quants, g, g8, a[2]);
      folded_fragment<T, 3>(quants, g, g8, a[3]);
#pragma unroll
      for (int32_t step = 0; step < 4; ++step) {
        mma16816<E>(group.products[r], a[step], x[step / 2][step % 2 * 2], x[step / 2][step % 2 * 2 + 1]);
      }
    }
  }

  template <class Header>
  __device__ __forceinline__ void multiply_units(Sums& acc, Header (&headers)[S::panels], uint32_t weights, uint32_t tokens,
                                                 int32_t unit) const {
    const uint32_t exchange = shared + Layout::exchange_at + warp * Layout::warp_exchange;
    if constexpr (Layout::grouped) {
#pragma unroll
      for (int32_t r = 0; r < S::panels; ++r) {
        if (unit % f.units == 0) headers[r].load(weights + r * Layout::panel_stage + S::units * Layout::unit, lane);
      }
    }
#pragma unroll
    for (int32_t u = 0; u < S::units; ++u) {
      if (u > 0 && !Layout::grouped && unit + u >= unit_end) break;
      constexpr int32_t published = Layout::published;
      if constexpr (Layout::publishes) {
        if (u % published == 0) {
          if (u > 0) __syncwarp();
#pragma unroll
          for (int32_t r = 0; r < S::panels; ++r) {
            headers[r].template publish<published>(exchange + r * published * 256, unit % f.units + u, lane);
          }
          __syncwarp();
        }
      }
      UnitQuants<T, E, Split::weights> quants[S::panels];
      UnitScales<T, E> scales[S::panels];
#pragma unroll
      for (int32_t r = 0; r < S::panels; ++r) {
        const uint32_t panel = weights + r * Layout::panel_stage;
        quants[r].begin(panel + Layout::quants_at(u), panel + Layout::high_at(u), lane);
        scales[r].load(Layout::publishes ? exchange + (r * published + u % published) * 256 : panel + Layout::scales_at(u), headers[r], lane);
      }
      multiply_half<0>(acc, scales, quants, tokens + u * kUnitCols * 2);
      multiply_half<1>(acc, scales, quants, tokens + u * kUnitCols * 2 + 64);
    }
  }

  // Inputs [32 * half, 32 * half + 32) of a unit, which are at `tokens`.
  template <int32_t half>
  __device__ __forceinline__ void multiply_half(Sums& acc, const UnitScales<T, E> (&scales)[S::panels],
                                                UnitQuants<T, E, Split::weights> (&quants)[S::panels], uint32_t tokens) const {
    uint32_t b[4];
    load_matrices(b, tokens);
    float sums[4] = {0, 0, 0, 0};
    if constexpr (Format<T>::has_min) {
      constexpr uint32_t one = twice(std::is_same_v<E, __half> ? 0x3c00u : 0x3f80u);
      constexpr uint32_t ones[4] = {one, one, one, one};
      mma16816<E>(sums, ones, b[0], b[1]);
      mma16816<E>(sums, ones, b[2], b[3]);
    }
#pragma unroll
    for (int32_t r = 0; r < S::panels; ++r) {
      uint32_t a[2][Split::weights][4];
      quants[r].template take<half * 2>(a[0]);
      quants[r].template take<half * 2 + 1>(a[1]);
      if constexpr (Format<T>::is_float) {
        product(acc[r], a[0], b[0], b[1]);
        product(acc[r], a[1], b[2], b[3]);
      } else if constexpr (T == kQ6_K) {
#pragma unroll
        for (int32_t s = 0; s < 2; ++s) {
          float c[4] = {0, 0, 0, 0};
          mma16816<E>(c, a[s][0], b[s * 2], b[s * 2 + 1]);
          add_scaled(acc[r], c, scales[r].scale[0][half * 2 + s], scales[r].scale[1][half * 2 + s]);
        }
      } else {
        float c[4] = {0, 0, 0, 0};
        mma16816<E>(c, a[0][0], b[0], b[1]);
        mma16816<E>(c, a[1][0], b[2], b[3]);
        add_scaled(acc[r], c, scales[r].scale[0][half], scales[r].scale[1][half]);
        if constexpr (Format<T>::has_min) add_scaled(acc[r], sums, scales[r].min[0][half], scales[r].min[1][half]);
      }
    }
  }

  __device__ __forceinline__ static void add_scaled(float (&acc)[4], const float (&c)[4], float row_g, float row_g8) {
    acc[0] = fmaf(row_g, c[0], acc[0]);
    acc[1] = fmaf(row_g, c[1], acc[1]);
    acc[2] = fmaf(row_g8, c[2], acc[2]);
    acc[3] = fmaf(row_g8, c[3], acc[3]);
  }

  __device__ __forceinline__ static void product(float (&acc)[4], const uint32_t (&a)[Split::weights][4], uint32_t b0,
                                                 uint32_t b1) {
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

  // Joins the segments of a tile and hands every element to its end. buffer: one of the two, alternating; in it a plane a
  // segment, in that a column a token.
  __device__ __forceinline__ void finish(const Sums& acc, int32_t item, float* buffer) const {
    constexpr int32_t stride = Layout::join_stride, plane = Layout::columns * stride;
    if (S::tokens > 1 || lane % 4 == 0) {
#pragma unroll
      for (int32_t r = 0; r < S::panels; ++r) {
        float* at = buffer + warp * plane + (lane & 3) * 2 * stride + r * kPanelRows + (lane >> 2);
        at[0] = acc[r][0];
        at[8] = acc[r][2];
        if constexpr (S::tokens > 1) {
          at[stride] = acc[r][1];
          at[stride + 8] = acc[r][3];
        }
      }
    }
    __syncthreads();
    each_row(item, [&](int32_t at) {
      float v[kSegments];
#pragma unroll
      for (int32_t s = 0; s < kSegments; ++s) v[s] = buffer[s * plane + at];
      return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
    });
  }

  // Calls sum(place in the join buffer) for the tile's rows and ends them: one a thread.
  template <class F>
  __device__ __forceinline__ void each_row(int32_t item, F&& sum) const {
    static_assert(S::rows * S::tokens <= S::threads);
    const int32_t tile = tile_of(item), token0 = first_token(item), thread = warp * 32 + lane;
    if (thread >= S::rows * S::tokens) return;
    if (p.pair) {
      const int32_t local = thread % kPanelRows, column = thread / kPanelRows, row = tile * kPanelRows + local;
      if (column >= min(p.tokens - token0, S::tokens) || row >= p.targets[0].rows) return;
      const int32_t at = column * Layout::join_stride + local;
      return end_pair(row, token0 + column, sum(at), sum(at + kPanelRows));
    }
    int32_t within;
    const DecodeTarget& target = target_of(tile, within);
    const int32_t local = thread % S::rows, column = thread / S::rows, row = within * S::rows + local;
    if (column >= min(p.tokens - token0, S::tokens) || row >= target.rows) return;
    const int64_t at = (token0 + column) * target.out_stride + row;
    // What is added to is asked for ahead of the sum.
    const float before = p.end == ProductEnd::kAddF32 ? static_cast<const float*>(target.out)[at] : 0;
    float y = sum(column * Layout::join_stride + local);
    if (target.bias != nullptr) y += target.bias[row];
    switch (p.end) {
      case ProductEnd::kStoreF32: static_cast<float*>(target.out)[at] = y; break;
      case ProductEnd::kAddF32: static_cast<float*>(target.out)[at] = before + y; break;
      case ProductEnd::kStoreAct: static_cast<A*>(target.out)[at] = A(y); break;
      case ProductEnd::kSwiGLU: break;
    }
  }

  __device__ __forceinline__ void end_pair(int32_t row, int32_t token, float gate, float up) const {
    if (p.targets[0].bias != nullptr) gate += p.targets[0].bias[row];
    if (p.targets[1].bias != nullptr) up += p.targets[1].bias[row];
    static_cast<A*>(p.targets[0].out)[token * p.targets[0].out_stride + row] = A(gate / (1.0f + expf(-gate)) * up);
  }

  __device__ __forceinline__ bool norms() const { return S::tokens == 1 && p.norm.weight != nullptr; }

  // Writes the normed row and zeros behind it. Includes the dependency wait; weights are asked for before it.
  __device__ __forceinline__ void norm_row() const {
    const int32_t thread = warp * 32 + lane, warps = norm_warps(p.cols), threads = warps * 32, groups = p.cols / 4;
    float* const scratch = joins;
    float4 weight[kNormKept], x[kNormKept];
#pragma unroll
    for (int32_t k = 0; k < kNormKept; ++k) {
      const int32_t i = thread + k * threads;
      if (warp < warps && i < groups) weight[k] = reinterpret_cast<const float4*>(p.norm.weight)[i];
    }
    grid_wait();
    grid_trigger();
    float sum = 0;
#pragma unroll
    for (int32_t k = 0; k < kNormKept; ++k) {
      const int32_t i = thread + k * threads;
      if (warp >= warps || i >= groups) continue;
      x[k] = __ldcg(reinterpret_cast<const float4*>(p.norm.x) + i);
      sum = norm_square(x[k], sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) scratch[warp] = sum;
    __syncthreads();
    sum = scratch[0];
    for (int32_t w = 1; w < warps; ++w) sum += scratch[w];
    const float factor = norm_factor(sum, p.cols, p.norm.eps);
    uint2* const row = reinterpret_cast<uint2*>(normed);
#pragma unroll
    for (int32_t k = 0; k < kNormKept; ++k) {
      const int32_t i = thread + k * threads;
      if (warp < warps && i < groups) row[i] = norm_pack<A>(x[k], factor, weight[k]);
    }
    const int32_t padded = min((p.cols + 255) / 256 * 256, kMostNormed) / 4;
    if (groups + thread < padded) row[groups + thread] = make_uint2(0, 0);
    __syncthreads();
  }

  __device__ __forceinline__ void run() {
    // Segments are whole groups.
    unit_begin = p.groups * warp / kSegments * f.units;
    unit_end = p.groups * (warp + 1) / kSegments * f.units;
    const int32_t first_item = static_cast<int32_t>(blockIdx.x);
    Cursor next{unit_begin < unit_end ? first_item : p.items, unit_begin};
    WeightFeed weights;
    TokenFeed tokens;
    aim(weights, next);

    // Weights first, while the kernel before may still be writing the tokens.
    Cursor ahead = next;
#pragma unroll 1
    for (int32_t s = 0; s < Layout::stages - 1 && ahead.item < p.items; ++s) {
      fill(weights, ahead, s);
      advance(ahead, weights);
    }
    if (norms()) {
      norm_row();
    } else {
      grid_wait();
      grid_trigger();
    }
    aim(tokens, next);
#pragma unroll 1
    for (int32_t s = 0; s < Layout::stages - 1; ++s) {
      if (next.item < p.items) {
        if (!norms()) fill(tokens, next, s);
        advance(next, tokens);
      }
      copies_commit();
    }

    int32_t stage = 0, free_stage = Layout::stages - 1, buffer = 0;
#pragma unroll 1
    for (int32_t item = first_item; item < p.items; item += p.item_stride) {
      Sums acc = {};
      Group group;
#pragma unroll 1
      for (int32_t unit = unit_begin; unit < unit_end; unit += S::units) {
        copies_wait<Layout::stages - 2>();
        __syncwarp();
        if (next.item < p.items) {
          fill(weights, next, free_stage);
          if (!norms()) fill(tokens, next, free_stage);
          advance(next, weights, tokens);
        }
        copies_commit();
        multiply(acc, group, stage, unit);
        free_stage = stage;
        stage = stage + 1 == Layout::stages ? 0 : stage + 1;
      }
      finish(acc, item, joins + buffer * (Layout::join / 4));
      buffer ^= 1;
    }
  }
};

template <int32_t T, class A, class S>
__global__ void __launch_bounds__(S::threads, S::blocks_per_sm) decode_product(const __grid_constant__ DecodeParams p) {
  using Layout = DecodeLayout<T, A, S, kDecodeRoom>;
  extern __shared__ __align__(128) uint8_t ring[];
  DecodeBlock<T, A, S> block{p};
  block.shared = shared_address(ring);
  block.joins = reinterpret_cast<float*>(ring + Layout::joins_at);
  block.normed = ring + Layout::tokens_at;
  block.warp = static_cast<int32_t>(threadIdx.x) / 32;
  block.lane = static_cast<int32_t>(threadIdx.x) % 32;
  block.policy = p.token_tiles > 1 ? evict_normal_policy() : evict_first_policy();
  block.run();
}

template <int32_t T, class A, class S>
DecodeKernel decode_kernel_of() {
  return {reinterpret_cast<const void*>(&decode_product<T, A, S>),
          [](int32_t capability) {
            switch (decode_room(capability)) {
              case 228: return DecodeLayout<T, A, S, 228>::bytes;
              case 164: return DecodeLayout<T, A, S, 164>::bytes;
              default: return DecodeLayout<T, A, S, 100>::bytes;
            }
          },
          S::threads, S::panels, S::tokens};
}

// The shape with the most units a stage, up to `units`, whose rings have two stages where two blocks share 228 KiB. Of one
// token the rings must fit everywhere; F32 wants more than some devices have.
template <int32_t T, class A, int32_t panels, int32_t tokens, int32_t units, int32_t blocks>
DecodeKernel fitting() {
  using S = DecodeShape<panels, tokens, units, blocks>;
  constexpr bool everywhere = tokens > 1 || T == kF32 || DecodeLayout<T, A, S, 100>::alone >= 2;
  if constexpr (DecodeLayout<T, A, S, 228>::many >= 2 && everywhere) {
    return decode_kernel_of<T, A, S>();
  } else {
    static_assert(units > 1, "the rings do not fit");
    return fitting<T, A, panels, tokens, units / 2, blocks>();
  }
}

template <int32_t T, class A>
DecodeKernel decode_kernel_for(DecodeForm form) {
  constexpr bool number = Format<T>::is_float;
  constexpr int32_t blocks = T == kF32 ? 1 : 2, most = number ? 1 : 4;
  switch (form) {
    case DecodeForm::kSingle1: return fitting<T, A, 1, 1, number ? 2 : 4, blocks>();
    case DecodeForm::kPair1: return fitting<T, A, 2, 1, Format<T>::superblock ? 2 : most, blocks>();
    case DecodeForm::kSingle8: return fitting<T, A, 1, 8, most, blocks>();
    case DecodeForm::kPair8: return fitting<T, A, 2, 8, most, blocks>();
  }
  return {};
}

}  // namespace mr::cuda
