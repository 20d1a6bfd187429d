// attention/prefill_weigh: how a thread of prefill_wgmma turns its scores (two rows by a tile of keys) into weights,
// and where it writes its sums. Element 4 j + 2 r + i of a fragment is of row r, column 8 j + 2 t + i.
#pragma once

#include "kernels/attention/prefill_unit.cuh"
#include "kernels/attention/wgmma.cuh"

namespace mr::cuda::prefill {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// RowPair is the two rows of a thread.
struct RowPair {
  int32_t position[2];
  int32_t shortest;  // the least position of the warp's 16 rows
};

// Masks the scores of keys that rows do not see.
template <int32_t count>
__device__ __forceinline__ void mask_scores(float (&scores)[count], int32_t key, int32_t t, const RowPair& rows, int32_t window) {
#pragma unroll
  for (int32_t r = 0; r < 2; ++r) {
    const int32_t last = rows.position[r] - key - 2 * t, first = first_seen(rows.position[r], window) - key - 2 * t;
#pragma unroll
    for (int32_t j = 0; j < count / 4; ++j)
#pragma unroll
      for (int32_t i = 0; i < 2; ++i)
        if (8 * j + i > last || 8 * j + i < first) scores[4 * j + 2 * r + i] = -INFINITY;
  }
}

// Turns scores into weights, 2^(score * scale - top); earlier sums must be multiplied by `decay`. scale > 0.
// A row that has seen no key yet gets weights of 0.
template <int32_t count>
__device__ __forceinline__ void weigh_tile(float (&scores)[count], float scale, RowSoftmax (&row)[2], float (&decay)[2]) {
#pragma unroll
  for (int32_t r = 0; r < 2; ++r) {
    float greatest = scores[2 * r];
#pragma unroll
    for (int32_t j = 0; j < count / 4; ++j) greatest = fmaxf(greatest, fmaxf(scores[4 * j + 2 * r], scores[4 * j + 2 * r + 1]));
    const float top = fmaxf(row[r].top, quad_max(greatest) * scale);
    const float base = base_of(top);
    decay[r] = exp2_approx(row[r].top - base);
    float sum = 0;
#pragma unroll
    for (int32_t j = 0; j < count / 4; ++j)
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        float& score = scores[4 * j + 2 * r + i];
        score = exp2_approx(fmaf(score, scale, -base));
        sum += score;
      }
    row[r].sum = fmaf(row[r].sum, decay[r], sum);
    row[r].top = top;
  }
}

// Packs weights into fragments of 16 keys each.
template <class T, int32_t keys>
__device__ __forceinline__ void pack_tile(const float (&scores)[keys * 8], uint32_t (&weights)[keys][4]) {
#pragma unroll
  for (int32_t n = 0; n < keys; ++n)
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) weights[n][i] = ActOps<T>::pack(scores[8 * n + 2 * i], scores[8 * n + 2 * i + 1]);
}

// Usually no row of a warp has seen a greater score, and multiplying by 1 would change nothing.
template <int32_t count>
__device__ __forceinline__ void decay_rows(float (&out)[count], const float (&decay)[2]) {
  if (!__any_sync(0xffffffffu, decay[0] != 1 || decay[1] != 1)) return;
#pragma unroll
  for (int32_t i = 0; i < count; ++i) out[i] *= decay[i / 2 % 2];
}

// Requests the queries of a warpgroup's rows; invalid rows, and dims that heads lack, become zeros. A barrier must have followed all
// reads of the queries before.
template <class T, int32_t dim>
__device__ __forceinline__ void fetch_queries(const Params& p, const Unit& unit, uint32_t queries, int32_t group) {
  constexpr int32_t kPieces = dim / 8;  // of 16 bytes, a row
  const AttentionArgs& c = p.args.common;
  const int32_t thread = static_cast<int32_t>(threadIdx.x) % 128, piece = thread % kPieces, dims = stored_dims<dim>(p);
#pragma unroll 4
  for (int32_t row = group * 64 + thread / kPieces; row < group * 64 + 64; row += 128 / kPieces) {
    const PackedRow at(p, unit, row);
    const int64_t from = (unit.item.row + at.token) * c.q_stride + static_cast<int64_t>(unit.head0 + at.head) * dims + piece * 8;
    const uint32_t to = queries + static_cast<uint32_t>(piece / 8 * UnitLayout<dim>::query_half + row * 128 + ((piece ^ row) % 8) * 16);
    const bool valid = at.valid && piece * 8 < dims;
    copy16_or_zero(to, static_cast<const T*>(c.q) + (valid ? from : 0), valid ? 16 : 0);
  }
  copies_commit();
}

// Totals is where a thread keeps the sums of its two rows over the pieces before: elements 4 i to 4 i + 3 at a time, of which two belong
// to each row. In shared memory, or of 256 dims in the rows' slots of the workspace.
template <int32_t dim>
struct Totals {
  uint32_t shared;
  float2* row[2];  // null: the row is not in use

  __device__ __forceinline__ Totals(const Params& p, const Unit& unit, uint32_t memory, int32_t row0, int32_t t) {
    if constexpr (UnitLayout<dim>::has_totals) {
      shared = memory + static_cast<uint32_t>(UnitLayout<dim>::totals + static_cast<int32_t>(threadIdx.x) * 16);
    } else {
#pragma unroll
      for (int32_t r = 0; r < 2; ++r) {
        const PackedRow at(p, unit, row0 + 8 * r);
        const int64_t place = static_cast<int64_t>(unit.item.place + at.token) * p.args.common.heads + unit.head0 + at.head;
        row[r] = at.valid ? reinterpret_cast<float2*>(p.values + place * dim) + t : nullptr;
      }
    }
  }
  __device__ __forceinline__ void load(int32_t i, float (&out)[4]) const {
    if constexpr (UnitLayout<dim>::has_totals) {
      const uint4 bits = load_shared16(shared + static_cast<uint32_t>(i * kConsumers * 16));
      out[0] = __uint_as_float(bits.x), out[1] = __uint_as_float(bits.y);
      out[2] = __uint_as_float(bits.z), out[3] = __uint_as_float(bits.w);
    } else {
#pragma unroll
      for (int32_t r = 0; r < 2; ++r) {
        const float2 both = row[r] == nullptr ? float2{} : __ldcg(row[r] + 4 * i);
        out[2 * r] = both.x, out[2 * r + 1] = both.y;
      }
    }
  }
  __device__ __forceinline__ void store(int32_t i, const float (&x)[4]) const {
    if constexpr (UnitLayout<dim>::has_totals) {
      store_shared16(shared + static_cast<uint32_t>(i * kConsumers * 16),
                     make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3])));
    } else {
#pragma unroll
      for (int32_t r = 0; r < 2; ++r)
        if (row[r] != nullptr) __stcg(row[r] + 4 * i, make_float2(x[2 * r], x[2 * r + 1]));
    }
  }
};

// Merges a piece's sums into those of the pieces before, if the row sees the piece; first: there are none before. If `keep`, the result
// is written to totals; otherwise it stays in `out`.
template <bool keep, int32_t dim>
__device__ __forceinline__ void merge_piece(float (&out)[dim / 2], const Part (&piece)[2], Part (&total)[2], const bool (&sees)[2],
                                            bool first, const Totals<dim>& totals) {
  float2 shares[2];
#pragma unroll
  for (int32_t r = 0; r < 2; ++r) {
    Part both = total[r];
    shares[r] = merge(both, piece[r]);
    if (sees[r]) total[r] = first ? piece[r] : both;
  }
  // Loaded before the first of them is merged. More would take registers of the products' sums.
  constexpr int32_t kTogether = UnitLayout<dim>::has_totals ? 1 : 4;
#pragma unroll
  for (int32_t first_of = 0; first_of < dim / 8; first_of += kTogether) {
    float before[kTogether][4];
#pragma unroll
    for (int32_t n = 0; n < kTogether && !first; ++n) totals.load(first_of + n, before[n]);
#pragma unroll
    for (int32_t n = 0; n < kTogether; ++n) {
      float after[4];
#pragma unroll
      for (int32_t j = 0; j < 4; ++j) {
        float& sum = out[4 * (first_of + n) + j];
        if (!first) sum = sees[j / 2] ? merge_values(before[n][j], sum, shares[j / 2]) : before[n][j];
        after[j] = sum;
      }
      if (keep) totals.store(first_of + n, after);
    }
    asm volatile("" ::: "memory");  // keeps later loads here
  }
}

// Writes the sums of rows that see the unit's last piece, or its only one, to the workspace or the output.
template <int32_t dim>
__device__ __forceinline__ void store_result_rows(const Params& p, const Unit& unit, int32_t row0, int32_t t, const float (&out)[dim / 2],
                                           const Part (&total)[2], const bool (&sees)[2]) {
  const AttentionArgs& c = p.args.common;
#pragma unroll
  for (int32_t r = 0; r < 2; ++r) {
    const PackedRow at(p, unit, row0 + 8 * r);
    if (!at.valid || !sees[r]) continue;
    const int32_t head = unit.head0 + at.head;
    if (unit.alone()) {
      const int64_t place = static_cast<int64_t>(unit.item.place + at.token) * c.heads + head;
      float4* const values = reinterpret_cast<float4*>(p.values + place * dim) + t;
#pragma unroll
      for (int32_t i = 0; i < dim / 2; i += 8)
        __stcg(values + i / 2, make_float4(out[i + 2 * r], out[i + 2 * r + 1], out[i + 2 * r + 4], out[i + 2 * r + 5]));
      if (t == 0) __stcg(p.parts + place, make_float2(total[r].top, total[r].sum));
    } else {
      uint16_t* const to = output_of(c, unit.item.row + at.token, head);
      Part all = total[r];
      const float of_values = add_sink(all, c.sinks, head), share = of_values / all.sum;
      if (c.layout.head_dim == dim) {
#pragma unroll
        for (int32_t i = 0; i < dim / 2; i += 4)
          reinterpret_cast<uint32_t*>(to + i * 2)[t] = act_bits(c.out_act, out[i + 2 * r] * share, out[i + 2 * r + 1] * share);
      } else {
#pragma unroll
        for (int32_t i = 0; i < dim / 2; i += 4)
          store_pair(c.out_act, to, i * 2 + 2 * t, c.layout.head_dim, out[i + 2 * r] * share, out[i + 2 * r + 1] * share);
      }
    }
  }
}

#endif

}  // namespace mr::cuda::prefill
