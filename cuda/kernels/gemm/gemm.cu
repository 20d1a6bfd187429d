// gemm: chooses a kernel by the class, the tokens, the weight's shape and the device, and cuts the work into tiles.
#include "kernels/gemm/gemm.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "kernels/gemm/gemv.h"
#include "kernels/gemm/m128_wgmma.h"
#include "kernels/gemm/prefill_wgmma.h"
#include "kernels/gemm/round_times.h"
#include "kernels/gemm/skinny_wgmma.h"
#include "millrace/engine.h"

namespace mr::cuda {
namespace {

struct PreparedKernel {
  GemvKernel kernel;
  int32_t shared_bytes;
  int32_t tiles_at_once;  // blocks that the whole device holds; 0: the kernel does not run here
};

struct PreparedDevice {
  PreparedKernel gemv[kWeightTypeCount][2][kGemvForms];
};

std::atomic<const PreparedDevice*> prepared[kMaxDevices];

GemvKernel find_kernel(int32_t type_index, Act act, GemvForm form) {
  return with_kernel_type(type_index, [&](auto type) { return gemv_kernel<type.value>(act, form); });
}

cudaError_t prepare_device(int32_t device, PreparedDevice& out) {
  int32_t sms = 0, shared = 0;
  cudaError_t error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  for (int32_t t = 0; t < kWeightTypeCount && error == cudaSuccess; ++t) {
    for (int32_t a = 0; a < 2; ++a) {
      for (int32_t form = 0; form < kGemvForms && error == cudaSuccess; ++form) {
        PreparedKernel& k = out.gemv[t][a][form];
        k = {find_kernel(t, static_cast<Act>(a), static_cast<GemvForm>(form)), 0, 0};
        if (k.kernel.function == nullptr) continue;
        cudaFuncAttributes code;
        error = cudaFuncGetAttributes(&code, k.kernel.function);
        if (error != cudaSuccess) continue;
        k.shared_bytes = k.kernel.shared_bytes(code.binaryVersion);
        if (k.shared_bytes > shared) continue;
        error = cudaFuncSetAttribute(k.kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, k.shared_bytes);
        int32_t blocks = 0;
        if (error == cudaSuccess) {
          error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, k.kernel.function, k.kernel.threads,
                                                                static_cast<size_t>(k.shared_bytes));
        }
        k.tiles_at_once = blocks * sms;
      }
    }
  }
  if (error == cudaSuccess) error = prepare_prefill_wgmma(device, sms);
  if (error == cudaSuccess) error = prepare_skinny_wgmma(device);
  return error == cudaSuccess ? prepare_m128_wgmma(device) : error;
}

cudaError_t current(int32_t& device, const PreparedDevice** out) {
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  *out = device < kMaxDevices ? prepared[device].load(std::memory_order_acquire) : nullptr;
  return *out == nullptr ? cudaErrorInitializationError : cudaSuccess;
}

int64_t panels_of(const PackedWeight& weight) { return (weight.rows + kPanelRows - 1) / kPanelRows; }

// type: of the targets; panels: of all targets, or of one target of a pair; groups: of a panel.
const PreparedKernel& choose(const PreparedKernel (&forms)[kGemvForms], const GemmArgs& args, int32_t type, int64_t panels,
                             int32_t groups) {
  const auto of = [&](GemvForm form) -> const PreparedKernel& { return forms[static_cast<int32_t>(form)]; };
  const bool pair = args.epilogue == Epilogue::kSwiGLU;
  const PreparedKernel& one = of(pair ? GemvForm::kPair1 : GemvForm::kSingle1);
  const PreparedKernel& eight = of(pair ? GemvForm::kPair8 : GemvForm::kSingle8);
  const PreparedKernel& registers = of(pair ? GemvForm::kRegistersPair8 : GemvForm::kRegistersSingle8);
  const PreparedKernel& two_panels = of(GemvForm::kDouble8);
  const PreparedKernel& whole_groups = of(GemvForm::kDouble1);
  // Of one token, a tile may have two panels, if as many blocks fit and one weight has tiles for each of them. In stages of whole
  // groups they take a third fewer instructions, but a warp's slice must have several groups to fill the pipeline: pairs of 8B
  // became 3 % faster (4 096 columns), of 1B 1.5 % slower (2 048). Of Q8_0, whose groups are units, the kernel of a pair halves the
  // reductions of one weight, at which all warps meet: the head of 8B takes 4 % less.
  const PreparedKernel& pair_or_two = of(GemvForm::kPair1);
  const bool long_slices = groups >= 2 * kSlices;
  const auto suits = [&](const PreparedKernel& two) {
    const bool many = pair || (args.epilogue != Epilogue::kHeads && panels > 2 * int64_t{two.tiles_at_once});
    return args.tokens == 1 && two.tiles_at_once > 0 && two.tiles_at_once >= one.tiles_at_once && many;
  };
  if (long_slices && suits(whole_groups)) return whole_groups;
  if (type == kQ8_0 && suits(pair_or_two)) return pair_or_two;
  const bool fits = registers.tiles_at_once > 0 && groups <= kRegisterGroups * kSlices && args.tokens <= 8;
  // The register kernel loads all its inputs before its first product, while the async kernel loads tokens as it goes.
  // For one or two tokens that pays only over many tiles, and for one only if another kernel norms it, because this one
  // cannot.
  const bool pays_off = args.tokens > 2 || (args.norm.weight == nullptr && panels > 2 * registers.tiles_at_once);
  if (fits && pays_off) return registers;
  if (args.tokens == 1) return one;
  // Two panels that share a tile's tokens move the tokens half as often, which pays if there are more panels than
  // blocks at once. From five tokens on, a group of tokens is more bytes than a panel's group of Q4_K: 512 a token
  // against 2 304.
  const bool share = !pair && args.epilogue != Epilogue::kHeads && args.tokens > 4 && args.tokens <= 8 && panels > two_panels.tiles_at_once;
  if (share && two_panels.tiles_at_once > 0) return two_panels;
  // If eight tokens need more shared memory than the device has, every token is a tile.
  return eight.tiles_at_once > 0 ? eight : one;
}

// Launches targets [first, last) of one type of kernels.
cudaError_t launch_gemv(const PreparedDevice& device, const GemmArgs& args, int32_t first, int32_t last, const Stream& on) {
  const PackedWeight& weight = args.targets[first].weight;
  const WeightFormat& format = kWeightFormats[weight_format_index(weight.type)];
  const bool pair = args.epilogue == Epilogue::kSwiGLU;
  GemvParams p{};
  p.count = last - first;
  p.pair = pair;
  p.groups = static_cast<int32_t>((weight.cols + kUnitCols * format.units - 1) / (kUnitCols * format.units));
  int64_t all_panels = 0;
  for (int32_t i = first; i < (pair ? first + 1 : last); ++i) all_panels += panels_of(args.targets[i].weight);
  const auto& forms = device.gemv[weight_format_index(weight.type)][static_cast<int32_t>(args.act)];
  const PreparedKernel& prepared_kernel = choose(forms, args, weight.type, all_panels, p.groups);
  const GemvKernel& kernel = prepared_kernel.kernel;
  if (prepared_kernel.tiles_at_once == 0) return cudaErrorNotSupported;

  const int32_t panels_a_tile = pair ? 1 : kernel.panels;
  int64_t tiles = 0;
  for (int32_t i = first; i < last; ++i) {
    const GemmTarget& t = args.targets[i];
    const int64_t panels = panels_of(t.weight);
    p.targets[i - first] = {t.weight.data, t.bias, t.out, t.out_stride, static_cast<int32_t>(t.weight.rows),
                            static_cast<int32_t>(panels), static_cast<int32_t>(tiles), i};
    if (!pair || i == first) tiles += (panels + panels_a_tile - 1) / panels_a_tile;
  }
  p.x = args.x;
  p.x_stride = args.x_stride;
  p.tokens = args.tokens;
  p.cols = static_cast<int32_t>(weight.cols);
  p.panel_bytes = int64_t{p.groups} * format.group_bytes();
  p.token_tiles = (args.tokens + kernel.tokens - 1) / kernel.tokens;
  p.epilogue = args.epilogue;
  p.norm = args.norm;
  p.heads = args.heads;
  p.x_scale = args.x_scale;
  p.pair_share = 1 / args.pair_scale;
  p.gelu = args.gelu ? 1 : 0;
  if (tiles * p.token_tiles > INT32_MAX / 2) return cudaErrorInvalidValue;
  p.items = static_cast<int32_t>(tiles) * p.token_tiles;
  p.item_stride = std::min(p.items, prepared_kernel.tiles_at_once);
  p.even = (p.count == 1 || pair) && p.token_tiles == 1 && p.targets[0].panels % panels_a_tile == 0;
  p.item_bytes = int64_t{p.item_stride} * panels_a_tile * p.panel_bytes;

  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(p.item_stride));
  config.blockDim = dim3(static_cast<unsigned>(kernel.threads));
  config.dynamicSmemBytes = static_cast<size_t>(prepared_kernel.shared_bytes);
  config.stream = on.stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = on.dependent ? 1 : 0;
  void* arguments[] = {&p};
  return cudaLaunchKernelExC(&config, kernel.function, arguments);
}

// Returns up to how many tokens the GEMV kernels are used. Above, the skinny kernels read tokens once for 64 rows, but
// share a tile's columns between two blocks and pay for the reduction. A single token never goes there, because they
// cannot norm it.
int32_t few(int32_t type) {
  switch (type) {
    case kF16:
    case kBF16: return 1;
    case kQ8_0: return 2;
    default: return 8;
  }
}

// Returns whether the prefill class's kernels compute targets [first, last) on a device with wgmma. The class of the row
// decides, and not the rest of the batch, because a row's bits must not depend on its company. A build with MR_FREE_SPLITS
// instead takes the kernel and the K partitions that are expected to be faster for the number of tokens, so its answers depend
// on the batch. It exists to measure what batch invariance costs, and to prove that the tests detect its absence.
bool by_prefill(int32_t device, const GemmArgs& args, int32_t first, int32_t last) {
  if (!MR_FREE_SPLITS) return args.kind == GemmClass::kPrefill;
  if (args.tokens <= 64 || args.tokens > 256) return args.tokens > 256;
  const int64_t decode = std::min(skinny_wgmma_time(device, args, first, last), m128_wgmma_time(device, args, first, last));
  if (decode == INT64_MAX) return true;
  const PrefillShape shape = fastest_prefill_wgmma(device, args, first, last);
  return prefill_wgmma_time(shape, device, args, first, last) / 1000 < decode * args.targets[first].weight.cols / kRoundCols;
}

// Returns whether the kernels of a target run the epilogue kHeads. Skinny kernels store two rows at once.
bool ends_heads(const GemmArgs& args, const GemmTarget& target) {
  if (args.tokens <= few(target.weight.type)) return true;
  if (!skinny_ends_heads(args.tokens)) return false;
  int32_t device = 0;
  const PreparedDevice* prepared_device = nullptr;
  const bool ready = current(device, &prepared_device) == cudaSuccess && skinny_wgmma_available(device, target.weight.type, args.act);
  return ready && reinterpret_cast<uintptr_t>(target.out) % 4 == 0 && target.out_stride % 2 == 0;
}

bool valid(const GemmArgs& args) {
  if (args.count < 1 || args.count > kGemmTargets || args.tokens < 0 || args.x_stride % 8 != 0) return false;
  if ((reinterpret_cast<uintptr_t>(args.x) | reinterpret_cast<uintptr_t>(args.input_sums)) % 16 != 0) return false;
  for (int32_t i = 0; i < args.count; ++i) {
    const PackedWeight& w = args.targets[i].weight;
    if (!weight_supported(w.type, w.rows, w.cols) || w.data == nullptr || w.cols != args.targets[0].weight.cols) return false;
    if (args.act != Act::kF16 && quantised(w.type)) return false;
  }
  if (args.norm.weight != nullptr) {
    const uintptr_t either = reinterpret_cast<uintptr_t>(args.norm.x) | reinterpret_cast<uintptr_t>(args.norm.weight);
    if (args.norm.x == nullptr || either % 16 != 0 || !gemm_fuses_norm(args)) return false;
  }
  if (args.epilogue == Epilogue::kHeads) return gemm_fuses_heads(args);
  if (args.epilogue != Epilogue::kSwiGLU) return true;
  return args.count == 2 && swiglu_supported(args.targets[0].weight, args.targets[1].weight);
}

}  // namespace

bool gemm_fuses_norm(const GemmArgs& args) {
  return args.kind == GemmClass::kDecode && args.tokens == 1 && args.targets[0].weight.cols <= kMostNormed &&
         args.targets[0].weight.cols % 4 == 0;
}

bool gemm_fuses_heads(const GemmArgs& args) {
  if (args.count != 3 || args.kind != GemmClass::kDecode || args.tokens < 1) return false;
  const GemmHeads& heads = args.heads;
  const KvLayout& layout = heads.layout;
  const int32_t dim = layout.head_dim;
  // Every padded width is a whole number of panels.
  if (layout.kv != Kv::kAct || dim < 1 || dim != layout.padded_dim || dim != pad_head_dim(dim) || layout.block_size < 1) return false;
  if (heads.rope_style != MR_ROPE_NORM || heads.rope_dims < 0 || heads.rope_dims % 2 != 0 || heads.rope_dims > dim) return false;
  const int64_t kv_rows = int64_t{layout.kv_heads} * dim;
  if (args.targets[0].weight.rows % dim != 0) return false;
  if (args.targets[1].weight.rows != kv_rows || args.targets[2].weight.rows != kv_rows) return false;
  return std::all_of(args.targets, args.targets + args.count, [&](const GemmTarget& target) { return ends_heads(args, target); });
}

bool gemm_reads_input_sums(const GemmArgs& args) {
  int32_t device = 0;
  const PreparedDevice* prepared_device = nullptr;
  if (args.input_sums == nullptr || args.tokens <= kMostUnsummed) return false;
  if (current(device, &prepared_device) != cudaSuccess || !wgmma_available(device)) return false;
  for (int32_t i = 0; i < args.count; ++i)
    if (reads_input_sums(args.targets[i].weight.type) && !by_prefill(device, args, i, i + 1)) return true;
  return false;
}

bool swiglu_supported(const PackedWeight& gate, const PackedWeight& up) {
  return gate.type == up.type && gate.rows == up.rows && gate.cols == up.cols;
}

cudaError_t prepare_gemms() {
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

int32_t prefill_grain(int64_t rows) {
  int32_t device = 0;
  const PreparedDevice* prepared_device = nullptr;
  return current(device, &prepared_device) == cudaSuccess && wgmma_available(device) ? prefill_grain(device, rows) : 0;
}

cudaError_t launch_gemm(const GemmArgs& args, const Stream& on) {
  if (!valid(args)) return cudaErrorInvalidValue;
  if (args.tokens == 0) return cudaSuccess;
  int32_t device = 0;
  const PreparedDevice* prepared_device = nullptr;
  cudaError_t error = current(device, &prepared_device);
  const bool wgmma = error == cudaSuccess && wgmma_available(device);
  // Consecutive targets of one type of kernels share a launch.
  for (int32_t first = 0, last; first < args.count && error == cudaSuccess; first = last) {
    last = first + 1;
    while (last < args.count && kernel_type(args.targets[last].weight.type) == kernel_type(args.targets[first].weight.type)) ++last;
    if (wgmma && by_prefill(device, args, first, last)) {
      error = launch_prefill_wgmma(device, args, first, last, on);
    } else if (m128_wgmma_faster(device, args, first, last)) {
      error = launch_m128_wgmma(device, args, first, last, on);
    } else if (args.tokens > few(args.targets[first].weight.type) &&
               skinny_wgmma_available(device, args.targets[first].weight.type, args.act)) {
      error = launch_skinny_wgmma(device, args, first, last, on);
    } else {
      error = launch_gemv(*prepared_device, args, first, last, on);
    }
  }
  return error;
}

}  // namespace mr::cuda
