// sampler: one kernel, in which a team of blocks (sampler_team.cuh) takes a job from a row of logits to its token.
//
// The team reads the row once and keeps it in shared memory. Passes over it, each of which ends in a few numbers that all
// blocks learn: the greatest logits (scan); sums of exponentials and masses, with a histogram where a filter begins
// (sum_row); filters; the draw; the rank; candidates. No sum depends on which blocks or threads it was made by. Jobs and
// slot parameters are read before the dependency wait: copies and kernels before the predecessor write them (launch.h).
#include "kernels/sampler_draw.cuh"
#include "kernels/sampler_rank.cuh"
#include "kernels/sampler_sums.cuh"

namespace mr::cuda {
namespace {

struct Token {
  int32_t id;
  float raw;  // its raw logit
};

// The token that a job draws.
__device__ __noinline__ Token draw_token(SamplerSpace& s, Team& team, const Part& part, const float* raw, const float* x,
                                         const Rules& rules, const SlotParams& p, const RowSums& sums, const Bins& bins,
                                         Filter& filter, uint64_t random) {
  const Note* notes = sums.notes;
  if (rules.filtered()) {
    apply_filters(s, team, part, FilteredRow{x, sums.all, bins}, rules, p, filter);
    Note kept{};
    part.each(x, [&](int32_t id, float logit) {
      Weighed w;
      if (filter.keeps(id, logit, w)) kept.b += w.mass;
    });
    kept.b = warp_sum_u64(kept.b);
    notes = team.tell(kept, Sums{});
  } else {
    filter.floor = p.min_p;
  }
  draw(team, part, x, filter, notes, random, [&](int32_t id, float logit) {
    const float own = rules.processed ? raw[id - part.begin] : logit;
    for (int32_t block = 0; block < team.size; ++block)
      *team.at(&s.token, block) = static_cast<uint64_t>(__float_as_uint(own)) << 32 | static_cast<uint32_t>(id);
  });
  team.sync();
  return Token{static_cast<int32_t>(s.token), __uint_as_float(static_cast<uint32_t>(s.token >> 32))};
}

struct Outcome {
  int32_t status;
  int32_t token, rank, candidates;
  float logprob;  // in the thread that writes results
};

// What becomes of a job whose row has a token for it; x: the part's processed logits.
__device__ void choose(SamplerSpace& s, const SampleArgs& a, const SampleJob& job, const SlotParams& p, const Rules& rules,
                       Team& team, const Part& part, const float* x, const RowTop& top, Outcome& out) {
  const float* const row = raw_row(a, job);
  const float* const raw = rules.processed ? row + part.begin : x;
  Filter filter(Weights(top.processed, p.temperature));
  const Bins bins = logit_bins(filter.weights, top.processed_least, part.vocab);
  const RowSums sums = sum_row(s, team, part, raw, x, top, rules, filter, bins, p.min_p);
  Token token{static_cast<int32_t>(sums.processed_id), top.raw};
  if (rules.draws) {
    const uint64_t random = random_bits(p.seed, static_cast<uint32_t>(job.position), static_cast<uint32_t>(p.output_index));
    token = draw_token(s, team, part, raw, x, rules, p, sums, bins, filter, random);
  } else if (job.kind == kJobScore || rules.processed) {
    if (job.kind == kJobScore) token.id = job.target;
    token.raw = row[token.id];
  }
  out.token = token.id;
  out.rank = static_cast<uint32_t>(token.id) == sums.raw_id ? 1 : rank_of(team, part, raw, token.id, token.raw);
  out.candidates = min(job.top_n, part.vocab);
  const bool candidates = out.candidates > 0;
  if (!candidates && (team.rank != 0 || threadIdx.x != 0)) return;
  const double log_sum = log_f64(static_cast<double>(sums.all.a) * 0x1p-44);
  out.logprob = logprob_of(token.raw, top.raw, log_sum);
  if (candidates) best_tokens(s, team, part, raw, row, out.candidates, top, log_sum, a.candidates + job.candidate_offset);
}

__global__ void __launch_bounds__(kThreads, 2) sampler(const __grid_constant__ SampleKernelArgs k, int32_t team_bits) {
  extern __shared__ __align__(16) uint8_t memory[];
  SamplerSpace& s = *reinterpret_cast<SamplerSpace*>(memory);
  const SampleArgs& a = k.a;
  Team team(s.team, team_bits);
  const int32_t index = static_cast<int32_t>(blockIdx.x) >> team.bits;
  if (threadIdx.x == 0) {
    s.job = a.jobs[index];
    s.params = params_of(a, s.job);
    s.rules = rules_of(a, s.job, s.params);
  }
  clear_bins(s.histogram);
  team.sync();  // every block of the team has begun, so that others may write to its shared memory
  grid_wait();
  grid_trigger();
  const SampleJob& job = s.job;
  const Rules& rules = s.rules;
  if (job.kind == kJobNone) return;
  const bool sample = job.kind == kJobSample;
  Outcome out{MR_ROW_NAN};
  if (!poisoned(a, job)) {
    const Part part(a.vocab, team);
    const float* const raw = raw_row(a, job) + part.begin;
    float* part_of_row = nullptr;
    if (k.beside) part_of_row = reinterpret_cast<float*>(memory + sizeof(SamplerSpace));
    else if (rules.processed) part_of_row = k.rows + index * k.stride + part.begin;
    const RowTop top = scan_row(s, a, job, s.params, rules, team, part, raw, part_of_row);
    if (!top.nan) out.status = top.raw == -INFINITY || (sample && top.processed == -INFINITY) ? MR_ROW_EMPTY : MR_ROW_OK;
    const float* const x = part_of_row == nullptr ? raw : part_of_row;
    if (out.status == MR_ROW_OK) choose(s, a, job, s.params, rules, team, part, x, top, out);
  }
  if (team.rank != 0 || threadIdx.x != 0) return;
  mr_row_result result{};
  result.slot = sample ? job.slot : -1;
  result.position = sample ? job.position : -1;
  result.status = out.status;
  result.count = out.status == MR_ROW_OK ? 1 : 0;
  result.token = out.token;
  result.logprob = out.logprob;
  result.rank = out.rank;
  result.candidate_offset = job.candidate_offset;
  result.candidate_count = out.candidates;
  a.results[index] = result;
  if (sample && (job.flags & kJobFeeds) != 0) a.slots.feeds[job.slot] = SlotFeed{result.token, result.status};
}

struct TeamShape {
  int32_t bits;  // 1 << bits blocks
  bool beside;
  int shared_bytes;
};

// The launch of `jobs` teams of a shape.
class TeamLaunch {
 public:
  TeamLaunch(const TeamShape& shape, int32_t jobs, const Stream& on) {
    config_.gridDim = dim3(static_cast<unsigned>(jobs << shape.bits));
    config_.blockDim = dim3(kThreads);
    config_.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
    config_.stream = on.stream;
    config_.attrs = attributes_;
    if (shape.bits > 0) {
      attributes_[config_.numAttrs].id = cudaLaunchAttributeClusterDimension;
      attributes_[config_.numAttrs++].val.clusterDim = {1u << shape.bits, 1, 1};
    }
    if (on.dependent) {
      attributes_[config_.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attributes_[config_.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
  }
  TeamLaunch(const TeamLaunch&) = delete;
  TeamLaunch& operator=(const TeamLaunch&) = delete;

  cudaError_t run(const SampleKernelArgs& k, int32_t team_bits) const { return cudaLaunchKernelEx(&config_, sampler, k, team_bits); }
  // How many teams the current device holds at once.
  cudaError_t most(int32_t* teams) const { return cudaOccupancyMaxActiveClusters(teams, sampler, &config_); }

 private:
  cudaLaunchConfig_t config_{};
  cudaLaunchAttribute attributes_[2] = {};
};

// How many blocks take a job. Sixteen end a job soonest, but only some parts of a device hold them together; eight keep a
// device busy with any number of jobs. Both share a row so that a block's part has room beside it. One, where there are no
// clusters. What the kernel may ask for is the same for every shape: graphs keep launches of several.
cudaError_t team_shape(int32_t vocab, int32_t jobs, TeamShape* shape) {
  constexpr int32_t kFewJobs = 8;
  int device = 0, major = 0, most_shared = 0;
  cudaFuncAttributes code{};
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&most_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&code, sampler);
  if (error == cudaSuccess) error = cudaFuncSetAttribute(sampler, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(sampler, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  if (error != cudaSuccess) return error;
  const auto shape_of = [&](int32_t bits) {
    const int wanted = static_cast<int>(sizeof(SamplerSpace)) + Part::length(vocab, 1 << bits) * static_cast<int>(sizeof(float));
    return wanted <= most_shared ? TeamShape{bits, true, wanted} : TeamShape{bits, false, static_cast<int>(sizeof(SamplerSpace))};
  };
  const bool clusters = major >= 9 && code.ptxVersion >= 90;
  *shape = shape_of(clusters ? 3 : 0);
  if (!clusters || jobs > kFewJobs) return cudaSuccess;
  int32_t teams = 0;
  error = cudaFuncSetAttribute(sampler, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (error == cudaSuccess) error = TeamLaunch(shape_of(4), jobs, Stream{}).most(&teams);
  if (error != cudaSuccess) cudaGetLastError();  // a device that does not hold sixteen says so as an error
  if (teams >= jobs) *shape = shape_of(4);
  return cudaSuccess;
}

int64_t stride_of(int32_t vocab) { return (static_cast<int64_t>(vocab) + 3) / 4 * 4; }

}  // namespace

int64_t sampler_bytes(int32_t jobs, int32_t vocab) { return jobs * stride_of(vocab) * static_cast<int64_t>(sizeof(float)); }

cudaError_t launch_sample(const SampleArgs& args, const Stream& on) {
  if (args.job_count < 0 || args.job_count > args.workspace_jobs || args.job_count > 65535 || args.vocab < 1 ||
      args.vocab > 1 << 18 || args.logits_stride % 4 != 0)
    return cudaErrorInvalidValue;
  if (args.job_count == 0) return cudaSuccess;
  TeamShape shape;
  const cudaError_t error = team_shape(args.vocab, args.job_count, &shape);
  if (error != cudaSuccess) return error;
  const SampleKernelArgs k{args, static_cast<float*>(args.workspace), stride_of(args.vocab), shape.beside};
  return TeamLaunch(shape, args.job_count, on).run(k, shape.bits);
}

}  // namespace mr::cuda
