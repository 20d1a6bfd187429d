// The tensor cores' own error against exact sums: at most half of the error that the proof of the search allows, even
// for rows made to cancel.
#include <algorithm>

#include "kernels/vectors/search_kernel.cuh"
#include "kernels/vectors/search_prepare.h"
#include "src/error.h"
#include "vector_fixture.h"

namespace mr::cuda::testing {
namespace {

constexpr int64_t kRows = kSearchTile;

// Writes a thread's scores of the first tile of codewords: (kRows, kSearchWide).
__device__ void store_scores(const float (&sums)[kSearchSums], int32_t group, int32_t warp, int32_t lane, float* out) {
#pragma unroll
  for (int32_t i = 0; i < kSearchSums; ++i) {
    const int32_t row = group * kSearchRows + warp * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + 2 * (lane % 4) + i % 2;
    out[row * kSearchWide + column] = sums[i];
  }
}

template <class E, class Products>
__device__ void score_rows(const SearchParams& p, const SearchShared& s, Products& products, float* out) {
  const auto offset = [&](int32_t r) { return (products.group * int64_t{kSearchRows} + r) * p.row_stride; };
  const SearchRows<decltype(offset)> rows{p, p.moved ? p.center : nullptr, offset, kSearchRows,
                                          s.rows + static_cast<uint32_t>(products.group) * s.group_bytes,
                                          s.squares + products.group * kSearchRows};
  rows.template load<E, 4>(0, p.form.steps, false);
  products.settle_writes();
  float sums[kSearchSums];
  products.scores(sums, 0, 0, false, [](int32_t, int32_t) {});
  store_scores(sums, products.group, products.warp, products.lane, out);
}

template <class E>
__global__ void __launch_bounds__(kSearchThreads) scores_by_mma(const __grid_constant__ SearchParams p, float* out) {
  const SearchShared s(launch_memory(), p.form);
  write_ones(s.ones);
  __syncthreads();
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32;
  SearchByMma<E, true> products{p, s, warp / 4, warp % 4, static_cast<int32_t>(threadIdx.x) % 32};
  score_rows<E>(p, s, products, out);
}

#if MR_HOPPER
template <class E>
__global__ void __launch_bounds__(kSearchThreads + 128, 1) scores_by_wgmma(const __grid_constant__ SearchParams p, float* out) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const SearchShared s(launch_memory(), p.form);
  init_pipeline(p.form, s);
  const int32_t warp = __shfl_sync(0xffffffffu, static_cast<int32_t>(threadIdx.x) / 32, 0), lane = static_cast<int32_t>(threadIdx.x) % 32;
  if (warp >= kSearchWarps) {
    registers_down<32>();
    if (warp == kSearchWarps && lane == 0) produce_codewords<WorkOfAll>(p, s);
  } else {
    registers_up<112>();
    SearchByWgmma<E, true> products{p, s, warp / 4, warp % 4, lane};
    score_rows<E>(p, s, products, out);
  }
#endif
}
#endif

template <class E>
const void* kernel_of(bool hopper) {
#if MR_HOPPER
  if (hopper) return reinterpret_cast<const void*>(&scores_by_wgmma<E>);
#endif
  (void)hopper;
  return reinterpret_cast<const void*>(&scores_by_mma<E>);
}

enum class Data { kPlain, kCancelling, kSteep, kOneLarge };

double value_of(Data data, size_t i, size_t width, Numbers& numbers) {
  const double v = static_cast<double>(numbers.normal());
  const size_t j = i % width;
  switch (data) {
    case Data::kPlain: return v;
    case Data::kCancelling: return (1 + v / 64) * (i / width % 2 == 0 ? 1 : j % 2 == 0 ? 1 : -1);
    case Data::kSteep: return v * std::exp2(-static_cast<double>(j % 12));
    default: return j == width / 2 ? 100 : v / 16;
  }
}

// Returns the largest |score - exact| / S of a step, S = |x| R + R^2 / 2, over 256 rows and 128 codewords without a
// center.
double error_per_step(int32_t type, int64_t width, Data data) {
  const SearchShape shape{MR_METRIC_L2, type, type, 1, kSearchWide, width, kRows};
  const SearchPlan plan = search_plan(shape, 0);
  EXPECT_EQ(plan.plain.chunks, 1);
  EXPECT_EQ(plan.plain.groups, kSearchGroups);
  Numbers numbers(static_cast<uint64_t>(width) * 31 + static_cast<uint64_t>(type) * 7 + static_cast<uint64_t>(data));
  const size_t columns = static_cast<size_t>(width);
  const Values rows = values_of(type, kRows * columns, [&](size_t i) { return value_of(data, i, columns, numbers); });
  // Centered on 0, so that the search needs no center: each codeword and its negative.
  std::vector<double> halves(kSearchWide / 2 * columns);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = value_of(data, i + columns, columns, numbers);
  const Values codewords = values_of(type, kSearchWide * columns, [&](size_t i) {
    return i / columns % 2 == 0 ? halves[i / columns / 2 * columns + i % columns] : -halves[i / columns / 2 * columns + i % columns];
  });
  Guarded<uint8_t> memory(Search::bytes(shape, 0)), bytes(rows.bytes);
  Guarded<float> values(codewords.floats), out(static_cast<size_t>(kRows) * kSearchWide);
  Search search(shape, 0, memory.data());
  search.prepare(values, Stream{});
  SearchParams p{};
  p.form = plan.plain;
  p.images = memory.data() + plan.memory.images;
  p.center = reinterpret_cast<const float*>(memory.data() + plan.memory.center);
  p.rows = bytes.data();
  p.count = kRows;
  p.row_stride = width;
  p.spaces = 1;
  p.codewords_each = kSearchWide;
  p.width = width;
  p.tiles = 1;
  p.row_type = type;
  const void* const kernel = p.form.half ? kernel_of<__half>(plan.hopper) : kernel_of<__nv_bfloat16>(plan.hopper);
  MUST(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, p.form.shared_bytes));
  float* to = out.data();
  void* arguments[] = {&p, &to};
  MUST(cudaLaunchKernel(kernel, dim3(1), dim3(kSearchThreads + (plan.hopper ? 128 : 0)), arguments,
                        static_cast<size_t>(p.form.shared_bytes), nullptr));
  synchronize();
  uint32_t moved = 1;
  MUST(cudaMemcpy(&moved, memory.data(), 4, cudaMemcpyDeviceToHost));
  EXPECT_EQ(moved, 0u);
  const std::vector<float> scores = out.read();
  const auto square = [&](const std::vector<float>& v, size_t i) {
    long double sum = 0;
    for (size_t j = 0; j < columns; ++j) sum += static_cast<long double>(v[i * columns + j]) * static_cast<long double>(v[i * columns + j]);
    return sum;
  };
  long double radius = 0;
  for (size_t c = 0; c < kSearchWide; ++c) radius = std::max(radius, std::sqrt(square(codewords.floats, c)));
  double worst = 0;
  for (size_t r = 0; r < kRows; ++r) {
    const long double reach = std::sqrt(square(rows.floats, r)) * radius + radius * radius / 2;
    for (size_t c = 0; c < kSearchWide; ++c) {
      long double exact = -square(codewords.floats, c) / 2;
      for (size_t j = 0; j < columns; ++j)
        exact += static_cast<long double>(rows.floats[r * columns + j]) * static_cast<long double>(codewords.floats[c * columns + j]);
      const double error = static_cast<double>(std::fabs(static_cast<long double>(scores[r * kSearchWide + c]) - exact) / reach);
      EXPECT_EQ(error, error);
      worst = std::max(worst, error);
    }
  }
  return worst / static_cast<double>(p.form.steps * (p.form.row_terms + p.form.codeword_terms - 1) + 1);
}

TEST(VectorUnits, AreTwiceAsGoodAsTheProofCounts) {
  int major = 0;
  MUST(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  for (const int32_t type : {MR_VECTOR_F16, MR_VECTOR_BF16})
    for (const int64_t width : {1, 8, 16, 17, 64, 128, 200})
      for (const Data data : {Data::kPlain, Data::kCancelling, Data::kSteep, Data::kOneLarge}) {
        const double error = error_per_step(type, width, data);
        EXPECT_LE(error, static_cast<double>(step_error(major)) / 2)
            << type_name(type) << ", d " << width << ", data " << static_cast<int>(data);
        EXPECT_EQ(error, error);
      }
}

}  // namespace
}  // namespace mr::cuda::testing
