// training_sums_distances: sums of rows by codeword and each row's Q in one pass over rows sorted by codeword.
//
// Eight lanes have 64 columns of a row, lane i those that are i mod 8, in the order of Q; a warp has as many parts of a
// row side by side as its columns need. Rows are loaded as pieces of eight columns and exchanged in shared memory.
// Codeword, scales and sums stay in registers while the codeword stays the same.
//
// Only for squared distances. x 2^E rounded to an integer is in the lowest bits of x + 1.5 * 2^(52 - E), because |x
// 2^E| < 2^51 for more than 1 024 rows.
#include "kernels/vectors/search_element.cuh"
#include "kernels/vectors/training.cuh"

namespace mr::cuda {
namespace {

constexpr int kThreads = 128, kBlocks = 4;              // this many of them share an SM's registers
constexpr int kTogether = 2;                            // rows whose sums are computed at once
constexpr int64_t kLeastPlaces = 8, kMostPlaces = 256;  // of a row's lanes
constexpr int64_t kBusy = 2048;                         // threads of an SM
constexpr int64_t kPartColumns = 64;

template <int32_t kType>
constexpr int kElement = kType == MR_VECTOR_F32 ? 4 : kType == MR_VECTOR_F16 || kType == MR_VECTOR_BF16 ? 2 : 1;

// Eight elements as they are stored.
template <int kBytes>
struct alignas(kBytes < 16 ? kBytes : 16) Piece {
  uint32_t words[kBytes / 4];
};

__device__ __forceinline__ uint64_t bits_of(double v) { return static_cast<uint64_t>(__double_as_longlong(v)); }

// Place is a row of the range and its codeword.
struct Place {
  uint32_t codeword, row;
};

template <int32_t kType, int kParts>
__global__ void __launch_bounds__(kThreads, kBlocks) add_rows_with_distances(TrainingView t, const void* rows, const uint32_t* keys,
                                                                             const uint32_t* order, int64_t count, int64_t first,
                                                                             int64_t space, int32_t places) {
  constexpr int kLanes = 8 * kParts, kFetched = kType == MR_VECTOR_F32 ? 2 : 4;  // rows on their way at once
  constexpr uint32_t kNone = ~0u;                                                // the codeword of an entry without a row
  using Whole = Piece<8 * kElement<kType>>;
  __shared__ Whole staged[kThreads / 32][kFetched][4][9];  // padding: the ninth puts the four into different banks
  __shared__ Place placed[kThreads / 32][kFetched][4];
  grid_wait();
  if (t.a.control->skip != 0) return;
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), octet = lane / 8, i = lane % 8, part = lane % kLanes / 8;
  const int32_t width = static_cast<int32_t>(t.p.width), mine = width / 8 - part * 8;  // columns m * 8 + i are there, m < mine
  const int64_t own = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kLanes * places;
  const int32_t many = own < count ? static_cast<int32_t>(min(int64_t{places}, count - own)) : 0;  // rows of these lanes
  keys += many > 0 ? own : 0;
  order += many > 0 ? own : 0;
  const int64_t pitch = t.p.full / 8;  // of a row, in pieces
  const Whole* const from = static_cast<const Whole*>(rows) + (space * width + part * kPartColumns) / 8 + i;
  // Of codeword c the lane's columns begin at c * width.
  const int64_t within = space * t.p.codewords * width + part * kPartColumns + i;
  const float* const codewords = t.a.now + within;
  unsigned long long* const sums = reinterpret_cast<unsigned long long*>(t.a.sums) + within;
  double* const distances = t.a.distances + space * t.p.n + first;
  Whole(*const stage)[4][9] = staged[threadIdx.x / 32];
  Place(*const place)[4] = placed[threadIdx.x / 32];

  double magic[8], codeword[8];
  uint64_t sum[8], added = 0;  // of rows of codeword `at`
  uint32_t at = kNone;
#pragma unroll
  for (int m = 0; m < 8; ++m) {
    const int32_t e = m < mine ? t.a.exponent[space * width + part * kPartColumns + i + m * 8] : 0;
    magic[m] = __longlong_as_double(static_cast<long long>(static_cast<uint64_t>(1075 - e) << 52 | uint64_t{1} << 51));
    codeword[m] = 0;
    sum[m] = 0;
  }
  const auto change = [&](uint32_t to) {
#pragma unroll
    for (int m = 0; m < 8; ++m) {
      const uint64_t value = sum[m] - added * bits_of(magic[m]);
      if (at != kNone && value != 0 && m < mine) atomicAdd(sums + int64_t{at} * width + m * 8, static_cast<unsigned long long>(value));
      sum[m] = 0;
      codeword[m] = to != kNone && m < mine ? static_cast<double>(codewords[int64_t{to} * width + m * 8]) : 0;
    }
    added = 0;
    at = to;
  };
  Place next[kFetched];
  Whole fetched[kFetched];
  const auto ask = [&](int32_t base) {
#pragma unroll
    for (int f = 0; f < kFetched; ++f) {
      const int32_t n = base + f < many ? base + f : 0;
      next[f] = {base + f < many ? keys[n] : kNone, order[n]};
    }
#pragma unroll
    for (int f = 0; f < kFetched; ++f) fetched[f] = i < mine ? from[next[f].row * pitch] : Whole{};
  };
  ask(0);
#pragma unroll 1
  for (int32_t base = 0; base < places; base += kFetched) {  // all lanes of a warp loop equally often
#pragma unroll
    for (int f = 0; f < kFetched; ++f) {
      stage[f][octet][i] = fetched[f];
      place[f][octet] = next[f];
    }
    __syncwarp();
    ask(base + kFetched);  // in flight during the sums
#pragma unroll kTogether
    for (int f = 0; f < kFetched; ++f) {
      const Place now = place[f][octet];
      if (now.codeword != at) change(now.codeword);
      double q[8];
#pragma unroll
      for (int m = 0; m < 8; ++m) {  // columns past the last are zeros, which change no sum
        const double x = static_cast<double>(load_element<kType>(&stage[f][octet][m], i)), apart = x - codeword[m];
        q[m] = apart * apart;
        sum[m] += bits_of(x + magic[m]);
      }
      ++added;
      double partial = 0;
#pragma unroll
      for (int round = 0; round < kParts; ++round) {  // each part continues the sums of the one before
        if (round > 0) {
          const double before = __shfl_sync(kWholeWarp, partial, (lane + 24) % 32);
          if (part == round) partial = before;
        }
        if (part == round) {
#pragma unroll
          for (int m = 0; m < 8; ++m) partial += q[m];
        }
      }
#pragma unroll
      for (int half = 4; half > 0; half /= 2) {
        const double other = __shfl_down_sync(kWholeWarp, partial, half, 8);
        if (i < half) partial += other;
      }
      if (part == kParts - 1 && i == 0 && now.codeword != kNone) distances[now.row] = partial;
    }
    __syncwarp();
  }
  change(kNone);
}

template <int32_t kType>
cudaError_t launch_parts(const TrainingView& t, const void* rows, const uint32_t* keys, const uint32_t* order, int64_t count, int64_t first,
                         int64_t space, int processors, const Stream& on) {
  const int parts = t.p.width <= kPartColumns ? 1 : t.p.width <= 2 * kPartColumns ? 2 : 4;
  const auto kernel = parts == 1   ? add_rows_with_distances<kType, 1>
                      : parts == 2 ? add_rows_with_distances<kType, 2>
                                   : add_rows_with_distances<kType, 4>;
  const int64_t lanes = 8 * parts, wanted = kBusy * std::max(processors, 1);
  const int64_t places = std::clamp(count * lanes / wanted, kLeastPlaces, kMostPlaces);
  return launch(on, training_grid((count + places - 1) / places * lanes, kThreads), dim3(kThreads), 0, kernel, t, rows, keys, order, count,
                first, space, static_cast<int32_t>(places));
}

}  // namespace

bool adds_rows_with_distances(const TrainingParameters& p) {
  return p.metric == MR_METRIC_L2 && p.n > 1024 && p.width % 8 == 0 && p.width >= 32 && p.width <= 4 * kPartColumns;
}

cudaError_t launch_add_rows_with_distances(const TrainingView& t, const void* rows, const uint32_t* keys, const uint32_t* order,
                                           int64_t count, int64_t first, int64_t space, int processors, const Stream& on) {
  switch (t.p.stored) {
    case MR_VECTOR_F32: return launch_parts<MR_VECTOR_F32>(t, rows, keys, order, count, first, space, processors, on);
    case MR_VECTOR_F16: return launch_parts<MR_VECTOR_F16>(t, rows, keys, order, count, first, space, processors, on);
    case MR_VECTOR_BF16: return launch_parts<MR_VECTOR_BF16>(t, rows, keys, order, count, first, space, processors, on);
    case MR_VECTOR_U8: return launch_parts<MR_VECTOR_U8>(t, rows, keys, order, count, first, space, processors, on);
    case MR_VECTOR_I8: return launch_parts<MR_VECTOR_I8>(t, rows, keys, order, count, first, space, processors, on);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace mr::cuda
