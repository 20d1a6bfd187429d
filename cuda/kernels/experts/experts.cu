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
  int32_t shared_bytes;
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
    return form < GroupedForm::kManySingle ? few_rows_kernel<type>(act, form) : many_rows_kernel<type>(act, form);
  } else {
    return {};
  }
}

cudaError_t prepare(PreparedGrouped& k, int32_t sms, int32_t shared) {
  cudaFuncAttributes code;
  cudaError_t error = cudaFuncGetAttributes(&code, k.kernel.function);
  if (error != cudaSuccess) return error;
  k.shared_bytes = k.kernel.shared_bytes(code.binaryVersion);
  if (k.shared_bytes > shared) return cudaSuccess;
  error = cudaFuncSetAttribute(k.kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, k.shared_bytes);
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
        k = {find_kernel(t, static_cast<Act>(a), static_cast<GroupedForm>(form)), 0, 0};
        if (k.kernel.function != nullptr) error = prepare(k, sms, shared);
      }
    }
  }
  return error;
}

bool valid(const ExpertGemmArgs& args) {
  const PackedWeight& first = args.targets[0].weight;
  if (args.count < 1 || args.count > 2 || args.rows < 0 || args.pairs < 0 || args.experts < 1 || args.x_share < 1) return false;
  if (args.x_stride % 8 != 0 || args.out_stride % 2 != 0 || reinterpret_cast<uintptr_t>(args.x) % 16 != 0) return false;
  if (!weight_supported(first.type, first.rows, first.cols) || first.data == nullptr) return false;
  return args.count == 1 || (args.targets[1].weight.data != nullptr && swiglu_supported(first, args.targets[1].weight));
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

cudaError_t launch_expert_gemm(const ExpertGemmArgs& args, const Stream& on) {
  if (!valid(args)) return cudaErrorInvalidValue;
  if (args.pairs == 0) return cudaSuccess;
  int32_t device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  const PreparedDevice* const kernels = device < kMaxDevices ? prepared[device].load(std::memory_order_acquire) : nullptr;
  if (kernels == nullptr) return cudaErrorInitializationError;
  const int32_t type = weight_format_index(args.targets[0].weight.type);
  const bool pair = args.count == 2, one_row = args.rows == 1;
  const auto of = [&](GroupedForm single, GroupedForm both) -> const PreparedGrouped& {
    return kernels->of[type][static_cast<int32_t>(args.act)][static_cast<int32_t>(pair ? both : single)];
  };
  const PreparedGrouped& many = of(GroupedForm::kManySingle, GroupedForm::kManyPair);
  const PreparedGrouped& one = of(GroupedForm::kFewSingle1, GroupedForm::kFewPair1);
  const PreparedGrouped& eight = of(GroupedForm::kFewSingle8, GroupedForm::kFewPair8);
  const bool by_many = args.kind == GemmClass::kPrefill && many.tiles_at_once > 0;
  // If tiles of eight need more shared memory than the device has, every pair is a tile.
  const PreparedGrouped& few = one.tiles_at_once > 0 && (one_row || eight.tiles_at_once == 0) ? one : eight;
  const PreparedGrouped& chosen = by_many ? many : few;
  if (chosen.tiles_at_once == 0) return cudaErrorNotSupported;

  GroupedParams p = grouped_params(args);
  dim3 grid;
  if (by_many) {
    grid = many_rows_grid(args, chosen.kernel.panels);
    if (grid.y > 65535) return cudaErrorInvalidValue;
  } else {
    p.parts = one_row ? 1 : expert_tile(args.kind) / chosen.kernel.tokens;
    const int64_t items = few_rows_items(args, p.parts);
    if (items > INT32_MAX / 2) return cudaErrorInvalidValue;
    grid = dim3(static_cast<unsigned>(std::min<int64_t>(items, chosen.tiles_at_once)));
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(chosen.kernel.threads));
  config.dynamicSmemBytes = static_cast<size_t>(chosen.shared_bytes);
  config.stream = on.stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = on.dependent ? 1 : 0;
  void* arguments[] = {&p};
  return cudaLaunchKernelExC(&config, chosen.kernel.function, arguments);
}

}  // namespace mr::cuda
