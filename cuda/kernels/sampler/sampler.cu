// sampler: lays out its workspace and launches its kernels (see sampler/space.cuh).
#include <initializer_list>
#include <type_traits>

#include "kernels/sampler/space.cuh"

namespace mr::cuda {
namespace {

// Lays the workspace out from base on, and returns its bytes.
int64_t sampler_workspace(uint8_t* base, int64_t jobs, int32_t vocab, SamplerSpace* space) {
  int64_t at = 0;
  const auto take = [&](auto** member, int64_t count) {
    typedef std::remove_reference_t<decltype(**member)> Element;
    *member = reinterpret_cast<Element*>(base + at);
    at += (count * static_cast<int64_t>(sizeof(Element)) + 255) / 256 * 256;
  };
  space->stride = (static_cast<int64_t>(vocab) + 3) / 4 * 4;
  take(&space->tops, jobs * kMostPieces);
  take(&space->sums, jobs * kMostPieces);
  take(&space->cuts, jobs * kMostPieces);
  take(&space->plans, jobs);
  take(&space->listed, jobs * 2);
  take(&space->edges, jobs * kListed);
  take(&space->may_best, jobs * kMayBest);
  take(&space->bins, jobs * kBins);
  take(&space->processed, jobs * space->stride);
  return at;
}

}  // namespace

int64_t sampler_bytes(int32_t jobs, int32_t vocab) {
  SamplerSpace space;
  return sampler_workspace(nullptr, jobs, vocab, &space);
}

cudaError_t launch_sample(const SampleArgs& args, const Stream& on) {
  if (args.job_count < 0 || args.job_count > args.workspace_jobs || args.job_count > 65535 || args.vocab < 1 ||
      args.vocab > kMostVocab || args.logits_stride % 4 != 0)
    return cudaErrorInvalidValue;
  if (args.job_count == 0) return cudaSuccess;
  SampleKernelArgs k;
  k.a = args;
  sampler_workspace(static_cast<uint8_t*>(args.workspace), args.workspace_jobs, args.vocab, &k.space);
  k.piece = ((args.vocab + kMostPieces - 1) / kMostPieces + 3) / 4 * 4;
  k.pieces = (args.vocab + k.piece - 1) / k.piece;
  k.piece_bits = args.job_count <= 4 ? 0 : args.job_count <= 8 ? 1 : args.job_count <= 16 || k.piece > kMostWhole ? 2 : 3;
  if (args.job_count > 48 && k.piece <= kMostDoubled) k.piece_bits = kMostPieceBits;  // 64 jobs make 512 blocks, which an H100 holds at once
  for (const auto step : {launch_sampler_scan, launch_sampler_weigh, launch_sampler_gather, launch_sampler_choose}) {
    const cudaError_t error = step(k, on);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace mr::cuda
