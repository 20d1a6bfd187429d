// kernels: times of all kernels except the GEMMs, at the shapes of an 8B model (hidden 4096, 32 heads, 8 kv heads of
// 128, vocabulary 128256; rows of bf16, queries, keys and values of f16). Each is captured into a graph of kLaunches
// launches over rotating buffers, so that keys and values come from memory as in a step; a time is the median of
// replays divided by the launches. Layers that carry a state have the shape of Qwen3-Next.
//
//   cuda_bench_kernels [rows|decode|prefill|states|sampler]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/branch.h"
#include "kernels/norm.h"
#include "kernels/qkv.h"
#include "kernels/sampler/sampler.h"
#include "kernels/states/states.h"
#include "millrace/engine.h"

using namespace mr::cuda;

namespace {

constexpr int kLaunches = 32;
constexpr int32_t kHidden = 4096, kHeads = 32, kKvHeads = 8, kDim = 128, kBlock = 16, kVocab = 128256;

void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
#define MUST(call) must((call), #call)

template <class T>
T* device(size_t count, int fill = 0) {
  void* p = nullptr;
  MUST(cudaMalloc(&p, count * sizeof(T)));
  MUST(cudaMemset(p, fill, count * sizeof(T)));
  return static_cast<T*>(p);
}
template <class T>
T* device(const std::vector<T>& values) {
  T* p = device<T>(values.size());
  MUST(cudaMemcpy(p, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return p;
}
std::vector<float> noise(size_t count, float scale) {
  std::vector<float> x(count);
  uint64_t state = 1;
  for (float& v : x) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    v = scale * (static_cast<float>(state >> 40) * 0x1p-23f - 1.0f);
  }
  return x;
}
std::vector<uint16_t> noise_f16(size_t count) {
  std::vector<uint16_t> y(count);
  const std::vector<float> x = noise(1 << 20, 1);
  for (size_t i = 0; i < count; ++i) {
    const __half h = __float2half_rn(x[(i * 7) % x.size()]);
    std::copy_n(reinterpret_cast<const uint16_t*>(&h), 1, &y[i]);
  }
  return y;
}

// Returns the microseconds of one launch; run(i, stream) does the i-th.
double time_of(const std::function<cudaError_t(int, const Stream&)>& run, int launches = kLaunches) {
  cudaStream_t stream;
  MUST(cudaStreamCreate(&stream));
  MUST(run(0, Stream{stream, false}));
  MUST(cudaStreamSynchronize(stream));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < launches; ++i) MUST(run(i, Stream{stream, true}));
  MUST(cudaStreamEndCapture(stream, &graph));
  MUST(cudaGraphInstantiateWithFlags(&exec, graph, 0));
  cudaEvent_t begin, end;
  MUST(cudaEventCreate(&begin));
  MUST(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < 12; ++i) {
    MUST(cudaEventRecord(begin, stream));
    MUST(cudaGraphLaunch(exec, stream));
    MUST(cudaEventRecord(end, stream));
    MUST(cudaEventSynchronize(end));
    float ms = 0;
    MUST(cudaEventElapsedTime(&ms, begin, end));
    times.push_back(ms);
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  std::sort(times.begin() + 2, times.end());  // the first two warm up
  return times[2 + (times.size() - 2) / 2] * 1000.0 / launches;
}

void line(const char* what, int64_t n, int64_t m, double us, double bytes, double flops) {
  std::printf("%-24s %7lld %7lld %10.2f us", what, static_cast<long long>(n), static_cast<long long>(m), us);
  if (bytes > 0) std::printf(" %8.0f GB/s", bytes / us / 1e3);
  if (flops > 0) std::printf(" %8.1f TFLOP/s", flops / us / 1e6);
  std::printf("\n");
}

// Sequences is `rows` sequences of `length` tokens, each in blocks of its own.
struct Sequences {
  KvLayout layout{Act::kF16, kBlock, kKvHeads, kDim, kDim};  // a worker's default
  AttentionArgs common{};
  std::vector<void*> memory;
  int32_t planes;
  uint8_t *keys, *values;
  int64_t plane;  // bytes

  // With 8 bits, elements are whatever the noise is. Scales are ordinary, because a score that is NaN makes a kernel scale its sums
  // in every tile.
  Sequences(const std::vector<int32_t>& slot, const std::vector<int32_t>& position, int32_t sequences, int32_t length,
            Kv kv = Kv::kAct) {
    layout.kv = kv;
    const int32_t blocks = (length + kBlock - 1) / kBlock;
    plane = layout.block_bytes() * blocks * sequences;
    planes = static_cast<int32_t>(std::clamp<int64_t>((int64_t{256} << 20) / (plane * 2), 1, kLaunches));
    std::vector<uint16_t> fill = noise_f16(static_cast<size_t>(plane / 2));
    if (kv == Kv::kF8)
      for (int32_t block = 0; block < blocks * sequences; ++block)
        for (int32_t i = 0; i < kKvHeads * kBlock; ++i) {
          const float scale = 0.005f;
          std::memcpy(reinterpret_cast<uint8_t*>(fill.data()) + layout.f8_scale_at(block, 0, i), &scale, sizeof scale);
        }
    keys = device<uint8_t>(static_cast<size_t>(plane * planes));
    values = device<uint8_t>(static_cast<size_t>(plane * planes));
    for (int32_t i = 0; i < planes; ++i) {
      MUST(cudaMemcpy(keys + i * plane, fill.data(), static_cast<size_t>(plane), cudaMemcpyHostToDevice));
      MUST(cudaMemcpy(values + i * plane, fill.data(), static_cast<size_t>(plane), cudaMemcpyHostToDevice));
    }
    std::vector<int32_t> ids(static_cast<size_t>(blocks * sequences)), table;
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((i * 7919) % ids.size());
    for (const int32_t s : slot) table.push_back(s * blocks);
    common.rows = Rows{device(slot), device(position), device(table), device(ids)};
    common.layout = layout;
    common.heads = kHeads;
    common.scale = 0.088f;
    common.q = device(noise_f16(slot.size() * kHidden));
    common.out = device<uint16_t>(slot.size() * kHidden);
    common.q_stride = common.out_stride = kHidden;
    common.out_act = layout.act;
    memory = {keys, values, const_cast<int32_t*>(common.rows.slot), const_cast<int32_t*>(common.rows.position),
              const_cast<int32_t*>(common.rows.table), const_cast<int32_t*>(common.rows.block_ids), const_cast<void*>(common.q), common.out};
  }
  ~Sequences() {
    for (void* p : memory) cudaFree(p);
  }
  AttentionArgs layer(int i) const {
    AttentionArgs a = common;
    a.keys = keys + i % planes * plane;
    a.values = values + i % planes * plane;
    return a;
  }
};

void decode(int32_t rows, int32_t length, int32_t sm_count, Kv kv) {
  std::vector<int32_t> slot, position(static_cast<size_t>(rows), length - 1);
  for (int32_t r = 0; r < rows; ++r) slot.push_back(r);
  Sequences s(slot, position, rows, length, kv);
  const int32_t capacity = decode_attention_capacity(rows, std::max(length, 8192));
  uint8_t* const workspace = device<uint8_t>(static_cast<size_t>(decode_attention_bytes(rows, capacity, kHeads, kDim)));
  int32_t* const scratch = device<int32_t>(static_cast<size_t>(4 * rows) + 8);
  int32_t* const history = device<int32_t>(static_cast<size_t>(rows) * static_cast<size_t>(length));
  BeginArgs begin{};
  begin.rows = s.common.rows;
  begin.count = begin.decode_rows = rows;
  begin.token_in = begin.token = scratch;
  begin.nan_flags = scratch + rows;
  begin.history = history;
  begin.history_stride = length;
  begin.plan_count = 1;
  begin.plans[0] = DecodePlan{scratch + 2 * rows, scratch + 3 * rows + 2, capacity};
  MUST(launch_begin(begin, Stream{}));
  const double us = time_of([&](int i, const Stream& on) {
    return launch_decode_attention({s.layer(i), rows, begin.plans[0], workspace, sm_count, rows}, on);
  });
  const double head = kv == Kv::kF8 ? kDim + 4 : 2 * kDim;
  line(kv == Kv::kF8 ? "decode attention, f8" : "decode attention", rows, length, us, 2.0 * rows * length * kKvHeads * head, 0);
  for (void* p : {static_cast<void*>(workspace), static_cast<void*>(scratch), static_cast<void*>(history)}) cudaFree(p);
}

// How an 8-bit cache is widened: as the plan of a step says, or ahead, or by the blocks of each tile.
enum class Widened { kAsPlanned, kAhead, kByTile };

// `rows` tokens of a prompt after `prefix` others.
void prefill(int32_t prefix, int32_t rows, int32_t sm_count, Kv kv, Widened widened = Widened::kAsPlanned) {
  const int32_t length = prefix + rows;
  std::vector<int32_t> slot(static_cast<size_t>(rows), 0), position;
  for (int32_t r = 0; r < rows; ++r) position.push_back(prefix + r);
  Sequences s(slot, position, 1, length, kv);
  std::vector<PrefillTile> tiles;
  const int32_t most = prefill_tile_rows(kDim, kHeads, kKvHeads);
  for (int32_t at = 0; at < rows; at += most) tiles.push_back({at, std::min(most, rows - at), prefix + at});
  int32_t wide_blocks = 0;
  if (widened != Widened::kByTile) MUST(prefill_wide_blocks(s.layout, length / kBlock + 1, &wide_blocks));
  const PrefillWork work{prefill_columns(kHeads, kKvHeads), sm_count, prefill_attention_capacity(std::max(rows, 2048), length),
                         PrefillSplit::kByWork, {wide_blocks, kBlock, kKvHeads, kDim, 0, widened == Widened::kAhead}};
  PrefillPlan plan;
  if (!plan_prefill(tiles, work, &plan)) std::exit(1);
  PrefillItem* const items = device(plan.items);
  PrefillMerge* const merges = device(plan.merges);
  PrefillSpan* const spans = device(plan.spans);
  const WideCache wide{plan.spans.empty() ? nullptr : device<uint8_t>(static_cast<size_t>(prefill_wide_bytes(s.layout, wide_blocks))),
                       wide_blocks};
  uint8_t* const workspace = device<uint8_t>(static_cast<size_t>(prefill_attention_bytes(work.capacity, kHeads, kDim)));
  const double us = time_of([&](int i, const Stream& on) {
    PrefillAttentionArgs args{s.layer(i), items, 0, merges, 0, workspace, work.capacity, sm_count, wide};
    cudaError_t error = cudaSuccess;
    if (wide.memory != nullptr)
      error = launch_prefill_widen({args.common.rows, s.layout, args.common.keys, args.common.values, spans,
                                    static_cast<int32_t>(plan.spans.size()), plan.wide_blocks, wide}, on);
    for (int32_t g = 0; error == cudaSuccess && g < plan.group_count; ++g) {
      args.item_count = plan.groups[g].items;
      args.merge_count = plan.groups[g].merges;
      error = launch_prefill_attention(args, on);
      args.items += args.item_count;
      args.merges += args.merge_count;
    }
    return error;
  }, 4);
  const char* const name = widened == Widened::kAhead    ? "  f8 widened ahead"
                           : widened == Widened::kByTile ? "  f8 widened by tile"
                           : kv == Kv::kF8               ? "prefill attention, f8"
                                                         : "prefill attention";
  line(name, rows, length, us, 0, 2.0 * rows * (2.0 * prefix + rows + 1) * kHeads * kDim);
  for (void* p : {static_cast<void*>(items), static_cast<void*>(merges), static_cast<void*>(spans), wide.memory,
                  static_cast<void*>(workspace)}) cudaFree(p);
}

void rows_kernels(int32_t rows) {
  float* const x = device<float>(static_cast<size_t>(rows) * 6144);
  float* const weight = device<float>(kHidden);
  std::vector<int32_t> slot(static_cast<size_t>(rows), 0), position;
  for (int32_t r = 0; r < rows; ++r) position.push_back(r);
  Sequences s(slot, position, 1, rows);
  float* const rope_table = device<float>(static_cast<size_t>(rows) * kDim);
  uint16_t* const out = device<uint16_t>(static_cast<size_t>(rows) * kHidden);
  line("rms norm", rows, kHidden, time_of([&](int, const Stream& on) {
         return launch_rms_norm({x, weight, nullptr, out, Act::kBF16, rows, kHidden, kHidden, kHidden, 1e-5f}, on);
       }), 6.0 * rows * kHidden, 0);
  float* const branch = device<float>(static_cast<size_t>(rows) * kHidden);
  line("branch end with norms", rows, kHidden, time_of([&](int, const Stream& on) {
         EndBranchArgs args{x, branch, kHidden, kHidden, weight, nullptr, 1e-5f, 1, rows, kHidden, out, weight, kHidden, Act::kBF16};
         return launch_end_branch(args, on);
       }), 14.0 * rows * kHidden, 0);
  line("finish qkv", rows, 6144, time_of([&](int i, const Stream& on) {
         const AttentionArgs layer = s.layer(i);
         FinishQkvArgs a{};
         a.rows = layer.rows;
         a.count = rows;
         a.qkv = x;
         a.qkv_stride = 6144;
         a.rope_table = rope_table;
         a.rope_dims = kDim;
         a.heads = kHeads;
         a.q_out = out;
         a.q_stride = kHidden;
         a.layout = layer.layout;
         a.keys = const_cast<void*>(layer.keys);
         a.values = const_cast<void*>(layer.values);
         return launch_finish_qkv(a, on);
       }), 6.0 * rows * 6144, 0);
  for (void* p : {static_cast<void*>(x), static_cast<void*>(weight), static_cast<void*>(rope_table), static_cast<void*>(out),
                  static_cast<void*>(branch)}) cudaFree(p);
}

// A gated delta net of 16 key heads and `heads` value heads of 128 x 128, and 4 taps: `chains` sequences of `tokens` rows each.
void states(int32_t heads, int32_t chains, int32_t tokens, int32_t sm_count) {
  constexpr int32_t kKeyHeads = 16, kConv = 4;
  const int32_t values = heads * kDim, width = 2 * kKeyHeads * kDim + values;
  const int64_t stored = int64_t{kConv - 1} * width, stride = stored + int64_t{values} * kDim;
  const int32_t rows = chains * tokens;
  const int64_t plane = chains * stride;
  const int32_t planes = static_cast<int32_t>(std::clamp<int64_t>((int64_t{256} << 20) / (plane * 4), 1, kLaunches));
  std::vector<StateChain> all;
  std::vector<StateSegment> segments;
  std::vector<int32_t> chain_of;
  for (int32_t c = 0; c < chains; ++c) {
    all.push_back({c, 1});
    segments.push_back({c * tokens, tokens, c, c});
    chain_of.insert(chain_of.end(), static_cast<size_t>(tokens), c);
  }
  StateChain* const d_chains = device(all);
  StateSegment* const d_segments = device(segments);
  int32_t* const d_chain_of = device(chain_of);
  float* const memory = device<float>(static_cast<size_t>(plane) * static_cast<size_t>(planes));
  float* const in = device(noise(static_cast<size_t>(rows) * static_cast<size_t>(width), 0.1f));
  float* const u = device(noise(static_cast<size_t>(rows) * static_cast<size_t>(width), 0.1f));
  float* const scalars = device(noise(static_cast<size_t>(rows) * static_cast<size_t>(heads), 1));
  float* const weights = device(noise(size_t{kConv} * static_cast<size_t>(width), 0.5f));
  float* const negative = device(std::vector<float>(static_cast<size_t>(heads), -0.1f));
  float* const gates = device<float>(static_cast<size_t>(rows) * static_cast<size_t>(values));
  uint16_t* const out = device<uint16_t>(static_cast<size_t>(rows) * static_cast<size_t>(values));
  const StateRows step{d_chains, d_segments, d_chain_of, d_chain_of, rows, chains};
  const auto layer = [&](int i) { return StateMemory{memory + i % planes * plane, stride}; };
  const int launches = tokens > 1 ? 4 : kLaunches;
  const auto convolve = [&](int i, const Stream& on) {
    return launch_convolve({step, layer(i), in, width, weights, kConv, width, false, kKeyHeads, kDim, 0.088f, u, nullptr, 0, Act::kF16, 1},
                           on);
  };
  // The results lie over the values, as in a step.
  float* const o = u + 2 * kKeyHeads * kDim;
  const auto delta = [&](int i, const Stream& on) {
    return launch_delta({{step, layer(i), in, width, kConv, width, false}, u, width, scalars, scalars, heads, negative, negative,
                         heads, kKeyHeads, kDim, kDim, false, o, width, sm_count}, on);
  };
  const auto gate_norm = [&](int, const Stream& on) {
    return launch_gate_norm({o, gates, width, values, weights, 1e-5f, rows, heads, kDim, out, values, Act::kF16, 1}, on);
  };
  const double convolved = 8.0 * rows * width + 4.0 * chains * stored, carried = 8.0 * chains * stride + 4.0 * rows * (width + values);
  const double normed = 10.0 * rows * values, operations = 7.0 * rows * values * kDim;
  std::printf("%d value heads\n", heads);
  line("convolve", chains, tokens, time_of(convolve, launches), convolved, 0);
  // Not as dependents: in a step other kernels run between two deltas, and a delta reads S before it waits.
  line("delta", chains, tokens, time_of([&](int i, const Stream& on) { return delta(i, Stream{on.stream, false}); }, launches), carried,
       operations);
  line("gate norm", chains, tokens, time_of(gate_norm, launches), normed, 0);
  line("all three, as in a step", chains, tokens, time_of([&](int i, const Stream& on) {
         cudaError_t error = convolve(i, on);
         if (error == cudaSuccess) error = delta(i, on);
         return error == cudaSuccess ? gate_norm(i, on) : error;
       }, launches), convolved + carried + normed, operations);
  for (void* p : {static_cast<void*>(d_chains), static_cast<void*>(d_segments), static_cast<void*>(d_chain_of), static_cast<void*>(memory),
                  static_cast<void*>(in), static_cast<void*>(u), static_cast<void*>(scalars), static_cast<void*>(weights),
                  static_cast<void*>(negative), static_cast<void*>(gates), static_cast<void*>(out)}) cudaFree(p);
}

// row: of logits; null: a few far above the rest.
void sampler(const char* what, int32_t rows, SlotParams p, const std::vector<float>* row = nullptr) {
  const int32_t top_n = p.top_n;
  p.repetition_penalty = 1;
  p.penalty_window = 64;
  p.all_allowed = 1;
  std::vector<SlotParams> params;
  std::vector<SampleJob> jobs;
  for (int32_t r = 0; r < rows; ++r) {
    p.seed = static_cast<uint64_t>(r);
    params.push_back(p);
    SampleJob job{};
    job.kind = kJobSample;
    job.flags = kJobFeeds;
    job.logits_row = job.slot = r;
    job.position = job.history_length = 100;
    job.mask_offset = -1;
    job.top_n = top_n;
    job.candidate_offset = r * top_n;
    jobs.push_back(job);
  }
  SampleArgs a{};
  a.jobs = device(jobs);
  a.job_count = a.workspace_jobs = rows;
  std::vector<float> logits = noise(static_cast<size_t>(kVocab), 1);
  for (float& x : logits) x = 4.0f * x * x * x;  // a few far above the rest
  if (row != nullptr) logits = *row;
  float* const all = device<float>(static_cast<size_t>(rows) * kVocab);
  for (int32_t r = 0; r < rows; ++r) MUST(cudaMemcpy(all + static_cast<int64_t>(r) * kVocab, logits.data(), logits.size() * 4, cudaMemcpyHostToDevice));
  a.logits = all;
  a.logits_stride = kVocab;
  a.vocab = kVocab;
  a.slots.params = device(params);
  a.slots.feeds = device<SlotFeed>(static_cast<size_t>(rows));
  a.slots.history = device<int32_t>(static_cast<size_t>(rows) * 128);
  a.slots.history_stride = 128;
  a.results = device<mr_row_result>(static_cast<size_t>(rows));
  a.candidates = device<mr_candidate>(static_cast<size_t>(rows * top_n) + 1);
  a.workspace = device<uint8_t>(static_cast<size_t>(sampler_bytes(rows, kVocab)));
  line(what, rows, kVocab, time_of([&](int, const Stream& on) { return launch_sample(a, on); }), 4.0 * rows * kVocab, 0);
  for (const void* q : {static_cast<const void*>(a.jobs), static_cast<const void*>(all), static_cast<const void*>(a.workspace)}) cudaFree(const_cast<void*>(q));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string only = argc > 1 ? argv[1] : "";
  const auto asked = [&](const char* what) { return only.empty() || only == what; };
  cudaDeviceProp properties;
  MUST(cudaGetDeviceProperties(&properties, 0));
  std::printf("%s\n%-24s %7s %7s\n", properties.name, "kernel", "rows", "width");
  for (const int32_t rows : {1, 64, 4096})
    if (asked("rows")) rows_kernels(rows);
  const std::vector<std::pair<int32_t, int32_t>> batches = {{1, 128}, {1, 512}, {1, 4096}, {1, 32768}, {1, 131072}, {8, 512}, {64, 128}, {64, 192}, {128, 192}, {64, 1024}, {256, 1024}};
  for (const Kv kv : {Kv::kAct, Kv::kF8})
    for (const auto& [rows, length] : batches)
      if (asked("decode")) decode(rows, length, properties.multiProcessorCount, kv);
  const std::vector<std::pair<int32_t, int32_t>> prompts = {{2000, 60},  {2000, 300}, {100000, 32}, {100000, 128}, {100000, 300},
                                                            {0, 512}, {0, 2048},   {0, 4096},    {0, 16384}};
  for (const Kv kv : {Kv::kAct, Kv::kF8})
    for (const auto& [prefix, rows] : prompts)
      if (asked("prefill")) prefill(prefix, rows, properties.multiProcessorCount, kv);
  for (const Widened widened : {Widened::kAhead, Widened::kByTile})
    for (const auto& [prefix, rows] : prompts)
      if (asked("prefill")) prefill(prefix, rows, properties.multiProcessorCount, Kv::kF8, widened);
  const std::vector<std::pair<int32_t, int32_t>> chains = {{1, 1}, {8, 1}, {64, 1}, {256, 1}, {1, 512}, {1, 4096}, {4, 1024}};
  for (const int32_t heads : {32, 48})
    for (const auto& [count, tokens] : chains)
      if (asked("states")) states(heads, count, tokens, properties.multiProcessorCount);
  for (const int32_t rows : {1, 64}) {
    if (!asked("sampler")) break;
    const auto params = [](float temperature, auto change) {
      SlotParams p{};
      p.temperature = temperature;
      p.top_p = p.typical_p = 1;
      change(p);
      return p;
    };
    const std::vector<float> flat(static_cast<size_t>(kVocab), 0.5f);
    sampler("sample greedy", rows, params(0, [](SlotParams&) {}));
    sampler("sample temperature", rows, params(0.8f, [](SlotParams&) {}));
    sampler("sample top-p 0.9", rows, params(0.8f, [](SlotParams& p) { p.top_p = 0.9f; }));
    sampler("sample top-k 50", rows, params(0.8f, [](SlotParams& p) { p.top_k = 50; }));
    sampler("sample typical-p 0.9", rows, params(0.8f, [](SlotParams& p) { p.typical_p = 0.9f; }));
    sampler("sample min-p 0.05", rows, params(0.8f, [](SlotParams& p) { p.min_p = 0.05f; }));
    sampler("sample all filters", rows, params(0.8f, [](SlotParams& p) { p.top_k = 1000, p.typical_p = 0.95f, p.top_p = 0.9f, p.min_p = 0.05f; }));
    sampler("sample flat top-p 0.9", rows, params(0.8f, [](SlotParams& p) { p.top_p = 0.9f; }), &flat);
    sampler("sample flat typical-p", rows, params(0.8f, [](SlotParams& p) { p.typical_p = 0.9f; }), &flat);
    sampler("sample top-n 20", rows, params(0, [](SlotParams& p) { p.top_n = 20; }));
    sampler("sample top-p, top-n 20", rows, params(0.8f, [](SlotParams& p) { p.top_p = 0.9f, p.top_n = 20; }));
    sampler("sample penalties", rows, params(0, [](SlotParams& p) { p.presence_penalty = 0.5f; }));
  }
  return 0;
}
