// sampler, kernel weigh: exponentials, masses and histograms of all tokens of a row. Sums are integers, so their order
// is free.
//
// Histograms are kept in columns of shared memory, so that tokens of one bin rarely hit the same address, and in two
// words of 32 bits, which no block's tokens overflow: a mass has 20 bits in each, and a column gets 16 of each 128
// tokens of a warp.
#include <type_traits>

#include "kernels/sampler/weights.cuh"

namespace mr::cuda {
namespace {

constexpr int kColumns = 8;
constexpr int kLowBits = 20;
constexpr int column_tokens(int tokens) { return (tokens + 127) / 128 * 16; }  // of a warp's tokens
static_assert(kPieceWarps == kColumns && kMostVocab / kMostPieces / 2 <= kMostWhole &&
                  kPieceWarps * column_tokens(kMostWhole) < 1 << (32 - kLowBits) &&
                  kBlockParts * column_tokens(kMostDoubled) < 1 << (32 - kLowBits),
              "a column's words do not overflow");

struct Histogram {
  uint32_t low[kBins * kColumns], high[kBins * kColumns];
};

// What a job's processed logits are weighed for; kEquals: all tokens with a mass have the same one.
enum : int { kNothing, kDraw, kMasses, kTokens, kSurprises, kEquals };

struct Sums {
  uint64_t exponentials = 0, mass = 0, surprise = 0;
};

template <class F>
__device__ __forceinline__ void each_of(const float4& v, F f) {
  f(v.x);
  f(v.y);
  f(v.z);
  f(v.w);
}

template <int kFor>
__device__ __forceinline__ void weigh_token(float under, const Weights& weights, const Bins& bins, float floor,
                                            Histogram& h, Sums& sums) {
  if (kFor == kEquals) {
    sums.mass += under < INFINITY ? 1 : 0;
    return;
  }
  const float distance = weights.distance(under), weight = weight_at(distance);
  const uint64_t mass = mass_of(weight);
  if (kFor == kDraw) {
    sums.mass += weight >= floor ? mass : 0;
    return;
  }
  const uint32_t at = bins.bin(distance) * kColumns + threadIdx.x % kColumns;
  if (kFor == kTokens) {
    if (mass != 0) atomicAdd(h.low + at, 1u);
    return;
  }
  atomicAdd(h.low + at, static_cast<uint32_t>(mass) & ((1u << kLowBits) - 1));
  atomicAdd(h.high + at, static_cast<uint32_t>(mass >> kLowBits));
  if (kFor == kSurprises) sums.surprise += surprise_of(weight, distance);
}

// x: the processed logits; raw: the raw ones, or null if both are the same and are weighed in one pass; first: of the
// raw ones.
template <int kFor>
__device__ void weigh_span(const Span& span, const float4& first, const float* raw, const float* x, int32_t vocab, float raw_top,
                           const Weights& weights, const Bins& bins, float floor, Histogram& h, Sums& sums) {
  if (raw != nullptr || kFor == kNothing)
    span.each_four<2>(first, raw != nullptr ? raw : x, vocab, [&](int32_t, const float4& v) {
      each_of(v, [&](float logit) { sums.exponentials += exponential_of(below(logit, raw_top)); });
    });
  if (kFor == kNothing) return;
  if (raw != nullptr) {
    span.each_four<1>(span.first_four(x, vocab), x, vocab, [&](int32_t, const float4& v) {
      each_of(v, [&](float logit) { weigh_token<kFor>(below(logit, weights.top), weights, bins, floor, h, sums); });
    });
  } else {
    span.each_four<1>(first, x, vocab, [&](int32_t, const float4& v) {
      each_of(v, [&](float logit) {
        const float under = below(logit, raw_top);
        sums.exponentials += exponential_of(under);
        weigh_token<kFor>(under, weights, bins, floor, h, sums);
      });
    });
  }
}

// Adds the block's bins to the job's.
__device__ void add_bins(const Histogram& h, uint64_t* out) {
  for (int bin = threadIdx.x; bin < kBins; bin += kPieceThreads) {
    uint64_t low = 0, high = 0;
    for (int i = 0; i < kColumns; i += 4) {
      const uint4 a = *reinterpret_cast<const uint4*>(h.low + bin * kColumns + i);
      const uint4 b = *reinterpret_cast<const uint4*>(h.high + bin * kColumns + i);
      low += static_cast<uint64_t>(a.x) + a.y + a.z + a.w;
      high += static_cast<uint64_t>(b.x) + b.y + b.z + b.w;
    }
    const uint64_t sum = low + (high << kLowBits);
    if (sum != 0) atomicAdd(reinterpret_cast<unsigned long long*>(out + bin), static_cast<unsigned long long>(sum));
  }
}

__global__ void __launch_bounds__(kPieceThreads, 4) weigh(const __grid_constant__ SampleKernelArgs k) {
  __shared__ __align__(16) Histogram histogram;
  __shared__ Sums parts[kBlockParts];
  const SampleArgs& a = k.a;
  const int32_t index = blockIdx.y;
  const SampleJob job = a.jobs[index];
  const SlotParams p = params_of(a, job);
  const Rules rules = rules_of(a, job, p);
  const Span first_span(k, 0);
  const bool filtered = rules.filtered();
  if (filtered) {
    uint4* const words = reinterpret_cast<uint4*>(&histogram);
    constexpr int kWords = static_cast<int>(sizeof histogram / sizeof *words);
    for (int i = threadIdx.x; i < kWords; i += kPieceThreads) words[i] = uint4{0, 0, 0, 0};
    __syncthreads();
  }
  const bool looks = job.kind != kJobNone && !has_nan(a, job);
  const float* const raw = raw_row(a, job);
  float4 first_four{};
  if (looks) first_four = first_span.first_four(raw, a.vocab);
  grid_wait();
  grid_trigger();
  if (job.kind == kJobNone) return;
  RowTop top{};
  if (looks) top = row_top(k, index);
  const bool ok = looks && status_of(job, top) == MR_ROW_OK;
  if (blockIdx.x == 0 && threadIdx.x == 0) a.results[index].rank = ok ? 1 : 0;  // choose adds to it
  if (!ok) return;
  const float* const x = processed_row(k, index, rules, raw);
  const float* const apart = rules.processed ? raw : nullptr;
  const Weights weights(top.processed, p.temperature);
  const Bins bins(weights, top.least);
  const float floor = p.min_p * kWeightUnit;
  const int32_t rounds = rounds_of(k);
#pragma unroll 1
  for (int32_t round = 0; round < rounds; ++round) {
    const Span span(k, round);
    if (round > 0) first_four = span.first_four(raw, a.vocab);
    Sums sums;
    const auto weigh_for = [&](auto what) {
      weigh_span<decltype(what)::value>(span, first_four, apart, x, a.vocab, top.raw, weights, bins, floor, histogram, sums);
    };
    if (!rules.draws) weigh_span<kNothing>(span, first_four, nullptr, raw, a.vocab, top.raw, weights, bins, floor, histogram, sums);
    else if (filtered && bins.most == 0) weigh_for(std::integral_constant<int, kEquals>());
    else if (rules.top_k) weigh_for(std::integral_constant<int, kTokens>());
    else if (rules.typical) weigh_for(std::integral_constant<int, kSurprises>());
    else if (rules.top_p) weigh_for(std::integral_constant<int, kMasses>());
    else weigh_for(std::integral_constant<int, kDraw>());
    if (filtered && bins.most == 0) {  // all tokens with a mass are in the first bin; each warp has its own column
      const uint32_t tokens = static_cast<uint32_t>(warp_sum_u64(sums.mass));
      uint32_t* const words = rules.top_k ? histogram.low : histogram.high;
      if (threadIdx.x % 32 == 0) atomicAdd(words + threadIdx.x / 32, rules.top_k ? tokens : tokens << kLowBits);
    }
    sums.exponentials = warp_sum_u64(sums.exponentials);
    if (rules.draws && !filtered) sums.mass = warp_sum_u64(sums.mass);
    if (rules.typical) sums.surprise = warp_sum_u64(sums.surprise);
    if (threadIdx.x % 32 == 0) parts[span.part] = sums;
  }
  __syncthreads();
  if (filtered) add_bins(histogram, k.space.bins + static_cast<int64_t>(index) * kBins);
  each_piece(k, [&](int32_t first, int32_t count, int32_t piece) {
    PieceSum all{};
    for (int32_t i = first; i < first + count; ++i) {
      all.exponentials += parts[i].exponentials;
      all.mass += parts[i].mass;
      all.surprise += parts[i].surprise;
    }
    k.space.sums[static_cast<int64_t>(index) * kMostPieces + piece] = all;
  });
}

}  // namespace

cudaError_t launch_sampler_weigh(const SampleKernelArgs& k, const Stream& on) {
  return launch(on, piece_grid(k), dim3(kPieceThreads), 0, weigh, k);
}

}  // namespace mr::cuda
