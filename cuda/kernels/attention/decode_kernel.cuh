// Decode attention: every row by itself; the query heads of one kv head share the keys that they read (GQA). It is
// bound by memory, so loads must always be in flight.
//
// Work      A unit is `span` chunks of kAttentionChunk keys of one row, for one kv head and a tile of up to 8 query
//           heads. All units are numbered, and blocks take equal shares (stream-K); the number of blocks changes no
//           bit.
// Products  Keys are the 16 rows of a fragment and query heads its 8 columns: scores^T = keys * queries^T, and out^T +=
//           values^T * weights^T, whose weights are transposed in registers.
// Chunk     Warp w computes the keys [16 (w + kWarps s), +16) of the chunk, s ascending, with a softmax of its own; the
//           four warps are merged in ascending order.
// Merge     Chunks of one group (kChunksAGroup) are merged in ascending order, then groups. A block merges in registers
//           its chunks of a group if it has the group's first chunk. The other parts are merged by the last block of
//           the group, and the groups by the last block of the row (attention/decode_merge.cuh).
// Memory    A warp has its own buffers for the keys and values of kTogether steps of 16. The next keys are requested as
//           soon as the scores are computed, the next values as soon as the last are weighed, also across chunks and
//           items, so loads never wait for a merge. If there are few rows, large blocks compute several steps at once,
//           so that a chunk costs one latency; many rows use small blocks, which hide each other's latency. Keys past
//           the row's position are loaded as zeros, so that stale cache contents have no influence. Queries are in
//           registers, above 256 dims in shared memory.
// 8 bits    Elements are loaded as they are and widened exactly to the layout's type on their way into fragments. A
//           score is (product * key's scale) * the scores' scale. A weight times the value's scale is rounded to the
//           layout's type; the softmax sums weights without that scale.
// Plan, positions, tables and block ids are written by the step's first kernels, and the QKV GEMMs run between them and
// this kernel (launch.h). So they are read before the dependency wait, and so are the keys and values of the first
// round that this step does not write. A padding row (slot -1) has no units; its output is zeroed.
// Test bound: 2^-7 (f16: 2^-10) of the values' size against the double reference.
#pragma once

#include <algorithm>

#include "kernels/attention/decode_merge.cuh"
#include "kernels/attention/decode_step.cuh"

namespace mr::cuda::decode {

// Floats of a head in the merge buffer. The padding puts the four heads that a warp writes at once into different
// banks.
template <int kDim>
constexpr int kMergedRow = kDim + 4;
// Steps at once, kTogether: kDeep for up to kFewRows rows if a block may have the memory, otherwise kShallow. kDeep
// covers a warp's share of a chunk, or half of it above 128 dims, where all of a 16-bit cache would exceed a block's
// shared memory. Above 256 dims one step is all that fits; heads of up to 32 dims are those of test models. cuda/kernels/README.md has
// the measurements.
constexpr int32_t kFewRows = 16;
template <int kDim>
constexpr int kDeep = kDim <= 32 ? 1 : kDim <= 128 ? 4 : kDim <= 256 ? 2 : 1;
constexpr int kShallow = 1;
// Widths of few models: more than kFewRows rows run the kernel for a window or a cap.
template <int kDim>
constexpr bool kRareDim = kDim == 32 || kDim == 80;
template <int kDim, int kTogether>
constexpr int kBlocksAnSm = kDim <= 128 && kTogether == kShallow ? 4 : 2;
// Parts that a merge loads at once: as many as fit the registers.
template <int kDim, int kTogether>
constexpr int kAhead = kBlocksAnSm<kDim, kTogether> == 4 ? 4 : kDim <= 128 ? 16 : 8;

// kRuled: a window or a cap. Other kernels keep their registers.
template <class T, int kDim, bool kF8, int kTogether, bool kRuled>
__global__ void __launch_bounds__(kThreads, kBlocksAnSm<kDim, kTogether>) decode_attention(const __grid_constant__ Params p) {
  uint8_t* const memory = dynamic_memory();
  __shared__ float2 stats[kWarps][kTileHeads], shares[kTileHeads], totals[kTileHeads];
  __shared__ Division division;
  __shared__ Item items[2];  // the current one and the next
  __shared__ Ahead ahead[kWarps];
  __shared__ bool last;
  const DecodeAttentionArgs& a = p.args;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  grid_trigger();  // this kernel is short (launch.h)
  const Plan plan{p, division};
  plan.read();
  if (division.begin >= division.end) {
    grid_wait();
    clear_padding(a, division.first);
    return;
  }
  if (lane == 0) {
    const Item item(plan);
    ahead[warp] = {item, item.chunk0};
    if (warp == 0) items[0] = item;
  }
  __syncthreads();
  typedef Room<kDim, kF8, kTogether> WarpRoom;
  const WarpRoom room{shared_address(memory) + warp * WarpRoom::kBytes};
  // (kWarps, tile_heads, kMergedRow) of a chunk, and (tile_heads, kMergedRow) of the chunks so far.
  float* const merged = reinterpret_cast<float*>(memory + kWarps * WarpRoom::kBytes);
  const int warp_merged = p.tile_heads * kMergedRow<kDim>;
  float* const sums = merged + kWarps * warp_merged;
  Queries<T, kDim> queries(shared_address(sums + warp_merged));
  Loader<T, kDim, kF8, kTogether, kRuled> loader(plan, ahead[warp], warp, lane);
#pragma unroll 1
  for (int waited = 0; waited < 2; ++waited) {
    if (waited) grid_wait();
    loader.fetch_keys(room, waited ? Fetch::fresh : Fetch::old);
    copies_commit();
    loader.fetch_values(room, waited ? Fetch::fresh : Fetch::old);
    copies_commit();
  }
  loader.advance();
  queries.load(plan, items[0], warp, lane);
  clear_padding(a, division.first);
  // Workspace slot of the part that begins with a chunk.
  const auto place_of = [&](const Item& item, int32_t chunk) { return division.first[item.row] + item.unit + chunk - item.chunk0; };
  for (int at_hand = 0;; at_hand ^= 1) {
    const Item& item = items[at_hand];
    const int32_t position = item.position, low = kRuled ? item.low : 0;
    for (int32_t chunk = item.chunk0; chunk < item.chunk1; ++chunk) {
      float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};  // of heads 2t and 2t + 1; sums of this lane's keys
      float out[kDim / 16][4];
#pragma unroll
      for (int m = 0; m < kDim / 16; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) out[m][i] = 0;
#pragma unroll 1
      for (int s = 0; s < kSteps; s += kTogether) {
        const auto key_of = [&](int j) { return chunk * kAttentionChunk + 16 * (warp + kWarps * (s + j)); };
        const auto seen = [&](int j) { return key_of(j) <= position && (!kRuled || key_of(j) + 15 >= low); };
        float scores[kTogether][4], greatest[kTogether][2], decays[kTogether][2];
        [[maybe_unused]] float key_scale[kTogether][2], value_scale[kTogether][2];  // of keys g and g + 8
        copies_wait<1>();  // all but the last group, which loads values
        __syncwarp();
        // With several steps, those that the row does not see are scored too: that is hidden by the others, and the
        // scores are masked.
        if (kTogether > 1 || seen(0)) {
          score_keys<T, kDim, kF8, kTogether>(queries, room, lane, scores);
          if constexpr (kF8)
#pragma unroll
            for (int j = 0; j < kTogether; ++j)
#pragma unroll
              for (int r = 0; r < 2; ++r) {
                const uint32_t at = room.scales_of(j) + (g + 8 * r) * 4;
                key_scale[j][r] = load_shared_float(at) * WideF8<T>::kFactor;
                value_scale[j][r] = load_shared_float(at + kScaleBytes) * WideF8<T>::kFactor;
              }
        }
        __syncwarp();
        loader.fetch_keys(room, Fetch::all);
        copies_commit();
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          if (kTogether == 1 && !seen(j)) continue;
          float(&x)[4] = scores[j];
          if constexpr (kF8)
#pragma unroll
            for (int i = 0; i < 4; ++i) x[i] *= key_scale[j][i / 2];
#pragma unroll
          for (int i = 0; i < 4; ++i) {  // rows g, g + 8; columns 2t, 2t + 1
            const int32_t key = key_of(j) + g + 8 * (i / 2);
            if constexpr (kRuled)
              if (p.cap_scale != 0) x[i] = capped(x[i], p.cap_scale);
            x[i] = key <= position && (!kRuled || key >= low) ? x[i] * p.scale_log2 : -INFINITY;
          }
#pragma unroll
          for (int c = 0; c < 2; ++c) greatest[j][c] = column_max(fmaxf(x[c], x[c + 2]));
        }
        uint32_t weights[kTogether][2];
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          if (!seen(j)) continue;
          float(&x)[4] = scores[j];
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const float before = top[c];
            top[c] = fmaxf(before, greatest[j][c]);
            decays[j][c] = exp2_approx(before - top[c]);
            x[c] = exp2_approx(x[c] - top[c]);
            x[c + 2] = exp2_approx(x[c + 2] - top[c]);
            sum[c] = fmaf(sum[c], decays[j][c], x[c] + x[c + 2]);
          }
          if constexpr (kF8)
#pragma unroll
            for (int i = 0; i < 4; ++i) x[i] *= value_scale[j][i / 2];
          weights[j][0] = transpose(ActOps<T>::pack(x[0], x[1]));
          weights[j][1] = transpose(ActOps<T>::pack(x[2], x[3]));
        }
        copies_wait<1>();  // all but the last group, which loads keys
        __syncwarp();
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          if (!seen(j)) continue;
#pragma unroll
          for (int m = 0; m < kDim / 16; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) out[m][i] *= decays[j][i % 2];
          weigh_values<T, kDim, kF8>(weights[j][0], weights[j][1], room.values_of(j), lane, out);
        }
        __syncwarp();
        loader.fetch_values(room, Fetch::all);
        copies_commit();
        loader.advance();
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        sum[c] = column_sum(sum[c]);
        if (g == 0) stats[warp][2 * t + c] = make_float2(top[c], sum[c]);
      }
      __syncthreads();  // the stats are written; the merge buffer has been read
      const bool first = chunk == item.chunk0, fresh = first || !item.begins;
      if (first && threadIdx.x == kThreads - 1 && !item.last(plan)) items[at_hand ^ 1] = item.next(plan);
      if (threadIdx.x < kTileHeads) {
        const int h = threadIdx.x;
        Part all{stats[0][h].x, 0};
        for (int w = 1; w < kWarps; ++w) all.top = fmaxf(all.top, stats[w][h].x);
        for (int w = 0; w < kWarps; ++w) all.sum = fmaf(stats[w][h].y, exp2_approx(stats[w][h].x - all.top), all.sum);
        if (!fresh) {
          Part total{totals[h].x, totals[h].y};
          shares[h] = merge(total, all);
          all = total;
        }
        totals[h] = make_float2(all.top, all.sum);
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int h = 2 * t + c;
        float all_top = stats[0][h].x;
        for (int w = 1; w < kWarps; ++w) all_top = fmaxf(all_top, stats[w][h].x);
        const float share = exp2_approx(top[c] - all_top);
        float* const own = merged + warp * warp_merged + h * kMergedRow<kDim> + first_dim<kF8>(g);
        if (h < item.heads)
#pragma unroll
          for (int m = 0; m < kDim / 16; ++m) {
            own[16 * m] = out[m][c] * share;
            own[16 * m + kNextDim<kF8>] = out[m][c + 2] * share;
          }
      }
      __syncthreads();
      // A thread owns the quads threadIdx.x, threadIdx.x + kThreads, ... of the tile.
#pragma unroll 1
      for (int quad = threadIdx.x; quad < item.heads * kQuads<kDim>; quad += kThreads) {
        const int at = quad / kQuads<kDim> * kMergedRow<kDim> + quad % kQuads<kDim> * 4;
        const auto warp_quad = [&](int w) { return *reinterpret_cast<const float4*>(merged + w * warp_merged + at); };
        float4 x = warp_quad(0);
#pragma unroll
        for (int w = 1; w < kWarps; ++w) {
          const float4 y = warp_quad(w);
          x = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
        }
        float4* const sum_quad = reinterpret_cast<float4*>(sums + at);
        if (item.begins) *sum_quad = fresh ? x : merge_quads(*sum_quad, x, shares[quad / kQuads<kDim>]);
        else __stcg(quad_at<kDim>(plan, item, place_of(item, chunk), quad), x);
      }
      // These are the threads that wrote totals.
      if (!item.begins && static_cast<int32_t>(threadIdx.x) < item.heads)
        __stcg(stat_at(plan, item, place_of(item, chunk), threadIdx.x), totals[threadIdx.x]);
    }
    const bool whole = item.count == item.units;
    if (item.begins) {
#pragma unroll 1
      for (int quad = threadIdx.x; quad < item.heads * kQuads<kDim>; quad += kThreads) {
        const float4 x = *reinterpret_cast<const float4*>(sums + quad / kQuads<kDim> * kMergedRow<kDim> + quad % kQuads<kDim> * 4);
        const float2 total = totals[quad / kQuads<kDim>];
        if (whole) finish<kDim>(plan, item, quad, x, Part{total.x, total.y});
        else __stcg(quad_at<kDim>(plan, item, place_of(item, item.chunk0), quad), x);
      }
      if (!whole && static_cast<int32_t>(threadIdx.x) < item.heads)
        __stcg(stat_at(plan, item, place_of(item, item.chunk0), threadIdx.x), totals[threadIdx.x]);
    }
    if (!whole) deliver<kDim, kAhead<kDim, kTogether>>(plan, item, totals, last);
    if (item.last(plan)) return;
    queries.load(plan, items[at_hand ^ 1], warp, lane);
  }
}

// Launches with kTogether steps at once. fits: whether a block may have the memory; if not, nothing is launched.
template <class T, int kDim, bool kF8, int kTogether, bool kRuled>
cudaError_t run_together(Params p, const Stream& on, bool* fits) {
  int most = 0, an_sm = 0;
  cudaError_t error = shared_limit(&most);
  if (error == cudaSuccess) error = shared_an_sm(&an_sm);
  if (error != cudaSuccess) return error;
  constexpr int kOwnShared = 5120;  // static, and reserved by the system for each block
  // A block that may not have the memory takes fewer heads a tile. Heads never meet, so no bits change.
  constexpr auto bytes_of = [](int32_t heads) {
    return kWarps * Room<kDim, kF8, kTogether>::kBytes + heads * ((kWarps + 1) * kMergedRow<kDim> * 4 + Queries<T, kDim>::kHeadBytes);
  };
  // What every device gives a block, and what those that run heads above 256 dims give it; see attention_shared_bytes.
  static_assert(kTogether != kShallow || bytes_of(1) + kOwnShared <= (kDim <= 256 ? 99 : 163) * 1024);
  const auto has_room = [&](int32_t heads) { return bytes_of(heads) + kOwnShared <= most; };
  int32_t most_heads = kTileHeads;
  *fits = kTogether == kShallow || has_room(most_heads);
  if (!*fits) return cudaSuccess;
  while (most_heads > 1 && !has_room(most_heads)) --most_heads;
  p.tile_heads = std::min(p.group, most_heads);
  p.tiles = (p.group + p.tile_heads - 1) / p.tile_heads;
  const int bytes = bytes_of(p.tile_heads);
  // Reserve for the largest tile: the limit belongs to the kernel, and runners of other models launch it from other
  // threads.
  error = reserve_shared(decode_attention<T, kDim, kF8, kTogether, kRuled>, bytes_of(most_heads));
  if (error != cudaSuccess) return error;
  const DecodeAttentionArgs& a = p.args;
  const int64_t items = static_cast<int64_t>(a.plan.capacity) * a.common.layout.kv_heads * p.tiles;
  // As many blocks as run at once, because a block's share is spread over the whole launch.
  const int resident = std::max(1, std::min(kBlocksAnSm<kDim, kTogether>, an_sm / (bytes + kOwnShared)));
  const int64_t blocks = std::min<int64_t>(items, static_cast<int64_t>(a.sm_count) * resident);
  return launch(on, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), static_cast<size_t>(bytes),
                decode_attention<T, kDim, kF8, kTogether, kRuled>, p);
}

template <class T, int kDim, bool kF8>
cudaError_t run(const Params& p, const Stream& on) {
  bool fits = false;
  // A window leaves few chunks, so that several steps at once gain little.
  if (p.cap_scale != 0 || p.args.common.window > 0) return run_together<T, kDim, kF8, kShallow, true>(p, on, &fits);
  if constexpr (kDeep<kDim> != kShallow) {
    if (p.args.count <= kFewRows) {
      const cudaError_t error = run_together<T, kDim, kF8, kDeep<kDim>, false>(p, on, &fits);
      if (error != cudaSuccess || fits) return error;
    }
  }
  return run_together<T, kDim, kF8, kShallow, kRareDim<kDim>>(p, on, &fits);
}

template <class T, bool kF8>
cudaError_t launch_cache(const Params& p, const Stream& on) {
  return with_head_dim(p.args.common.layout.padded_dim, [&](auto dim) { return run<T, decltype(dim)::value, kF8>(p, on); });
}

}  // namespace mr::cuda::decode
