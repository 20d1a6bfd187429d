// Rates of the weight products with two threads, each next to the roof measured right before it.
// Usage: bench_linear [in out [path [types [tokens,...]]]], types and tokens separated by commas; tokens 0 = decode only.
#include <string.h>

#include "../linear.h"
#include "../measure.h"
#include "bench.h"

using namespace mr;
using namespace mr::cpu;

namespace {

// Processor seconds a thread, the longer of the two: what work bound by arithmetic takes on a machine that others share.
double processor_time(const std::function<void(int)>& work) {
  double s[thread_count];
  timed([&](int i) {
    const double start = now(CLOCK_THREAD_CPUTIME_ID);
    work(i);
    s[i] = now(CLOCK_THREAD_CPUTIME_ID) - start;
  });
  return std::max(s[0], s[1]);
}

float sinks[thread_count * 16];

double int8_roof(Isa isa) {
  double ops[thread_count];
  const double s = processor_time([&](int i) { ops[i] = int8_rounds(isa, 4000000, &sinks[16 * i]); });
  return (ops[0] + ops[1]) / s;
}

double f32_roof(Isa isa) {
  double ops[thread_count];
  const double s = processor_time([&](int i) { ops[i] = f32_rounds(isa, 4000000, &sinks[16 * i]); });
  return (ops[0] + ops[1]) / s;
}

double bf16_roof(Isa isa) {
  double ops[thread_count];
  const double s = processor_time([&](int i) { ops[i] = bf16_rounds(isa, 4000000, &sinks[16 * i]); });
  return (ops[0] + ops[1]) / s;
}

struct Line { const char* name; int32_t type; };
constexpr Line lines[] = {{"q8_0", type_q8_0}, {"q4_k", type_q4_k}, {"bf16", type_bf16}, {"q4_0", type_q4_0}, {"q4_1", type_q4_1},
                          {"q5_0", type_q5_0}, {"q5_1", type_q5_1}, {"q5_k", type_q5_k}, {"q6_k", type_q6_k}, {"iq4_nl", type_iq4_nl},
                          {"q2_k", type_q2_k}, {"q3_k", type_q3_k}, {"iq4_xs", type_iq4_xs},
                          {"iq3_xxs", type_iq3_xxs}, {"iq3_s", type_iq3_s}, {"iq2_xxs", type_iq2_xxs}, {"iq2_xs", type_iq2_xs}, {"iq2_s", type_iq2_s},
                          {"f16", type_f16}, {"f32", type_f32}};

} // namespace

int main(int argc, char** argv) {
  const int64_t in = argc > 2 ? atoll(argv[1]) : 2048, out = argc > 2 ? atoll(argv[2]) : 8192;
  Isa isa = detect();
  if (argc > 3 && (!from_name(argv[3], &isa) || !runnable(isa))) { fprintf(stderr, "no path %s here\n", argv[3]); return 2; }
  std::vector<int64_t> batches = {2, 8, 16, 128, 512};
  if (argc > 5) {
    batches.clear();
    for (char* at = argv[5]; *at != 0; at += *at == ',') batches.push_back(strtoll(at, &at, 10));
  }
  const int repeats = 9;
  const uint64_t pool_bytes = 512u << 20;
  uint8_t* pool = huge(pool_bytes + (64 << 20));
  srand(1);
  for (uint64_t i = 0; i < pool_bytes + (64 << 20); i += 8) {
    const uint64_t v = uint64_t(rand()) * 0x9e3779b97f4a7c15u & 0x3b3b3b3b3b3b3b3bu | 0x2020202020202020u; // scales finite, nothing subnormal
    memcpy(pool + i, &v, 8);
  }
  printf("path %s, W(%lld, %lld), %d threads, medians of %d\n", name(isa), (long long)out, (long long)in, thread_count, repeats);
  printf("%-7s %9s %9s %6s  %s\n", "type", "GB/s", "read", "share", "prefill of N tokens: GOPS, share of the roof");
  for (const Line& line : lines) {
    if (argc > 4 && strstr(argv[4], line.name) == nullptr) continue;
    const uint64_t bytes = packed_size(line.type, in, out);
    const int64_t copies = std::max<int64_t>(1, int64_t(pool_bytes / bytes)), half = panels(out) / 2;
    const Activation kind = activation_kind(isa, line.type);
    std::vector<float> x(size_t(in) * 512), y(size_t(out) * 512);
    for (float& v : x) v = float(rand() % 2001 - 1000) / 1000;
    uint8_t* act = huge(activation_size(kind, in, 512));
    auto product = [&](int64_t copy, int64_t tokens, int i) {
      Matrix m{line.type, in, out, pool + uint64_t(copy) * ((bytes + 63) / 64 * 64), bytes};
      multiply(isa, m, act, tokens, y.data(), out, i == 0 ? 0 : half, i == 0 ? half : panels(out), m.data + bytes + (i == 0 ? 0 : bytes / 2));
    };
    std::vector<double> reads, rates, shares;
    prepare_activations(isa, kind, x.data(), in, in, 1, 0, 1, act);
    for (int r = 0; r < repeats; ++r) {
      reads.push_back(double(pool_bytes) / timed([&](int i) { sinks[i * 16] = float(read_stream(isa, pool + uint64_t(i) * pool_bytes / 2, pool_bytes / 2)); }));
      rates.push_back(double(bytes) * double(copies) / timed([&](int i) { for (int64_t c = 0; c < copies; ++c) product(c, 1, i); }));
      shares.push_back(rates.back() / reads.back());
    }
    printf("%-7s %9.2f %9.2f %5.1f%% ", line.name, median(rates) / 1e9, median(reads) / 1e9, 100 * median(shares));
    for (int64_t tokens : batches) {
      if (tokens < 1 || tokens > 512) continue;
      prepare_activations(isa, kind, x.data(), in, in, tokens, 0, tokens, act);
      std::vector<double> got, roofs;
      for (int r = 0; r < repeats; ++r) {
        const int64_t times = std::max<int64_t>(1, std::min<int64_t>(copies, int64_t(5e9 / (2.0 * double(in) * double(out) * double(tokens)))));
        roofs.push_back(kind == Activation::int8 ? int8_roof(isa) : kind == Activation::bf16 ? bf16_roof(isa) : f32_roof(isa));
        const double s = processor_time([&](int i) { for (int64_t c = 0; c < times; ++c) product(c, tokens, i); });
        got.push_back(2.0 * double(in) * double(out) * double(tokens) * double(times) / s);
      }
      printf("  %lld: %6.1f %4.1f%%", (long long)tokens, median(got) / 1e9, 100 * median(got) / median(roofs));
    }
    printf("\n");
    fflush(stdout);
  }
  return 0;
}
