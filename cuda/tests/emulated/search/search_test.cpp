// The certified search on the emulated device, by wgmma with its pipeline and by mma: every id and every bit of Q is
// that of binary64 brute force.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "cpu/vector_rules.h"
#include "kernels/vectors/search_instructions.cuh"
#include "kernels/vectors/search_pass.h"
#include "millrace/vectors.h"

namespace {
int capability = 9;
std::map<const void*, size_t> shared_allowed;  // bytes allowed for a launch, by kernel
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? capability : attribute == cudaDevAttrMultiProcessorCount ? 3 : 227 << 10;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
  if (value > 227 << 10) return cudaErrorInvalidValue;
  shared_allowed[kernel] = static_cast<size_t>(value);
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t) {
  if (shared > shared_allowed[kernel]) return cudaErrorInvalidValue;
  const auto p = *static_cast<const mr::cuda::SearchParams*>(arguments[0]);
  const auto run = reinterpret_cast<void (*)(mr::cuda::SearchParams)>(const_cast<void*>(kernel));
  return emulated::put([=] { (void)emulated::run_grid(grid, block, [=] { run(p); }); });
}

namespace mr::cuda {

cudaError_t map_rows(const SearchShape& shape, const void* rows, int64_t count, RowsMap* map) {
  const EmulatedRows all{static_cast<const uint8_t*>(rows), count, shape.spaces, shape.width};
  memcpy(map, &all, sizeof all);
  return cudaSuccess;
}
namespace {

struct Problem {
  int32_t metric, row_type, codeword_type;
  int64_t spaces, codewords, width, rows;
  double shift, scale;
  bool coarse;  // only the values 0 and 1, so that many distances are equal
};

double distance(const float* x, const float* c, int64_t width, bool inner) {
  double sum[8] = {};
  for (int64_t j = 0; j < width; ++j) {
    const double a = static_cast<double>(x[j]), b = static_cast<double>(c[j]);
    sum[j % 8] += inner ? a * b : (a - b) * (a - b);
  }
  return inner ? -fold_eight(sum) : fold_eight(sum);
}

void expect_reference(const Problem& p, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  const auto draw = [&] { return p.coarse ? static_cast<double>(random() % 2) : p.shift + p.scale * normal(random); };
  const size_t elements = static_cast<size_t>(p.rows * p.spaces * p.width), values = static_cast<size_t>(p.spaces * p.codewords * p.width);
  std::vector<float> rows(elements), codewords(values);
  std::vector<uint8_t> bytes(elements * 4);
  size_t size = 4;
  for (size_t i = 0; i < elements; ++i) {
    float v = round_codeword(p.row_type <= MR_VECTOR_BF16 ? p.row_type : MR_VECTOR_F32, draw());
    if (p.row_type >= MR_VECTOR_U8) {
      const int whole = static_cast<int>(std::fmin(127, std::fabs(40 * static_cast<double>(v))));
      v = static_cast<float>(whole);
      bytes[i] = static_cast<uint8_t>(whole);
      size = 1;
    } else if (p.row_type == MR_VECTOR_F32) {
      memcpy(&bytes[i * 4], &v, 4);
    } else {
      const uint16_t two = p.row_type == MR_VECTOR_F16 ? __half_as_ushort(__float2half_rn(v)) : __float2bfloat16_rn(v).bits;
      memcpy(&bytes[i * 2], &two, 2);
      size = 2;
    }
    rows[i] = v;
  }
  for (float& v : codewords) v = round_codeword(p.codeword_type, p.row_type >= MR_VECTOR_U8 ? 40 * std::fabs(draw()) : draw());

  const SearchShape shape{p.metric, p.row_type, p.codeword_type, p.spaces, p.codewords, p.width, p.rows};
  void *memory, *given_rows, *given_codewords;
  ASSERT_EQ(cudaMalloc(&memory, Search::bytes(shape, 0)), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&given_rows, elements * size), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&given_codewords, values * 4), cudaSuccess);
  memcpy(given_rows, bytes.data(), elements * size);
  memcpy(given_codewords, codewords.data(), values * 4);
  const size_t stride = static_cast<size_t>(p.rows) + 2;
  std::vector<uint32_t> ids(stride * static_cast<size_t>(p.spaces));
  std::vector<double> q(ids.size());
  uint64_t recomputed = 0;
  Search search(shape, 0, memory);
  const Search other({MR_METRIC_L2, p.row_type, p.codeword_type, 1, 1, 1, 1}, 0, nullptr);  // must not lower this one's limit
  search.prepare(static_cast<const float*>(given_codewords), Stream{});
  search.nearest(given_rows, p.rows, ids.data(), q.data(), static_cast<int64_t>(stride), &recomputed, Stream{});
  for (int64_t s = 0; s < p.spaces; ++s)
    for (int64_t r = 0; r < p.rows; ++r) {
      double least = std::numeric_limits<double>::infinity();
      uint32_t id = 0;
      for (int64_t c = 0; c < p.codewords; ++c) {
        const double d = distance(&rows[static_cast<size_t>((r * p.spaces + s) * p.width)],
                                  &codewords[static_cast<size_t>((s * p.codewords + c) * p.width)], p.width, p.metric != MR_METRIC_L2);
        if (d < least) {
          least = d;
          id = static_cast<uint32_t>(c);
        }
      }
      const size_t at = static_cast<size_t>(s) * stride + static_cast<size_t>(r);
      ASSERT_EQ(ids[at], id) << "row " << r << " of space " << s;
      ASSERT_EQ(q[at], least) << "row " << r << " of space " << s;
    }
  EXPECT_LE(recomputed, static_cast<uint64_t>(p.rows * p.spaces));
  cudaFree(memory);
  cudaFree(given_rows);
  cudaFree(given_codewords);
}

void expect_all() {
  const int32_t l2 = MR_METRIC_L2, inner = MR_METRIC_INNER_PRODUCT, f32 = MR_VECTOR_F32, f16 = MR_VECTOR_F16, bf16 = MR_VECTOR_BF16;
  const Problem problems[] = {
      {l2, f16, f16, 1, 200, 33, 70, 0, 1, false},        {l2, f16, f16, 1, 1, 5, 3, 0, 1, false},
      {l2, f32, f32, 3, 256, 8, 700, 0, 1, false},        {l2, f16, f16, 2, 300, 7, 900, 0, 1, false},
      {l2, f16, f16, 1, 2100, 40, 66, 0, 1, false},       {inner, f32, f16, 1, 130, 40, 100, 0, 1, false},
      {l2, MR_VECTOR_U8, f32, 1, 129, 17, 65, 0, 1, false}, {l2, MR_VECTOR_I8, bf16, 1, 70, 70, 66, 0, 1, false},
      {l2, f16, f16, 1, 300, 24, 66, 1000, 1, false},     {l2, f32, f32, 1, 300, 24, 66, 1e6, 1, false},
      {l2, f32, f32, 1, 100, 24, 66, 0, 1e31, false},     {l2, f32, f32, 1, 100, 24, 66, 0, 1e-40, false},
      {l2, f16, f16, 2, 300, 10, 66, 0, 1, true},         {l2, f16, f16, 3, 256, 8, 700, 0, 1, false},
      {l2, f16, f16, 1, 300, 64, 900, 0, 1, false},       {l2, f16, f16, 2, 100, 72, 300, 0, 1, true},
      {l2, f16, f16, 1, 1000, 16, 300, 0, 1, true},       {l2, f16, f16, 1, 140, 384, 150, 0, 1, false},
      {l2, f32, f32, 1, 140, 1200, 66, 0, 1, false},      {l2, f32, f32, 1, 300, 260, 150, 0, 1, true},
      {inner, f16, f16, 1, 150, 1200, 70, 0, 1, false},         {l2, f32, f32, 1, 140, 420, 66, 0, 1, false},
      {l2, bf16, f16, 1, 70, 350, 66, 0, 1, false},       {inner, f16, f32, 1, 140, 700, 40, 0, 1, false},
      // Narrow rows; in the first two cases many have no score above 0.
      {inner, f16, f16, 3, 2, 8, 200, 0, 1, false},       {l2, f16, f16, 1, 300, 8, 66, 0, 1e-3, false},
      {inner, f16, f16, 2, 257, 16, 131, 0, 1, false},    {l2, f16, f16, 5, 512, 8, 129, 0, 1, true},
      {l2, f16, f16, 1, 1, 8, 3, 0, 1, false},            {l2, f16, f16, 3, 2, 16, 17, 0, 1, false},
      // Several tiles of rows for each SM, of two subspaces.
      {l2, f16, f16, 2, 20, 16, 1700, 0, 1, false},       {l2, f16, f16, 1, 12, 40, 1601, 0, 1, false},
  };
  uint64_t seed = 1;
  for (const Problem& p : problems) {
    SCOPED_TRACE(seed);
    expect_reference(p, seed++);
  }
}

TEST(EmulatedSearch, FindsByWgmmaWhatBinary64Finds) {
  capability = 9;
  expect_all();
}

TEST(EmulatedSearch, FindsByMmaWhatBinary64Finds) {
  capability = 8;
  expect_all();
}

}  // namespace
}  // namespace mr::cuda
