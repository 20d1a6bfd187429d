// sampler/space: the kernels of the sampler, and the workspace through which they pass results.
//
// A row of logits is cut into at most kMostPieces pieces, whose borders depend on the vocabulary alone. The kernels, in
// order:
//   scan    per piece: the greatest logit, NaN; writes the processed logits of rows with a mask, an allowed or a
//           suppressed list, biases or penalties.
//   weigh   per piece: sums of exponentials and masses; per row: a histogram over the distance to the greatest logit,
//           if a filter applies.
//   gather  reads from the histogram which bins are kept and in which bins the filter's bound lies; per piece: masses
//           of the former; lists the tokens of the latter, and those that may be candidates.
//   choose  the token, its logprob, rank and candidates.
// The first three process several pieces a block if there are many jobs; no result depends on that.
//
// Reads before the dependency wait (launch.h): jobs and slot parameters, because copies and kernels before the
// predecessor write them; raw logits, by all but scan; and what scan wrote, by gather and choose. gather starts choose
// before it has waited itself if it has nothing to do and so is short, and weigh may then still be running: so choose
// must not read weigh's results early.
#pragma once

#include "kernels/sampler/sampler.h"

namespace mr::cuda {

constexpr int kMostPieces = 128;
constexpr int kPieceThreads = 256;
constexpr int kPieceWarps = kPieceThreads / 32;
constexpr int kMostPieceBits = 4;
constexpr int kBlockParts = 1 << kMostPieceBits;  // parts of a block's tokens, each summed by one warp
constexpr int kMostDoubled = 1920;  // tokens of a piece of which a warp may process two
constexpr int kMostWhole = 3968;    // tokens of a piece that a warp may process alone
constexpr int kBins = 512;       // of the distance to the greatest
constexpr int kListed = 4096;    // listed tokens of the bins in which a row's bound lies
constexpr int kMayBest = 1024;   // listed tokens of a row that may be candidates

struct alignas(16) PieceTop {
  float raw, processed;  // greatest; NaN in raw marks a piece with NaN
  float least;           // least finite processed logit, if filters apply; +inf if there is none
  float reserved;
};
struct PieceSum {
  uint64_t exponentials;  // of raw logits, in units of 2^-44
  uint64_t mass;          // of the tokens that may be drawn, if no filter cuts
  uint64_t surprise;      // mass * distance in units of 2^-46, if typical-p is the first filter
};
struct PieceCut {
  uint64_t mass;             // of its tokens in the bins that are kept
  uint32_t count;            // of its tokens in the bins where the bound lies
  uint32_t least, greatest;  // of their logits, as ascending()
  uint32_t reserved;
};

// Mode of the plan of a row's first filter.
enum : int32_t {
  kKeepsFew = 1,  // all tokens that it may keep are listed
  kCuts = 2,      // bins [inside, inside_end) are kept; the bound lies among the other bins of [edge, edge_end), the edge
  kWholeRow = 3,  // the filter must read all tokens
};
struct Plan {
  int32_t mode;
  int32_t inside, inside_end, edge, edge_end;
  int32_t equal;              // bool: all tokens with a mass have the same one, and form the edge
  uint64_t left;              // mass or tokens that the edge must reach; if equal, how many tokens are kept
  double log_total, entropy;  // if typical-p cuts
};

// The workspace, laid out by sampler_workspace.
struct SamplerSpace {
  PieceTop* tops;      // (jobs, kMostPieces), as the next two
  PieceSum* sums;
  PieceCut* cuts;
  Plan* plans;         // (jobs)
  uint32_t* listed;    // (jobs, 2)  tokens of the next two
  uint64_t* edges;     // (jobs, kListed)  a token's logit above its id
  uint64_t* may_best;  // (jobs, kMayBest) raw logits above ids
  uint64_t* bins;      // (jobs, kBins)  masses; tokens if top-k is the first filter
  float* processed;    // (jobs, stride)
  int64_t stride;      // vocab rounded up to a multiple of 4
};

struct SampleKernelArgs {
  SampleArgs a;
  SamplerSpace space;
  int32_t piece;       // tokens of a piece, a multiple of 4
  int32_t pieces;
  int32_t piece_bits;  // a block of scan, weigh and gather has 1 << piece_bits pieces; at most kMostPieceBits
};

// Launches of the kernels, in this order.
cudaError_t launch_sampler_scan(const SampleKernelArgs& k, const Stream& on);
cudaError_t launch_sampler_weigh(const SampleKernelArgs& k, const Stream& on);
cudaError_t launch_sampler_gather(const SampleKernelArgs& k, const Stream& on);
cudaError_t launch_sampler_choose(const SampleKernelArgs& k, const Stream& on);

}  // namespace mr::cuda
