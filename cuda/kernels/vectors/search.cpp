#include "kernels/vectors/search.h"

#include <algorithm>
#include <cmath>

#include "kernels/check.h"
#include "kernels/vectors/search_layout.h"
#include "kernels/vectors/search_pass.h"
#include "kernels/vectors/search_prepare.h"
#include "millrace/vectors.h"

namespace mr::cuda {
namespace {

SearchKernel kernel_of(const SearchForm& f, SearchPass pass, bool hopper, bool pieces) {
  return f.half ? search_kernel_f16(pass, f.chunks == 1, hopper, pieces, f.compared) : search_kernel_bf16(pass, f.chunks == 1, hopper);
}

constexpr SearchPass kPasses[] = {SearchPass::kNearest, SearchPass::kSettle};

int32_t bytes_of(const SearchForm& f, SearchPass pass) { return f.shared_bytes + (pass == SearchPass::kSettle ? kSearchLists : kept_bytes(f.compared)); }

int64_t element_bytes(int32_t type) { return type == MR_VECTOR_F32 ? 4 : type == MR_VECTOR_F16 || type == MR_VECTOR_BF16 ? 2 : 1; }

// Returns whether eight elements can be read at once at the start of any piece of a row.
bool reads_pieces(const SearchShape& shape, const void* rows) {
  const int64_t bytes = element_bytes(shape.row_type), want = std::min<int64_t>(16, 8 * bytes);
  return reinterpret_cast<uintptr_t>(rows) % static_cast<uintptr_t>(want) == 0 && shape.width * bytes % want == 0;
}

}  // namespace

uint64_t Search::bytes(const SearchShape& shape, int device) { return search_plan(shape, device).memory.size; }

int64_t Search::tile_rows(const SearchShape& shape, int device) {
  const SearchPlan plan = search_plan(shape, device);
  return (plan.may_be_plain ? plan.plain : plan.moved).groups * kSearchRows;
}

Search::Search(const SearchShape& shape, int device, void* memory) : shape_(shape), device_(device), memory_(static_cast<char*>(memory)) {
  const SearchPlan plan = search_plan(shape_, device_);
  // A kernel serves forms and searches of many sizes, so each search raises its limit to the most that any needs.
  for (const SearchForm* f : {&plan.plain, &plan.moved})
    for (const SearchPass pass : kPasses)
      for (const bool pieces : {false, true})
        CUDA_CHECK(cudaFuncSetAttribute(kernel_of(*f, pass, plan.hopper, pieces).function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        plan.most_shared));
}

void Search::prepare(const float* codewords, const Stream& on) {
  const SearchPlan plan = search_plan(shape_, device_);
  codewords_ = codewords;
  CUDA_CHECK(launch_search_prepare({&plan, shape_, codewords, memory_}, on.stream));
}

void Search::nearest(const void* rows, int64_t count, uint32_t* ids, double* distances, int64_t stride, uint64_t* recomputed,
                     const Stream& on) {
  if (count == 0) return;
  const SearchPlan plan = search_plan(shape_, device_);
  const bool inner = shape_.metric != MR_METRIC_L2;
  const double width = static_cast<double>(shape_.width);
  const double terms = (std::ceil(width / 8) + (inner ? 4 : 6)) * 0x1p-53, g = terms / (1 - terms);
  SearchParams p{};
  p.state = reinterpret_cast<const SearchState*>(memory_);
  p.images = reinterpret_cast<const uint8_t*>(memory_ + plan.memory.images);
  p.center = reinterpret_cast<const float*>(memory_ + plan.memory.center);
  p.radius = reinterpret_cast<const float*>(memory_ + plan.memory.radius);
  p.listed = reinterpret_cast<uint32_t*>(memory_ + plan.memory.listed);
  p.list = reinterpret_cast<uint32_t*>(memory_ + plan.memory.list);
  p.arrived = p.listed + shape_.spaces;
  p.least = reinterpret_cast<double*>(memory_ + plan.memory.least);
  p.least_ids = reinterpret_cast<uint32_t*>(memory_ + plan.memory.least_ids);
  p.limits = reinterpret_cast<float*>(memory_ + plan.memory.limits);
  p.codewords = codewords_;
  p.rows = rows;
  p.ids = ids;
  p.recomputed = recomputed;
  p.count = count;
  p.row_stride = shape_.spaces * shape_.width;
  p.stride = stride;
  p.spaces = shape_.spaces;
  p.codewords_each = shape_.codewords;
  p.width = shape_.width;
  p.most_rows = shape_.most_rows;
  p.tiles = plan.tiles;
  p.row_type = shape_.row_type;
  p.vector_rows = reads_pieces(shape_, rows);
  p.inner = inner;
  p.curve = static_cast<float>((inner ? 2 * g : g / (1 - g)) * (1 + 0x1p-10));
  CUDA_CHECK(cudaMemsetAsync(p.listed, 0, listed_bytes(shape_.spaces, plan.processors), on.stream));
  for (const SearchPass pass : kPasses)
    for (uint32_t moved = 0; moved < 2; ++moved) {
      if (!(moved ? plan.may_move : plan.may_be_plain)) continue;
      p.form = moved ? plan.moved : plan.plain;
      p.moved = moved;
      const bool copies = p.form.half && p.form.chunks == 1 && plan.hopper && p.vector_rows && count <= INT32_MAX;
      if (copies) CUDA_CHECK(map_rows(shape_, rows, count, &p.rows_map));
      const SearchKernel kernel = kernel_of(p.form, pass, plan.hopper, copies);
      const int64_t rows = p.form.groups * kSearchRows, tiles = (count + rows - 1) / rows * shape_.spaces;
      const int64_t blocks = pass == SearchPass::kSettle ? plan.processors : std::min<int64_t>(tiles, plan.processors);
      void* arguments[] = {&p};
      CUDA_CHECK(cudaLaunchKernel(kernel.function, dim3(static_cast<unsigned>(blocks)),
                                  dim3(static_cast<unsigned>(kernel.threads)), arguments,
                                  static_cast<size_t>(bytes_of(p.form, pass)), on.stream));
    }
  if (distances == nullptr) return;
  CUDA_CHECK(launch_search_distances({rows, codewords_, ids, distances, count, p.row_stride, stride, shape_.spaces, shape_.codewords,
                                      shape_.width, shape_.row_type, inner, plan.processors},
                                     on.stream));
}

}  // namespace mr::cuda
