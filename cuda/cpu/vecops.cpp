#pragma GCC optimize("fp-contract=off")
#include "vecops.h"

#include "mathfn.h"
#include "millrace/engine.h"

namespace mr::cpu {

extern const VecOps vec_ops_portable;
#if defined(__x86_64__)
extern const VecOps vec_ops_avx2;
extern const VecOps vec_ops_avx512;
#endif

const VecOps& vec_ops(Isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::amx:
    case Isa::avx512bf16:
    case Isa::avx512vnni: return vec_ops_avx512;
    case Isa::avx2: return vec_ops_avx2;
    case Isa::portable: break;
  }
#else
  static_cast<void>(isa);
#endif
  return vec_ops_portable;
}

void rope_frequencies(int32_t dims, float base, float scale, const double* divisors, double* frequencies) {
  for (int32_t i = 0; i < dims / 2; ++i) {
    double f = pow_f64(base, -2.0 * i / dims) / scale;
    if (divisors != nullptr) f /= divisors[i];
    frequencies[i] = f;
  }
}

void rope_turns(const double* frequencies, int32_t dims, int32_t style, int64_t position, float magnitude, float* turns) {
  const int32_t half = dims / 2;
  for (int32_t i = 0; i < half; ++i) {
    double sine, cosine;
    sincos_f64(static_cast<double>(position) * frequencies[i], &sine, &cosine);
    const float s = static_cast<float>(sine) * magnitude, c = static_cast<float>(cosine) * magnitude;
    if (style == MR_ROPE_NEOX) {
      turns[i] = c;
      turns[half + i] = s;
    } else {
      turns[2 * i] = turns[2 * i + 1] = c;
      turns[dims + 2 * i] = -s;
      turns[dims + 2 * i + 1] = s;
    }
  }
}

}  // namespace mr::cpu
