// The grouped GEMMs on the emulated device: chooses among their kernels as experts.cu does.
#include <algorithm>

#include "kernels/experts/eight_pairs.cuh"
#include "kernels/experts/eight_rows.cuh"
#include "kernels/experts/few_rows.cuh"
#include "kernels/experts/many_rows.cuh"
#include "kernels/experts/many_rows_wgmma.cuh"
#include "kernels/experts/one_row.cuh"
#include "kernels/experts/several_rows.cuh"
#include "kernels/experts/several_rows_wgmma.cuh"

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
GemvKernel kernel_of(Act act, GroupedForm form) {
  switch (form) {
    case GroupedForm::kFew:
    case GroupedForm::kFewOne: return few_rows_kernel<T>(act, form);
    case GroupedForm::kEight: return eight_rows_kernel<T>(act);
    case GroupedForm::kEightPairs: return eight_pairs_kernel<T>(act);
    case GroupedForm::kSeveral: return several_rows_kernel<T>(act);
    case GroupedForm::kSeveralWgmma: return several_rows_wgmma_kernel<T>(act);
    case GroupedForm::kMany: return many_rows_kernel<T>(act);
    case GroupedForm::kManyWgmma: return many_rows_wgmma_kernel<T>(act);
    default: return one_row_kernel<T>(act, form);
  }
}

dim3 at_once(int64_t items) { return dim3(static_cast<unsigned>(std::min<int64_t>(items, kBlocksAtOnce))); }

template <int32_t T>
cudaError_t launch_form(GroupedForm form, const ExpertGemmArgs& args) {
  const GemvKernel kernel = kernel_of<T>(args.act, form);
  if (kernel.function == nullptr) return cudaErrorNotSupported;
  GroupedParams p = grouped_params(args);
  products_first = !products_first;
  if (form == GroupedForm::kMany) {
    p.parts = many_rows_parts(args);
    return run_kernel(kernel, many_rows_grid(args, kernel.panels / args.count), p);
  }
  const bool divides = form == GroupedForm::kFew || form == GroupedForm::kFewOne;
  if (!form_suffices(form, args, kernel)) return cudaErrorNotSupported;
  if (divides && args.rows > 1) p.parts = std::max(1, args.tile / kernel.tokens);
  const bool counts = form == GroupedForm::kSeveralWgmma || form == GroupedForm::kManyWgmma;
  if (counts && args.plan.done == nullptr) return cudaErrorInvalidValue;
  return run_kernel(kernel, at_once(decode_items(args, p.parts, kernel.panels / args.count)), p);
}

template <int32_t T>
cudaError_t launch_type(const ExpertGemmArgs& args, const RowBranch* branch) {
  const GroupedParams p = grouped_params(args);
  const int64_t panels = panels_of(args);
  if (branch != nullptr)
    return run_kernel(one_row_kernel<T>(args.act, GroupedForm::kOneBranch), dim3(static_cast<unsigned>(panels)), p, *branch);
  const auto has = [&](GroupedForm form) { return kernel_of<T>(args.act, form).function != nullptr; };
  if (args.kind == GemmClass::kPrefill) {
    const bool wgmma = args.tile > kManyTile && has(GroupedForm::kManyWgmma);
    return launch_form<T>(wgmma ? GroupedForm::kManyWgmma : GroupedForm::kMany, args);
  }
  if (args.rows == 1 && args.count == 2 && has(GroupedForm::kOneGated))
    return run_kernel(one_row_kernel<T>(args.act, GroupedForm::kOneGated), at_once(args.pairs * panels), p);
  if (eight_rows_suffice(args) && prefers_eight_rows(args) && has(GroupedForm::kEight))
    return launch_form<T>(GroupedForm::kEight, args);
  if (args.rows >= kLeastForEight && eight_pairs_suffice(args) && prefers_eight_pairs(args) && has(GroupedForm::kEightPairs))
    return launch_form<T>(GroupedForm::kEightPairs, args);
  if (args.rows < kLeastForEight) return launch_form<T>(GroupedForm::kFewOne, args);
  const bool several = args.tile <= kMostExpertTile && has(GroupedForm::kSeveral), wgmma = has(GroupedForm::kSeveralWgmma);
  if ((several || wgmma) && !prefers_few(args))
    return launch_form<T>(several ? GroupedForm::kSeveral : GroupedForm::kSeveralWgmma, args);
  return launch_form<T>(GroupedForm::kFew, args);
}

// Calls run(the type as a constant) for the types of the tests, because each takes seconds to compile.
template <class Run>
cudaError_t with_type(const ExpertGemmArgs& args, Run&& run) {
  if (args.targets[0].weight.data == nullptr) return cudaErrorInvalidValue;
  switch (kernel_type(args.targets[0].weight.type)) {
    case kF16: return run(std::integral_constant<int32_t, kF16>{});
    case kBF16: return run(std::integral_constant<int32_t, kBF16>{});
    case kQ8_0: return run(std::integral_constant<int32_t, kQ8_0>{});
    case kQ2_K: return run(std::integral_constant<int32_t, kQ2_K>{});
    case kQ4_K: return run(std::integral_constant<int32_t, kQ4_K>{});
    case kMXFP4: return run(std::integral_constant<int32_t, kMXFP4>{});
    case kNVFP4: return run(std::integral_constant<int32_t, kNVFP4>{});
    default: return cudaErrorNotSupported;
  }
}
cudaError_t launch_any(const ExpertGemmArgs& args, const RowBranch* branch) {
  return with_type(args, [&](auto type) { return launch_type<decltype(type)::value>(args, branch); });
}

}  // namespace

bool swiglu_supported(const PackedWeight& gate, const PackedWeight& up) {
  return gate.type == up.type && gate.rows == up.rows && gate.cols == up.cols;
}

cudaError_t prepare_expert_gemms() { return cudaSuccess; }

int32_t expert_tile(GemmClass kind, int32_t experts, int32_t pairs) {
  const int32_t average = pairs / experts;
  if (kind == GemmClass::kPrefill) return average >= kLeastWgmmaPairs ? kManyWgmmaTile : kManyTile;
  return average >= kLeastDecodeWgmmaPairs ? kDecodeWgmmaTile : average < 1 ? kLeastExpertTile : kMostExpertTile;
}

cudaError_t launch_expert_gemm(const ExpertGemmArgs& args, const Stream&) { return launch_any(args, nullptr); }
cudaError_t launch_expert_gemm_as(GroupedForm form, const ExpertGemmArgs& args, const Stream&) {
  return with_type(args, [&](auto type) { return launch_form<decltype(type)::value>(form, args); });
}

bool expert_branch_supported(const ExpertGemmArgs& args) {
  const int32_t type = args.targets[0].weight.type;
  return args.rows == 1 && args.count == 1 && args.pairs <= kMostBranchExperts &&
         (quantised(type) || type == (args.act == Act::kF16 ? kF16 : kBF16));
}

cudaError_t launch_expert_branch(const ExpertGemmArgs& args, const RowBranch& branch, const Stream&) {
  return expert_branch_supported(args) ? launch_any(args, &branch) : cudaErrorInvalidValue;
}

}  // namespace mr::cuda
