#include "isa.h"

#include <string.h>

#include <initializer_list>

#include "amx.h"
#if MR_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace mr::cpu {

namespace {

#if defined(__x86_64__)
#if MR_AMX
// Linux keeps the state of tiles, 8 KiB a thread, only for processes that requested it. It refuses the request if it does not
// support or permit tiles.
bool tiles_permitted() {
  constexpr long request_permission = 0x1023, tile_data = 18; // ARCH_REQ_XCOMP_PERM and XFEATURE_XTILEDATA
  static const bool permitted = syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  return permitted;
}

bool has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned bf16 = 1u << 22, tile = 1u << 24, int8 = 1u << 25, wanted = bf16 | tile | int8;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & wanted) == wanted && tiles_permitted();
}
#else
bool has_amx() { return false; }
#endif
#endif

} // namespace

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
    case Isa::amx: return runnable(Isa::avx512bf16) && has_amx();
  }
  return false;
#else
  return isa == Isa::portable;
#endif
}

Isa detect() {
  for (Isa isa : {Isa::amx, Isa::avx512bf16, Isa::avx512vnni, Isa::avx2}) {
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
    case Isa::amx: return "amx";
  }
  return "unknown";
}

const char* flavour(Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::avx512bf16) {
    __builtin_cpu_init();
    return __builtin_cpu_is("amd") ? "amd" : __builtin_cpu_is("intel") ? "intel" : "other";
  }
#endif
  (void)isa;
  return "";
}

bool from_name(const char* s, Isa* out) {
  if (s == nullptr) return false;
  for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512vnni, Isa::avx512bf16, Isa::amx}) {
    if (strcmp(s, name(isa)) == 0) { *out = isa; return true; }
  }
  return false;
}

} // namespace mr::cpu
