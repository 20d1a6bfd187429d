#include "vector_kernels.h"

namespace mr::cpu {

extern const VectorKernels vector_kernels_portable;
#if defined(__x86_64__)
extern const VectorKernels vector_kernels_avx2;
extern const VectorKernels vector_kernels_avx512;
#endif

const VectorKernels& vector_kernels(Isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::amx:
    case Isa::avx512bf16:
    case Isa::avx512vnni: return vector_kernels_avx512;
    case Isa::avx2: return vector_kernels_avx2;
    case Isa::portable: break;
  }
#else
  static_cast<void>(isa);
#endif
  return vector_kernels_portable;
}

}  // namespace mr::cpu
