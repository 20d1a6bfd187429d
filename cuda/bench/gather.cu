// gather: the time in which two GPUs make rows whole on both, for messages from 8 KiB to 32 MiB. Each figure is the
// median of replays of a graph of kGathers back-to-back gathers, divided by their number. `halves` is the gather of a
// step of a divided model: a rank sends half of the message. `whole` has the traffic of a sum of both ranks' messages.
// The roof is the copy rate from one GPU to the other, measured here with 256 MiB.
//
//   cuda_bench_gather [FIRST SECOND]      numbers of the GPUs; 0 1
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/gather.h"

namespace {

using namespace mr::cuda;

constexpr int kGathers = 64, kReplays = 20;
constexpr int64_t kLargest = int64_t{64} << 20;

void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
#define MUST(call) must((call), #call)

__global__ void count_step(uint64_t* step) { ++*step; }

struct Rank {
  int gpu = 0;
  uint8_t *rows = nullptr, *packets = nullptr;
  uint64_t *arrived = nullptr, *step = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
};

uint8_t* zeroed(int64_t bytes) {
  void* memory = nullptr;
  MUST(cudaMalloc(&memory, static_cast<size_t>(bytes)));
  MUST(cudaMemset(memory, 0, static_cast<size_t>(bytes)));
  return static_cast<uint8_t*>(memory);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double copy_rate(const Rank& from, const Rank& to, int64_t bytes) {
  MUST(cudaSetDevice(from.gpu));
  uint8_t* const here = zeroed(bytes);
  MUST(cudaSetDevice(to.gpu));
  uint8_t* const there = zeroed(bytes);
  MUST(cudaSetDevice(from.gpu));
  std::vector<double> rates;
  for (int i = 0; i < 8; ++i) {
    MUST(cudaEventRecord(from.begin, from.stream));
    MUST(cudaMemcpyPeerAsync(there, to.gpu, here, from.gpu, static_cast<size_t>(bytes), from.stream));
    MUST(cudaEventRecord(from.end, from.stream));
    MUST(cudaStreamSynchronize(from.stream));
    float ms = 0;
    MUST(cudaEventElapsedTime(&ms, from.begin, from.end));
    rates.push_back(static_cast<double>(bytes) / (static_cast<double>(ms) * 1e-3));
  }
  MUST(cudaFree(here));
  MUST(cudaFree(there));
  return median(rates);
}

// Returns the microseconds of one gather of `rows` rows of `width` bytes, of which each rank sends `part`.
double time_of(Rank (&ranks)[2], int32_t* stop, int32_t rows, int64_t width, int64_t part) {
  cudaGraphExec_t execs[2];
  for (int r = 0; r < 2; ++r) {
    MUST(cudaSetDevice(ranks[r].gpu));
    cudaGraph_t graph;
    MUST(cudaStreamBeginCapture(ranks[r].stream, cudaStreamCaptureModeThreadLocal));
    count_step<<<1, 1, 0, ranks[r].stream>>>(ranks[r].step);
    for (int i = 0; i < kGathers; ++i) {
      GatherArgs args{};
      args.links.ranks = 2;
      args.links.rank = r;
      args.links.step = ranks[r].step;
      args.links.stop = stop;
      for (int k = 0; k < 2; ++k) {
        args.links.packets[k] = ranks[k].packets;
        args.links.arrived[k] = ranks[k].arrived;
        args.rows_of[k] = ranks[k].rows;
        args.parts[k] = {k * (width - part), part};
      }
      args.stride = width;
      args.rows = rows;
      args.index = i;
      args.most = kGathers;
      args.place = i % 2;
      MUST(launch_gather(args, {ranks[r].stream, i > 0}));  // the first one needs the step counter
    }
    MUST(cudaStreamEndCapture(ranks[r].stream, &graph));
    MUST(cudaGraphInstantiateWithFlags(&execs[r], graph, 0));
    MUST(cudaGraphDestroy(graph));
    MUST(cudaGraphUpload(execs[r], ranks[r].stream));
    MUST(cudaStreamSynchronize(ranks[r].stream));
  }
  std::vector<double> times;
  for (int i = 0; i < kReplays; ++i) {
    for (int r = 1; r >= 0; --r) {
      MUST(cudaSetDevice(ranks[r].gpu));
      MUST(cudaEventRecord(ranks[r].begin, ranks[r].stream));
      MUST(cudaGraphLaunch(execs[r], ranks[r].stream));
      MUST(cudaEventRecord(ranks[r].end, ranks[r].stream));
    }
    for (int r = 0; r < 2; ++r) MUST(cudaStreamSynchronize(ranks[r].stream));
    float ms = 0;
    MUST(cudaEventElapsedTime(&ms, ranks[0].begin, ranks[0].end));
    times.push_back(static_cast<double>(ms) * 1e3 / kGathers);
  }
  for (const cudaGraphExec_t exec : execs) MUST(cudaGraphExecDestroy(exec));
  return median(times);
}

}  // namespace

int main(int argc, char** argv) {
  int count = 0;
  MUST(cudaGetDeviceCount(&count));
  Rank ranks[2];
  ranks[0].gpu = argc == 3 ? std::atoi(argv[1]) : 0;
  ranks[1].gpu = argc == 3 ? std::atoi(argv[2]) : 1;
  if (std::max(ranks[0].gpu, ranks[1].gpu) >= count || ranks[0].gpu == ranks[1].gpu) {
    std::printf("two GPUs are wanted, the driver shows %d\n", count);
    return 3;
  }
  int32_t* stop = nullptr;
  MUST(cudaHostAlloc(reinterpret_cast<void**>(&stop), sizeof *stop, cudaHostAllocPortable));
  *stop = 0;
  for (int r = 0; r < 2; ++r) {
    Rank& rank = ranks[r];
    MUST(cudaSetDevice(rank.gpu));
    MUST(cudaDeviceEnablePeerAccess(ranks[1 - r].gpu, 0));
    rank.rows = zeroed(kLargest);
    rank.packets = zeroed(gather_packet_bytes(2));
    rank.arrived = reinterpret_cast<uint64_t*>(zeroed(int64_t{kMostRanks} * kGatherBlocks * 8));
    rank.step = reinterpret_cast<uint64_t*>(zeroed(8));
    MUST(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking));
    MUST(cudaEventCreate(&rank.begin));
    MUST(cudaEventCreate(&rank.end));
  }
  const double roof = copy_rate(ranks[0], ranks[1], int64_t{256} << 20);
  std::printf("copies from GPU %d to GPU %d: %.0f GB/s\n", ranks[0].gpu, ranks[1].gpu, roof * 1e-9);
  std::printf("%12s %12s %12s %8s\n", "message", "halves us", "whole us", "of roof");
  constexpr int64_t kRow = 16 << 10;  // the residual stream of 4 096
  for (const int64_t bytes : {int64_t{8} << 10, int64_t{16} << 10, int64_t{32} << 10, int64_t{64} << 10, int64_t{128} << 10, int64_t{512} << 10,
                              int64_t{1} << 20, int64_t{4} << 20, int64_t{32} << 20}) {
    const int64_t width = std::min(bytes, kRow);
    const int32_t rows = static_cast<int32_t>(bytes / width);
    const double half = time_of(ranks, stop, rows, width, width / 2);
    const double whole = time_of(ranks, stop, 2 * rows, width, width / 2);
    std::printf("%8lld KiB %12.2f %12.2f %7.0f%%\n", static_cast<long long>(bytes >> 10), half, whole,
                100 * static_cast<double>(bytes) / (whole * 1e-6) / roof);
  }
  return 0;
}
