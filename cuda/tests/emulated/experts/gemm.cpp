// The grouped GEMMs on the emulated device: chooses among their kernels as experts.cu does.
#include <algorithm>

#include "kernels/experts/few_rows.cuh"
#include "kernels/experts/many_rows.cuh"
#include "kernels/experts/many_rows_wgmma.cuh"
#include "kernels/experts/one_row.cuh"
#include "kernels/experts/several_rows.cuh"

namespace mr::cuda {
namespace {

constexpr int32_t kBlocksAtOnce = 5;  // few, so that blocks have several items
constexpr int32_t kLeastForEight = 3;  // fewer rows are divided into tiles of one pair, as on a device with little shared memory

template <class... Arguments>
cudaError_t run_kernel(const GemvKernel& kernel, dim3 grid, const Arguments&... arguments) {
  const auto run = reinterpret_cast<void (*)(Arguments...)>(const_cast<void*>(kernel.function));
  return emulated::put([=] { (void)emulated::run_grid(grid, dim3(static_cast<unsigned>(kernel.threads)), [=] { run(arguments...); }); });
}

template <int32_t T>
cudaError_t launch_type(const ExpertGemmArgs& args, const RowBranch* branch) {
  GroupedParams p = grouped_params(args);
  const bool one = args.rows < kLeastForEight;
  const auto at_once = [](int64_t items) { return dim3(static_cast<unsigned>(std::min<int64_t>(items, kBlocksAtOnce))); };
  const int64_t panels = panels_of(args);
  if (branch != nullptr)
    return run_kernel(one_row_kernel<T>(args.act, GroupedForm::kOneBranch), dim3(static_cast<unsigned>(panels)), p, *branch);
  if (args.kind == GemmClass::kPrefill) {
    p.parts = many_rows_parts(args);
    const GemvKernel wgmma = many_rows_wgmma_kernel<T>(args.act);
    products_first = !products_first;
    if (args.tile > kManyTile && wgmma.function != nullptr) {
      if (args.plan.done == nullptr) return cudaErrorInvalidValue;
      return run_kernel(wgmma, at_once(decode_items(args, 1, wgmma.panels / args.count)), p);
    }
    const GemvKernel kernel = many_rows_kernel<T>(args.act);
    return run_kernel(kernel, many_rows_grid(args, kernel.panels / args.count), p);
  }
  if (args.rows == 1 && args.count == 2) {
    const GemvKernel gated = one_row_kernel<T>(args.act, GroupedForm::kOneGated);
    if (gated.function != nullptr) return run_kernel(gated, at_once(args.pairs * panels), p);
  }
  const GemvKernel several = several_rows_kernel<T>(args.act);
  const bool by_several = several.function != nullptr && args.tile <= several.tokens && !prefers_few(args);
  const GemvKernel kernel = one          ? few_rows_kernel<T>(args.act, GroupedForm::kFewOne)
                            : by_several ? several
                                         : few_rows_kernel<T>(args.act, GroupedForm::kFew);
  if (args.rows > 1) p.parts = std::max(1, args.tile / kernel.tokens);
  return run_kernel(kernel, at_once(decode_items(args, p.parts, kernel.panels / args.count)), p);
}

// Of the types of the tests, because each takes seconds to compile.
cudaError_t launch_any(const ExpertGemmArgs& args, const RowBranch* branch) {
  if (args.targets[0].weight.data == nullptr) return cudaErrorInvalidValue;
  switch (kernel_type(args.targets[0].weight.type)) {
    case kF16: return launch_type<kF16>(args, branch);
    case kBF16: return launch_type<kBF16>(args, branch);
    case kQ8_0: return launch_type<kQ8_0>(args, branch);
    case kQ2_K: return launch_type<kQ2_K>(args, branch);
    case kQ4_K: return launch_type<kQ4_K>(args, branch);
    case kMXFP4: return launch_type<kMXFP4>(args, branch);
    case kNVFP4: return launch_type<kNVFP4>(args, branch);
    default: return cudaErrorNotSupported;
  }
}

}  // namespace

bool swiglu_supported(const PackedWeight& gate, const PackedWeight& up) {
  return gate.type == up.type && gate.rows == up.rows && gate.cols == up.cols;
}

cudaError_t prepare_expert_gemms() { return cudaSuccess; }

int32_t expert_tile(GemmClass kind, int32_t experts, int32_t pairs) {
  if (kind == GemmClass::kDecode) return pairs < experts ? kLeastExpertTile : kMostExpertTile;
  return pairs / experts >= kLeastWgmmaPairs ? kManyWgmmaTile : kManyTile;
}

cudaError_t launch_expert_gemm(const ExpertGemmArgs& args, const Stream&) { return launch_any(args, nullptr); }

bool expert_branch_supported(const ExpertGemmArgs& args) {
  const int32_t type = args.targets[0].weight.type;
  return args.rows == 1 && args.count == 1 && args.pairs <= kMostRowExperts &&
         (quantised(type) || type == (args.act == Act::kF16 ? kF16 : kBF16));
}

cudaError_t launch_expert_branch(const ExpertGemmArgs& args, const RowBranch& branch, const Stream&) {
  return expert_branch_supported(args) ? launch_any(args, &branch) : cudaErrorInvalidValue;
}

}  // namespace mr::cuda
