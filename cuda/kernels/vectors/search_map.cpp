#include "kernels/vectors/search_map.h"

#if MR_HOPPER
#include "kernels/tensor_map.h"
#endif

#include "kernels/vectors/search_layout.h"

namespace mr::cuda {

#if MR_HOPPER

cudaError_t map_rows(const SearchShape& shape, const void* rows, int64_t count, RowsMap* map) {
  static_assert(sizeof(CUtensorMap) == sizeof(RowsMap), "a RowsMap is one");
  PFN_cuTensorMapEncodeTiled_v12000 encode = nullptr;
  const cudaError_t error = find_tensor_map_encoder(&encode);
  if (error != cudaSuccess) return error;
  const cuuint64_t width = static_cast<cuuint64_t>(shape.width), spaces = static_cast<cuuint64_t>(shape.spaces);
  const cuuint64_t size[3] = {width, static_cast<cuuint64_t>(count), spaces}, stride[2] = {spaces * width * 2, width * 2};
  const cuuint32_t box[3] = {16, kSearchRows, 1}, step[3] = {1, 1, 1};
  const CUresult result =
      encode(reinterpret_cast<CUtensorMap*>(map), CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3, const_cast<void*>(rows), size, stride, box, step,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_32B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

#else

cudaError_t map_rows(const SearchShape&, const void*, int64_t, RowsMap*) { return cudaErrorNotSupported; }

#endif

}  // namespace mr::cuda
