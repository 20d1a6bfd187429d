// Rates of attention with two threads, one new token for each of eight sequences, each next to a plain read of as many bytes.
// Usage: bench_attention [path]
#include <string.h>

#include "../measure.h"
#include "../vecops.h"
#include "bench.h"

using namespace mr;
using namespace mr::cpu;

namespace {

constexpr int sequences = 8, repeats = 21;

struct Shape { int32_t heads, kv_heads, dim, keys, layers, type; };
constexpr Shape shapes[] = {{12, 12, 64, 160, 12, MR_KV_F32}, {12, 12, 64, 1024, 8, MR_KV_F32}, {32, 8, 64, 160, 16, MR_KV_F32},
                            {32, 8, 64, 1024, 8, MR_KV_F32},  {32, 8, 128, 512, 8, MR_KV_F32},  {12, 12, 64, 160, 12, MR_KV_F16}};

volatile uint64_t sinks[thread_count * 8];

// A step's attention: layers one after another, of each the first half of all heads by one thread, the rest by the other.
void measure(Isa isa, const Shape& s, uint8_t* pool) {
  const KvLayout layout{s.type, 16, s.kv_heads, s.dim, pad_dim(s.dim)};
  const int32_t blocks = (s.keys + 15) / 16, group = s.heads / s.kv_heads, tasks = sequences * s.kv_heads;
  const int64_t plane = int64_t(sequences) * blocks * layout.block_stride();
  std::vector<int32_t> table(size_t(sequences * blocks)), visible(size_t(group), s.keys);
  for (int32_t i = 0; i < sequences * blocks; ++i) table[size_t(i)] = i % blocks * sequences + i / blocks; // as batches grow
  const VecOps& ops = vec_ops(isa);
  const uint64_t bytes = 2 * uint64_t(plane) * uint64_t(s.layers) / 8192 * 8192;
  const auto work = [&](int thread) {
    std::vector<float> q(size_t(group * s.dim), 0.01f), out(q);
    std::vector<const float*> rows;
    std::vector<float*> outs;
    for (int32_t g = 0; g < group; ++g) {
      rows.push_back(q.data() + g * s.dim);
      outs.push_back(out.data() + g * s.dim);
    }
    std::vector<float> room(size_t(attention_scratch(group, layout.padded_dim)) + 16);
    float* const scratch = reinterpret_cast<float*>((reinterpret_cast<uint64_t>(room.data()) + 63) / 64 * 64);
    for (int32_t layer = 0; layer < s.layers; ++layer) {
      for (int32_t task = tasks * thread / thread_count; task < tasks * (thread + 1) / thread_count; ++task) {
        const uint8_t* const keys = pool + 2 * layer * plane;
        ops.attend(AttentionArgs{rows.data(), outs.data(), visible.data(), group, 0.1f, 0.0f, 0, nullptr, group, layout, task % s.kv_heads,
                                 table.data() + task / s.kv_heads * blocks, keys, keys + plane, scratch});
      }
    }
  };
  std::vector<double> rates, reads, shares;
  for (int r = 0; r < repeats; ++r) {
    reads.push_back(double(bytes) / timed([&](int i) { sinks[i * 8] = read_stream(isa, pool + uint64_t(i) * bytes / 2, bytes / 2); }));
    rates.push_back(double(bytes) / timed(work));
    shares.push_back(rates.back() / reads.back());
  }
  printf("%5d %9d %5d %5d  %-4s %9.2f %9.2f %5.1f%%\n", s.heads, s.kv_heads, s.dim, s.keys, s.type == MR_KV_F16 ? "f16" : "f32",
         median(rates) / 1e9, median(reads) / 1e9, 100 * median(shares));
}

} // namespace

int main(int argc, char** argv) {
  Isa isa = detect();
  if (argc > 1 && (!from_name(argv[1], &isa) || !runnable(isa))) { fprintf(stderr, "no path %s here\n", argv[1]); return 2; }
  constexpr uint64_t size = 512u << 20;
  uint8_t* const pool = huge(size);
  memset(pool, 0x38, size); // a small normal number of either type
  printf("path %s, %d sequences, %d threads, medians of %d\n", name(isa), sequences, thread_count, repeats);
  printf("heads  kv heads  dims  keys  type      GB/s      read  share\n");
  for (const Shape& s : shapes) measure(isa, s, pool);
}
