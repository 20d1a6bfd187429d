// vector_rules: the scalar rules of docs/decisions/029-vector-numerics.md, once for every engine: decoding, rounding to codeword
// types, fixed-point sums, draws, and what ends a training. Hosts and devices compile the same lines, without contraction.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "millrace/vectors.h"

#if defined(__CUDACC__)
#define MR_HD __host__ __device__
#else
#define MR_HD
#endif

namespace mr {

template <class To, class From>
MR_HD inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

// Leading zeros of v > 0.
MR_HD inline int leading_zeros(uint64_t v) {
#if defined(__CUDA_ARCH__)
  return __clzll(static_cast<long long>(v));
#else
  return __builtin_clzll(v);
#endif
}

// 2^e, -1022 <= e <= 1023.
MR_HD inline double power_of_two(int e) { return bits_as<double>(static_cast<uint64_t>(e + 1023) << 52); }

// An F16 as f32, which holds it exactly: its magnitude shifted into place counts 2^112 too little, subnormals too.
MR_HD inline float decode_half(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u) return bits_as<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  const float v = bits_as<float>(magnitude << 13) * 0x1p112f;
  return bits_as<float>(sign | bits_as<uint32_t>(v));
}

// Element i of MR_VECTOR_*, exactly.
MR_HD inline float decode_element(int32_t type, const void* from, int64_t i) {
  switch (type) {
    case MR_VECTOR_F32: return static_cast<const float*>(from)[i];
    case MR_VECTOR_F16: return decode_half(static_cast<const uint16_t*>(from)[i]);
    case MR_VECTOR_BF16: return bits_as<float>(static_cast<uint32_t>(static_cast<const uint16_t*>(from)[i]) << 16);
    case MR_VECTOR_U8: return static_cast<float>(static_cast<const uint8_t*>(from)[i]);
    default: return static_cast<float>(static_cast<const int8_t*>(from)[i]);
  }
}

MR_HD inline bool is_finite(float v) { return (bits_as<uint32_t>(v) & 0x7f800000u) != 0x7f800000u; }
MR_HD inline bool is_finite(double v) { return (bits_as<uint64_t>(v) & 0x7ff0000000000000u) != 0x7ff0000000000000u; }

// A format of 16 bits: bits of its significand, the exponent of its least subnormal, its largest value.
MR_HD inline int significand_bits(int32_t type) { return type == MR_VECTOR_F16 ? 11 : 8; }
MR_HD inline int least_exponent(int32_t type) { return type == MR_VECTOR_F16 ? -24 : -133; }
MR_HD inline double largest_codeword(int32_t type) {
  return type == MR_VECTOR_F32 ? 0x1.fffffep127 : type == MR_VECTOR_F16 ? 65504.0 : 0x1.fep127;
}

// v rounded to such a format as if exponents had no upper end.
MR_HD inline double round_unbounded(int32_t type, double v) {
  // 2^(exponent-1) <= |v| < 2^exponent, unless v is subnormal.
  const int exponent = static_cast<int>(bits_as<uint64_t>(v) >> 52 & 0x7ff) - 1022;
  const int natural = exponent - significand_bits(type), least = least_exponent(type);
  const int step = natural < least ? least : natural;
  // |scaled| <= 2^11, so that adding 1.5 * 2^52 rounds it to an integer.
  const double scaled = v * power_of_two(-step), magic = 0x1.8p52;
  return copysign(((scaled + magic) - magic) * power_of_two(step), v);
}

// The nearest value of a codeword type, ties to even; beyond its largest finite value that one. The sign of a zero stays.
MR_HD inline float round_codeword(int32_t type, double v) {
  const double most = largest_codeword(type), r = type == MR_VECTOR_F32 ? v : round_unbounded(type, v);
  const double low = r < -most ? -most : r;
  return static_cast<float>(low > most ? most : low);
}

// Whether v rounds to a finite value of the type.
inline bool codeword_holds(int32_t type, double v) {
  if (type == MR_VECTOR_F32) return is_finite(static_cast<float>(v));
  return std::fabs(round_unbounded(type, v)) <= largest_codeword(type);
}

// E of values whose largest magnitude is `largest`, one for each of n rows.
MR_HD inline int fixed_exponent(double largest, uint64_t n) {
  if (largest == 0) return 0;
  int a = 0;
  (void)frexp(largest, &a);
  const int b = n <= 1 ? 0 : 64 - leading_zeros(n - 1);
  return 62 - a - b;
}

// sum / n / 2^e, rounded once. 1 <= n < 2^32.
MR_HD inline float fixed_mean(int32_t type, int64_t sum, uint64_t n, int e) {
  if (sum == 0) return 0;
  const uint64_t magnitude = sum < 0 ? static_cast<uint64_t>(-sum) : static_cast<uint64_t>(sum);
  const int shift = leading_zeros(magnitude) - 1;
  const uint64_t whole = (magnitude << shift) / n;
  const bool rest = (magnitude << shift) - whole * n != 0;
  const int wide = 32 - leading_zeros(whole), drop = wide > 0 ? wide : 0;
  uint64_t q = whole >> drop;
  if (rest || q << drop != whole) q |= 1;
  const double v = static_cast<double>(q) * power_of_two(drop - shift - e);
  return round_codeword(type, sum < 0 ? -v : v);
}

// A sum as a real number.
MR_HD inline double fixed_value(int64_t sum, int e) { return static_cast<double>(sum) * power_of_two(-e); }

// The variance of a codeword with these many rows, whose distances have this sum of fixed_exponent e; 0 without rows.
MR_HD inline double fixed_variance(int64_t sum, uint64_t rows, int e) {
  return rows == 0 ? 0 : fixed_value(sum, e) / static_cast<double>(rows);
}

// Adds eight partial sums, each half to the other until one is left.
MR_HD inline double fold_eight(double (&a)[8]) {
  for (int half = 4; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) a[i] += a[i + half];
  return a[0];
}

// Sums of values over rows: blocks of kBlockRows, in each row i goes to partial sum i mod kBlockLanes.
constexpr int64_t kBlockRows = 4096, kBlockLanes = 256;

// ---- draws ----------------------------------------------------------------------------------------------------------

enum : uint32_t { draw_random = 2, draw_plus = 3, draw_far = 4 };

// Philox4x32-10 of counter (row, round, purpose, subspace).
MR_HD inline uint64_t vector_draw(uint64_t seed, uint32_t row, uint32_t round, uint32_t purpose, uint32_t subspace) {
  uint32_t c0 = row, c1 = round, c2 = purpose, c3 = subspace;
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int i = 0; i < 10; ++i) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ key0, n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ key1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return static_cast<uint64_t>(c0) << 32 | c1;
}

MR_HD inline uint64_t draw_below(uint64_t bits, uint64_t n) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(bits, n);
#else
  return static_cast<uint64_t>((static_cast<unsigned __int128>(bits) * n) >> 64);
#endif
}

MR_HD inline double draw_unit(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

// One row of part t of `parts` of n rows.
MR_HD inline uint64_t draw_pick(uint64_t seed, uint64_t t, uint64_t parts, uint64_t n, uint32_t purpose, uint32_t subspace) {
  const uint64_t low = t * n / parts, high = (t + 1) * n / parts;
  return low + draw_below(vector_draw(seed, static_cast<uint32_t>(t), 0, purpose, subspace), high - low);
}

// Finds, over values taken one after another, the first whose running sum is above a target; where rounding leaves none, the
// last that is above 0.
struct RunningPass {
  double running = 0, before = 0;  // before: the running sum before `at`
  int64_t at = 0;
  // Takes value i; true when it is the one.
  MR_HD bool take(int64_t i, double v, double target) {
    if (v > 0) {
      at = i;
      before = running;
    }
    running += v;
    return running > target;
  }
};

// ---- rounds ---------------------------------------------------------------------------------------------------------

// What of a configuration decides whether a round is stable and whether it is the last.
struct EndRule {
  int64_t max_iterations, stable_iterations, min_changes;
  double energy_tolerance;
  int32_t annealed;
};

inline EndRule end_rule(const mr_trainer_config& c) {
  return {c.max_iterations, c.stable_iterations, c.min_changes, c.energy_tolerance, c.algorithm == MR_ALGORITHM_ANNEALED ? 1 : 0};
}

MR_HD inline bool is_stable(const EndRule& rule, int64_t iteration, double energy_before, double energy, int64_t changes) {
  if (iteration == 0) return false;
  const bool by_energy = rule.energy_tolerance >= 0, by_changes = rule.min_changes >= 0;
  if (by_energy && fabs(energy_before - energy) <= rule.energy_tolerance * fabs(energy_before)) return true;
  if (by_changes && changes <= rule.min_changes) return true;
  return !by_energy && !by_changes && rule.annealed == 0 && changes == 0;
}

// MR_REASON_* of a round's end, `stable` stable rounds in a row with this one. A state may have more updates behind it than are asked for.
MR_HD inline int32_t end_reason(const EndRule& rule, int64_t iteration, int64_t stable) {
  if (stable >= rule.stable_iterations) return MR_REASON_CONVERGED;
  return iteration >= rule.max_iterations ? MR_REASON_MAX_ITERATIONS : MR_REASON_NONE;
}

// How many of a codeword's rows trimming keeps.
MR_HD inline uint64_t kept_rows(double trim, uint64_t load) {
  return load - static_cast<uint64_t>(floor(trim * static_cast<double>(load)));
}

// The velocity of a place p that is drawn to the mean m.
MR_HD inline double next_velocity(double momentum, double v, double rate, double m, double p) { return momentum * v + rate * (m - p); }

// Where two merged places of these loads meet.
MR_HD inline double merged_place(double low_load, double low, double high_load, double high, double both) {
  return (low_load * low + high_load * high) / both;
}

// A distance as an unsigned number of the same order; of distances that are equal, the same one.
MR_HD inline uint64_t order_of(double q) {
  const uint64_t bits = bits_as<uint64_t>(q + 0.0);  // -0 becomes +0
  return bits >> 63 != 0 ? ~bits : bits | uint64_t{1} << 63;
}

}  // namespace mr
