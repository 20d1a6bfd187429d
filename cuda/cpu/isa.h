// The instruction-set paths of the CPU engine. A path decides bits: results are equal within one, not across them.
#ifndef MILLRACE_CPU_ISA_H
#define MILLRACE_CPU_ISA_H

namespace mr::cpu {

enum class Isa { // each can do what those before it can
  portable,   // plain C++; the only one outside amd64
  avx2,       // AVX2, FMA, F16C
  avx512vnni, // AVX-512 F, BW, VL, DQ and VNNI
  avx512bf16, // avx512vnni with AVX-512 BF16 for products of BF16 weights; everything else is avx512vnni's
  amx,        // avx512bf16 with AMX's int8 tiles for products of quantised weights
};

// The best path this processor and operating system support.
Isa detect();

// Whether this process can run `isa`: this build has it, and the processor and the operating system do. portable always can.
// The first question about amx asks the system to let this process use tiles, for good; refused, it cannot run amx.
bool runnable(Isa isa);

// "portable", "avx2", "avx512vnni", "avx512bf16" or "amx". Static.
const char* name(Isa isa);

// Which implementation of `isa` this processor has, where implementations may round differently: the vendor's name on
// avx512bf16 and amx, else "". Static.
const char* flavour(Isa isa);

// The path called `s` into *out; false, and *out untouched, for any other name or NULL. Does not ask runnable().
bool from_name(const char* s, Isa* out);

} // namespace mr::cpu

#endif
