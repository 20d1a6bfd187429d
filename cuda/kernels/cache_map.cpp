#include "kernels/cache_map.h"

#if MR_HOPPER
#include "kernels/tensor_map.h"
#endif

namespace mr::cuda {

#if MR_HOPPER

namespace {

constexpr uint64_t kMostRows = INT32_MAX;  // that a coordinate can address

}  // namespace

cudaError_t map_cache(const KvLayout& layout, const void* block0, CacheMap* map) {
  static_assert(sizeof(CUtensorMap) == sizeof(CacheMap) && alignof(CacheMap) >= 64, "a CacheMap is one");
  PFN_cuTensorMapEncodeTiled_v12000 encode = nullptr;
  const cudaError_t error = find_tensor_map_encoder(&encode);
  if (error != cudaSuccess) return error;
  const cuuint64_t width = static_cast<cuuint64_t>(layout.padded_dim), size[2] = {width, kMostRows}, stride[1] = {width * kActBytes};
  const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(layout.block_size)}, step[2] = {1, 1};
  const CUtensorMapDataType type = layout.act == Act::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const CUresult result =
      encode(reinterpret_cast<CUtensorMap*>(map), type, 2, const_cast<void*>(block0), size, stride, box, step,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

#else

cudaError_t map_cache(const KvLayout&, const void*, CacheMap*) { return cudaErrorNotSupported; }

#endif

}  // namespace mr::cuda
