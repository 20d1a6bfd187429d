// images: which GPUs this library holds machine code for. It holds none that a driver could translate.
#pragma once

#include <cuda_runtime.h>

#include <string>

namespace mr::cuda {

// Whether code that was built in is for such a device, as far as version numbers say: the same major version, and a minor one
// that is not above the device's. Needs no context of the device.
bool code_is_built(int major, int minor);
// The compute capabilities the code was built for: "8.0 8.6 8.9 9.0a".
std::string built_code();
// Asks the current device for a kernel of the library: cudaErrorNoKernelImageForDevice, or cudaErrorInvalidDeviceFunction, when
// it can run none of the code.
cudaError_t find_code();

}  // namespace mr::cuda
