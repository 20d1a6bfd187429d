// sampler_space: what the kernels of the sampler leave each other.
//
// A row of logits is cut into at most kMostPieces pieces, whose borders depend on the vocabulary alone. The kernels:
//   scan    per piece: greatest logit, NaN; writes the processed logits of rows with a mask, an allowed or a suppressed
//           list, biases or penalties.
//   weigh   per piece: sums of exponentials and masses; per row: a histogram over the distance to the greatest logit, where
//           a filter applies.
//   gather  finds by the histogram which bins are kept and in which the filter's bound lies; per piece: masses of the
//           former; lists the tokens of the latter, and those that may be candidates.
//   choose  the token, its logprob, rank and candidates.
// The first three take several pieces a block where jobs are many; no result depends on that. Jobs and slot parameters are
// read before the dependency wait: copies and kernels before the predecessor write them (launch.h). So are raw logits by all but
// scan, and what scan wrote by gather and choose: gather lets choose begin before it has waited itself where it has nothing to
// do and so is short, and weigh may then be running.
#pragma once

#include "kernels/sampler.h"

namespace mr::cuda {

constexpr int kMostPieces = 128;
constexpr int kPieceThreads = 256;
constexpr int kPieceWarps = kPieceThreads / 32;
constexpr int kMostPieceBits = 4;
constexpr int kBlockParts = 1 << kMostPieceBits;  // of a block's tokens, that one warp adds up each, at most
constexpr int kMostDoubled = 1920;  // tokens of a piece of which a warp may take two
constexpr int kBins = 512;       // of the distance to the greatest
constexpr int kListed = 4096;    // tokens of a row in whose bins a bound lies, as far as they are listed
constexpr int kMayBest = 1024;   // tokens of a row that may be candidates, as far as they are listed

struct alignas(16) PieceTop {
  float raw, processed;  // greatest; NaN in raw marks a piece with NaN
  float least;           // least finite processed logit, where filters apply; +inf where there is none
  float reserved;
};
struct PieceSum {
  uint64_t exponentials;  // of raw logits, in units of 2^-44
  uint64_t mass;          // of the tokens that may be drawn, where no filter cuts
  uint64_t surprise;      // mass * distance in units of 2^-46, where typical-p is the first filter
};
struct PieceCut {
  uint64_t mass;             // of its tokens in the bins that are kept
  uint32_t count;            // of its tokens in the bins where the bound lies
  uint32_t least, greatest;  // of their logits, as ascending()
  uint32_t reserved;
};

// What the first filter of a row comes to.
enum : int32_t {
  kKeepsFew = 1,  // all tokens that it may keep are listed
  kCuts = 2,      // tokens of bins [inside, inside_end) are kept; the bound lies among the other ones of [edge, edge_end): the edge
  kWholeRow = 3,  // it must look at all tokens
};
struct Plan {
  int32_t mode;
  int32_t inside, inside_end, edge, edge_end;
  int32_t equal;              // bool: all tokens that have a mass have the same, and are of the edge
  uint64_t left;              // what the tokens of the edge must reach, of masses or of tokens; of equal ones how many are kept
  double log_total, entropy;  // where typical-p cuts
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
  uint64_t* bins;      // (jobs, kBins)  masses; tokens where top-k is the first filter
  float* processed;    // (jobs, stride)
  int64_t stride;      // vocab rounded up to a multiple of 4
};

struct SampleKernelArgs {
  SampleArgs a;
  SamplerSpace space;
  int32_t piece;       // tokens of a piece, a multiple of 4
  int32_t pieces;
  int32_t piece_bits;  // a block of scan, weigh and gather takes 1 << piece_bits pieces; at most kMostPieceBits
};

// The kernels' launches, in this order.
cudaError_t launch_sampler_scan(const SampleKernelArgs& k, const Stream& on);
cudaError_t launch_sampler_weigh(const SampleKernelArgs& k, const Stream& on);
cudaError_t launch_sampler_gather(const SampleKernelArgs& k, const Stream& on);
cudaError_t launch_sampler_choose(const SampleKernelArgs& k, const Stream& on);

}  // namespace mr::cuda
