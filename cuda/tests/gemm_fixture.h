// gemm_fixture: guarded device memory, files of random blocks and type names, for tests of weights and GEMMs.
#pragma once

// GoogleTest's TEST declares a static member that nothing reads.
#ifdef __CUDACC__
#pragma nv_diag_suppress 177
#endif

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cpu/cpptest/reference.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/repack.h"

namespace mr::cuda {

struct TypeName {
  int32_t type;
  const char* name;
};
constexpr TypeName kTypeNames[] = {{kF32, "F32"},   {kF16, "F16"},   {kBF16, "BF16"}, {kQ8_0, "Q8_0"},
                                   {kQ4_0, "Q4_0"}, {kQ4_1, "Q4_1"}, {kQ5_0, "Q5_0"}, {kQ5_1, "Q5_1"},
                                   {kQ4_K, "Q4_K"}, {kQ5_K, "Q5_K"}, {kQ6_K, "Q6_K"}, {kIQ4_NL, "IQ4_NL"}, {kMXFP4, "MXFP4"}, {kNVFP4, "NVFP4"},
                                   {kQ2_K, "Q2_K"}, {kQ3_K, "Q3_K"}, {kIQ4_XS, "IQ4_XS"}, {kIQ3_S, "IQ3_S"},
                                   {kIQ3_XXS, "IQ3_XXS"}, {kIQ2_S, "IQ2_S"}, {kIQ2_XS, "IQ2_XS"}, {kIQ2_XXS, "IQ2_XXS"}};

inline std::string name_of(const testing::TestParamInfo<TypeName>& info) { return info.param.name; }

// The activation types that GEMMs of a weight type have kernels for. The first is the one that a model takes by itself.
inline std::vector<Act> acts_of(int32_t type) {
  if (quantised(type)) return {Act::kF16};
  return type == kF16 ? std::vector<Act>{Act::kF16, Act::kBF16} : std::vector<Act>{Act::kBF16, Act::kF16};
}

// Guarded is device bytes between two guards of a known pattern; the bytes are initialised with `fill`.
class Guarded {
 public:
  explicit Guarded(size_t bytes, int fill = 0xa5) : bytes_(bytes), host_(bytes + 2 * kGuard, static_cast<uint8_t>(fill)) {
    for (size_t i = 0; i < kGuard; ++i) host_[i] = host_[kGuard + bytes + i] = pattern(i);
    EXPECT_EQ(cudaMalloc(&data_, host_.size()), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, host_.data(), host_.size(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  template <class T>
  explicit Guarded(const std::vector<T>& values) : Guarded(values.size() * sizeof(T)) {
    write(values);
  }
  ~Guarded() { cudaFree(data_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  uint8_t* data() const { return static_cast<uint8_t*>(data_) + kGuard; }
  template <class T>
  T* as() const { return reinterpret_cast<T*>(data()); }

  // Replaces the bytes.
  template <class T>
  void write(const std::vector<T>& values) {
    ASSERT_EQ(values.size() * sizeof(T), bytes_);
    EXPECT_EQ(cudaMemcpy(data(), values.data(), bytes_, cudaMemcpyHostToDevice), cudaSuccess);
  }

  // Returns the bytes; fails if a guard has changed.
  template <class T>
  std::vector<T> read() {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(host_.data(), data_, host_.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    for (size_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(host_[i], pattern(i)) << "written " << kGuard - i << " bytes before the start";
      EXPECT_EQ(host_[kGuard + bytes_ + i], pattern(i)) << "written " << i << " bytes after the end";
    }
    std::vector<T> out(bytes_ / sizeof(T));
    std::memcpy(out.data(), host_.data() + kGuard, out.size() * sizeof(T));
    return out;
  }

 private:
  static constexpr size_t kGuard = 1024;
  static uint8_t pattern(size_t i) { return static_cast<uint8_t>(i * 37 + 11); }

  size_t bytes_;
  std::vector<uint8_t> host_;
  void* data_ = nullptr;
};

// Blocks of random quants with scales of about 0.01 (0.0004 if they multiply scales of their own), or powers of two near it; floats of about
// 0.02, a few of them a thousand times smaller.
inline std::vector<uint8_t> ordinary_file(int32_t type, int64_t rows, int64_t cols, std::mt19937& random) {
  const reference::Shape s = reference::shape(type);
  std::vector<uint8_t> file(weight_file_bytes(type, rows, cols));
  for (uint8_t& b : file) b = static_cast<uint8_t>(random());
  std::normal_distribution<float> normal(0, 0.02f);
  for (size_t at = 0; at < file.size(); at += static_cast<size_t>(s.bytes)) {
    uint8_t* p = file.data() + at;
    if (s.float_type) {
      const float v = normal(random) * (random() % 16 == 0 ? 1e-3f : 1.0f);
      const __half h = __float2half(v);
      uint32_t bits;
      std::memcpy(&bits, &v, 4);
      if (type == kF32) std::memcpy(p, &v, 4);
      if (type == kBF16) reference::put_half(p, static_cast<uint16_t>(bits >> 16));
      if (type == kF16) std::memcpy(p, &h, 2);
    }
    if (type == kMXFP4) *p = static_cast<uint8_t>(117 + random() % 6);
    for (int i = 0; type == kNVFP4 && i < 4; ++i) p[i] = static_cast<uint8_t>(random() % 24);
    for (int i = 0; i < s.half_count; ++i) {
      const __half h = __float2half(normal(random) * (s.block == 256 ? 0.02f : 0.5f));
      std::memcpy(p + s.halves[i], &h, 2);
    }
  }
  return file;
}

// Packed is a matrix packed on the device.
struct Packed {
  Packed(int32_t type, int64_t rows, int64_t cols, const std::vector<uint8_t>& file)
      : memory(weight_packed_bytes(type, rows, cols)), weight{type, rows, cols, memory.data()} {
    Guarded source(file);
    EXPECT_EQ(launch_repack(source.data(), weight, Stream{}), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  Guarded memory;
  PackedWeight weight;
};

inline std::vector<float> normals(int64_t count, float scale, std::mt19937& random) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(normal(random));
  return out;
}

struct Inputs {
  std::vector<uint16_t> bits;   // (tokens, stride); NaN after the columns
  std::vector<double> values;   // (tokens, cols)
};

// Activations of about 1 with some outliers, in the activation type.
inline Inputs random_inputs(Act act, int64_t tokens, int64_t cols, int64_t stride, std::mt19937& random) {
  Inputs in;
  in.bits.assign(static_cast<size_t>(tokens * stride), 0x7fff);  // NaN in both types
  std::normal_distribution<float> normal(0, 1);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t k = 0; k < cols; ++k) {
      const float v = normal(random) * (random() % 64 == 0 ? 20.0f : 1.0f);
      uint16_t bits;
      float rounded;
      if (act == Act::kF16) {
        const __half h = __float2half(v);
        std::memcpy(&bits, &h, 2);
        rounded = __half2float(h);
      } else {
        const __nv_bfloat16 h = __float2bfloat16(v);
        std::memcpy(&bits, &h, 2);
        rounded = __bfloat162float(h);
      }
      in.bits[static_cast<size_t>(t * stride + k)] = bits;
      in.values.push_back(static_cast<double>(rounded));
    }
  }
  return in;
}

// Returns whether the current device supports programmatic dependents.
inline bool has_dependents() {
  int device = 0, major = 0;
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), cudaSuccess);
  return major >= 9;
}

inline int64_t round_up(int64_t n, int64_t m) { return (n + m - 1) / m * m; }

}  // namespace mr::cuda
