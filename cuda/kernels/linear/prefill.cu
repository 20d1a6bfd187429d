// prefill: the prefill kernels' launches: tensor maps of the tokens, and the tile that fills the device best.
#include "kernels/linear/prefill.h"

#include <algorithm>

#if MR_HOPPER
#include <cuda.h>
#include <cudaTypedefs.h>

#include "kernels/linear/cluster_launch.h"
#include "kernels/linear/prefill_kernel.cuh"
#include "kernels/linear/terms.h"
#endif

namespace mr::cuda {

#if MR_HOPPER
namespace {

constexpr int32_t kMaxDevices = 64;

struct PreparedPrefill {
  PrefillKernel kernels[kWeightTypeCount][2][kPrefillForms];
  int32_t clusters = 0;  // at once; 0: no wgmma here
};

PreparedPrefill prepared[kMaxDevices];
PFN_cuTensorMapEncodeTiled_v12000 encode_tensor_map = nullptr;

template <int32_t i = 0>
PrefillKernel find_kernel(int32_t type_index, Act act, int32_t form) {
  if constexpr (i < kWeightTypeCount) {
    return i == type_index ? prefill_kernel<kWeightFormats[i].type>(act, form) : find_kernel<i + 1>(type_index, act, form);
  } else {
    return {};
  }
}

}  // namespace

cudaError_t map_tokens(const ProductArgs& args, int32_t rows_a_box, void* map) {
  const cuuint64_t size[2] = {static_cast<cuuint64_t>(args.targets[0].weight.cols), static_cast<cuuint64_t>(args.tokens)};
  const cuuint64_t stride[1] = {static_cast<cuuint64_t>(args.x_stride) * 2};
  const cuuint32_t box[2] = {kUnitCols, static_cast<cuuint32_t>(rows_a_box)}, step[2] = {1, 1};
  const CUtensorMapDataType type = args.act == Act::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const CUresult result = encode_tensor_map(static_cast<CUtensorMap*>(map), type, 2, const_cast<void*>(args.x), size, stride, box, step,
                                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t map_terms(const void* terms, int32_t groups, int32_t tokens, int32_t rows_a_box, void* map) {
  constexpr cuuint32_t kElements = kTermBytes / 2;
  const cuuint64_t size[2] = {cuuint64_t{kElements} * static_cast<cuuint64_t>(groups), static_cast<cuuint64_t>(tokens)};
  const cuuint64_t stride[1] = {cuuint64_t{kTermBytes} * static_cast<cuuint64_t>(groups)};
  const cuuint32_t box[2] = {kElements, static_cast<cuuint32_t>(rows_a_box)}, step[2] = {1, 1};
  const CUresult result = encode_tensor_map(static_cast<CUtensorMap*>(map), CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(terms),
                                            size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_64B,
                                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t map_panels(const DecodeTarget& target, int64_t panel_bytes, int32_t group, void* map) {
  const cuuint64_t size[2] = {static_cast<cuuint64_t>(panel_bytes) / 8, static_cast<cuuint64_t>(target.panels)};
  const cuuint64_t stride[1] = {static_cast<cuuint64_t>(panel_bytes)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(group) / 8, 4}, step[2] = {1, 1};
  const CUresult result = encode_tensor_map(static_cast<CUtensorMap*>(map), CU_TENSOR_MAP_DATA_TYPE_UINT64, 2,
                                            const_cast<uint8_t*>(target.data), size, stride, box, step,
                                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

PrefillParams prefill_params(const ProductArgs& args, int32_t first, int32_t last, int32_t panels_of_tile) {
  const PackedWeight& weight = args.targets[first].weight;
  const WeightFormat& format = kWeightFormats[weight_format_index(weight.type)];
  PrefillParams p{};
  p.count = last - first;
  p.pair = args.end == ProductEnd::kSwiGLU;
  p.tokens = args.tokens;
  p.units = static_cast<int32_t>((weight.cols + kUnitCols - 1) / kUnitCols);
  p.groups = (p.units + format.units - 1) / format.units;
  p.panel_bytes = int64_t{p.groups} * format.group_bytes();
  p.end = args.end;
  p.x_scale = args.x_scale;
  p.pair_share = 1 / args.pair_scale;
  const int32_t panels_a_tile = p.pair ? panels_of_tile / 2 : panels_of_tile;
  for (int32_t i = first; i < last; ++i) {
    const ProductTarget& t = args.targets[i];
    const int32_t panels = static_cast<int32_t>((t.weight.rows + kPanelRows - 1) / kPanelRows);
    p.targets[i - first] = {t.weight.data, t.bias, t.out, t.out_stride, static_cast<int32_t>(t.weight.rows), panels, p.tiles};
    if (!p.pair || i == first) p.tiles += (panels + panels_a_tile - 1) / panels_a_tile;
  }
  return p;
}

cudaError_t prepare_prefill(int32_t device, int32_t sms) {
  int32_t major = 0, minor = 0;
  cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  if (error != cudaSuccess || major != 9 || minor != 0) return error;
  cudaDriverEntryPointQueryResult found;
  void* entry = nullptr;
#if CUDART_VERSION >= 12050
  error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
#else
  error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &entry, cudaEnableDefault, &found);
#endif
  if (error != cudaSuccess) return error;
  if (found != cudaDriverEntryPointSuccess) return cudaErrorNotSupported;
  encode_tensor_map = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
  PreparedPrefill& out = prepared[device];
  for (int32_t t = 0; t < kWeightTypeCount; ++t) {
    for (int32_t a = 0; a < 2; ++a) {
      for (int32_t form = 0; form < kPrefillForms; ++form) {
        PrefillKernel& k = out.kernels[t][a][form] = find_kernel(t, static_cast<Act>(a), form);
        error = cudaFuncSetAttribute(k.function, cudaFuncAttributeMaxDynamicSharedMemorySize, k.shared_bytes);
        if (error != cudaSuccess) return error;
      }
    }
  }
  out.clusters = sms / kPrefillCluster;
  return cudaSuccess;
}

bool prefill_available(int32_t device) { return prepared[device].clusters > 0; }

int32_t prefill_grain(int32_t device, int64_t rows) {
  constexpr int64_t kRowsAPair = int64_t{kPrefillCluster} * kPrefillRows;
  const int64_t row_pairs = std::max<int64_t>((rows + kRowsAPair - 1) / kRowsAPair, 1);
  return static_cast<int32_t>(prepared[device].clusters / row_pairs * kWidestTile);
}

cudaError_t launch_prefill(int32_t device, const ProductArgs& args, int32_t first, int32_t last, const Stream& on) {
  const PreparedPrefill& on_device = prepared[device];
  const PackedWeight& weight = args.targets[first].weight;
  const int32_t type = weight_format_index(weight.type);
  PrefillParams p = prefill_params(args, first, last, kPrefillRows / kPanelRows);
  p.row_pairs = (p.tiles + kPrefillCluster - 1) / kPrefillCluster;
  p.band = std::min(p.row_pairs, 8);

  // The tile for which rounds of clusters times the time of one are least; a tile costs about 40 tokens more than it has.
  int32_t form = 0;
  int64_t least = INT64_MAX;
  for (int32_t i = 0; i < kPrefillForms; ++i) {
    const int32_t tokens = on_device.kernels[type][static_cast<int32_t>(args.act)][i].tokens;
    const int64_t items = int64_t{p.row_pairs} * ((args.tokens + tokens - 1) / tokens);
    const int64_t cost = (items + on_device.clusters - 1) / on_device.clusters * (tokens + 40);
    if (cost >= least) continue;
    least = cost;
    form = i;
  }
  const PrefillKernel& kernel = on_device.kernels[type][static_cast<int32_t>(args.act)][form];
  p.token_tiles = (args.tokens + kernel.tokens - 1) / kernel.tokens;
  if (int64_t{p.row_pairs} * p.token_tiles > INT32_MAX / 2) return cudaErrorInvalidValue;
  p.items = p.row_pairs * p.token_tiles;
  p.item_stride = std::min(p.items, on_device.clusters);
  PrefillMaps maps{};
  cudaError_t error = map_tokens(args, kernel.tokens / kPrefillCluster, &maps.tokens);
  for (int32_t i = 0; i < p.count && kernel.boxed && error == cudaSuccess; ++i)
    error = map_panels(p.targets[i], p.panel_bytes, 2048, &maps.weights[i]);
  if (error != cudaSuccess) return error;
  return ClusterLaunch(kernel, p.item_stride, kPrefillCluster, on).run(p, maps);
}

#else

cudaError_t prepare_prefill(int32_t, int32_t) { return cudaSuccess; }
bool prefill_available(int32_t) { return false; }
int32_t prefill_grain(int32_t, int64_t) { return 0; }
cudaError_t launch_prefill(int32_t, const ProductArgs&, int32_t, int32_t, const Stream&) { return cudaErrorNotSupported; }

#endif

}  // namespace mr::cuda
