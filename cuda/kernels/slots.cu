// slots: SLOT_SET on the device. A record holds, each part padded to 16 bytes: SlotParams; bias ids; bias values; the
// allowed bitmask unless every token is allowed; the suppressed bitmask if any token is; the history. Block (s, 0)
// copies the lists of set s, and block (s, i) its history from token i * kHistoryPiece on, so that many blocks copy a
// long history.
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/sampler/state.h"

namespace mr::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int32_t kHistoryPiece = 4096;  // tokens

struct Record {  // byte offsets of the parts
  int64_t bias_ids, bias_values, allowed, suppressed, history, size;
};

__host__ __device__ int64_t padded(int64_t bytes) { return (bytes + 15) / 16 * 16; }

__host__ __device__ Record parts_of(const SlotParams& p, int32_t mask_words, int32_t history_count) {
  Record r;
  r.bias_ids = padded(sizeof(SlotParams));
  r.bias_values = r.bias_ids + padded(int64_t{4} * p.bias_count);
  r.allowed = r.bias_values + padded(int64_t{4} * p.bias_count);
  r.suppressed = r.allowed + (p.all_allowed ? 0 : padded(int64_t{4} * mask_words));
  r.history = r.suppressed + (p.has_suppressed ? padded(int64_t{4} * mask_words) : 0);
  r.size = r.history + padded(int64_t{4} * history_count);
  return r;
}

template <class T>
__device__ void copy(T* to, const uint8_t* from, int32_t count) {
  const T* const source = reinterpret_cast<const T*>(from);
#pragma unroll 4
  for (int32_t i = threadIdx.x; i < count; i += kThreads) to[i] = source[i];
}

__global__ void __launch_bounds__(kThreads) set_slots(SlotTables tables, const SlotSet* sets) {
  grid_wait();
  grid_trigger();
  const SlotSet set = sets[blockIdx.x];
  const uint8_t* const record = static_cast<const uint8_t*>(set.record);
  const SlotParams p = *reinterpret_cast<const SlotParams*>(record);
  const Record at = parts_of(p, tables.mask_words, set.history_count);
  const int64_t slot = set.slot, words = tables.mask_words;
  const int32_t first = static_cast<int32_t>(blockIdx.y) * kHistoryPiece;
  const int32_t left = set.history_count - first;  // below 1 if another set's history is longer
  copy(tables.history + slot * tables.history_stride + first, record + at.history + int64_t{4} * first,
       left < kHistoryPiece ? left : static_cast<int32_t>(kHistoryPiece));
  if (blockIdx.y != 0) return;
  if (threadIdx.x == 0) {
    tables.params[slot] = p;
    tables.feeds[slot] = SlotFeed{0, MR_ROW_OK};
  }
  copy(tables.bias_ids + slot * tables.bias_capacity, record + at.bias_ids, p.bias_count);
  copy(tables.bias_values + slot * tables.bias_capacity, record + at.bias_values, p.bias_count);
  if (!p.all_allowed) copy(tables.allowed + slot * words, record + at.allowed, tables.mask_words);
  if (p.has_suppressed) copy(tables.suppressed + slot * words, record + at.suppressed, tables.mask_words);
}

SlotParams params_of(const SlotSource& source) {
  SlotParams p = source.params;
  p.all_allowed = source.params.all_allowed != 0;
  p.has_suppressed = source.suppressed_count > 0;
  return p;
}

void set_bits(uint32_t* mask, int32_t words, const int32_t* ids, int32_t count) {
  std::memset(mask, 0, static_cast<size_t>(words) * sizeof *mask);
  for (int32_t i = 0; i < count; ++i) mask[ids[i] / 32] |= 1u << (ids[i] % 32);
}

}  // namespace

int64_t slot_record_bytes(const SlotSource& source, int32_t vocab) {
  return parts_of(params_of(source), (vocab + 31) / 32, source.history_count).size;
}

void pack_slot_record(const SlotSource& source, int32_t vocab, void* record) {
  const SlotParams p = params_of(source);
  const int32_t words = (vocab + 31) / 32;
  const Record at = parts_of(p, words, source.history_count);
  uint8_t* const base = static_cast<uint8_t*>(record);
  std::memset(base, 0, static_cast<size_t>(at.size));
  std::memcpy(base, &p, sizeof p);
  // A stable order, because entries of one id are added one after another.
  std::vector<int32_t> order(static_cast<size_t>(p.bias_count));
  for (int32_t i = 0; i < p.bias_count; ++i) order[static_cast<size_t>(i)] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return source.bias_ids[a] < source.bias_ids[b]; });
  int32_t* const ids = reinterpret_cast<int32_t*>(base + at.bias_ids);
  float* const values = reinterpret_cast<float*>(base + at.bias_values);
  for (int32_t i = 0; i < p.bias_count; ++i) {
    ids[i] = source.bias_ids[order[static_cast<size_t>(i)]];
    values[i] = source.bias_values[order[static_cast<size_t>(i)]];
  }
  if (!p.all_allowed)
    set_bits(reinterpret_cast<uint32_t*>(base + at.allowed), words, source.allowed_ids, source.allowed_count);
  if (p.has_suppressed)
    set_bits(reinterpret_cast<uint32_t*>(base + at.suppressed), words, source.suppressed_ids, source.suppressed_count);
  if (source.history_count > 0)
    std::memcpy(base + at.history, source.history, static_cast<size_t>(source.history_count) * sizeof(int32_t));
}

cudaError_t launch_slot_sets(const SlotTables& tables, const SlotSet* sets, int32_t count, int32_t most_history, const Stream& on) {
  if (count < 0 || most_history < 0 || most_history > tables.history_stride) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  const int64_t pieces = std::max<int64_t>(1, (int64_t{most_history} + kHistoryPiece - 1) / kHistoryPiece);
  if (pieces > 65535) return cudaErrorInvalidValue;
  return launch(on, dim3(static_cast<unsigned>(count), static_cast<unsigned>(pieces)), dim3(kThreads), 0, set_slots, tables, sets);
}

}  // namespace mr::cuda
