// Loads for measuring roofs: a streaming read, f32 multiply-adds, int8 and bf16 matrix instructions. Each kernel folds what
// it computes into a store that never happens, so that nothing is left out. The bf16 rate is wgmma's on compute capability
// 9.0 (64x256x16, operands in shared memory), mma.sync's elsewhere.
#include "src/measure_kernels.h"

namespace mr::cuda {
namespace {

constexpr int kThreads = 512;

__global__ void __launch_bounds__(kThreads) read_stream(const uint4* data, uint64_t vectors, uint32_t* sink) {
  const uint64_t stride = static_cast<uint64_t>(gridDim.x) * kThreads;
  uint64_t i = static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
  uint32_t fold = 0;
  for (; i + 7 * stride < vectors; i += 8 * stride) {
    uint4 v[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] = __ldcs(data + i + k * stride);
#pragma unroll
    for (int k = 0; k < 8; ++k) fold ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  for (; i < vectors; i += stride) {
    const uint4 v = __ldcs(data + i);
    fold ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (fold == 0x9e3779b9u) *sink = fold;
}

__global__ void __launch_bounds__(kThreads) f32_rounds(int64_t rounds, float* sink) {
  float sum[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) sum[i] = static_cast<float>(i);
  const float a = 1.0f + static_cast<float>(threadIdx.x) * 1e-7f, b = 1e-3f;
  for (int64_t r = 0; r < rounds; ++r) {
#pragma unroll
    for (int i = 0; i < 16; ++i) sum[i] = fmaf(sum[i], a, b);
  }
  float fold = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) fold += sum[i];
  if (fold == 12345.0f) *sink = fold;
}

__global__ void __launch_bounds__(kThreads) int8_rounds(int64_t rounds, int32_t* sink) {
  int32_t sum[8][4] = {};
  const uint32_t a = 0x01020304u + threadIdx.x, b = 0x01010101u + threadIdx.x;
  for (int64_t r = 0; r < rounds; ++r) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                   : "+r"(sum[i][0]), "+r"(sum[i][1]), "+r"(sum[i][2]), "+r"(sum[i][3])
                   : "r"(a), "r"(a), "r"(a), "r"(a), "r"(b), "r"(b));
  }
  int32_t fold = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) fold ^= sum[i][0] ^ sum[i][1] ^ sum[i][2] ^ sum[i][3];
  if (fold == 0x12345678) *sink = fold;
}

constexpr int kTileA = 64 * 64, kTileB = 256 * 64;  // elements of a step of four instructions

// Whether this code was compiled with wgmma; asked of the device, since the host does not know the machine code chosen.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MILLRACE_WGMMA 1
#endif

__global__ void __launch_bounds__(256) bf16_rounds(int64_t rounds, float* sink) {
#ifdef MILLRACE_WGMMA
  // Two warpgroups, each with 64 x 256 sums; operands in the 128-byte swizzle, whose order matters to no rate.
  extern __shared__ __align__(1024) uint16_t tiles[];
  for (int i = static_cast<int>(threadIdx.x); i < 2 * kTileA + kTileB; i += 256) {
    const uint32_t mixed = (static_cast<uint32_t>(i) + 1) * 2654435761u;  // either sign, 0.5 to 2: what real data toggles
    tiles[i] = static_cast<uint16_t>((mixed >> 16 & 0x8000u) | 0x3f00u | (mixed >> 8 & 0xffu));
  }
  __syncthreads();
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  const uint32_t base = static_cast<uint32_t>(__cvta_generic_to_shared(tiles));
  const auto descriptor = [](uint32_t address) {
    return static_cast<uint64_t>((address & 0x3ffffu) >> 4) | uint64_t{1} << 16 | uint64_t{64} << 32 | uint64_t{1} << 62;
  };
  const uint32_t a = base + threadIdx.x / 128 * kTileA * 2, b = base + 2 * kTileA * 2;
  float sum[128];
#pragma unroll
  for (int i = 0; i < 128; ++i) sum[i] = 0;
  for (int64_t r = 0; r < rounds; ++r) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint64_t da = descriptor(a + k * 32), db = descriptor(b + k * 32);
      asm volatile(
          "{\n"
          "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
          "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
          "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,"
          "%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,"
          "%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,"
          "%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}, "
          "%128, %129, 1, 1, 1, 0, 0;\n"
          "}\n"
#define S4(i) "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3])
#define S16(i) S4(i), S4(i + 4), S4(i + 8), S4(i + 12)
          : S16(0), S16(16), S16(32), S16(48), S16(64), S16(80), S16(96), S16(112)
          : "l"(da), "l"(db));
#undef S16
#undef S4
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }
  float fold = 0;
#pragma unroll
  for (int i = 0; i < 128; ++i) fold += sum[i];
  if (fold == 12345.0f) *sink = fold;
#else
  float sum[8][4] = {};
  const uint32_t a = 0x3f803f80u + threadIdx.x, b = 0x3f813f82u + threadIdx.x;
  for (int64_t r = 0; r < rounds; ++r) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                   : "+f"(sum[i][0]), "+f"(sum[i][1]), "+f"(sum[i][2]), "+f"(sum[i][3])
                   : "r"(a), "r"(a), "r"(a), "r"(a), "r"(b), "r"(b));
  }
  float fold = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) fold += sum[i][0] + sum[i][1] + sum[i][2] + sum[i][3];
  if (fold == 12345.0f) *sink = fold;
#endif
}

__global__ void compiled_with_wgmma(int32_t* yes) {
#ifdef MILLRACE_WGMMA
  *yes = 1;
#else
  *yes = 0;
#endif
}

}  // namespace

cudaError_t launch_read_stream(const void* data, uint64_t bytes, int sm_count, uint32_t* sink, cudaStream_t stream) {
  read_stream<<<static_cast<unsigned>(sm_count) * 4, kThreads, 0, stream>>>(static_cast<const uint4*>(data), bytes / 16, sink);
  return cudaGetLastError();
}

cudaError_t launch_f32_rounds(int64_t rounds, int sm_count, float* sink, double* operations, cudaStream_t stream) {
  const unsigned blocks = static_cast<unsigned>(sm_count) * 4;
  f32_rounds<<<blocks, kThreads, 0, stream>>>(rounds, sink);
  *operations = static_cast<double>(blocks) * kThreads * 16 * 2 * static_cast<double>(rounds);
  return cudaGetLastError();
}

cudaError_t launch_int8_rounds(int64_t rounds, int sm_count, int32_t* sink, double* operations, cudaStream_t stream) {
  const unsigned blocks = static_cast<unsigned>(sm_count) * 2;
  int8_rounds<<<blocks, kThreads, 0, stream>>>(rounds, sink);
  *operations = static_cast<double>(blocks) * (kThreads / 32) * 8 * (2.0 * 16 * 8 * 32) * static_cast<double>(rounds);
  return cudaGetLastError();
}

cudaError_t launch_bf16_rounds(int64_t rounds, int sm_count, float* sink, double* operations, cudaStream_t stream) {
  int32_t wgmma = 0;
  auto* const flag = reinterpret_cast<int32_t*>(sink);
  compiled_with_wgmma<<<1, 1, 0, stream>>>(flag);
  cudaError_t error = cudaMemcpyAsync(&wgmma, flag, sizeof wgmma, cudaMemcpyDeviceToHost, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (error != cudaSuccess) return error;
  const size_t shared = wgmma != 0 ? (2 * kTileA + kTileB) * sizeof(uint16_t) : 0;
  error = cudaFuncSetAttribute(bf16_rounds, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
  if (error != cudaSuccess) return error;
  const unsigned blocks = static_cast<unsigned>(sm_count) * (wgmma != 0 ? 1 : 4);
  bf16_rounds<<<blocks, 256, shared, stream>>>(rounds, sink);
  const double one = wgmma != 0 ? 2 * 4 * (2.0 * 64 * 256 * 16) : 8 * 8 * (2.0 * 16 * 8 * 16);  // operations of a block's round
  *operations = blocks * one * static_cast<double>(rounds);
  return cudaGetLastError();
}

}  // namespace mr::cuda
