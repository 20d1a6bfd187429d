// prefill: the prefill kernels' launches: tensor maps of the tokens, and the tile that fills the device best.
#include "kernels/linear/prefill.h"

#include <algorithm>

#if MR_HOPPER
#include "kernels/linear/cluster_launch.h"
#include "kernels/linear/prefill_layout.cuh"
#include "kernels/linear/terms.h"
#include "kernels/tensor_map.h"
#endif

namespace mr::cuda {

#if MR_HOPPER
namespace {

struct PreparedPrefill {
  PrefillKernel kernels[kWeightTypeCount][2][kPrefillForms];
  int32_t clusters[kPrefillMostBlocks + 1] = {};  // at once, by the blocks of one, of which a multiprocessor holds one
  bool available = false;                         // whether there is wgmma
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

int64_t divided(int64_t n, int64_t by) { return (n + by - 1) / by; }

// What a block's tile takes, in picoseconds. A unit of 64 inputs takes what is slowest of it, and a turn: multiplying it,
// receiving it, the second level cache giving its like to all blocks, or making fragments of its weights and handing them over.
// From an H100 all of whose 132 multiprocessors had tiles in clusters of two. Units of 128 rows by 128 tokens of bf16, which wait for the
// cache, took 0.42 us, and by 256, which wait for the products, 0.79; of q4_k 0.50 and 0.80, and of 64 rows by 64 and 128 tokens 0.32
// and 0.37. Receiving is what a multiprocessor of tall_kernel.cuh does, 92 GB/s.
constexpr int64_t kMultiply = 22;      // a row and token
constexpr int64_t kReceive = 11;       // a byte
constexpr int64_t kShare = 112;        // a thousand bytes
constexpr int64_t kTile = 2'500'000;   // beside its units
constexpr int64_t kBehind = 3'000'000; // a part behind the part before, of which each is another block's

// Of weights that are copied, and of those that are scaled and rounded.
struct Unpacking {
  int64_t row, token, turn;
};
constexpr Unpacking kNumbers{700, 0, 60'000}, kQuantised{2'400, 900, 90'000};

bool quantised(int32_t type) { return kWeightFormats[type].block > 1; }

int64_t tile_time(int32_t type, const PrefillShape& shape, int64_t units, int64_t blocks) {
  const auto [rows, tokens] = kPrefillFormList[shape.form];
  const WeightFormat& format = kWeightFormats[type];
  const int64_t weight_bytes = int64_t{format.group_bytes()} / format.units * (rows / kPanelRows);
  const int64_t token_bytes = int64_t{tokens} * kUnitCols * 2;
  const int64_t asked = weight_bytes / shape.cluster.tokens + token_bytes / shape.cluster.rows;
  const Unpacking& unpacking = quantised(type) ? kQuantised : kNumbers;
  const int64_t slowest = std::max({kMultiply * rows * tokens, kReceive * (weight_bytes + token_bytes), kShare * blocks * asked / 1000,
                                    unpacking.row * rows + unpacking.token * tokens});
  return units * (slowest + unpacking.turn) + kTile;
}

// What a cluster of tiles is of: p.row_clusters by p.token_tiles.
void lay_out(const PrefillShape& shape, PrefillParams& p) {
  const auto [rows, tokens] = kPrefillFormList[shape.form];
  p.row_blocks = shape.cluster.rows;
  p.token_blocks = shape.cluster.tokens;
  p.row_clusters = static_cast<int32_t>(divided(p.tiles, p.row_blocks));
  p.token_tiles = static_cast<int32_t>(divided(divided(p.tokens, tokens), p.token_blocks));
}

// How many of a laid out product's items are whole: a pair's last round of the widest tiles, where half of the clusters would do, is of
// halves, which all take.
int64_t whole_items(const PrefillShape& shape, const PrefillParams& p, int64_t clusters) {
  const int64_t items = int64_t{p.row_clusters} * p.token_tiles, last = items % clusters;
  const bool halves = p.pair && shape.form == kWidestForm && items > clusters && 2 * last <= clusters;
  return halves ? items - last : items;
}

// Whether the parts of all tiles fit the clusters that the device holds at once.
bool beside(const PrefillParams& p, int64_t clusters) {
  return p.parts > 1 && int64_t{p.row_clusters} * p.token_tiles * p.parts <= clusters;
}

// What the rounds of a product's tiles in a shape take, in picoseconds; `p` is of the shape's rows. INT64_MAX where the device
// holds no such cluster, or small tiles would unpack the same weights several times.
int64_t product_time(const PreparedPrefill& on_device, int32_t type, const PrefillShape& shape, PrefillParams& p) {
  const int64_t clusters = on_device.clusters[shape.cluster.blocks()];
  constexpr int32_t kSmall = 32;  // tokens
  const bool again = quantised(type) && kPrefillFormList[shape.form].tokens == kSmall && p.tokens > kSmall;
  if (clusters == 0 || again) return INT64_MAX;
  lay_out(shape, p);
  const int64_t items = int64_t{p.row_clusters} * p.token_tiles, whole = whole_items(shape, p, clusters), more = p.parts - 1;
  const int64_t blocks = std::min(items, clusters) * shape.cluster.blocks();
  if (beside(p, clusters)) return tile_time(type, shape, divided(p.units, p.parts), blocks * p.parts) + more * kBehind;
  const int64_t rounds = divided(whole, clusters) * (tile_time(type, shape, p.units, blocks) + more * kTile);
  return whole == items ? rounds : rounds + tile_time(type, {kHalfForm, shape.cluster}, p.units, blocks);
}

}  // namespace

int64_t prefill_time(const PrefillShape& shape, int32_t device, const ProductArgs& args, int32_t first, int32_t last) {
  PrefillParams p = prefill_params(args, first, last, kPrefillFormList[shape.form].rows / kPanelRows);
  return product_time(prepared[device], weight_format_index(args.targets[first].weight.type), shape, p);
}

PrefillShape fastest_prefill(int32_t device, const ProductArgs& args, int32_t first, int32_t last) {
  const int32_t type = weight_format_index(args.targets[first].weight.type);
  PrefillShape best{};
  int64_t least = INT64_MAX;
  PrefillParams p{};
  for (int32_t form = 0; form < kPrefillForms; ++form) {
    const int32_t rows = kPrefillFormList[form].rows;
    if (form == 0 || rows != kPrefillFormList[form - 1].rows) p = prefill_params(args, first, last, rows / kPanelRows);
    for (const PrefillCluster& cluster : kPrefillClusters) {
      const int64_t time = product_time(prepared[device], type, {form, cluster}, p);
      if (time >= least) continue;
      least = time;
      best = {form, cluster};
    }
  }
  return best;
}

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

cudaError_t map_panels(const DecodeTarget& target, int64_t panel_bytes, void* map, int32_t panels_a_box, int32_t bytes) {
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

// Whether what becomes of these targets' sums lies as tensor maps need; of a pair that of the first.
bool outputs_boxed(const PrefillParams& p) {
  const int64_t bytes = p.end == ProductEnd::kStoreF32 || p.end == ProductEnd::kAddF32 ? 4 : 2;
  for (int32_t i = 0; i < (p.pair ? 1 : p.count); ++i) {
    const DecodeTarget& target = p.targets[i];
    if (reinterpret_cast<uintptr_t>(target.out) % 16 != 0 || target.out_stride * bytes % 16 != 0) return false;
  }
  return true;
}

// A target's results as (tokens, rows), in boxes of `tokens` by 128 bytes of rows, or those of half a pair's tile if less.
cudaError_t map_results(const PrefillParams& p, const DecodeTarget& target, Act act, int32_t tile_rows, int32_t tokens, CUtensorMap* map) {
  const bool f32 = p.end == ProductEnd::kStoreF32 || p.end == ProductEnd::kAddF32, narrow = p.pair && tile_rows < 128;
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
  p.parts = args.end == ProductEnd::kAddF32 ? (p.units + kPartUnits - 1) / kPartUnits : 1;
  p.part_groups = static_cast<uint32_t>(2 * divided(p.units, kGroupUnits));
  p.part_share = (uint32_t{1} << 31) / static_cast<uint32_t>(p.parts) + 1;
  p.end = args.end;
  p.marks = args.marks;
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
  error = find_tensor_map_encoder(&encode_tensor_map);
  if (error != cudaSuccess) return error;
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
  // As many clusters of any kernel: each fills a multiprocessor.
  const PrefillKernel& any = out.kernels[0][0][0];
  for (const PrefillCluster& cluster : kPrefillClusters) {
    int32_t& clusters = out.clusters[cluster.blocks()];
    if (clusters == 0) error = ClusterLaunch(any, 1, cluster.blocks(), Stream{}).most(&clusters);
    if (error != cudaSuccess) return error;
    clusters = std::min(clusters, std::min(sms, kProductMarks / kMarksABlock) / cluster.blocks());
  }
  out.available = true;
  return cudaSuccess;
}

bool prefill_available(int32_t device) { return prepared[device].available; }

int32_t prefill_grain(int32_t device, int64_t rows) {
  const auto [tile_rows, tile_tokens] = kPrefillFormList[kWidestForm];
  const int64_t row_pairs = std::max<int64_t>(divided(rows, 2 * tile_rows), 1);
  return static_cast<int32_t>(prepared[device].clusters[2] / row_pairs * tile_tokens);
}

cudaError_t launch_prefill(int32_t device, const ProductArgs& args, int32_t first, int32_t last, const Stream& on) {
  return launch_prefill_as(fastest_prefill(device, args, first, last), device, args, first, last, on);
}

cudaError_t launch_prefill_as(const PrefillShape& shape, int32_t device, const ProductArgs& args, int32_t first, int32_t last,
                              const Stream& on) {
  const int32_t type = weight_format_index(args.targets[first].weight.type);
  const PrefillKernel& kernel = prepared[device].kernels[type][static_cast<int32_t>(args.act)][shape.form];
  const int32_t clusters = prepared[device].clusters[shape.cluster.blocks()], panels = kernel.rows / kPanelRows;
  if (clusters == 0) return cudaErrorNotSupported;
  PrefillParams p = prefill_params(args, first, last, panels);
  lay_out(shape, p);
  p.band = std::min(p.row_clusters, 16 / p.row_blocks);
  if (int64_t{p.row_clusters} * p.token_tiles > INT32_MAX / 2) return cudaErrorInvalidValue;
  if (p.parts > 1 && (p.marks == nullptr || int64_t{p.units} * p.parts * p.parts > INT32_MAX)) return cudaErrorInvalidValue;
  p.whole = static_cast<int32_t>(whole_items(shape, p, clusters));
  p.items = 2 * p.row_clusters * p.token_tiles - p.whole;
  p.item_stride = std::min(p.items, clusters);
  p.beside = beside(p, clusters);
  const int32_t takers = p.beside ? p.parts : 1;  // clusters of a tile
  // As much as half of that cache, of 50 MiB, which memory reads while the kernel ahead leaves it idle.
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
    error = map_results(p, p.targets[i], args.act, kernel.rows, kernel.out_box[static_cast<int32_t>(p.end)], &maps.out[i]);
  if (error != cudaSuccess) return error;
  return ClusterLaunch(kernel, p.item_stride * takers, shape.cluster.blocks(), on).run(p, maps);
}

#else

cudaError_t prepare_prefill(int32_t, int32_t) { return cudaSuccess; }
bool prefill_available(int32_t) { return false; }
int32_t prefill_grain(int32_t, int64_t) { return 0; }
int64_t prefill_time(const PrefillShape&, int32_t, const ProductArgs&, int32_t, int32_t) { return INT64_MAX; }
PrefillShape fastest_prefill(int32_t, const ProductArgs&, int32_t, int32_t) { return {}; }
cudaError_t launch_prefill(int32_t, const ProductArgs&, int32_t, int32_t, const Stream&) { return cudaErrorNotSupported; }
cudaError_t launch_prefill_as(const PrefillShape&, int32_t, const ProductArgs&, int32_t, int32_t, const Stream&) {
  return cudaErrorNotSupported;
}

#endif

}  // namespace mr::cuda
