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

// Raises the kernel's shared memory limit, and returns how many of its clusters the current device can hold at once.
inline cudaError_t prepare_clusters(const WgmmaKernel& kernel, int32_t blocks, int32_t* clusters) {
  const cudaError_t error = cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes);
  return error != cudaSuccess ? error : ClusterLaunch(kernel, 1, blocks, Stream{}).most(clusters);
}

}  // namespace mr::cuda
