// BLAKE3 of whole subtrees: value[s] = chaining value of bytes [s, s+1) * 64 KiB of data.
//
// A block of 64 threads takes one subtree, a thread one chunk of 1 KiB; the 64 values are folded in shared memory, six
// levels. Integers only. Shared memory 2 KiB. Reads every byte once, in pieces of 64 bytes a thread.
#include "cpu/blake3_core.h"
#include "src/digest_kernel.h"

namespace mr::cuda {
namespace {

using mr::blake3_core::kChunkEnd;
using mr::blake3_core::kChunkStart;
using mr::blake3_core::kParent;

constexpr int kChunks = 64;  // of a subtree

__device__ constexpr uint32_t kIv[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

__device__ __forceinline__ uint32_t rotate_right(uint32_t x, int bits) { return __funnelshift_r(x, x, bits); }

__device__ __forceinline__ void mix(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, uint32_t x, uint32_t y) {
  a += b + x;
  d = rotate_right(d ^ a, 16);
  c += d;
  b = rotate_right(b ^ c, 12);
  a += b + y;
  d = rotate_right(d ^ a, 8);
  c += d;
  b = rotate_right(b ^ c, 7);
}

// h = chaining value after one full block m.
__device__ __forceinline__ void compress(uint32_t (&h)[8], uint32_t (&m)[16], uint64_t counter, uint32_t flags) {
  uint32_t v[16] = {h[0],   h[1],   h[2],   h[3],   h[4], h[5], h[6], h[7], kIv[0], kIv[1], kIv[2], kIv[3],
                    static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 64, flags};
#pragma unroll
  for (int round = 0; round < 7; ++round) {
    mix(v[0], v[4], v[8], v[12], m[0], m[1]);
    mix(v[1], v[5], v[9], v[13], m[2], m[3]);
    mix(v[2], v[6], v[10], v[14], m[4], m[5]);
    mix(v[3], v[7], v[11], v[15], m[6], m[7]);
    mix(v[0], v[5], v[10], v[15], m[8], m[9]);
    mix(v[1], v[6], v[11], v[12], m[10], m[11]);
    mix(v[2], v[7], v[8], v[13], m[12], m[13]);
    mix(v[3], v[4], v[9], v[14], m[14], m[15]);
    // The permutation between rounds costs nothing: it renames registers.
    const uint32_t next[16] = {m[2], m[6], m[3],  m[10], m[7],  m[0], m[4],  m[13],
                               m[1], m[11], m[12], m[5], m[9], m[14], m[15], m[8]};
#pragma unroll
    for (int i = 0; i < 16; ++i) m[i] = next[i];
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) h[i] = v[i] ^ v[i + 8];
}

__global__ void __launch_bounds__(kChunks) chunk_per_thread(Blake3Args args) {
  __shared__ uint32_t values[kChunks][8];
  const int chunk = static_cast<int>(threadIdx.x);
  const int64_t subtree = blockIdx.x;
  const uint4* from = reinterpret_cast<const uint4*>(args.data + (subtree * kChunks + chunk) * 1024);
  const uint64_t counter = args.first_chunk + static_cast<uint64_t>(subtree) * kChunks + static_cast<uint64_t>(chunk);
  uint32_t h[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) h[i] = kIv[i];
#pragma unroll 1
  for (int block = 0; block < 16; ++block) {
    uint32_t m[16];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 words = from[block * 4 + i];
      m[4 * i] = words.x;
      m[4 * i + 1] = words.y;
      m[4 * i + 2] = words.z;
      m[4 * i + 3] = words.w;
    }
    compress(h, m, counter, (block == 0 ? kChunkStart : 0u) | (block == 15 ? kChunkEnd : 0u));
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) values[chunk][i] = h[i];
  __syncthreads();
  for (int count = kChunks / 2; count >= 1; count /= 2) {
    uint32_t m[16];
    if (chunk < count) {
#pragma unroll
      for (int i = 0; i < 16; ++i) m[i] = values[2 * chunk + i / 8][i % 8];
#pragma unroll
      for (int i = 0; i < 8; ++i) h[i] = kIv[i];
      compress(h, m, 0, kParent);
    }
    __syncthreads();
    if (chunk < count) {
#pragma unroll
      for (int i = 0; i < 8; ++i) values[chunk][i] = h[i];
    }
    __syncthreads();
  }
  if (chunk < 8) args.values[subtree * 8 + chunk] = values[0][chunk];
}

}  // namespace

cudaError_t launch_blake3_subtrees(const Blake3Args& args, cudaStream_t stream) {
  if (args.subtrees == 0) return cudaSuccess;
  if (args.subtrees < 0 || args.subtrees > INT32_MAX) return cudaErrorInvalidValue;
  chunk_per_thread<<<static_cast<unsigned>(args.subtrees), kChunks, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace mr::cuda
