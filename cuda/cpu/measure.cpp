#include "measure.h"

#include "amx.h"

#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mr::cpu {

namespace {

constexpr int streams = 4; // read side by side: one stream alone is held back by its page boundaries
constexpr int ahead = 8192; // bytes that are asked for early, into the second level

uint64_t read_portable(const uint8_t* data, uint64_t bytes) {
  const uint64_t part = bytes / streams;
  uint64_t fold[streams] = {};
  for (uint64_t i = 0; i < part; i += 64) {
    for (int s = 0; s < streams; ++s) {
      uint64_t v[8];
      memcpy(v, data + uint64_t(s) * part + i, 64);
      __builtin_prefetch(data + uint64_t(s) * part + i + ahead, 0, 2);
      fold[s] |= (v[0] | v[1]) | (v[2] | v[3]) | (v[4] | v[5]) | (v[6] | v[7]);
    }
  }
  return fold[0] | fold[1] | fold[2] | fold[3];
}

// Products and sums of 16 bits in vectors: no plain int8 dot product can do better than leave out the widening.
double int8_portable(int64_t rounds, float* sink) {
  typedef uint16_t u16x8 __attribute__((vector_size(16)));
  u16x8 sum[6] = {}, x[2];
  for (int i = 0; i < 8; ++i) {
    x[0][i] = x[1][i] = uint16_t(rounds + i);
    for (int j = 0; j < 6; ++j) sum[j][i] = uint16_t(rounds * j + i); // equal chains would be computed once
  }
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 6
    for (int i = 0; i < 6; ++i) sum[i] = sum[i] * x[0] + x[1];
  }
#pragma GCC unroll 6
  for (int i = 1; i < 6; ++i) sum[0] ^= sum[i];
  *sink = float(sum[0][0]);
  return double(rounds) * 6 * 16;
}

double f32_portable(int64_t rounds, float* sink) {
  typedef float f32x16 __attribute__((vector_size(64)));
  f32x16 sum[4] = {}, w;
  for (int i = 0; i < 16; ++i) w[i] = 0.5f + float(i) / 64;
  const f32x16 x = w;
  for (int64_t r = 0; r < rounds; ++r) {
    for (f32x16& s : sum) s = s * w + x;
  }
  const f32x16 all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  *sink = all[0];
  return double(rounds) * 128;
}

#if defined(__x86_64__)

#define MR_AVX2 __attribute__((target("avx2,fma")))
#define MR_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))

MR_AVX2 uint64_t read_avx2(const uint8_t* data, uint64_t bytes) {
  const uint64_t part = bytes / streams;
  __m256i a = _mm256_setzero_si256(), b = a;
  for (uint64_t i = 0; i < part; i += 64) {
#pragma GCC unroll 4
    for (int s = 0; s < streams; ++s) {
      const uint8_t* p = data + uint64_t(s) * part + i;
      _mm_prefetch(reinterpret_cast<const char*>(p + ahead), _MM_HINT_T1);
      a = _mm256_or_si256(a, _mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
      b = _mm256_or_si256(b, _mm256_load_si256(reinterpret_cast<const __m256i*>(p + 32)));
    }
  }
  uint64_t v[4];
  a = _mm256_or_si256(a, b);
  memcpy(v, &a, 32);
  return v[0] | v[1] | v[2] | v[3];
}

MR_AVX512 uint64_t read_avx512(const uint8_t* data, uint64_t bytes) {
  const uint64_t part = bytes / streams;
  __m512i a = _mm512_setzero_si512(), b = a;
  for (uint64_t i = 0; i < part; i += 128) {
#pragma GCC unroll 4
    for (int s = 0; s < streams; ++s) {
      const uint8_t* p = data + uint64_t(s) * part + i;
      _mm_prefetch(reinterpret_cast<const char*>(p + ahead), _MM_HINT_T1);
      _mm_prefetch(reinterpret_cast<const char*>(p + ahead + 64), _MM_HINT_T1);
      a = _mm512_or_si512(a, _mm512_load_si512(p));
      b = _mm512_or_si512(b, _mm512_load_si512(p + 64));
    }
  }
  uint64_t v[8];
  a = _mm512_or_si512(a, b);
  memcpy(v, &a, 64);
  return (v[0] | v[1]) | (v[2] | v[3]) | (v[4] | v[5]) | (v[6] | v[7]);
}

// Twelve chains hide the latency of five cycles at two instructions a cycle. The instruction is written out because
// compilers add register moves around the intrinsic in such a loop, and the roof would be too low.
MR_AVX512 double int8_avx512(int64_t rounds, float* sink) {
  const __m512i w = _mm512_set1_epi8(3), x = _mm512_set1_epi8(int8_t(rounds & 7));
  __m512i sum[12];
#pragma GCC unroll 12
  for (int i = 0; i < 12; ++i) sum[i] = _mm512_set1_epi32(i);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) asm("vpdpbusd %2, %1, %0" : "+v"(sum[i]) : "v"(w), "v"(x));
  }
#pragma GCC unroll 12
  for (int i = 1; i < 12; ++i) sum[0] = _mm512_xor_si512(sum[0], sum[i]);
  int32_t all;
  memcpy(&all, &sum[0], 4);
  *sink = float(all);
  return double(rounds) * 12 * 128;
}

MR_AVX512 double f32_avx512(int64_t rounds, float* sink) {
  const __m512 w = _mm512_set1_ps(0.5f), x = _mm512_set1_ps(float(rounds & 7));
  __m512 sum[12];
#pragma GCC unroll 12
  for (int i = 0; i < 12; ++i) sum[i] = _mm512_set1_ps(float(i));
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) asm("vfmadd231ps %2, %1, %0" : "+v"(sum[i]) : "v"(w), "v"(x));
  }
#pragma GCC unroll 12
  for (int i = 1; i < 12; ++i) sum[0] = _mm512_add_ps(sum[0], sum[i]);
  memcpy(sink, &sum[0], 4);
  return double(rounds) * 12 * 32;
}

__attribute__((target("avx512f,avx512bf16"))) double bf16_avx512(int64_t rounds, float* sink) {
  const __m512i w = _mm512_set1_epi16(0x3f00), x = _mm512_set1_epi16(int16_t(0x3f80 + (rounds & 7)));
  __m512 sum[12];
#pragma GCC unroll 12
  for (int i = 0; i < 12; ++i) sum[i] = _mm512_set1_ps(float(i));
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) asm("vdpbf16ps %2, %1, %0" : "+v"(sum[i]) : "v"(w), "v"(x));
  }
#pragma GCC unroll 12
  for (int i = 1; i < 12; ++i) sum[0] = _mm512_add_ps(sum[0], sum[i]);
  memcpy(sink, &sum[0], 4);
  return double(rounds) * 12 * 64;
}

// The exact int8 product of AVX2 is three instructions: bytes to 16 bits, 16 to 32 bits, add.
MR_AVX2 double int8_avx2(int64_t rounds, float* sink) {
  const __m256i w = _mm256_set1_epi8(3), one = _mm256_set1_epi16(1);
  __m256i x = _mm256_set1_epi8(int8_t(rounds & 7)), sum[10];
#pragma GCC unroll 10
  for (int i = 0; i < 10; ++i) sum[i] = _mm256_set1_epi32(i);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 10
    for (int i = 0; i < 10; ++i) {
      asm("" : "+x"(x)); // every product is computed again
      const __m256i wide = _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), one);
      asm("vpaddd %1, %0, %0" : "+x"(sum[i]) : "x"(wide));
    }
  }
#pragma GCC unroll 10
  for (int i = 1; i < 10; ++i) sum[0] = _mm256_xor_si256(sum[0], sum[i]);
  *sink = float(_mm_cvtsi128_si32(_mm256_castsi256_si128(sum[0])));
  return double(rounds) * 10 * 64;
}

MR_AVX2 double f32_avx2(int64_t rounds, float* sink) {
  const __m256 w = _mm256_set1_ps(0.5f), x = _mm256_set1_ps(float(rounds & 7));
  __m256 sum[12];
#pragma GCC unroll 12
  for (int i = 0; i < 12; ++i) sum[i] = _mm256_set1_ps(float(i));
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) asm("vfmadd231ps %2, %1, %0" : "+x"(sum[i]) : "x"(w), "x"(x));
  }
#pragma GCC unroll 12
  for (int i = 1; i < 12; ++i) sum[0] = _mm256_add_ps(sum[0], sum[i]);
  *sink = _mm256_cvtss_f32(sum[0]);
  return double(rounds) * 12 * 16;
}

#endif

} // namespace

uint64_t read_stream(Isa isa, const uint8_t* data, uint64_t bytes) {
#if defined(__x86_64__)
  if (isa >= Isa::avx512vnni) return read_avx512(data, bytes);
  if (isa == Isa::avx2) return read_avx2(data, bytes);
#endif
  (void)isa;
  return read_portable(data, bytes);
}

#if MR_AMX
double int8_rounds_amx(int64_t rounds, float* sink); // measure_amx.cpp
#endif

double int8_rounds(Isa isa, int64_t rounds, float* sink) {
#if MR_AMX
  if (isa == Isa::amx) return int8_rounds_amx(rounds, sink);
#endif
#if defined(__x86_64__)
  if (isa >= Isa::avx512vnni) return int8_avx512(rounds, sink);
  if (isa == Isa::avx2) return int8_avx2(rounds, sink);
#endif
  (void)isa;
  return int8_portable(rounds, sink);
}

double f32_rounds(Isa isa, int64_t rounds, float* sink) {
#if defined(__x86_64__)
  if (isa >= Isa::avx512vnni) return f32_avx512(rounds, sink);
  if (isa == Isa::avx2) return f32_avx2(rounds, sink);
#endif
  (void)isa;
  return f32_portable(rounds, sink);
}

double bf16_rounds(Isa isa, int64_t rounds, float* sink) {
#if defined(__x86_64__)
  if (isa >= Isa::avx512bf16) return bf16_avx512(rounds, sink);
#endif
  return f32_rounds(isa, rounds, sink);
}

} // namespace mr::cpu
