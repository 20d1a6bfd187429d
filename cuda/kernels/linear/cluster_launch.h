// cluster_launch: launches of the product kernels that run as clusters of blocks.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/launch.h"
#include "kernels/linear/prefill.h"

namespace mr::cuda {

// What a launch of some clusters of `blocks` blocks each is configured with.
class ClusterLaunch {
 public:
  ClusterLaunch(const PrefillKernel& kernel, int32_t clusters, int32_t blocks, const Stream& on) : function_(kernel.function) {
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

  // Puts the kernel on the stream.
  template <class... Arguments>
  cudaError_t run(Arguments&... arguments) const {
    void* pointers[] = {&arguments...};
    return cudaLaunchKernelExC(&config_, function_, pointers);
  }

  // How many clusters the current device holds at once.
  cudaError_t most(int32_t* clusters) const { return cudaOccupancyMaxActiveClusters(clusters, function_, &config_); }

 private:
  const void* function_;
  cudaLaunchConfig_t config_{};
  cudaLaunchAttribute attributes_[2] = {};
};

// Lets the kernel have its shared memory, and tells how many clusters of it the current device holds at once.
inline cudaError_t prepare_clusters(const PrefillKernel& kernel, int32_t blocks, int32_t* clusters) {
  const cudaError_t error = cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes);
  return error != cudaSuccess ? error : ClusterLaunch(kernel, 1, blocks, Stream{}).most(clusters);
}

}  // namespace mr::cuda
