// prefill_wgmma: tensor maps, the launches of the prefill kernels, and the cost model that picks the shape of tile and
// cluster.
#include "kernels/gemm/prefill_wgmma.h"

#include <algorithm>

#if MR_HOPPER
#include "kernels/gemm/cluster_launch.h"
#include "kernels/gemm/input_sums.h"
#include "kernels/gemm/prefill_wgmma_pipeline.cuh"
#include "kernels/tensor_map.h"
#endif

namespace mr::cuda {

#if MR_HOPPER
namespace {

struct PreparedPrefill {
  WgmmaKernel kernels[kWeightTypeCount][2][kPrefillForms];
  int32_t clusters[kPrefillMostBlocks + 1] = {};  // held at once, by blocks of a cluster; an SM holds one block
  bool available = false;                         // the device has wgmma
};

PreparedPrefill prepared[kMaxDevices];
PFN_cuTensorMapEncodeTiled_v12000 encode_tensor_map = nullptr;

WgmmaKernel find_kernel(int32_t type_index, Act act, int32_t form) {
  return with_kernel_type(type_index, [&](auto type) { return prefill_wgmma_kernel<type.value>(act, form); });
}

int64_t divided(int64_t n, int64_t by) { return (n + by - 1) / by; }

// Cost model of a block's tile, in picoseconds. A unit of 64 inputs costs the slowest of four things plus a constant:
// the products, receiving the bytes, the L2 cache serving all blocks, or making fragments of the weights and handing
// them over. Measured on an H100 with tiles on all 132 SMs in clusters of two: units of 128 rows by 128 tokens took
// 0.42 us for bf16 (bound by L2) and 0.50 for q4_k, by 256 tokens 0.79 (bound by the tensor cores) and 0.80, and of 64
// rows by 64 and 128 tokens of q4_k 0.32 and 0.37. An SM receives 92 GB/s, as m128_wgmma_kernel.cuh shows.
constexpr int64_t kMultiply = 22;      // for a row and token
constexpr int64_t kReceive = 11;       // for a byte
constexpr int64_t kShare = 112;        // for a thousand bytes
constexpr int64_t kTile = 2'500'000;   // for a tile, in addition to its units
constexpr int64_t kBehind = 3'000'000;  // for a partition that waits for the one before it in another block

// Unpacking is the cost of making fragments: copied weights, and weights that are scaled and rounded.
struct Unpacking {
  int64_t row, token, turn;
};
constexpr Unpacking kNumbers{700, 0, 60'000}, kQuantised{2'400, 900, 90'000};

// type: an index of kWeightFormats.
int64_t tile_time(int32_t type, const PrefillShape& shape, int64_t units, int64_t blocks) {
  const auto [rows, tokens] = kPrefillFormList[shape.form];
  const WeightFormat& format = kWeightFormats[type];
  const int64_t weight_bytes = int64_t{format.group_bytes()} / format.units * (rows / kPanelRows);
  const int64_t token_bytes = int64_t{tokens} * kUnitCols * 2;
  const int64_t asked = weight_bytes / shape.cluster.tokens + token_bytes / shape.cluster.rows;
  const Unpacking& unpacking = quantised(kWeightFormats[type].type) ? kQuantised : kNumbers;
  const int64_t slowest = std::max({kMultiply * rows * tokens, kReceive * (weight_bytes + token_bytes), kShare * blocks * asked / 1000,
                                    unpacking.row * rows + unpacking.token * tokens});
  return units * (slowest + unpacking.turn) + kTile;
}

void set_partitions(WgmmaParams& p, int32_t partitions) {
  p.partitions = partitions;
  p.partition_share = (uint32_t{1} << 31) / static_cast<uint32_t>(partitions) + 1;
}

// Sets the cluster grid of a shape, p.row_clusters by p.token_tiles, and its partitions.
void lay_out(const PrefillShape& shape, WgmmaParams& p) {
  if (shape.partitions > 0) set_partitions(p, shape.partitions);
  const auto [rows, tokens] = kPrefillFormList[shape.form];
  p.row_blocks = shape.cluster.rows;
  p.token_blocks = shape.cluster.tokens;
  p.row_clusters = static_cast<int32_t>(divided(p.tiles, p.row_blocks));
  p.token_tiles = static_cast<int32_t>(divided(divided(p.tokens, tokens), p.token_blocks));
}

// Returns how many items of a laid out GEMM are whole. If a pair's last round of the widest tiles would occupy at most
// half of the clusters, it is cut into halves, which all clusters share.
int64_t whole_items(const PrefillShape& shape, const WgmmaParams& p, int64_t clusters) {
  const int64_t items = int64_t{p.row_clusters} * p.token_tiles, last = items % clusters;
  const bool halves = p.pair && shape.form == kWidestForm && items > clusters && 2 * last <= clusters;
  return halves ? items - last : items;
}

// Returns whether the K partitions of all tiles fit the clusters that the device holds at once.
bool concurrent(const WgmmaParams& p, int64_t clusters) {
  return p.partitions > 1 && int64_t{p.row_clusters} * p.token_tiles * p.partitions <= clusters;
}

// Estimates the rounds of tiles of a shape, in picoseconds; `p` must be of the shape's rows.
int64_t gemm_time(const PreparedPrefill& on_device, int32_t type, Act act, const PrefillShape& shape, WgmmaParams& p) {
  const int64_t clusters = on_device.clusters[shape.cluster.blocks()];
  if (clusters == 0 || on_device.kernels[type][static_cast<int32_t>(act)][shape.form].function == nullptr) return INT64_MAX;
  lay_out(shape, p);
  const int64_t items = int64_t{p.row_clusters} * p.token_tiles, whole = whole_items(shape, p, clusters), more = p.partitions - 1;
  const int64_t blocks = std::min(items, clusters) * shape.cluster.blocks();
  if (concurrent(p, clusters)) return tile_time(type, shape, divided(p.units, p.partitions), blocks * p.partitions) + more * kBehind;
  const int64_t rounds = divided(whole, clusters) * (tile_time(type, shape, p.units, blocks) + more * kTile);
  return whole == items ? rounds : rounds + tile_time(type, {kHalfForm, shape.cluster}, p.units, blocks);
}

}  // namespace

int64_t prefill_wgmma_time(const PrefillShape& shape, int32_t device, const GemmArgs& args, int32_t first, int32_t last) {
  WgmmaParams p = wgmma_params(args, first, last, kPrefillFormList[shape.form].rows / kPanelRows);
  return gemm_time(prepared[device], weight_format_index(args.targets[first].weight.type), args.act, shape, p);
}

PrefillShape fastest_prefill_wgmma(int32_t device, const GemmArgs& args, int32_t first, int32_t last) {
  const int32_t type = weight_format_index(args.targets[first].weight.type);
  PrefillShape best{};
  int64_t least = INT64_MAX;
  WgmmaParams p{};
  for (int32_t form = 0; form < kPrefillForms; ++form) {
    const int32_t rows = kPrefillFormList[form].rows;
    if (form == 0 || rows != kPrefillFormList[form - 1].rows) p = wgmma_params(args, first, last, rows / kPanelRows);
    for (const PrefillCluster& cluster : kPrefillClusters) {
      // A build that is free tries partitions of at least five groups, which are longer than the delay of an announcement.
      const bool free = MR_FREE_SPLITS && args.epilogue == Epilogue::kAddF32 && args.semaphores != nullptr;
      for (int32_t partitions = free ? 1 : 0; partitions <= (free ? std::max(p.units / kGroupUnits / 5, 1) : 0); ++partitions) {
        const PrefillShape shape{form, cluster, partitions};
        const int64_t time = gemm_time(prepared[device], type, args.act, shape, p);
        if (time >= least) continue;
        least = time;
        best = shape;
      }
    }
  }
  return best;
}

cudaError_t map_tokens(const GemmArgs& args, int32_t rows_a_box, void* map) {
  const cuuint64_t size[2] = {static_cast<cuuint64_t>(args.targets[0].weight.cols), static_cast<cuuint64_t>(args.tokens)};
  const cuuint64_t stride[1] = {static_cast<cuuint64_t>(args.x_stride) * 2};
  const cuuint32_t box[2] = {kUnitCols, static_cast<cuuint32_t>(rows_a_box)}, step[2] = {1, 1};
  const CUtensorMapDataType type = args.act == Act::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const CUresult result = encode_tensor_map(static_cast<CUtensorMap*>(map), type, 2, const_cast<void*>(args.x), size, stride, box, step,
                                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t map_input_sums(const void* input_sums, int32_t groups, int32_t tokens, int32_t rows_a_box, void* map) {
  constexpr cuuint32_t kElements = kInputSumBytes / 2;
  const cuuint64_t size[2] = {cuuint64_t{kElements} * static_cast<cuuint64_t>(groups), static_cast<cuuint64_t>(tokens)};
  const cuuint64_t stride[1] = {cuuint64_t{kInputSumBytes} * static_cast<cuuint64_t>(groups)};
  const cuuint32_t box[2] = {kElements, static_cast<cuuint32_t>(rows_a_box)}, step[2] = {1, 1};
  const CUresult result = encode_tensor_map(static_cast<CUtensorMap*>(map), CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(input_sums),
                                            size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_64B,
                                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t map_panels(const KernelTarget& target, int64_t panel_bytes, void* map, int32_t panels_a_box, int32_t bytes) {
  const cuuint64_t size[2] = {static_cast<cuuint64_t>(panel_bytes) / 8, static_cast<cuuint64_t>(target.panels)};
  const cuuint64_t stride[1] = {static_cast<cuuint64_t>(panel_bytes)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(bytes) / 8, static_cast<cuuint32_t>(panels_a_box)}, step[2] = {1, 1};
  const CUresult result = encode_tensor_map(static_cast<CUtensorMap*>(map), CU_TENSOR_MAP_DATA_TYPE_UINT64, 2,
                                            const_cast<uint8_t*>(target.data), size, stride, box, step,
                                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

namespace {

// Returns whether the outputs of the targets are aligned as TMA stores need; of a pair only the first has an output.
bool outputs_boxed(const WgmmaParams& p) {
  const int64_t bytes = p.pair ? 2 : 4;
  for (int32_t i = 0; i < (p.pair ? 1 : p.count); ++i) {
    const KernelTarget& target = p.targets[i];
    if (reinterpret_cast<uintptr_t>(target.out) % 16 != 0 || target.out_stride * bytes % 16 != 0) return false;
  }
  return true;
}

// Encodes the map of a target's results as (tokens, rows), with boxes of `tokens` tokens and 128 bytes of rows, or half
// a pair's tile if that is less.
cudaError_t map_results(const WgmmaParams& p, const KernelTarget& target, Act act, int32_t tile_rows, int32_t tokens, CUtensorMap* map) {
  const bool f32 = !p.pair, narrow = p.pair && tile_rows < 128;
  const cuuint64_t size[2] = {static_cast<cuuint64_t>(target.rows), static_cast<cuuint64_t>(p.tokens)};
  const cuuint64_t stride[1] = {static_cast<cuuint64_t>(target.out_stride) * (f32 ? 4 : 2)};
  const cuuint32_t box[2] = {f32 || narrow ? 32u : 64u, static_cast<cuuint32_t>(tokens)}, step[2] = {1, 1};
  const CUtensorMapDataType type = f32                ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                   : act == Act::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                      : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const CUresult result = encode_tensor_map(map, type, 2, target.out, size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                            narrow ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
                                            CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace

WgmmaParams wgmma_params(const GemmArgs& args, int32_t first, int32_t last, int32_t panels_of_tile) {
  const PackedWeight& weight = args.targets[first].weight;
  const WeightFormat& format = kWeightFormats[weight_format_index(weight.type)];
  WgmmaParams p{};
  p.count = last - first;
  p.pair = args.epilogue == Epilogue::kSwiGLU;
  p.tokens = args.tokens;
  p.units = static_cast<int32_t>((weight.cols + kUnitCols - 1) / kUnitCols);
  p.groups = (p.units + format.units - 1) / format.units;
  p.panel_bytes = int64_t{p.groups} * format.group_bytes();
  set_partitions(p, args.epilogue == Epilogue::kAddF32 ? (p.units + kPartitionUnits - 1) / kPartitionUnits : 1);
  p.partition_groups = static_cast<uint32_t>(2 * divided(p.units, kGroupUnits));
  p.epilogue = args.epilogue;
  p.heads = args.heads;
  p.semaphores = args.semaphores;
  p.x_scale = args.x_scale;
  p.pair_share = 1 / args.pair_scale;
  p.gelu = args.gelu ? 1 : 0;
  const int32_t panels_a_tile = p.pair ? panels_of_tile / 2 : panels_of_tile;
  for (int32_t i = first; i < last; ++i) {
    const GemmTarget& t = args.targets[i];
    const int32_t panels = static_cast<int32_t>((t.weight.rows + kPanelRows - 1) / kPanelRows);
    p.targets[i - first] = {t.weight.data, t.bias, t.out, t.out_stride, static_cast<int32_t>(t.weight.rows), panels, p.tiles, i};
    if (!p.pair || i == first) p.tiles += (panels + panels_a_tile - 1) / panels_a_tile;
  }
  return p;
}

cudaError_t prepare_prefill_wgmma(int32_t device, int32_t sms) {
  int32_t major = 0, minor = 0;
  cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  if (error != cudaSuccess || major != 9 || minor != 0) return error;
  error = find_tensor_map_encoder(&encode_tensor_map);
  if (error != cudaSuccess) return error;
  PreparedPrefill& out = prepared[device];
  for (int32_t t = 0; t < kWeightTypeCount; ++t) {
    for (int32_t a = 0; a < 2; ++a) {
      for (int32_t form = 0; form < kPrefillForms; ++form) {
        WgmmaKernel& k = out.kernels[t][a][form] = find_kernel(t, static_cast<Act>(a), form);
        if (k.function == nullptr) continue;
        error = cudaFuncSetAttribute(k.function, cudaFuncAttributeMaxDynamicSharedMemorySize, k.shared_bytes);
        if (error != cudaSuccess) return error;
      }
    }
  }
  // The number of clusters does not depend on the kernel: each block fills an SM.
  const WgmmaKernel& any = out.kernels[weight_format_index(kF16)][static_cast<int32_t>(Act::kF16)][0];
  for (const PrefillCluster& cluster : kPrefillClusters) {
    int32_t& clusters = out.clusters[cluster.blocks()];
    if (clusters == 0) error = ClusterLaunch(any, 1, cluster.blocks(), Stream{}).most(&clusters);
    if (error != cudaSuccess) return error;
    clusters = std::min(clusters, std::min(sms, kGemmSemaphores / kSemaphoresABlock) / cluster.blocks());
  }
  out.available = true;
  return cudaSuccess;
}

bool wgmma_available(int32_t device) { return prepared[device].available; }

int32_t prefill_grain(int32_t device, int64_t rows) {
  const auto [tile_rows, tile_tokens] = kPrefillFormList[kWidestForm];
  const int64_t row_pairs = std::max<int64_t>(divided(rows, 2 * tile_rows), 1);
  return static_cast<int32_t>(prepared[device].clusters[2] / row_pairs * tile_tokens);
}

cudaError_t launch_prefill_wgmma(int32_t device, const GemmArgs& args, int32_t first, int32_t last, const Stream& on) {
  return launch_prefill_wgmma_as(fastest_prefill_wgmma(device, args, first, last), device, args, first, last, on);
}

cudaError_t launch_prefill_wgmma_as(const PrefillShape& shape, int32_t device, const GemmArgs& args, int32_t first, int32_t last,
                              const Stream& on) {
  const int32_t type = weight_format_index(args.targets[first].weight.type);
  const WgmmaKernel& kernel = prepared[device].kernels[type][static_cast<int32_t>(args.act)][shape.form];
  const int32_t clusters = prepared[device].clusters[shape.cluster.blocks()], panels = kernel.rows / kPanelRows;
  if (clusters == 0 || kernel.function == nullptr) return cudaErrorNotSupported;
  WgmmaParams p = wgmma_params(args, first, last, panels);
  lay_out(shape, p);
  p.band = std::min(p.row_clusters, 16 / p.row_blocks);
  if (int64_t{p.row_clusters} * p.token_tiles > INT32_MAX / 2) return cudaErrorInvalidValue;
  if (p.partitions > 1 && (p.semaphores == nullptr || int64_t{p.units} * p.partitions * p.partitions > INT32_MAX))
    return cudaErrorInvalidValue;
  p.whole = static_cast<int32_t>(whole_items(shape, p, clusters));
  p.items = 2 * p.row_clusters * p.token_tiles - p.whole;
  p.item_stride = std::min(p.items, clusters);
  p.concurrent = concurrent(p, clusters);
  const int32_t takers = p.concurrent ? p.partitions : 1;  // clusters that share a tile
  // Prefetch at most half of the L2 cache of 50 MiB, while the kernel ahead leaves memory idle.
  constexpr int64_t kPrefetched = 24 << 20;
  const int64_t first_panels = int64_t{std::min(p.tiles, p.item_stride * p.row_blocks)} * panels * takers;
  if (on.dependent) p.prefetch = static_cast<int32_t>(std::min<int64_t>(kPrefetched * p.units / (first_panels * p.panel_bytes), p.units));
  PrefillMaps maps{};
  cudaError_t error = map_tokens(args, kernel.tokens / p.row_blocks, &maps.tokens);
  for (int32_t plane = 0; plane < kPrefillPlanes && prefill_boxed(kWeightFormats[type]); ++plane) {
    const int32_t bytes = prefill_plane(kWeightFormats[type], plane);
    for (int32_t i = 0; i < p.count && bytes > 0 && error == cudaSuccess; ++i)
      error = map_panels(p.targets[i], p.panel_bytes, &maps.weights[i][plane], panels / 2, bytes);
  }
  p.boxed_out = outputs_boxed(p);
  for (int32_t i = 0; i < (p.pair ? 1 : p.count) && p.boxed_out && error == cudaSuccess; ++i)
    error = map_results(p, p.targets[i], args.act, kernel.rows, kernel.out_box[p.pair], &maps.out[i]);
  if (error != cudaSuccess) return error;
  return ClusterLaunch(kernel, p.item_stride * takers, shape.cluster.blocks(), on).run(p, maps);
}

#else

cudaError_t prepare_prefill_wgmma(int32_t, int32_t) { return cudaSuccess; }
bool wgmma_available(int32_t) { return false; }
int32_t prefill_grain(int32_t, int64_t) { return 0; }
int64_t prefill_wgmma_time(const PrefillShape&, int32_t, const GemmArgs&, int32_t, int32_t) { return INT64_MAX; }
PrefillShape fastest_prefill_wgmma(int32_t, const GemmArgs&, int32_t, int32_t) { return {}; }
cudaError_t launch_prefill_wgmma(int32_t, const GemmArgs&, int32_t, int32_t, const Stream&) { return cudaErrorNotSupported; }
cudaError_t launch_prefill_wgmma_as(const PrefillShape&, int32_t, const GemmArgs&, int32_t, int32_t, const Stream&) {
  return cudaErrorNotSupported;
}

#endif

}  // namespace mr::cuda
