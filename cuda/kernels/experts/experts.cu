// experts: chooses a grouped GEMM's kernel by the class, the number of rows, the weight's type and the device.
#include "kernels/experts/experts.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "kernels/experts/grouped.h"

namespace mr::cuda {
namespace {

struct PreparedGrouped {
  GemvKernel kernel;
  int32_t shared_bytes;   // of kernels of a single row without their inputs
  int32_t most_shared;    // bytes that a launch may have
  int32_t tiles_at_once;  // blocks that the whole device holds; 0: the kernel does not run here
};

struct PreparedDevice {
  PreparedGrouped of[kWeightTypeCount][2][kGroupedForms];
};

std::atomic<const PreparedDevice*> prepared[kMaxDevices];

template <int32_t i = 0>
GemvKernel find_kernel(int32_t type_index, Act act, GroupedForm form) {
  if constexpr (i < kWeightTypeCount) {
    if (i != type_index) return find_kernel<i + 1>(type_index, act, form);
    constexpr int32_t type = kWeightFormats[i].kernel();
    switch (form) {
      case GroupedForm::kFew:
      case GroupedForm::kFewOne: return few_rows_kernel<type>(act, form);
      case GroupedForm::kEight: return eight_rows_kernel<type>(act);
      case GroupedForm::kEightPairs: return eight_pairs_kernel<type>(act);
      case GroupedForm::kSeveral: return several_rows_kernel<type>(act);
      case GroupedForm::kSeveralWgmma: return several_rows_wgmma_kernel<type>(act);
      case GroupedForm::kMany: return many_rows_kernel<type>(act);
      case GroupedForm::kManyWgmma: return many_rows_wgmma_kernel<type>(act);
      default: return one_row_kernel<type>(act, form);
    }
  } else {
    return {};
  }
}

cudaError_t prepare(PreparedGrouped& k, bool one_row, int32_t sms, int32_t shared) {
  cudaFuncAttributes code;
  cudaError_t error = cudaFuncGetAttributes(&code, k.kernel.function);
  if (error != cudaSuccess) return error;
  k.shared_bytes = k.kernel.shared_bytes(code.binaryVersion);
  k.most_shared = one_row ? shared - static_cast<int32_t>(code.sharedSizeBytes) : k.shared_bytes;
  if (k.shared_bytes > k.most_shared || k.most_shared > shared) return cudaSuccess;
  error = cudaFuncSetAttribute(k.kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, k.most_shared);
  int32_t blocks = 0;
  if (error == cudaSuccess) {
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, k.kernel.function, k.kernel.threads,
                                                          static_cast<size_t>(k.shared_bytes));
  }
  k.tiles_at_once = blocks * sms;
  return error;
}

cudaError_t prepare_device(int32_t device, PreparedDevice& out) {
  int32_t sms = 0, shared = 0;
  cudaError_t error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  for (int32_t t = 0; t < kWeightTypeCount; ++t) {
    for (int32_t a = 0; a < 2; ++a) {
      for (int32_t form = 0; form < kGroupedForms && error == cudaSuccess; ++form) {
        PreparedGrouped& k = out.of[t][a][form];
        k = {find_kernel(t, static_cast<Act>(a), static_cast<GroupedForm>(form)), 0, 0, 0};
        if (k.kernel.function != nullptr) error = prepare(k, form >= static_cast<int32_t>(GroupedForm::kOneGated), sms, shared);
      }
    }
  }
  return error;
}

bool valid(const ExpertGemmArgs& args) {
  const PackedWeight& first = args.targets[0].weight;
  if (args.count < 1 || args.count > 2 || args.rows < 0 || args.pairs < 0 || args.experts < 1 || args.x_share < 1) return false;
  if (args.tile < 8 || args.tile > kManyWgmmaTile || args.tile % 8 != 0) return false;
  if (args.x_stride % 8 != 0 || args.out_stride % 2 != 0 || reinterpret_cast<uintptr_t>(args.x) % 16 != 0) return false;
  if (!weight_supported(first.type, first.rows, first.cols) || first.data == nullptr) return false;
  return args.count == 1 || (args.targets[1].weight.data != nullptr && swiglu_supported(first, args.targets[1].weight));
}

// The kernels of the current device, or null if it has not been prepared.
const PreparedDevice* current_kernels() {
  int32_t device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= kMaxDevices) return nullptr;
  return prepared[device].load(std::memory_order_acquire);
}

// The kernel of a form for the type of args, or null if the device has not been prepared.
const PreparedGrouped* kernel_of(const ExpertGemmArgs& args, GroupedForm form) {
  const PreparedDevice* const kernels = current_kernels();
  if (kernels == nullptr) return nullptr;
  return &kernels->of[weight_format_index(args.targets[0].weight.type)][static_cast<int32_t>(args.act)][static_cast<int32_t>(form)];
}

// Returns whether the device holds a block of a kernel of a single row with its inputs.
bool one_row_fits(const PreparedGrouped& k, const ExpertGemmArgs& args) {
  return args.rows == 1 && args.kind == GemmClass::kDecode && k.tiles_at_once > 0 && args.pairs <= kMostGatedExperts &&
         k.shared_bytes + one_row_bytes(args) <= k.most_shared;
}

cudaError_t launch_kernel(const PreparedGrouped& k, dim3 grid, int32_t shared_bytes, void** arguments, const Stream& on) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(k.kernel.threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = on.stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = on.dependent ? 1 : 0;
  return cudaLaunchKernelExC(&config, k.kernel.function, arguments);
}

}  // namespace

cudaError_t prepare_expert_gemms() {
  static std::mutex mutex;
  int32_t device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  if (device >= kMaxDevices) return cudaErrorInvalidDevice;
  const std::lock_guard<std::mutex> lock(mutex);
  if (prepared[device].load(std::memory_order_acquire) != nullptr) return cudaSuccess;
  static PreparedDevice devices[kMaxDevices];
  const cudaError_t failed = prepare_device(device, devices[device]);
  if (failed != cudaSuccess) return failed;
  prepared[device].store(&devices[device], std::memory_order_release);
  return cudaSuccess;
}

int32_t expert_tile(GemmClass kind, int32_t experts, int32_t pairs) {
  const PreparedDevice* const kernels = current_kernels();
  const auto runs = [&](GroupedForm form) {
    constexpr int32_t f16 = static_cast<int32_t>(Act::kF16);
    return kernels != nullptr && kernels->of[weight_format_index(kQ8_0)][f16][static_cast<int32_t>(form)].tiles_at_once > 0;
  };
  const int32_t average = pairs / experts;
  if (kind == GemmClass::kPrefill) return average >= kLeastWgmmaPairs && runs(GroupedForm::kManyWgmma) ? kManyWgmmaTile : kManyTile;
  if (average >= kLeastDecodeWgmmaPairs && runs(GroupedForm::kSeveralWgmma)) return kDecodeWgmmaTile;
  return average < 1 ? kLeastExpertTile : kMostExpertTile;
}

cudaError_t launch_expert_gemm_as(GroupedForm form, const ExpertGemmArgs& args, const Stream& on) {
  if (!valid(args)) return cudaErrorInvalidValue;
  if (args.pairs == 0) return cudaSuccess;
  if (current_kernels() == nullptr) return cudaErrorInitializationError;
  const PreparedGrouped& k = *kernel_of(args, form);
  if (k.tiles_at_once == 0) return cudaErrorNotSupported;
  GroupedParams p = grouped_params(args);
  void* arguments[] = {&p};
  if (form == GroupedForm::kMany) {
    p.parts = many_rows_parts(args);
    const dim3 grid = many_rows_grid(args, k.kernel.panels / args.count);
    return grid.y > 65535 ? cudaErrorInvalidValue : launch_kernel(k, grid, k.shared_bytes, arguments, on);
  }
  const bool divides = form == GroupedForm::kFew || form == GroupedForm::kFewOne;
  if (!form_suffices(form, args, k.kernel)) return cudaErrorNotSupported;
  // The tiles of a single row have one pair.
  if (divides && args.rows > 1) p.parts = std::max(1, args.tile / k.kernel.tokens);
  const int64_t items = decode_items(args, p.parts, k.kernel.panels / args.count);
  const bool counts = form == GroupedForm::kSeveralWgmma || form == GroupedForm::kManyWgmma;
  if (items > INT32_MAX / 2 || (counts && args.plan.done == nullptr)) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(items, k.tiles_at_once)));
  return launch_kernel(k, grid, k.shared_bytes, arguments, on);
}

cudaError_t launch_expert_gemm(const ExpertGemmArgs& args, const Stream& on) {
  if (!valid(args)) return cudaErrorInvalidValue;
  if (args.pairs == 0) return cudaSuccess;
  if (current_kernels() == nullptr) return cudaErrorInitializationError;
  const auto runs = [&](GroupedForm form) { return kernel_of(args, form)->tiles_at_once > 0; };
  const PreparedGrouped& gated = *kernel_of(args, GroupedForm::kOneGated);
  if (args.count == 2 && one_row_fits(gated, args)) {
    GroupedParams p = grouped_params(args);
    void* arguments[] = {&p};
    const int64_t items = int64_t{args.pairs} * panels_of(args);
    return launch_kernel(gated, dim3(static_cast<unsigned>(std::min<int64_t>(items, gated.tiles_at_once))),
                         gated.shared_bytes + one_row_bytes(args), arguments, on);
  }
  if (args.kind == GemmClass::kPrefill) {
    if (args.tile > kManyTile && runs(GroupedForm::kManyWgmma)) return launch_expert_gemm_as(GroupedForm::kManyWgmma, args, on);
    if (runs(GroupedForm::kMany)) return launch_expert_gemm_as(GroupedForm::kMany, args, on);
  }
  if (eight_rows_suffice(args) && prefers_eight_rows(args) && runs(GroupedForm::kEight))
    return launch_expert_gemm_as(GroupedForm::kEight, args, on);
  if (eight_pairs_suffice(args) && prefers_eight_pairs(args) && runs(GroupedForm::kEightPairs))
    return launch_expert_gemm_as(GroupedForm::kEightPairs, args, on);
  // If no kernel takes whole tiles, or it needs more shared memory than the device has, tiles are divided.
  const bool few = runs(GroupedForm::kFew), several = args.tile <= kMostExpertTile && runs(GroupedForm::kSeveral);
  const bool wgmma = args.tile <= kDecodeWgmmaTile && runs(GroupedForm::kSeveralWgmma);
  if ((several || wgmma) && !(few && prefers_few(args)))
    return launch_expert_gemm_as(several ? GroupedForm::kSeveral : GroupedForm::kSeveralWgmma, args, on);
  return launch_expert_gemm_as(few ? GroupedForm::kFew : GroupedForm::kFewOne, args, on);
}

bool expert_branch_supported(const ExpertGemmArgs& args) {
  if (!valid(args) || args.rows != 1 || args.count != 1 || args.pairs > kMostBranchExperts) return false;
  const PreparedGrouped* const kernel = kernel_of(args, GroupedForm::kOneBranch);
  return kernel != nullptr && one_row_fits(*kernel, args);
}

cudaError_t launch_expert_branch(const ExpertGemmArgs& args, const RowBranch& branch, const Stream& on) {
  if (!expert_branch_supported(args)) return cudaErrorInvalidValue;
  const PreparedGrouped& kernel = *kernel_of(args, GroupedForm::kOneBranch);
  GroupedParams p = grouped_params(args);
  RowBranch b = branch;
  void* arguments[] = {&p, &b};
  const dim3 grid(static_cast<unsigned>(panels_of(args)));
  return launch_kernel(kernel, grid, kernel.shared_bytes + one_row_bytes(args), arguments, on);
}

}  // namespace mr::cuda
