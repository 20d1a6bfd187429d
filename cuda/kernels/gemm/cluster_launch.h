// cluster_launch: launches the GEMM kernels that run as thread block clusters.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/gemm/prefill_wgmma.h"
#include "kernels/launch.h"

namespace mr::cuda {

// ClusterLaunch holds the launch configuration of `clusters` clusters of `blocks` blocks each.
class ClusterLaunch {
 public:
  ClusterLaunch(const WgmmaKernel& kernel, int32_t clusters, int32_t blocks, const Stream& on) : function_(kernel.function) {
    config_.gridDim = dim3(static_cast<unsigned>(clusters * blocks));
    config_.blockDim = dim3(static_cast<unsigned>(kernel.threads));
    config_.dynamicSmemBytes = static_cast<size_t>(kernel.shared_bytes);
    config_.stream = on.stream;
    attributes_[0].id = cudaLaunchAttributeClusterDimension;
    attributes_[0].val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
    attributes_[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes_[1].val.programmaticStreamSerializationAllowed = 1;
    config_.attrs = attributes_;
    config_.numAttrs = on.dependent ? 2 : 1;
  }
  ClusterLaunch(const ClusterLaunch&) = delete;
  ClusterLaunch& operator=(const ClusterLaunch&) = delete;

  // Launches the kernel on the stream.
  template <class... Arguments>
  cudaError_t run(Arguments&... arguments) const {
    void* pointers[] = {&arguments...};
    return cudaLaunchKernelExC(&config_, function_, pointers);
  }

  // Returns how many clusters the current device can hold at once.
  cudaError_t most(int32_t* clusters) const { return cudaOccupancyMaxActiveClusters(clusters, function_, &config_); }

 private:
  const void* function_;
  cudaLaunchConfig_t config_{};
  cudaLaunchAttribute attributes_[2] = {};
};

// PreparedClusters is a kernel of the current device whose clusters all have one number of blocks.
struct PreparedClusters {
  WgmmaKernel kernel;
  int32_t clusters;  // that the device holds at once; 0: the kernel does not run here
};

// Finds the kernels of every type (index of kWeightFormats), activation type and form by find(index, act, form), raises their
// shared memory limits, and counts their clusters.
template <int32_t forms, class Find>
cudaError_t prepare_clusters(PreparedClusters (&out)[kWeightTypeCount][2][forms], int32_t blocks, Find&& find) {
  for (int32_t i = 0; i < kWeightTypeCount * 2 * forms; ++i) {
    PreparedClusters& one = out[i / (2 * forms)][i / forms % 2][i % forms];
    one = {find(i / (2 * forms), static_cast<Act>(i / forms % 2), i % forms), 0};
    if (one.kernel.function == nullptr) continue;
    cudaError_t error = cudaFuncSetAttribute(one.kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, one.kernel.shared_bytes);
    if (error == cudaSuccess) error = ClusterLaunch(one.kernel, 1, blocks, Stream{}).most(&one.clusters);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace mr::cuda
