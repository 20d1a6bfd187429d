// product: chooses among the kernels of a class by the tokens, the weight's shape and the device, and cuts the work into
// tiles.
#include "kernels/linear/product.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "kernels/linear/decode.h"
#include "kernels/linear/prefill.h"
#include "kernels/linear/tall.h"
#include "kernels/linear/wide.h"
#include "millrace/engine.h"

namespace mr::cuda {
namespace {

struct PreparedKernel {
  DecodeKernel kernel;
  int32_t shared_bytes;
  int32_t tiles_at_once;  // blocks that the whole device holds; 0: does not run here
};

struct PreparedDevice {
  PreparedKernel decode[kWeightTypeCount][2][kDecodeForms];
};

std::atomic<const PreparedDevice*> prepared[kMaxDevices];

template <int32_t i = 0>
DecodeKernel find_kernel(int32_t type_index, Act act, DecodeForm form) {
  if constexpr (i < kWeightTypeCount) {
    return i == type_index ? decode_kernel<kWeightFormats[i].type>(act, form) : find_kernel<i + 1>(type_index, act, form);
  } else {
    return {};
  }
}

cudaError_t prepare_device(int32_t device, PreparedDevice& out) {
  int32_t sms = 0, shared = 0;
  cudaError_t error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  for (int32_t t = 0; t < kWeightTypeCount && error == cudaSuccess; ++t) {
    for (int32_t a = 0; a < 2; ++a) {
      for (int32_t form = 0; form < kDecodeForms && error == cudaSuccess; ++form) {
        PreparedKernel& k = out.decode[t][a][form];
        k = {find_kernel(t, static_cast<Act>(a), static_cast<DecodeForm>(form)), 0, 0};
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
  if (error == cudaSuccess) error = prepare_prefill(device, sms);
  if (error == cudaSuccess) error = prepare_wide(device);
  return error == cudaSuccess ? prepare_tall(device) : error;
}

cudaError_t current(int32_t& device, const PreparedDevice** out) {
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  *out = device < kMaxDevices ? prepared[device].load(std::memory_order_acquire) : nullptr;
  return *out == nullptr ? cudaErrorInitializationError : cudaSuccess;
}

int64_t panels_of(const PackedWeight& weight) { return (weight.rows + kPanelRows - 1) / kPanelRows; }

// panels: of all targets, of a pair those of one; groups: of a panel.
const PreparedKernel& choose(const PreparedKernel (&forms)[kDecodeForms], const ProductArgs& args, int64_t panels, int32_t groups) {
  const auto of = [&](DecodeForm form) -> const PreparedKernel& { return forms[static_cast<int32_t>(form)]; };
  const bool pair = args.end == ProductEnd::kSwiGLU;
  const PreparedKernel& one = of(pair ? DecodeForm::kPair1 : DecodeForm::kSingle1);
  const PreparedKernel& eight = of(pair ? DecodeForm::kPair8 : DecodeForm::kSingle8);
  const PreparedKernel& kept = of(pair ? DecodeForm::kKeptPair8 : DecodeForm::kKeptSingle8);
  const PreparedKernel& two_panels = of(DecodeForm::kDouble8);
  const bool fits = kept.tiles_at_once > 0 && groups <= kKeptGroups * kSegments && args.tokens <= 8;
  // A block loads what it keeps before its first product, where rings ask for tokens as they go: one or two tokens are kept over many
  // tiles alone, and one only if another kernel norms it, since the kept kernel norms nothing.
  const bool keeps = args.tokens > 2 || (args.norm.weight == nullptr && panels > 2 * kept.tiles_at_once);
  if (fits && keeps) return kept;
  if (args.tokens == 1) return one;
  // Tokens of one tile that two panels share move half as often, where there are more panels than blocks at once. From five tokens on a
  // group of theirs is more bytes than a panel's group of Q4_K: 512 a token, and 2 304.
  const bool share = !pair && args.end != ProductEnd::kHeads && args.tokens > 4 && args.tokens <= 8 && panels > two_panels.tiles_at_once;
  if (share && two_panels.tiles_at_once > 0) return two_panels;
  // Eight tokens may want more shared memory than a device has; then every token is a tile.
  return eight.tiles_at_once > 0 ? eight : one;
}

// Targets [first, last) of one type.
cudaError_t launch_decode(const PreparedDevice& device, const ProductArgs& args, int32_t first, int32_t last, const Stream& on) {
  const PackedWeight& weight = args.targets[first].weight;
  const WeightFormat& format = kWeightFormats[weight_format_index(weight.type)];
  const bool pair = args.end == ProductEnd::kSwiGLU;
  DecodeParams p{};
  p.count = last - first;
  p.pair = pair;
  p.groups = static_cast<int32_t>((weight.cols + kUnitCols * format.units - 1) / (kUnitCols * format.units));
  int64_t all_panels = 0;
  for (int32_t i = first; i < (pair ? first + 1 : last); ++i) all_panels += panels_of(args.targets[i].weight);
  const auto& forms = device.decode[weight_format_index(weight.type)][static_cast<int32_t>(args.act)];
  const PreparedKernel& prepared_kernel = choose(forms, args, all_panels, p.groups);
  const DecodeKernel& kernel = prepared_kernel.kernel;
  if (prepared_kernel.tiles_at_once == 0) return cudaErrorNotSupported;

  const int32_t panels_a_tile = pair ? 1 : kernel.panels;
  int64_t tiles = 0;
  for (int32_t i = first; i < last; ++i) {
    const ProductTarget& t = args.targets[i];
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
  p.end = args.end;
  p.norm = args.norm;
  p.heads = args.heads;
  p.x_scale = args.x_scale;
  p.pair_share = 1 / args.pair_scale;
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

// Up to this many tokens the kernels of at most eight are taken, and above it the wide ones, which read tokens once for 64 rows, but share
// a tile's columns between two blocks, whose sums are joined. One token is never theirs: they do not norm it (product_norms).
int32_t few(int32_t type) {
  switch (type) {
    case kF16:
    case kBF16: return 1;
    case kQ8_0: return 2;
    default: return 8;
  }
}

// Whether the prefill class's kernels compute targets of a type. A row's class decides, whatever the company: that is sameness.
// A build with MR_FREE_SPLITS takes the kernels that are faster for so many tokens, in whose order of sums the answers then
// depend on the batch: it is there to measure what sameness costs (bench/results/2026-11-22-NVIDIA-H200/served.txt), and to be caught.
// Products of a step of 8B by Q8_0 and Q4_K take as long in both classes between 64 and 128 tokens, where tiles have 64 rows, and by BF16
// less in the decode class to 128 at least (bench/results/2026-11-26-NVIDIA-H200/products.txt).
bool by_prefill(const ProductArgs& args, int32_t type) {
  if (!MR_FREE_SPLITS) return args.kind == ProductClass::kPrefill;
  const bool unpacked = type == kF32 || type == kF16 || type == kBF16;
  return args.tokens > (unpacked ? 256 : 96);
}

bool valid(const ProductArgs& args) {
  if (args.count < 1 || args.count > 3 || args.tokens < 0 || args.x_stride % 8 != 0) return false;
  if ((reinterpret_cast<uintptr_t>(args.x) | reinterpret_cast<uintptr_t>(args.terms)) % 16 != 0) return false;
  for (int32_t i = 0; i < args.count; ++i) {
    const PackedWeight& w = args.targets[i].weight;
    if (!weight_supported(w.type, w.rows, w.cols) || w.data == nullptr || w.cols != args.targets[0].weight.cols) return false;
  }
  if (args.norm.weight != nullptr) {
    const uintptr_t either = reinterpret_cast<uintptr_t>(args.norm.x) | reinterpret_cast<uintptr_t>(args.norm.weight);
    if (args.norm.x == nullptr || either % 16 != 0 || !product_norms(args)) return false;
  }
  if (args.end == ProductEnd::kHeads) return product_ends_heads(args);
  if (args.end != ProductEnd::kSwiGLU) return true;
  return args.count == 2 && swiglu_supported(args.targets[0].weight, args.targets[1].weight);
}

}  // namespace

bool product_norms(const ProductArgs& args) {
  return args.kind == ProductClass::kDecode && args.tokens == 1 && args.targets[0].weight.cols <= kMostNormed &&
         args.targets[0].weight.cols % 4 == 0;
}

bool product_ends_heads(const ProductArgs& args) {
  if (args.count != 3 || args.kind != ProductClass::kDecode || args.tokens < 1 || args.tokens > 8) return false;
  for (const ProductTarget& target : args.targets)
    if (args.tokens > few(target.weight.type)) return false;
  const ProductHeads& heads = args.heads;
  const KvLayout& layout = heads.layout;
  const int32_t dim = layout.head_dim;
  // Every padded width is whole panels.
  if (layout.kv != Kv::kAct || dim < 1 || dim != layout.padded_dim || dim != pad_head_dim(dim) || layout.block_size < 1) return false;
  if (heads.rope_style != MR_ROPE_NORM || heads.rope_dims < 0 || heads.rope_dims % 2 != 0 || heads.rope_dims > dim) return false;
  const int64_t kv_rows = int64_t{layout.kv_heads} * dim;
  return args.targets[0].weight.rows % dim == 0 && args.targets[1].weight.rows == kv_rows && args.targets[2].weight.rows == kv_rows;
}

bool swiglu_supported(const PackedWeight& gate, const PackedWeight& up) {
  return gate.type == up.type && gate.rows == up.rows && gate.cols == up.cols;
}

cudaError_t prepare_products() {
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
  return current(device, &prepared_device) == cudaSuccess && prefill_available(device) ? prefill_grain(device, rows) : 0;
}

cudaError_t launch_product(const ProductArgs& args, const Stream& on) {
  if (!valid(args)) return cudaErrorInvalidValue;
  if (args.tokens == 0) return cudaSuccess;
  int32_t device = 0;
  const PreparedDevice* prepared_device = nullptr;
  cudaError_t error = current(device, &prepared_device);
  const bool wgmma = error == cudaSuccess && prefill_available(device);
  // Neighbours of one type share a launch.
  for (int32_t first = 0, last; first < args.count && error == cudaSuccess; first = last) {
    last = first + 1;
    while (last < args.count && args.targets[last].weight.type == args.targets[first].weight.type) ++last;
    if (wgmma && by_prefill(args, args.targets[first].weight.type)) {
      error = launch_prefill(device, args, first, last, on);
    } else if (tall_faster(device, args, first, last)) {
      error = launch_tall(device, args, first, last, on);
    } else if (args.tokens > few(args.targets[first].weight.type) && wide_available(device, args.targets[first].weight.type, args.act)) {
      error = launch_wide(device, args, first, last, on);
    } else {
      error = launch_decode(*prepared_device, args, first, last, on);
    }
  }
  return error;
}

}  // namespace mr::cuda
