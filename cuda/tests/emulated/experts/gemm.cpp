// The grouped GEMMs on the emulated device: chooses among their kernels as experts.cu does.
#include <algorithm>

#include "kernels/experts/few_rows.cuh"
#include "kernels/experts/many_rows.cuh"

namespace mr::cuda {
namespace {

constexpr int32_t kBlocksAtOnce = 5;  // few, so that blocks have several items
constexpr int32_t kLeastForEight = 3;  // fewer rows are divided into tiles of one pair, as on a device with little shared memory

template <int32_t T, class A>
cudaError_t launch_of(const ExpertGemmArgs& args) {
  const bool pair = args.count == 2, one = args.rows < kLeastForEight;
  GroupedForm form = one ? pair ? GroupedForm::kFewPair1 : GroupedForm::kFewSingle1 : pair ? GroupedForm::kFewPair8 : GroupedForm::kFewSingle8;
  if (args.kind == GemmClass::kPrefill) form = pair ? GroupedForm::kManyPair : GroupedForm::kManySingle;
  const GemvKernel kernel = args.kind == GemmClass::kPrefill ? many_rows_kernel_for<T, A>(form) : few_rows_kernel_for<T, A>(form);
  GroupedParams p = grouped_params(args);
  if (args.kind == GemmClass::kDecode && args.rows > 1) p.parts = expert_tile(args.kind) / kernel.tokens;
  const dim3 grid = args.kind == GemmClass::kPrefill ? many_rows_grid(args, kernel.panels)
                                                     : dim3(static_cast<unsigned>(std::min<int64_t>(few_rows_items(args, p.parts), kBlocksAtOnce)));
  const auto run = reinterpret_cast<void (*)(GroupedParams)>(const_cast<void*>(kernel.function));
  return emulated::put([=] { (void)emulated::run_grid(grid, dim3(static_cast<unsigned>(kernel.threads)), [=] { run(p); }); });
}

template <int32_t T>
cudaError_t launch_type(const ExpertGemmArgs& args) {
  if (args.act == Act::kF16) return launch_of<T, __half>(args);
  if constexpr (Format<T>::is_float) return launch_of<T, __nv_bfloat16>(args);
  else return cudaErrorNotSupported;
}

}  // namespace

bool swiglu_supported(const PackedWeight& gate, const PackedWeight& up) {
  return gate.type == up.type && gate.rows == up.rows && gate.cols == up.cols;
}

cudaError_t prepare_expert_gemms() { return cudaSuccess; }

cudaError_t launch_expert_gemm(const ExpertGemmArgs& args, const Stream&) {
  if (args.targets[0].weight.data == nullptr) return cudaErrorInvalidValue;
  switch (kernel_type(args.targets[0].weight.type)) {
    case kF32: return launch_type<kF32>(args);
    case kF16: return launch_type<kF16>(args);
    case kBF16: return launch_type<kBF16>(args);
    case kQ8_0: return launch_type<kQ8_0>(args);
    case kQ4_0: return launch_type<kQ4_0>(args);
    case kQ4_1: return launch_type<kQ4_1>(args);
    case kQ5_0: return launch_type<kQ5_0>(args);
    case kQ5_1: return launch_type<kQ5_1>(args);
    case kQ2_K: return launch_type<kQ2_K>(args);
    case kQ4_K: return launch_type<kQ4_K>(args);
    case kQ5_K: return launch_type<kQ5_K>(args);
    case kQ6_K: return launch_type<kQ6_K>(args);
    case kIQ4_NL: return launch_type<kIQ4_NL>(args);
    case kMXFP4: return launch_type<kMXFP4>(args);
    case kCodes: return launch_type<kCodes>(args);
    default: return cudaErrorNotSupported;
  }
}

}  // namespace mr::cuda
