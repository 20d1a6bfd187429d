// Gathers between ranks, on several GPUs if there are, otherwise with all ranks on the first. Checks every byte of
// every rank, with gathers back to back and sizes that alternate between packets and rows.
#include <chrono>
#include <memory>
#include <thread>

#include "kernels/gather.h"
#include "tests/kernel_fixture.h"

namespace mr::cuda::testing {
namespace {

constexpr int32_t kMost = 8;               // gathers of a step
constexpr int64_t kRoom = int64_t{24} << 20;  // bytes of each buffer

__host__ __device__ uint32_t word_of(int32_t gather, int64_t at) {
  return static_cast<uint32_t>(gather) * 2654435761u ^ static_cast<uint32_t>(at) * 40503u;
}

__global__ void write_part(uint32_t* rows, int64_t stride, int32_t count, GatherPart part, int32_t gather) {
  const int64_t words = part.bytes / 4, all = count * words;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < all; i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t at = i / words * (stride / 4) + part.first / 4 + i % words;
    rows[at] = word_of(gather, at);
  }
}

// Checks every word of the first `width` bytes of every row. The rest of the stride belongs to no part and must not
// change.
__global__ void check_rows(const uint32_t* rows, int64_t stride, int32_t count, int64_t width, int32_t gather, uint32_t* wrong) {
  const int64_t words = stride / 4, all = count * words;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < all; i += int64_t{gridDim.x} * blockDim.x) {
    const uint32_t want = i % words < width / 4 ? word_of(gather, i) : 0;
    if (rows[i] != want) atomicAdd(wrong, 1);
  }
}

__global__ void clear_rows(uint32_t* rows, int64_t words) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < words; i += int64_t{gridDim.x} * blockDim.x) rows[i] = 0;
}

__global__ void count_step(uint64_t* step) { ++*step; }

struct Ranks {
  explicit Ranks(int32_t count) : ranks(count) {
    int gpus = 0;
    MUST(cudaGetDeviceCount(&gpus));
    MUST(cudaHostAlloc(reinterpret_cast<void**>(&stop), sizeof *stop, cudaHostAllocPortable));
    *stop = 0;
    for (int32_t r = 0; r < ranks; ++r) device[r] = gpus >= ranks ? r : 0;
    for (int32_t r = 0; r < ranks; ++r) {
      enter(r);
      for (int32_t to = 0; to < ranks; ++to) {
        if (device[to] == device[r]) continue;
        const cudaError_t error = cudaDeviceEnablePeerAccess(device[to], 0);
        if (error == cudaErrorPeerAccessAlreadyEnabled) (void)cudaGetLastError();
        else MUST(error);
      }
      buffer[r] = zeroed<uint8_t>(kRoom);
      packets[r] = zeroed<uint8_t>(static_cast<size_t>(gather_packet_bytes(ranks)));
      arrived[r] = zeroed<uint64_t>(kMostRanks * kGatherBlocks);
      step[r] = zeroed<uint64_t>(1);
      wrong[r] = zeroed<uint32_t>(1);
      MUST(cudaStreamCreateWithFlags(&stream[r], cudaStreamNonBlocking));
    }
  }
  ~Ranks() {
    for (int32_t r = 0; r < ranks; ++r) {
      enter(r);
      cudaStreamDestroy(stream[r]);
      for (void* const memory : {static_cast<void*>(buffer[r]), static_cast<void*>(packets[r]), static_cast<void*>(arrived[r]),
                                 static_cast<void*>(step[r]), static_cast<void*>(wrong[r])})
        cudaFree(memory);
    }
    cudaFreeHost(stop);
    cudaSetDevice(0);
  }

  template <class T>
  static T* zeroed(size_t count) {
    void* memory = nullptr;
    MUST(cudaMalloc(&memory, count * sizeof(T)));
    MUST(cudaMemset(memory, 0, count * sizeof(T)));
    return static_cast<T*>(memory);
  }
  void enter(int32_t rank) const { MUST(cudaSetDevice(device[rank])); }

  GatherArgs args(int32_t rank, int32_t gather, int32_t rows, int64_t stride, const std::vector<GatherPart>& parts) const {
    GatherArgs a{};
    a.links.ranks = ranks;
    a.links.rank = rank;
    a.links.step = step[rank];
    a.links.stop = stop;
    for (int32_t r = 0; r < ranks; ++r) {
      a.links.packets[r] = packets[r];
      a.links.arrived[r] = arrived[r];
      a.rows_of[r] = buffer[r];
      a.parts[r] = parts[static_cast<size_t>(r)];
    }
    a.stride = stride;
    a.rows = rows;
    a.index = gather % kMost;
    a.most = kMost;
    a.place = gather % 2;
    return a;
  }

  int32_t ranks;
  int device[kMostRanks];
  uint8_t* buffer[kMostRanks];
  uint8_t* packets[kMostRanks];
  uint64_t *arrived[kMostRanks], *step[kMostRanks];
  uint32_t* wrong[kMostRanks];
  cudaStream_t stream[kMostRanks];
  int32_t* stop = nullptr;
};

std::vector<GatherPart> halves(int64_t width, int32_t ranks, int64_t first, int64_t between = 16) {
  std::vector<GatherPart> parts{{0, first}};
  for (int32_t r = 1; r < ranks; ++r) {
    const int64_t begin = parts.back().first + parts.back().bytes;
    parts.push_back({begin, r + 1 == ranks ? width - begin : between});
  }
  return parts;
}

void run(int32_t count) {
  Ranks ranks(count);
  Numbers numbers(static_cast<uint64_t>(count));
  for (int32_t i = 0; i < 600; ++i) {
    // Few rows and many, narrow and wide, with parts of very different sizes: 16 bytes to 16 MiB.
    const int32_t rows = i % 3 == 0 ? 1 : 1 + numbers.below(i % 3 == 1 ? 16 : 700);
    const int64_t width = 16 * (count + numbers.below(i % 2 == 0 ? 20 : 1500)), stride = width + 16 * numbers.below(3);
    const int64_t unit = i % 5 == 0 ? 4 : 16;  // the unit of parts
    const std::vector<GatherPart> parts = halves(width, count, unit * (1 + numbers.below(width / unit - count + 1)), unit);
    // Gathers come in pairs: a gather of no rows, before which every rank has cleared the target of the next one, and
    // that one.
    const int32_t gather = 2 * i;
    for (int32_t r = 0; r < count; ++r) {
      ranks.enter(r);
      uint32_t* const at = reinterpret_cast<uint32_t*>(ranks.buffer[r]);
      if (gather % kMost == 0) count_step<<<1, 1, 0, ranks.stream[r]>>>(ranks.step[r]);
      clear_rows<<<32, 256, 0, ranks.stream[r]>>>(at, rows * stride / 4);
      write_part<<<32, 256, 0, ranks.stream[r]>>>(at, stride, rows, parts[static_cast<size_t>(r)], gather + 1);
    }
    for (const bool whole : {false, true}) {
      for (int32_t r = 0; r < count; ++r) {
        ranks.enter(r);
        MUST(launch_gather(ranks.args(r, gather + (whole ? 1 : 0), whole ? rows : 0, stride, parts), {ranks.stream[r], false}));
      }
    }
    for (int32_t r = 0; r < count; ++r) {
      ranks.enter(r);
      check_rows<<<32, 256, 0, ranks.stream[r]>>>(reinterpret_cast<uint32_t*>(ranks.buffer[r]), stride, rows, width, gather + 1,
                                                 ranks.wrong[r]);
    }
  }
  for (int32_t r = 0; r < count; ++r) {
    ranks.enter(r);
    MUST(cudaStreamSynchronize(ranks.stream[r]));
    uint32_t wrong = 1;
    MUST(cudaMemcpy(&wrong, ranks.wrong[r], sizeof wrong, cudaMemcpyDeviceToHost));
    EXPECT_EQ(wrong, 0u) << "words of rank " << r;
  }
}

TEST(Gather, OfTwoRanks) { run(2); }
TEST(Gather, OfFourRanks) { run(4); }

TEST(Gather, WaitsUntilItIsStopped) {
  Ranks ranks(2);
  ranks.enter(0);
  count_step<<<1, 1, 0, ranks.stream[0]>>>(ranks.step[0]);
  const std::vector<GatherPart> parts = halves(4096, 2, 2048);
  for (const int32_t rows : {1, 4000}) {  // as packets, and as rows
    *ranks.stop = 0;
    MUST(launch_gather(ranks.args(0, rows == 1 ? 0 : 1, rows, 4096, parts), {ranks.stream[0], false}));  // rank 1 never arrives
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(cudaStreamQuery(ranks.stream[0]), cudaErrorNotReady) << rows;
    *static_cast<volatile int32_t*>(ranks.stop) = 1;
    MUST(cudaStreamSynchronize(ranks.stream[0]));
  }
}

TEST(Gather, RefusesWhatItCannotMove) {
  Ranks ranks(2);
  const std::vector<GatherPart> parts = halves(4096, 2, 2048);
  const auto refuses = [&](auto change) {
    GatherArgs a = ranks.args(0, 0, 1, 4096, parts);
    change(a);
    EXPECT_EQ(launch_gather(a, {ranks.stream[0], false}), cudaErrorInvalidValue);
  };
  refuses([](GatherArgs& a) { a.links.ranks = 1; });
  refuses([](GatherArgs& a) { a.links.ranks = kMostRanks + 1; });
  refuses([](GatherArgs& a) { a.links.rank = 2; });
  refuses([](GatherArgs& a) { a.rows = -1; });
  refuses([](GatherArgs& a) { a.stride = 4100; });
  refuses([](GatherArgs& a) { a.parts[1].first = 7; });
  refuses([](GatherArgs& a) { a.parts[1].bytes = 0; });
  refuses([](GatherArgs& a) { a.parts[1].bytes += 16; });
  refuses([](GatherArgs& a) { a.rows_of[1] += 8; });
  refuses([](GatherArgs& a) { a.index = a.most; });
  refuses([](GatherArgs& a) { a.place = kPacketPlaces; });
}

}  // namespace
}  // namespace mr::cuda::testing
