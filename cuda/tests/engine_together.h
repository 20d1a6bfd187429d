// engine_together: opens several GPUs as one device, for tests of models that they hold together.
#pragma once

#include <memory>
#include <vector>

#include "tests/engine_fixture.h"

namespace mr::cuda::test {

inline int gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

#define NEEDS_TWO_GPUS() \
  if (gpus() < 2) GTEST_SKIP() << "there is one GPU here: these tests need two"

inline std::shared_ptr<Device> open_together(const std::vector<int32_t>& indices, uint64_t limit = uint64_t{8} << 30) {
  mr_device_options options{};
  options.struct_size = sizeof options;
  options.index = indices[0];
  options.others = indices.data() + 1;
  options.other_count = static_cast<int32_t>(indices.size()) - 1;
  options.bytes_limit = limit;
  return std::make_shared<Device>(options);
}

// Prompts in chunks together with decoding, few rows and many.
inline std::vector<Request> requests(int32_t count, int32_t vocab) {
  std::vector<Request> all;
  for (int32_t slot = 0; slot < count; ++slot) {
    Request r{slot, {}, 1 + slot % 12, 12 + slot % 5};
    for (int32_t i = 0; i < 3 + slot * 7 % 90; ++i) r.prompt.push_back((slot * 31 + i * 17) % vocab);
    r.seed = static_cast<uint64_t>(slot) + 5;
    all.push_back(r);
  }
  return all;
}

}  // namespace mr::cuda::test
