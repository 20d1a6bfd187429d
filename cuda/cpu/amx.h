// Intel AMX: whether this build has it. Compilers before GCC 11 do not know its instructions; they build the other paths, as any
// does with -DMR_AMX=0.
#ifndef MILLRACE_CPU_AMX_H
#define MILLRACE_CPU_AMX_H

#if !defined(MR_AMX) && defined(__x86_64__) && defined(__has_include)
#if __has_include(<amxint8intrin.h>)
#define MR_AMX 1
#endif
#endif
#ifndef MR_AMX
#define MR_AMX 0
#endif

#if MR_AMX
namespace mr::cpu {

// Declares to the compiler that memory is read. Must be called before tiles are loaded or shaped from memory: the compiler's
// intrinsics do not declare it, so the compiler may drop a store whose only reader is a tile.
__attribute__((always_inline)) static inline void before_tiles_read(const void* memory) {
  asm volatile("" : : "r"(memory) : "memory");
}

}  // namespace mr::cpu
#endif

#endif
