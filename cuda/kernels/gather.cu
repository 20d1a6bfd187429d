// gather: an all-gather of rows. Rank r's part of every row is written to the same place of the rows of all other
// ranks.
//
// Packets: one thread for 8 bytes of data, at most kPacketData a part. Two consecutive gathers use different buffers. A
// rank that sends one has received every packet of the gather before, whose senders had finished the one before that,
// so no block still reads what it overwrites. A sequence number has 32 bits here: a packet slot that is not written for
// exactly 2^32 gathers, which takes days, would be taken for a new packet. Rows: a block copies a stretch of the part
// to every rank, makes it visible, and writes its number; then it waits for the numbers of the blocks that copy the
// same stretch of the other parts to here. Numbers only grow: a faster rank may be one ahead.
//
// One H200 sends another 370 GB/s; a packet takes about a microsecond.
#include "kernels/gather.h"

#include <algorithm>

namespace mr::cuda {
namespace {

constexpr int kPacketThreads = 256, kRowThreads = 512;
constexpr int64_t kPacketData = 64 << 10;              // a larger part is copied as rows
constexpr int64_t kPacketSpace = 2 * kPacketData;      // half of a packet is its number
constexpr int64_t kLeastUnit = 2;                      // parts are multiples of it; multiples of 16 are fast
constexpr uint32_t kPatience = 1024;                   // polls between two checks of `stop`

__device__ __forceinline__ void send_packet(uint8_t* to, uint2 data, uint32_t number) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(to), "r"(data.x), "r"(number), "r"(data.y) : "memory");
}

__device__ __forceinline__ bool take_packet(const uint8_t* from, uint32_t number, uint2* data) {
  uint32_t first, second;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(data->x), "=r"(first), "=r"(data->y), "=r"(second)
               : "l"(from)
               : "memory");
  return first == number && second == number;
}

__device__ __forceinline__ bool stopped(const int32_t* stop) { return *static_cast<const volatile int32_t*>(stop) != 0; }

__device__ __forceinline__ uint64_t number_of(const GatherArgs& a) {
  return *a.links.step * static_cast<uint64_t>(a.most) + static_cast<uint64_t>(a.index);
}

__global__ void __launch_bounds__(kPacketThreads) gather_packets(const __grid_constant__ GatherArgs a) {
  grid_trigger();  // this kernel is short (launch.h)
  const GatherLinks& l = a.links;
  const uint32_t number = static_cast<uint32_t>(number_of(a));
  const int64_t lane = static_cast<int64_t>(a.place) * l.ranks * kPacketSpace;  // of rank 0's packets
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kPacketThreads + threadIdx.x;
  const auto place = [&](const GatherPart& part) {  // returns this thread's data in the rows, or -1
    const uint32_t in_row = static_cast<uint32_t>(part.bytes / 8), row = static_cast<uint32_t>(i) / in_row;
    return row < static_cast<uint32_t>(a.rows) ? row * a.stride + part.first + static_cast<uint32_t>(i) % in_row * 8 : -1;
  };
  const int64_t mine = place(a.parts[l.rank]);
  grid_wait();
  if (mine >= 0) {
    const uint2 data = *reinterpret_cast<const uint2*>(a.rows_of[l.rank] + mine);
    for (int32_t to = 0; to < l.ranks; ++to)
      if (to != l.rank) send_packet(l.packets[to] + lane + l.rank * kPacketSpace + i * 16, data, number);
  }
  for (int32_t from = 0; from < l.ranks; ++from) {
    const int64_t at = from == l.rank ? -1 : place(a.parts[from]);
    if (at < 0) continue;
    const uint8_t* const packet = l.packets[l.rank] + lane + from * kPacketSpace + i * 16;
    uint2 data;
    for (uint32_t looks = 1; !take_packet(packet, number, &data); ++looks)
      if (looks % kPatience == 0 && stopped(l.stop)) return;
    *reinterpret_cast<uint2*>(a.rows_of[l.rank] + at) = data;
  }
}

// Unit: the type of which parts are whole numbers.
template <class Unit>
__global__ void __launch_bounds__(kRowThreads) gather_rows(const __grid_constant__ GatherArgs a) {
  constexpr int64_t kUnit = sizeof(Unit);
  grid_trigger();  // this kernel is short (launch.h)
  const GatherLinks& l = a.links;
  const uint64_t number = number_of(a);
  const GatherPart part = a.parts[l.rank];
  const int64_t in_row = part.bytes / kUnit, all = a.rows * in_row;
  const int64_t begin = all * blockIdx.x / gridDim.x, end = all * (blockIdx.x + 1) / gridDim.x;
  constexpr int kAtOnce = 4;
  grid_wait();
  for (int64_t i = begin + threadIdx.x; i < end; i += kAtOnce * kRowThreads) {
    Unit data[kAtOnce];
    int64_t at[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int64_t j = i + k * kRowThreads, row = j / in_row;
      at[k] = j < end ? row * a.stride + part.first + (j - row * in_row) * kUnit : -1;
      if (at[k] >= 0) data[k] = *reinterpret_cast<const Unit*>(a.rows_of[l.rank] + at[k]);
    }
    for (int32_t to = 0; to < l.ranks; ++to) {
      if (to == l.rank) continue;
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k)
        if (at[k] >= 0) *reinterpret_cast<Unit*>(a.rows_of[to] + at[k]) = data[k];
    }
  }
  __syncthreads();
  const int32_t other = static_cast<int32_t>(threadIdx.x);
  if (other < l.ranks && other != l.rank) {
    __threadfence_system();  // the block's rows must be visible before its number
    uint64_t* const there = l.arrived[other] + l.rank * kGatherBlocks + blockIdx.x;
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(there), "l"(number) : "memory");
    const uint64_t* const here = l.arrived[l.rank] + other * kGatherBlocks + blockIdx.x;
    for (uint32_t looks = 1;; ++looks) {
      uint64_t seen;
      asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(here) : "memory");
      if (seen >= number || (looks % kPatience == 0 && stopped(l.stop))) break;
    }
  }
}

bool valid(const GatherArgs& args) {
  const GatherLinks& l = args.links;
  if (l.ranks < 2 || l.ranks > kMostRanks || l.rank < 0 || l.rank >= l.ranks || args.rows < 0 || args.stride % 16 != 0) return false;
  if (args.index < 0 || args.index >= args.most || args.place < 0 || args.place >= kPacketPlaces) return false;
  for (int32_t r = 0; r < l.ranks; ++r) {
    const GatherPart& part = args.parts[r];
    if (part.first < 0 || part.bytes < 1 || part.first + part.bytes > args.stride || part.first % kLeastUnit != 0 || part.bytes % kLeastUnit != 0) return false;
    if (reinterpret_cast<uintptr_t>(args.rows_of[r]) % 16 != 0) return false;
  }
  return true;
}

}  // namespace

int64_t gather_packet_bytes(int32_t ranks) { return int64_t{kPacketPlaces} * ranks * kPacketSpace; }

cudaError_t launch_gather(const GatherArgs& args, const Stream& on) {
  if (!valid(args)) return cudaErrorInvalidValue;
  int64_t most = 0, borders = 0;  // the same on all ranks, and so are the grids
  for (int32_t r = 0; r < args.links.ranks; ++r) {
    most = std::max(most, args.rows * args.parts[r].bytes);
    borders |= args.parts[r].first | args.parts[r].bytes;
  }
  const int64_t blocks = std::clamp<int64_t>(most / 16 / kRowThreads, 1, kGatherBlocks);
  if (borders % 16 != 0)
    return launch(on, dim3(static_cast<unsigned>(blocks)), dim3(kRowThreads), 0, gather_rows<uint16_t>, args);
  if (most > 0 && most <= kPacketData) {
    const int64_t threads = most / 8;
    return launch(on, dim3(static_cast<unsigned>((threads + kPacketThreads - 1) / kPacketThreads)), dim3(kPacketThreads), 0,
                  gather_packets, args);
  }
  return launch(on, dim3(static_cast<unsigned>(blocks)), dim3(kRowThreads), 0, gather_rows<uint4>, args);
}

}  // namespace mr::cuda
