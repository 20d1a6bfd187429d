// training_sums: sums of rows by codeword, in integers, from rows sorted by codeword.
//
// A thread has some columns of some entries of the order. It keeps their sums in registers while the codeword stays the
// same, and adds them to global memory when it changes. Integer addition is associative, so the order changes no bit.
#include "kernels/vectors/training.cuh"

namespace mr::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kFetched = 8;                              // rows whose elements are in flight at once
constexpr int64_t kLeastPlaces = 8, kMostPlaces = 256;   // of a thread
constexpr int64_t kBusy = 3072;                          // threads of an SM: several waves of them

// V elements as they are stored, loaded at once.
template <int32_t kType, int V>
struct Stored;
template <> struct Stored<MR_VECTOR_F32, 4> { using Whole = float4; };
template <> struct Stored<MR_VECTOR_F16, 4> { using Whole = uint2; };
template <> struct Stored<MR_VECTOR_BF16, 4> { using Whole = uint2; };
template <> struct Stored<MR_VECTOR_U8, 4> { using Whole = uint32_t; };
template <> struct Stored<MR_VECTOR_I8, 4> { using Whole = uint32_t; };
template <> struct Stored<MR_VECTOR_F32, 1> { using Whole = float; };
template <> struct Stored<MR_VECTOR_F16, 1> { using Whole = uint16_t; };
template <> struct Stored<MR_VECTOR_BF16, 1> { using Whole = uint16_t; };
template <> struct Stored<MR_VECTOR_U8, 1> { using Whole = uint8_t; };
template <> struct Stored<MR_VECTOR_I8, 1> { using Whole = uint8_t; };

template <int32_t kType, int V>
__global__ void __launch_bounds__(kThreads) add_rows(TrainingView t, const void* rows, const uint32_t* keys, const uint32_t* order,
                                                     int64_t count, int64_t space, int64_t places) {
  using Whole = typename Stored<kType, V>::Whole;
  grid_wait();
  const Control& control = *t.a.control;
  if (control.skip != 0 || control.over != 0) return;
  const int64_t lanes = t.p.width / V, thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t begin = thread / lanes * places, end = min(begin + places, count), column = thread % lanes * V;
  if (begin >= count) return;
  double scale[V];
#pragma unroll
  for (int v = 0; v < V; ++v) scale[v] = t.a.scale[space * t.p.width + column + v];
  const int64_t pitch = t.p.full / V;  // of a row, in V elements
  const Whole* const from = static_cast<const Whole*>(rows) + (space * t.p.width + column) / V;
  int64_t* const sums = t.a.sums + space * t.p.codewords * t.p.width + column;
  const uint32_t none = static_cast<uint32_t>(t.p.codewords);
  int64_t sum[V] = {};
  uint32_t at = keys[begin];
  const auto flush = [&] {
    if (at >= none) return;
    unsigned long long* const to = reinterpret_cast<unsigned long long*>(sums + at * t.p.width);
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (sum[v] != 0) atomicAdd(to + v, static_cast<unsigned long long>(sum[v]));
  };
  for (int64_t first = begin; first < end; first += kFetched) {
    Whole fetched[kFetched];
    uint32_t key[kFetched];
#pragma unroll
    for (int i = 0; i < kFetched; ++i) {
      const int64_t place = min(first + i, end - 1);
      key[i] = keys[place];
      fetched[i] = from[order[place] * pitch];
    }
#pragma unroll
    for (int i = 0; i < kFetched; ++i) {
      if (first + i >= end) break;
      if (key[i] != at) {
        flush();
        at = key[i];
#pragma unroll
        for (int v = 0; v < V; ++v) sum[v] = 0;
      }
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const double x = static_cast<double>(decode_element(kType, &fetched[i], v));
        sum[v] += __double2ll_rn(x * scale[v]);
      }
    }
  }
  flush();
}

template <int32_t kType>
cudaError_t launch_add(const TrainingView& t, const void* rows, const uint32_t* keys, const uint32_t* order, int64_t count,
                       int64_t space, int64_t places, const Stream& on) {
  const bool wide = t.p.width % 4 == 0;
  const int64_t threads = (count + places - 1) / places * (t.p.width / (wide ? 4 : 1));
  return launch(on, training_grid(threads, kThreads), dim3(kThreads), 0, wide ? add_rows<kType, 4> : add_rows<kType, 1>, t, rows, keys,
                order, count, space, places);
}

}  // namespace

cudaError_t launch_add_rows(const TrainingView& t, const void* rows, const uint32_t* keys, const uint32_t* order, int64_t count,
                            int64_t space, int processors, const Stream& on) {
  const int64_t lanes = std::max<int64_t>(1, t.p.width / (t.p.width % 4 == 0 ? 4 : 1));
  const int64_t wanted = kBusy * std::max(processors, 1);  // threads
  const int64_t places = std::clamp(count * lanes / wanted, kLeastPlaces, kMostPlaces);
  switch (t.p.stored) {
    case MR_VECTOR_F32: return launch_add<MR_VECTOR_F32>(t, rows, keys, order, count, space, places, on);
    case MR_VECTOR_F16: return launch_add<MR_VECTOR_F16>(t, rows, keys, order, count, space, places, on);
    case MR_VECTOR_BF16: return launch_add<MR_VECTOR_BF16>(t, rows, keys, order, count, space, places, on);
    case MR_VECTOR_U8: return launch_add<MR_VECTOR_U8>(t, rows, keys, order, count, space, places, on);
    case MR_VECTOR_I8: return launch_add<MR_VECTOR_I8>(t, rows, keys, order, count, space, places, on);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace mr::cuda
