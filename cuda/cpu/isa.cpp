#include "isa.h"

#include <string.h>

#include <initializer_list>

namespace mr::cpu {

bool runnable(Isa isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  switch (isa) {
    case Isa::portable: return true;
    case Isa::avx2: return avx2;
    case Isa::avx512vnni:
      return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vnni");
    case Isa::avx512bf16: return runnable(Isa::avx512vnni) && __builtin_cpu_supports("avx512bf16");
  }
  return false;
#else
  return isa == Isa::portable;
#endif
}

Isa detect() {
  for (Isa isa : {Isa::avx512bf16, Isa::avx512vnni, Isa::avx2}) {
    if (runnable(isa)) return isa;
  }
  return Isa::portable;
}

const char* name(Isa isa) {
  switch (isa) {
    case Isa::portable: return "portable";
    case Isa::avx2: return "avx2";
    case Isa::avx512vnni: return "avx512vnni";
    case Isa::avx512bf16: return "avx512bf16";
  }
  return "unknown";
}

const char* flavour(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx512bf16) {
    __builtin_cpu_init();
    return __builtin_cpu_is("amd") ? "amd" : __builtin_cpu_is("intel") ? "intel" : "other";
  }
#endif
  (void)isa;
  return "";
}

bool from_name(const char* s, Isa* out) {
  if (s == nullptr) return false;
  for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512vnni, Isa::avx512bf16}) {
    if (strcmp(s, name(isa)) == 0) { *out = isa; return true; }
  }
  return false;
}

} // namespace mr::cpu
