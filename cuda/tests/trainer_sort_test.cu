// The sorts that trainings use, against the host's stable sort.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "cpu/vector_rules.h"
#include "kernels/vectors/sort.h"

namespace mr::cuda {
namespace {

// Device memory for a test's arrays.
template <class T>
class Array {
 public:
  explicit Array(size_t count) : count_(count) { EXPECT_EQ(cudaSuccess, cudaMalloc(&data_, std::max<size_t>(count, 1) * sizeof(T))); }
  explicit Array(const std::vector<T>& from) : Array(from.size()) {
    EXPECT_EQ(cudaSuccess, cudaMemcpy(data_, from.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~Array() { (void)cudaFree(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  T* get() const { return static_cast<T*>(data_); }
  std::vector<T> host() const { return host_of(get(), count_); }
  static std::vector<T> host_of(const T* from, size_t count) {
    std::vector<T> out(count);
    EXPECT_EQ(cudaSuccess, cudaMemcpy(out.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost));
    return out;
  }

 private:
  void* data_ = nullptr;
  size_t count_;
};

template <class Key>
std::vector<uint32_t> stable_order(const std::vector<Key>& keys) {
  std::vector<uint32_t> order(keys.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return keys[a] < keys[b]; });
  return order;
}

TEST(TrainerSort, RowsByCodewordAreSortedStably) {
  std::mt19937 random(1);
  for (const int64_t most : {int64_t{1}, int64_t{1000}, int64_t{300'000}}) {
    uint64_t bytes = 0;
    ASSERT_EQ(cudaSuccess, sort_bytes(most, &bytes));
    const Array<uint8_t> scratch(bytes);
    const Array<uint32_t> identity(static_cast<size_t>(most)), sorted(static_cast<size_t>(most)), order(static_cast<size_t>(most));
    ASSERT_EQ(cudaSuccess, launch_count_up(identity.get(), most, {}));
    for (const uint32_t codewords : {1u, 2u, 256u, 257u, 65'536u})
      for (const int64_t count : {int64_t{1}, most / 3 + 1, most}) {  // also fewer than the scratch is for
        std::vector<uint32_t> keys(static_cast<size_t>(count));
        for (uint32_t& key : keys) key = static_cast<uint32_t>(random()) % codewords;
        const Array<uint32_t> from(keys);
        ASSERT_EQ(cudaSuccess, launch_sort(scratch.get(), bytes, from.get(), sorted.get(), identity.get(), order.get(), count,
                                           bits_of(codewords - 1), {}));
        ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
        const std::vector<uint32_t> want = stable_order(keys);
        ASSERT_EQ(want, Array<uint32_t>::host_of(order.get(), keys.size())) << count << " rows of " << codewords << " codewords";
        const std::vector<uint32_t> got = Array<uint32_t>::host_of(sorted.get(), keys.size());
        for (size_t i = 0; i < keys.size(); ++i) ASSERT_EQ(keys[want[i]], got[i]);
        ASSERT_EQ(keys, from.host()) << "the keys stay";
      }
  }
}

TEST(TrainerSort, RowsByDistanceAndThenByCodewordAreSortedStably) {
  std::mt19937 random(2);
  for (const bool descending : {false, true})
    for (const int64_t count : {int64_t{1}, int64_t{4097}, int64_t{250'000}}) {
      const size_t n = static_cast<size_t>(count);
      std::vector<double> distances(n);
      std::vector<uint32_t> ids(n);
      for (double& q : distances) q = static_cast<double>(static_cast<int>(random() % 2001) - 1000) / 8 * (random() % 2 == 0 ? 1 : -1);
      for (uint32_t& id : ids) id = static_cast<uint32_t>(random()) % 300;
      uint64_t bytes = 0;
      ASSERT_EQ(cudaSuccess, sort_pair_bytes(count, &bytes));
      const Array<uint8_t> scratch(bytes);
      const Array<double> q(distances);
      const Array<uint64_t> wide_a(n), wide_b(n);
      const Array<uint32_t> order_a(n), order_b(n);
      SortPair<uint64_t> pair{{wide_a.get(), wide_b.get()}, {order_a.get(), order_b.get()}};
      ASSERT_EQ(cudaSuccess, launch_distance_keys(q.get(), pair.keys[0], count, descending, {}));
      ASSERT_EQ(cudaSuccess, launch_count_up(pair.order[0], count, {}));
      ASSERT_EQ(cudaSuccess, launch_sort_pair(scratch.get(), bytes, &pair, count, {}));
      ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
      std::vector<double> by(distances);  // -0 and 0 are one distance
      if (descending)
        for (double& v : by) v = -v;
      const std::vector<uint32_t> want = stable_order(by);
      const std::vector<uint32_t> got = Array<uint32_t>::host_of(pair.sorted_order(), n);
      ASSERT_EQ(want, got);

      std::vector<uint32_t> keys(n);
      for (size_t i = 0; i < n; ++i) keys[i] = ids[got[i]];
      SortPair<uint32_t> narrow{{reinterpret_cast<uint32_t*>(wide_a.get()), reinterpret_cast<uint32_t*>(wide_b.get())},
                                {order_a.get(), order_b.get()}};
      narrow.order_current = pair.order_current;
      ASSERT_EQ(cudaSuccess, cudaMemcpy(narrow.keys[0], keys.data(), n * sizeof(uint32_t), cudaMemcpyHostToDevice));
      ASSERT_EQ(cudaSuccess, launch_sort_pair(scratch.get(), bytes, &narrow, count, bits_of(299), {}));
      ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
      const std::vector<uint32_t> places = stable_order(keys);
      std::vector<uint32_t> whole(n);
      for (size_t i = 0; i < n; ++i) whole[i] = got[places[i]];
      ASSERT_EQ(whole, Array<uint32_t>::host_of(narrow.sorted_order(), n));
    }
}

__global__ void round_all(const double* v, int32_t type, float* rounded, float* means, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  rounded[i] = round_codeword(type, v[i]);
  const int64_t sum = bits_as<int64_t>(v[i]) >> 2;
  means[i] = fixed_mean(type, sum, 1 + static_cast<uint64_t>(i) * 7919 % 0xffffffffu, static_cast<int>(i % 300) - 98);
}

// The rounding rules give the device the bits that they give the host, for any numbers.
TEST(TrainerRules, TheDeviceRoundsAsTheHost) {
  std::mt19937_64 random(3);
  std::vector<double> v;
  for (int i = 0; i < 200'000; ++i) {
    double x = bits_as<double>(random());
    if (i % 2 == 0) x = bits_as<double>(random() >> 63 << 63 | (random() % 300 + 880) << 52 | random() >> 12 >> (i % 50) << (i % 50));
    if (is_finite(x)) v.push_back(x);
  }
  for (const double x : {0.0, -0.0, 65504.0, 65519.0, 65520.0, 0x1p-24, 0x1p-25, 0x1p-149, 0x1p-150, 0x1.8p-149, 0x1p-133, 0x1p-134})
    for (const double s : {1.0, -1.0}) v.push_back(s * x);
  const Array<double> from(v);
  const Array<float> rounded(v.size()), means(v.size());
  for (const int32_t type : {MR_VECTOR_F32, MR_VECTOR_F16, MR_VECTOR_BF16}) {
    round_all<<<static_cast<unsigned>((v.size() + 255) / 256), 256>>>(from.get(), type, rounded.get(), means.get(),
                                                                      static_cast<int64_t>(v.size()));
    ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
    const std::vector<float> r = rounded.host(), m = means.host();
    for (size_t i = 0; i < v.size(); ++i) {
      ASSERT_EQ(bits_as<uint32_t>(round_codeword(type, v[i])), bits_as<uint32_t>(r[i])) << v[i] << " in type " << type;
      const float mean = fixed_mean(type, bits_as<int64_t>(v[i]) >> 2, 1 + i * 7919 % 0xffffffffu, static_cast<int>(i % 300) - 98);
      ASSERT_EQ(bits_as<uint32_t>(mean), bits_as<uint32_t>(m[i])) << v[i] << " in type " << type;
    }
  }
}

}  // namespace
}  // namespace mr::cuda
