// wgmma: Hopper instructions of the wgmma GEMMs: warpgroup matrix products, bulk copies, and the mbarriers in shared
// memory that synchronise them. Only for machine code of sm_90a.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/instructions.cuh"

namespace mr::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Returns true in one lane of a converged warp. The compiler then knows that one thread runs the branch, so
// instructions that take operands from uniform registers, as copies do, need no loop over lanes.
__device__ __forceinline__ bool elected() {
  uint32_t chosen;
  asm volatile("{\n.reg .pred chosen;\nelect.sync _|chosen, 0xffffffff;\nselp.u32 %0, 1, 0, chosen;\n}" : "=r"(chosen));
  return chosen != 0;
}

// Returns a shared memory address, computed once by whole warps. In a cluster the computation takes thirty cycles, and
// compilers repeat it at every use.
__device__ __forceinline__ uint32_t kept_address(const void* p) { return __shfl_sync(0xffffffffu, shared_address(p), 0); }

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the cluster and to copies.
__device__ __forceinline__ void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Arrives once and announces the bytes that copies will bring.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Arrives once. Hazard: shared memory loads that this thread has issued may still be in flight, and copies that the
// arrival permits have been seen to overtake them, in some of a thousand launches. Therefore a stage must be released
// only after products, sums or stores of its contents, or after shared_fence().
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// As barrier_arrive_at, but this thread's earlier writes become visible to threads that wait with barrier_wait_cluster.
__device__ __forceinline__ void barrier_publish_at(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier), "r"(rank)
      : "memory");
}

// Copies the box at (x, y) of a tensor map into this block's shared memory.
__device__ __forceinline__ void tensor_copy(uint32_t to, const void* map, int32_t x, int32_t y, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(map),
      "r"(x), "r"(y), "r"(barrier)
      : "memory");
}

// Arrives at the barrier with the same address in block `rank` of the cluster, with the hazard of barrier_arrive. It
// does not order writes: a release at cluster scope would wait until every write of the thread has reached the L2
// cache.
__device__ __forceinline__ void barrier_arrive_at(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier), "r"(rank)
      : "memory");
}

// Returns the address in block `rank` of the cluster that corresponds to this address here.
__device__ __forceinline__ uint32_t remote(uint32_t address, uint32_t rank) {
  uint32_t out;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(out) : "r"(address), "r"(rank));
  return out;
}

// Stores 16 bytes at a remote address; completes on a barrier in the same block.
__device__ __forceinline__ void store_async(uint32_t to, float a, float b, float c, float d, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to), "f"(a),
               "f"(b), "f"(c), "f"(d), "r"(barrier)
               : "memory");
}

// Waits for the end of the barrier's phase of this parity.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nMR_AGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra MR_END;\nbra MR_AGAIN;\nMR_END:\n}" ::"r"(barrier), "r"(parity)
      : "memory");
}

// Likewise, and acquires what others wrote before barrier_publish_at. An acquire at cluster scope invalidates L1, so it
// is done once, at the end: the next phase cannot end before this thread has continued.
__device__ __forceinline__ void barrier_wait_cluster(uint32_t barrier, uint32_t parity) {
  barrier_wait(barrier, parity);
  asm volatile(
      "{\n.reg .pred done;\nMR_AGAIN:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@done bra MR_END;\nbra MR_AGAIN;\nMR_END:\n}" ::"r"(barrier), "r"(parity)
      : "memory");
}

// Copies `bytes` (a multiple of 16) from global to shared memory; completes on the barrier.
__device__ __forceinline__ void bulk_copy(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
               "r"(bytes), "r"(barrier)
               : "memory");
}

// The same two copies, of weights of the decode class. They leave the L2 cache first, so that code, tokens, sums and tables stay there
// from layer to layer. Tiles that differ in their tokens alone run side by side, so they find the weights there all the same.
__device__ __forceinline__ void tensor_stream(uint32_t to, const void* map, int32_t x, int32_t y, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier), "l"(evict_first_policy())
      : "memory");
}
__device__ __forceinline__ void bulk_stream(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier), "l"(evict_first_policy())
               : "memory");
}

// Requests a tensor map, a constant of the launch, so that the first copy by it need not wait for it. Which map it is must be known
// when the kernel is compiled (cuda/kernels/README.md, hazards), and the host must have written it.
__device__ __forceinline__ void map_prefetch(const void* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

// Copies the box at (x, y) of a tensor map to the same address in every block of `mask`; completes on each one's
// barrier.
__device__ __forceinline__ void tensor_copy(uint32_t to, const void* map, int32_t x, int32_t y, uint32_t barrier, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], "
      "%5;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(mask)
      : "memory");
}

// Copies `bytes` (a multiple of 16) from global memory to the same address in every block of `mask`; completes on each
// one's barrier.
__device__ __forceinline__ void bulk_copy(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier, uint16_t mask) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier), "h"(mask)
               : "memory");
}

// Prefetches the box at (x, y) of a tensor map into the L2 cache.
__device__ __forceinline__ void tensor_prefetch(const void* map, int32_t x, int32_t y) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(map), "r"(x), "r"(y) : "memory");
}

// Stores shared memory of this block to the box at (x, y) of a tensor map; elements beyond the map's edges are dropped.
// Writes to that memory must be fenced by shared_fence() first. The store belongs to the thread's next group.
__device__ __forceinline__ void tensor_store(const void* map, int32_t x, int32_t y, uint32_t from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(x), "r"(y), "r"(from)
               : "memory");
}

// Closes a group of this thread's stores; waits until all but the `pending` latest groups have read their source, or
// until all have completed.
__device__ __forceinline__ void stores_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int32_t pending>
__device__ __forceinline__ void stores_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}
__device__ __forceinline__ void stores_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Stores a warp's four 8x8 matrices of 16-bit elements, of which each thread has two of a row as mma returns them, to
// shared memory as columns: thread 8 * i + j passes the address of column j of matrix i, 16 bytes.
__device__ __forceinline__ void store_columns(uint32_t address, const uint32_t (&v)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v[0]), "r"(v[1]), "r"(v[2]),
               "r"(v[3])
               : "memory");
}

// PipelineState is a stage of a pipeline of `stages` stages, and the parity of the phase for which its barrier is
// awaited.
template <int32_t stages>
struct PipelineState {
  int32_t stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void next() {
    if (++stage < stages) return;
    stage = 0;
    phase ^= 1;
  }
};

// Whether two warpgroups may have `up` registers a thread while a third keeps `down`. A block of 384 threads has only
// the registers that it starts with, 168 a thread for one block on an SM and 80 for two, and asking for more would wait
// for ever.
template <int32_t up, int32_t down, int32_t blocks = 1>
constexpr bool kRegistersFit = 2 * up + down <= 3 * (blocks == 1 ? 168 : 80);

// Changes a warpgroup's limit of registers a thread; every warp of the group must call it.
template <int32_t count>
__device__ __forceinline__ void registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}
template <int32_t count>
__device__ __forceinline__ void registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

// Orders the registers of a warpgroup before its next products.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int32_t pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// Describes a tile of rows of 128 bytes, 1024-byte aligned, swizzled as tensor copies do.
__device__ __forceinline__ uint64_t swizzled_rows(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3ffffu) >> 4) | uint64_t{1} << 16 | uint64_t{64} << 32 | uint64_t{1} << 62;
}

// Describes rows of 64 bytes, 512-byte aligned, where the 16-byte piece i of row r is stored at piece i ^ r / 2 % 4.
__device__ __forceinline__ uint64_t swizzled_rows64(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3ffffu) >> 4) | uint64_t{1} << 16 | uint64_t{32} << 32 | uint64_t{2} << 62;
}

// Makes this thread's writes of shared memory visible to copies and products that begin after a barrier, and completes
// its loads before copies may overwrite what they read.
__device__ __forceinline__ void shared_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Keeps the fragments of a unit in their registers up to here, after the wait for their products. A product reads its fragments
// while it runs, but to the compiler they are dead once it has been issued: it wrote the next unit's into the same registers.
template <int32_t steps>
__device__ __forceinline__ void wgmma_keep(const uint32_t (&a)[steps][4]) {
#pragma unroll
  for (int32_t step = 0; step < steps; ++step) asm volatile("" ::"r"(a[step][0]), "r"(a[step][1]), "r"(a[step][2]), "r"(a[step][3]));
}

// Keeps the compiler from using a sum before its products have been waited for.
template <int32_t count>
__device__ __forceinline__ void wgmma_settle(float (&sums)[count]) {
#pragma unroll
  for (float& sum : sums) asm volatile("" : "+f"(sum)::"memory");
}

// The numbers and the constraints of the operands d[0], d[1], ... of an instruction.
#define MR_NUMBERS_4 "%0, %1, %2, %3"
#define MR_NUMBERS_8 MR_NUMBERS_4 ", %4, %5, %6, %7"
#define MR_NUMBERS_16 MR_NUMBERS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define MR_NUMBERS_24 MR_NUMBERS_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define MR_NUMBERS_32 MR_NUMBERS_16 \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MR_NUMBERS_48 MR_NUMBERS_32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define MR_NUMBERS_64 MR_NUMBERS_48 \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MR_NUMBERS_128 MR_NUMBERS_64 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95" \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define MR_SUMS_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MR_SUMS_8(d, i) MR_SUMS_4(d, i), MR_SUMS_4(d, i + 4)
#define MR_SUMS_16(d, i) MR_SUMS_8(d, i), MR_SUMS_8(d, i + 8)
#define MR_SUMS_24(d, i) MR_SUMS_16(d, i), MR_SUMS_8(d, i + 16)
#define MR_SUMS_32(d, i) MR_SUMS_16(d, i), MR_SUMS_16(d, i + 16)
#define MR_SUMS_48(d, i) MR_SUMS_32(d, i), MR_SUMS_16(d, i + 32)
#define MR_SUMS_64(d, i) MR_SUMS_32(d, i), MR_SUMS_32(d, i + 32)
#define MR_SUMS_128(d, i) MR_SUMS_64(d, i), MR_SUMS_64(d, i + 64)

// One instruction with `sums` sums for n tokens of a type. The operands after the sums are numbered by hand: a, b, add.
#define MR_WGMMA_OF(type, n, sums, operands, add_operand)                                                                     \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " add_operand ", 0;\nwgmma.mma_async.sync.aligned.m64n" n "k16.f32." type \
               "." type " {" MR_NUMBERS_##sums "}, " operands ", add, 1, 1, 0;\n}"                                              \
               : MR_SUMS_##sums(d, 0)                                                                                         \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(add ? 1 : 0))
#define MR_WGMMA(n, sums, operands, add_operand)                                                          \
  if constexpr (std::is_same_v<E, __half>) MR_WGMMA_OF("f16", n, sums, operands, add_operand);            \
  else MR_WGMMA_OF("bf16", n, sums, operands, add_operand)

// d(64, n) = a(64, 16) * b(n, 16)^T, plus d if `add`. a: this warp's 16 rows as an A fragment of mma.m16n8k16; d
// likewise, four registers for every 8 columns. b: a descriptor. Asynchronous until wgmma_wait.
template <class E, bool add = true>
__device__ __forceinline__ void wgmma_m64(float (&d)[4], const uint32_t (&a)[4], uint64_t b) {
  MR_WGMMA("8", 4, "{%4, %5, %6, %7}, %8", "%9");
}
template <class E, bool add = true>
__device__ __forceinline__ void wgmma_m64(float (&d)[8], const uint32_t (&a)[4], uint64_t b) {
  MR_WGMMA("16", 8, "{%8, %9, %10, %11}, %12", "%13");
}
template <class E, bool add = true>
__device__ __forceinline__ void wgmma_m64(float (&d)[16], const uint32_t (&a)[4], uint64_t b) {
  MR_WGMMA("32", 16, "{%16, %17, %18, %19}, %20", "%21");
}
template <class E, bool add = true>
__device__ __forceinline__ void wgmma_m64(float (&d)[24], const uint32_t (&a)[4], uint64_t b) {
  MR_WGMMA("48", 24, "{%24, %25, %26, %27}, %28", "%29");
}
template <class E, bool add = true>
__device__ __forceinline__ void wgmma_m64(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
  MR_WGMMA("64", 32, "{%32, %33, %34, %35}, %36", "%37");
}
template <class E, bool add = true>
__device__ __forceinline__ void wgmma_m64(float (&d)[48], const uint32_t (&a)[4], uint64_t b) {
  MR_WGMMA("96", 48, "{%48, %49, %50, %51}, %52", "%53");
}
// The same with 128 tokens, whose sums are the first 64 of an array.
template <class E, bool add = true, int32_t size>
__device__ __forceinline__ void wgmma_m64n128(float (&d)[size], const uint32_t (&a)[4], uint64_t b) {
  static_assert(size >= 64);
  MR_WGMMA("128", 64, "{%64, %65, %66, %67}, %68", "%69");
}
template <class E, bool add = true>
__device__ __forceinline__ void wgmma_m64(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
  wgmma_m64n128<E, add>(d, a, b);
}
template <class E, bool add = true>
__device__ __forceinline__ void wgmma_m64(float (&d)[128], const uint32_t (&a)[4], uint64_t b) {
  MR_WGMMA("256", 128, "{%128, %129, %130, %131}, %132", "%133");
}

#undef MR_WGMMA
#undef MR_WGMMA_OF

#endif

}  // namespace mr::cuda
