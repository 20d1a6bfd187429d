// sampler, kernel choose: one block of 1024 a job takes what scan, edit and weigh found to a token, its logprob and rank,
// and the best candidates.
//
// A draw without filters looks only at the piece that holds it. A draw with filters looks at the tokens whose distance
// bins can matter, whose ids it lists in shared memory where they are few. Each filter is a bound on a key: a token is
// kept when it lies within all bounds. The block also leaves the job's histograms zeroed.
#include "kernels/sampler_select.cuh"

namespace mr::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kListed = 6144;  // ids a list holds

// A bin of a job's histogram: the tokens in it and before it, the sum before it, and the sum over all bins.
struct Bin {
  int32_t last;
  uint64_t tokens, tokens_before, before, all;
};

struct Shared {
  Bin bin;
  SelectSpace select;
  Best best[32];
  uint64_t sums[32];
  uint64_t wide[2];
  double log_sum;
  uint32_t listed;
  int32_t token;
  uint64_t carry;
  uint64_t keys[64];
  int32_t ids[kListed];
};

// ceil(fraction * total), at least 1, at most total.
__device__ __forceinline__ uint64_t share(double fraction, uint64_t total) {
  const double wanted = ceil(fraction * static_cast<double>(total));
  if (wanted >= static_cast<double>(total)) return total;
  return wanted < 1 ? 1 : static_cast<uint64_t>(wanted);
}

// 64 uniform bits: Philox4x32-10, key = seed, counter = (position, output_index, purpose 0, lane 0).
__device__ __forceinline__ uint64_t random_bits(uint64_t seed, uint32_t position, uint32_t output_index) {
  uint32_t c0 = position, c1 = output_index, c2 = 0, c3 = 0;
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
    const uint32_t high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ key0;
    c1 = low1;
    c2 = high0 ^ c3 ^ key1;
    c3 = low0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return static_cast<uint64_t>(c0) << 32 | c1;
}

// The first bin at which the running sum of counts (of masses where those are given) reaches the target, kBins - 1 when
// none does.
__device__ Bin find_bin(Shared& s, const uint32_t* counts, const uint64_t* masses, uint64_t target) {
  __syncthreads();
  if (threadIdx.x < 32) {  // lane l sums the bins 8l .. 8l+7
    const int lane = threadIdx.x;
    uint64_t own[8], sum = 0, tokens = 0;
    for (int i = 0; i < 8; ++i) {
      const uint32_t count = counts[lane * 8 + i];
      own[i] = masses == nullptr ? count : masses[lane * 8 + i];
      sum += own[i];
      tokens += count;
    }
    uint64_t upto = sum, tokens_upto = tokens;
    for (int distance = 1; distance < 32; distance *= 2) {
      const uint64_t a = __shfl_up_sync(0xffffffffu, upto, distance), b = __shfl_up_sync(0xffffffffu, tokens_upto, distance);
      if (lane >= distance) {
        upto += a;
        tokens_upto += b;
      }
    }
    const uint32_t reached = __ballot_sync(0xffffffffu, upto >= target);
    if (lane == 31) {
      s.bin.all = upto;
      if (reached == 0) {
        s.bin.last = kBins - 1;
        s.bin.tokens = tokens_upto;
        s.bin.tokens_before = s.bin.before = 0;
      }
    }
    if (reached != 0 && lane == __ffs(static_cast<int>(reached)) - 1) {
      uint64_t running = upto - sum, seen = tokens_upto - tokens;
      int i = 0;
      for (; i < 7 && running + own[i] < target; ++i) {
        running += own[i];
        seen += counts[lane * 8 + i];
      }
      s.bin.last = lane * 8 + i;
      s.bin.before = running;
      s.bin.tokens_before = seen;
      s.bin.tokens = seen + counts[lane * 8 + i];
    }
  }
  __syncthreads();
  return s.bin;
}

// Calls f(id, logit) for every token of a row, four neighbours a thread; x is 16-byte aligned.
template <class F>
__device__ __forceinline__ void each_token(const float* x, int32_t vocab, F f) {
  const int32_t groups = vocab / 4;
#pragma unroll 8
  for (int32_t i = threadIdx.x; i < groups; i += kThreads) {
    const float4 v = reinterpret_cast<const float4*>(x)[i];
    f(4 * i, v.x);
    f(4 * i + 1, v.y);
    f(4 * i + 2, v.z);
    f(4 * i + 3, v.w);
  }
  const int32_t id = groups * 4 + static_cast<int32_t>(threadIdx.x);
  if (id < vocab) f(id, x[id]);
}

constexpr uint32_t kWholeRow = 0xffffffffu;  // instead of the number of listed tokens

// Lists the tokens of a row that are `wanted` and not below `least`, at most kListed.
template <class Wanted>
__device__ void list_tokens(Shared& s, const float* x, int32_t vocab, float least, Wanted wanted) {
  __syncthreads();
  if (threadIdx.x == 0) s.listed = 0;
  __syncthreads();
  each_token(x, vocab, [&](int32_t id, float logit) {
    if (logit < least || !wanted(logit)) return;
    const uint32_t at = atomicAdd(&s.listed, 1u);
    if (at < kListed) s.ids[at] = id;
  });
  __syncthreads();
}

__device__ void list_whole_row(Shared& s) {
  __syncthreads();
  if (threadIdx.x == 0) s.listed = kWholeRow;
  __syncthreads();
}

// A logit that no token of the bins up to `bin` is below.
__device__ __forceinline__ float least_of(int32_t bin, float top, float temperature) {
  const float reach = static_cast<float>(bin + 1) * 0.125f * temperature;
  return bin == kBins - 1 || isinf(top) ? -INFINITY : top - reach * 1.0001f - fabsf(top) * 1e-6f;
}

struct Filter {
  const float* x;
  int32_t vocab;
  float top, temperature;
  uint64_t limit;        // on best_first(x, id)
  bool typical;
  uint64_t deviation_limit;
  double log_total, entropy;
  float floor;           // of weights

  __device__ float log_weight(float logit) const { return logit == top ? 0.0f : (logit - top) / temperature; }
  __device__ uint64_t deviation_key(float logit, int32_t id) const {
    const double surprise = log_total - static_cast<double>(log_weight(logit));
    return best_first(-static_cast<float>(fabs(surprise - entropy)), id);
  }
  // f(id, logit, weight, mass) for each token that every filter so far keeps.
  template <class F>
  __device__ void each(const Shared& s, F f) const {
    const bool all = s.listed == kWholeRow;
    const int32_t count = all ? vocab : static_cast<int32_t>(s.listed);
    for (int32_t i = threadIdx.x; i < count; i += kThreads) {
      const int32_t id = all ? i : s.ids[i];
      const float logit = x[id], weight = weight_of(logit, top, temperature);
      const uint64_t mass = mass_of(weight);
      if (keeps(id, logit, weight, mass)) f(id, logit, weight, mass);
    }
  }
  __device__ bool keeps(int32_t id, float logit, float weight, uint64_t mass) const {
    return mass != 0 && weight >= floor && best_first(logit, id) <= limit &&
           (!typical || deviation_key(logit, id) <= deviation_limit);
  }
  __device__ uint64_t mass_at(int32_t id) const {  // of a token that every filter keeps, else 0
    const float logit = x[id], weight = weight_of(logit, top, temperature);
    const uint64_t mass = mass_of(weight);
    return keeps(id, logit, weight, mass) ? mass : 0;
  }
  __device__ uint64_t total(Shared& s) const {
    uint64_t sum = 0;
    each(s, [&](int32_t, float, float, uint64_t mass) { sum += mass; });
    return block_sum_u64(sum, s.sums);
  }
};

// Entropy of the kept tokens: log masses are integers of 2^-40, products and sums integers of 128 bits.
__device__ void set_typical(Shared& s, Filter& filter, uint64_t total) {
  unsigned __int128 sum = 0;
  filter.each(s, [&](int32_t, float logit, float, uint64_t mass) {
    const uint64_t distance = __double2ull_rn(-static_cast<double>(filter.log_weight(logit)) * 1099511627776.0);
    sum += static_cast<unsigned __int128>(mass) * distance;
  });
  if (threadIdx.x == 0) s.wide[0] = s.wide[1] = 0;
  __syncthreads();
  if (sum != 0) {
    unsigned long long* const wide = reinterpret_cast<unsigned long long*>(s.wide);
    const unsigned long long low = static_cast<unsigned long long>(sum);
    const unsigned long long before = atomicAdd(wide, low);
    atomicAdd(wide + 1, static_cast<unsigned long long>(sum >> 64) + (before + low < before ? 1u : 0u));
  }
  __syncthreads();
  const double mean = -(static_cast<double>(s.wide[1]) * 0x1p64 + static_cast<double>(s.wide[0])) * 0x1p-40 /
                      static_cast<double>(total);
  filter.log_total = log_f64(static_cast<double>(total) * 0x1p-40);
  filter.entropy = filter.log_total - mean;
}

// Draws among the listed tokens that the filter keeps.
__device__ int32_t draw_listed(const Filter& filter, uint64_t random, Shared& s) {
  const uint64_t threshold = __umul64hi(random, filter.total(s)) + 1;
  const uint64_t key = select_least(s.select, threshold, [&](auto f) {
    filter.each(s, [&](int32_t id, float, float, uint64_t mass) { f(static_cast<uint64_t>(id), mass); });
  });
  // The key bounds the run; its last token is the greatest kept id within it.
  int32_t last = -1;
  filter.each(s, [&](int32_t id, float, float, uint64_t) {
    if (static_cast<uint64_t>(id) <= key) last = max(last, id);
  });
  return -block_best(0, -last, s.best).id;
}

// Draws among all tokens of the row that the filter keeps: the warps' parts of the row, then the tokens of one part.
__device__ int32_t draw_row(const Filter& filter, uint64_t random, Shared& s) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t part = (filter.vocab + 31) / 32;
  uint64_t mass = 0;
#pragma unroll 2
  for (int32_t id = warp * part + lane; id < min(filter.vocab, (warp + 1) * part); id += 32) mass += filter.mass_at(id);
  for (int distance = 16; distance > 0; distance /= 2) mass += __shfl_xor_sync(0xffffffffu, mass, distance);
  __syncthreads();
  if (lane == 0) s.sums[warp] = mass;
  __syncthreads();
  uint64_t total = 0;
  for (int w = 0; w < 32; ++w) total += s.sums[w];
  uint64_t left = __umul64hi(random, total);
  int32_t chosen = 0;
  while (chosen < 31 && left >= s.sums[chosen]) left -= s.sums[chosen++];
  __syncthreads();
  // Neighbouring tokens of the part to each thread; running sums over lanes and then over warps.
  const int32_t each = (part + kThreads - 1) / kThreads, end = min(filter.vocab, (chosen + 1) * part);
  const int32_t begin = chosen * part + static_cast<int32_t>(threadIdx.x) * each;
  uint64_t own = 0;
  for (int32_t id = begin; id < min(end, begin + each); ++id) own += filter.mass_at(id);
  uint64_t upto = own;
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint64_t other = __shfl_up_sync(0xffffffffu, upto, distance);
    if (lane >= distance) upto += other;
  }
  if (lane == 31) s.sums[warp] = upto;
  if (threadIdx.x == 0) s.token = -1;
  __syncthreads();
  for (int w = 0; w < warp; ++w) upto += s.sums[w];
  if (left >= upto - own && left < upto) {
    uint64_t rest = left - (upto - own);
    int32_t id = begin;
    for (uint64_t m; rest >= (m = filter.mass_at(id)); ++id) rest -= m;
    s.token = id;
  }
  __syncthreads();
  return s.token;
}

__device__ int32_t draw_filtered(const SampleKernelArgs& k, int32_t index, const SlotParams& p, const float* x, float top,
                                 uint64_t random, Shared& s) {
  const int32_t vocab = k.a.vocab;
  const uint32_t* const counts = k.space.bin_count + static_cast<int64_t>(index) * kBins;
  const uint64_t* const masses = k.space.bin_mass + static_cast<int64_t>(index) * kBins;
  Filter filter{x, vocab, top, temperature_of(p), ~0ull, false, ~0ull, 0, 0, 0};
  const bool top_k = p.top_k > 0 && p.top_k < vocab, typical = p.typical_p < 1;
  const Bin whole = find_bin(s, counts, masses, ~0ull);
  Bin bin = whole;
  uint64_t target = 0;
  if (top_k) bin = find_bin(s, counts, nullptr, target = static_cast<uint64_t>(p.top_k));
  else if (!typical) bin = find_bin(s, counts, masses, target = share(p.top_p, whole.all));
  const auto bin_at = [&](float logit) { return bin_of(logit == top ? 0.0f : (top - logit) / filter.temperature); };
  const auto has_mass = [&](float logit) { return mass_of(weight_of(logit, top, filter.temperature)) != 0; };
  const auto by_best = [&](uint64_t wanted, bool count) {
    return select_least(s.select, wanted, [&](auto f) {
      filter.each(s, [&](int32_t id, float logit, float, uint64_t mass) { f(best_first(logit, id), count ? 1 : mass); });
    });
  };
  const float least = least_of(bin.last, top, filter.temperature);
  const bool few = bin.tokens <= kListed, single = top_k != (p.top_p < 1) && !typical;
  if (!few && single && bin.tokens - bin.tokens_before <= kListed) {
    // One bound, which lies in the last bin: all tokens before that bin are kept.
    list_tokens(s, x, vocab, least, [&](float logit) { return bin_at(logit) == bin.last && has_mass(logit); });
    if (bin.before < target) filter.limit = by_best(target - bin.before, top_k);
    filter.floor = p.min_p;  // of the greatest weight, which is kept and is 1
    return draw_row(filter, random, s);
  }
  if (few) list_tokens(s, x, vocab, least, [&](float logit) { return bin_at(logit) <= bin.last && has_mass(logit); });
  else list_whole_row(s);
  if (top_k) filter.limit = by_best(target, true);
  if (typical) {
    const uint64_t total = filter.total(s);
    set_typical(s, filter, total);
    const uint64_t limit = select_least(s.select, share(p.typical_p, total), [&](auto f) {
      filter.each(s, [&](int32_t id, float logit, float, uint64_t mass) { f(filter.deviation_key(logit, id), mass); });
    });
    filter.typical = true;
    filter.deviation_limit = limit;
  }
  if (p.top_p < 1) {
    // Without another filter before it, top-p is of the whole row, not of what is listed.
    const uint64_t wanted = top_k || typical ? share(p.top_p, filter.total(s)) : target;
    filter.limit = min(filter.limit, by_best(wanted, false));
  }
  if (p.min_p > 0) {
    float best = 0;
    filter.each(s, [&](int32_t, float, float weight, uint64_t) { best = fmaxf(best, weight); });
    filter.floor = p.min_p * block_best(best, 0, s.best).x;
  }
  return few ? draw_listed(filter, random, s) : draw_row(filter, random, s);
}

// The first token at which the running sum of masses, in ascending order of ids, exceeds the draw.
__device__ int32_t draw_plain(const SampleKernelArgs& k, int32_t index, const SlotParams& p, const float* x, float top,
                              uint64_t random, Shared& s) {
  const PieceSum* const sums = k.space.sums + static_cast<int64_t>(index) * k.space.pieces;
  const float temperature = temperature_of(p);
  __syncthreads();
  if (threadIdx.x < 32) {  // lane l sums the pieces 4l .. 4l+3
    static_assert(kMostPieces <= 128, "four pieces a lane");
    const int lane = threadIdx.x;
    uint64_t mass[4], own = 0;
    for (int i = 0; i < 4; ++i) {
      mass[i] = lane * 4 + i < k.space.pieces ? sums[lane * 4 + i].mass : 0;
      own += mass[i];
    }
    uint64_t upto = own;
    for (int distance = 1; distance < 32; distance *= 2) {
      const uint64_t other = __shfl_up_sync(0xffffffffu, upto, distance);
      if (lane >= distance) upto += other;
    }
    const uint64_t total = __shfl_sync(0xffffffffu, upto, 31);
    const uint64_t draw = __umul64hi(random, total);
    if (lane == 0) s.token = -1;
    __syncwarp();
    if (draw >= upto - own && draw < upto) {
      uint64_t left = draw - (upto - own);
      int piece = 0;
      while (left >= mass[piece]) left -= mass[piece++];
      s.token = lane * 4 + piece;
      s.carry = left;
    }
  }
  __syncthreads();
  const int32_t piece = s.token;
  const uint64_t left = s.carry;
  if (piece < 0) return -1;
  // Two neighbouring tokens a thread; running sums over lanes and then over warps.
  const int32_t begin = piece * kPiece + static_cast<int32_t>(threadIdx.x) * 2;
  static_assert(kPiece == 2 * kThreads, "two tokens a thread");
  uint64_t mass[2];
  for (int i = 0; i < 2; ++i) {
    const float weight = begin + i < k.a.vocab ? weight_of(x[begin + i], top, temperature) : 0.0f;
    mass[i] = weight >= p.min_p ? mass_of(weight) : 0;
  }
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint64_t own = mass[0] + mass[1];
  uint64_t upto = own;
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint64_t other = __shfl_up_sync(0xffffffffu, upto, distance);
    if (lane >= distance) upto += other;
  }
  if (lane == 31) s.sums[warp] = upto;
  __syncthreads();
  for (int w = 0; w < warp; ++w) upto += s.sums[w];
  if (left >= upto - own && left < upto) s.token = begin + (left - (upto - own) < mass[0] ? 0 : 1);
  __syncthreads();
  return s.token;
}

// 1 + tokens with a greater logit + those of lower id with an equal one.
__device__ int32_t rank_of(const float* x, int32_t vocab, int32_t token, Shared& s) {
  const float own = x[token];
  uint32_t better = 0;
  each_token(x, vocab, [&](int32_t id, float other) { better += other > own || (other == own && id < token) ? 1 : 0; });
  return static_cast<int32_t>(1 + block_sum_u64(better, s.sums));
}

__device__ float logprob_of(float logit, float top, double log_sum) {
  if (logit == top) return static_cast<float>(-log_sum);
  return static_cast<float>((static_cast<double>(logit) - static_cast<double>(top)) - log_sum);
}

// The `count` best tokens by raw logit, best first.
__device__ void best_tokens(const SampleKernelArgs& k, int32_t index, const float* x, int32_t count, float top,
                            double log_sum, mr_candidate* out, Shared& s) {
  const Bin bin = find_bin(s, k.space.raw_count + static_cast<int64_t>(index) * kBins, nullptr, static_cast<uint64_t>(count));
  if (bin.tokens > kListed) list_whole_row(s);
  else list_tokens(s, x, k.a.vocab, least_of(bin.last, top, 1.0f),
                   [&](float logit) { return bin_of(logit == top ? 0.0f : top - logit) <= bin.last; });
  const auto each = [&](auto f) {
    const bool all = s.listed == kWholeRow;
    const int32_t n = all ? k.a.vocab : static_cast<int32_t>(s.listed);
    for (int32_t i = threadIdx.x; i < n; i += kThreads) {
      const int32_t id = all ? i : s.ids[i];
      f(best_first(x[id], id), uint64_t{1});
    }
  };
  const uint64_t limit = select_least(s.select, static_cast<uint64_t>(count), each);
  __syncthreads();
  if (threadIdx.x == 0) s.token = 0;
  __syncthreads();
  each([&](uint64_t key, uint64_t) {
    if (key > limit) return;
    const int32_t at = atomicAdd(&s.token, 1);
    if (at < 64) s.keys[at] = key;
  });
  __syncthreads();
  if (static_cast<int32_t>(threadIdx.x) < count) {
    const uint64_t key = s.keys[threadIdx.x];
    int32_t place = 0;
    for (int32_t i = 0; i < count; ++i) place += s.keys[i] < key ? 1 : 0;
    const int32_t id = static_cast<int32_t>(key & 0xffffffffu);
    out[place] = mr_candidate{id, logprob_of(x[id], top, log_sum)};
  }
}

__global__ void __launch_bounds__(kThreads) choose(const __grid_constant__ SampleKernelArgs k) {
  __shared__ Shared s;
  const SampleArgs& a = k.a;
  const int32_t index = blockIdx.x;
  const SampleJob job = a.jobs[index];
  const SlotParams p = params_of(a, job);
  const Rules rules = rules_of(a, job, p);
  grid_wait();
  grid_trigger();
  if (job.kind == kJobNone) return;
  const bool sample = job.kind == kJobSample;
  mr_row_result result{};
  result.slot = sample ? job.slot : -1;
  result.position = sample ? job.position : -1;
  result.candidate_offset = job.candidate_offset;
  result.status = MR_ROW_NAN;
  if (!poisoned(a, job)) {
    const RowTop top = row_top(k, index, rules, s.best);
    if (!top.nan) result.status = top.raw == -INFINITY || (sample && top.processed == -INFINITY) ? MR_ROW_EMPTY : MR_ROW_OK;
    if (!top.nan && top.raw > -INFINITY) {
      const float* const raw = raw_row(a, job);
      if (result.status == MR_ROW_OK) {
        const PieceSum* const sums = k.space.sums + static_cast<int64_t>(index) * k.space.pieces;
        uint64_t exponentials = 0;
        for (int32_t i = threadIdx.x; i < k.space.pieces; i += kThreads) exponentials += sums[i].exponentials;
        exponentials = block_sum_u64(exponentials, s.sums);
        if (threadIdx.x == 0) s.log_sum = log_f64(static_cast<double>(exponentials) * (isinf(top.raw) ? 1.0 : 0x1p-44));
        __syncthreads();
        const double log_sum = s.log_sum;
        const float* const x = rules.processed ? k.space.processed + index * k.space.stride : raw;
        uint64_t random = 0;
        if (rules.draws) random = random_bits(p.seed, static_cast<uint32_t>(job.position), static_cast<uint32_t>(p.output_index));
        if (!sample) result.token = job.target;
        else if (!rules.draws) result.token = top.processed_id;
        else if (rules.filtered) result.token = draw_filtered(k, index, p, x, top.processed, random, s);
        else result.token = draw_plain(k, index, p, x, top.processed, random, s);
        result.count = 1;
        result.logprob = logprob_of(raw[result.token], top.raw, log_sum);
        result.rank = result.token == top.raw_id ? 1 : rank_of(raw, a.vocab, result.token, s);
        result.candidate_count = min(job.top_n, a.vocab);
        if (result.candidate_count > 0)
          best_tokens(k, index, raw, result.candidate_count, top.raw, log_sum, a.candidates + job.candidate_offset, s);
      }
      __syncthreads();
      for (int i = threadIdx.x; i < kBins; i += kThreads) {
        const int64_t at = static_cast<int64_t>(index) * kBins + i;
        if (rules.filtered) k.space.bin_mass[at] = k.space.bin_count[at] = 0;
        if (job.top_n > 0) k.space.raw_count[at] = 0;
      }
    }
  }
  if (threadIdx.x != 0) return;
  a.results[index] = result;
  if (sample && (job.flags & kJobFeeds) != 0) a.slots.feeds[job.slot] = SlotFeed{result.token, result.status};
}

}  // namespace

cudaError_t launch_sampler_choose(const SampleKernelArgs& k, const Stream& on) {
  return launch(on, dim3(static_cast<unsigned>(k.a.job_count)), dim3(kThreads), 0, choose, k);
}

}  // namespace mr::cuda
