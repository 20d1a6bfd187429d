#pragma GCC optimize("fp-contract=off")
#include "codebook.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>

#include "digest.h"
#include "error.h"
#include "vector_config.h"
#include "vector_math.h"

namespace mr::cpu {
namespace {

constexpr int64_t kGroupFloats = 64 << 10;     // of a group's rows: they stay in a cache of the core
constexpr int64_t kSmallWork = 1 << 20;        // products that one thread does before others have come
constexpr int64_t kDecodedRows = 1024;         // by one task

}  // namespace

// What one thread needs for a group of rows.
struct Codebook::Lane {
  Lane(const Codebook& b, int64_t group, bool neighbours, bool distances) {
    const int64_t full = b.desc_.dimension, codewords = b.panels_ * b.kernels_.codewords;
    floats.resize(static_cast<size_t>(group * (full + b.width_ + 4) + b.width_ +
                                      (neighbours ? 2 * codewords : SearchScratch::kScoresAtOnce)));
    numbers.resize(static_cast<size_t>(group));
    ids.resize(static_cast<size_t>(group));
    if (distances) {
      least.resize(static_cast<size_t>(group));
      sums.resize(static_cast<size_t>(group));
    }
    if (neighbours) found.resize(static_cast<size_t>(b.desc_.codewords));
    float* at = floats.data();
    const auto take = [&at](int64_t n) { return std::exchange(at, at + n); };
    rows = take(group * full);
    search.packed = take(group * b.width_);
    search.best = take(group);
    search.second = take(group);
    search.squares = take(group);
    search.limits = take(group);
    search.row = take(b.width_);
    search.scores = take(neighbours ? codewords : SearchScratch::kScoresAtOnce);
    order = neighbours ? take(codewords) : nullptr;
    search.id = numbers.data();
  }

  std::vector<float> floats;
  std::vector<int32_t> numbers;
  std::vector<uint32_t> ids;
  std::vector<double> least, sums;
  std::vector<Search::Neighbour> found;
  SearchScratch search{};
  float *rows = nullptr, *order = nullptr;
  int64_t recomputed = 0;
};

Codebook::Codebook(std::shared_ptr<Device> device, const mr_codebook_desc& desc, const void* codewords, uint64_t size)
    : device_(std::move(device)), desc_((check_codebook(desc), desc)), kernels_(vector_kernels(device_->isa)),
      width_(desc.dimension / desc.subspaces), panels_(panel_count(kernels_, desc.codewords)) {
  if (size != codebook_size(desc_))
    fail(MR_INVALID_ARGUMENT, "size is %llu: want %llu bytes of codewords", static_cast<unsigned long long>(size),
         static_cast<unsigned long long>(codebook_size(desc_)));
  if (codewords == nullptr) fail(MR_INVALID_ARGUMENT, "codewords is null");
  check_codewords(kernels_, desc_, codewords);

  const auto whole = [](uint64_t n) { return (n + 63) / 64 * 64; };
  const uint64_t floats = static_cast<uint64_t>(desc_.codewords) * static_cast<uint64_t>(desc_.dimension) * 4;
  const uint64_t own = desc_.codeword_type == MR_VECTOR_F32 ? 0 : whole(floats);
  const uint64_t spaces = static_cast<uint64_t>(desc_.subspaces), wide = static_cast<uint64_t>(panels_ * kernels_.codewords);
  const uint64_t panels = whole(spaces * wide * static_cast<uint64_t>(width_) * 4), halves = whole(spaces * wide * 4);
  const uint64_t centers = whole(static_cast<uint64_t>(desc_.dimension) * 4);
  memory_ = device_->ledger.allocate(whole(size) + own + panels + halves + centers, MR_PURPOSE_WORKSPACE, false);
  bytes_ = memory_.as<uint8_t>();
  values_ = reinterpret_cast<float*>(own == 0 ? bytes_ : bytes_ + whole(size));
  uint8_t* at = bytes_ + whole(size) + own;
  spaces_.resize(spaces);
  for (int64_t s = 0; s < desc_.subspaces; ++s) {
    Searchable& to = spaces_[static_cast<size_t>(s)];
    to.metric = desc_.metric;
    to.codewords = desc_.codewords;
    to.width = width_;
    to.values = values_ + s * desc_.codewords * width_;
    to.panels = reinterpret_cast<float*>(at) + s * static_cast<int64_t>(wide) * width_;
    to.halves = reinterpret_cast<float*>(at + panels) + s * static_cast<int64_t>(wide);
    to.center = reinterpret_cast<float*>(at + panels + halves) + s * width_;
  }
  std::memcpy(bytes_, codewords, size);
  prepare();
  ++device_->codebooks;
}

Codebook::~Codebook() { --device_->codebooks; }

void Codebook::prepare() {
  const FloatEnvironment environment;
  if (desc_.codeword_type != MR_VECTOR_F32)
    kernels_.decode(desc_.codeword_type, bytes_, int64_t{desc_.codewords} * desc_.dimension, values_);
  for (Searchable& space : spaces_) {
    prepare_center(&space);
    space.radius = prepare_panels(kernels_, space, 0, panels_);
  }
}

// What people see of a Q.
double Codebook::told(double distance) const { return desc_.metric == MR_METRIC_COSINE ? 1 + distance : distance; }

void Codebook::put_code(void* codes, int64_t at, uint32_t code) const {
  uint8_t* const to = static_cast<uint8_t*>(codes);
  if (code_size(desc_) == 1) {
    to[at] = static_cast<uint8_t>(code);
  } else {
    const uint16_t two = static_cast<uint16_t>(code);
    std::memcpy(to + 2 * at, &two, 2);
  }
}

void Codebook::encode(mr_encode_args* args) const {
  check_encoding(desc_, *args);
  args->recomputed = 0;
  if (args->count == 0) return;
  const std::shared_lock<std::shared_mutex> lock(bits_);
  const FloatEnvironment environment;
  const int64_t count = static_cast<int64_t>(args->count), full = desc_.dimension, tile = kernels_.rows;
  const bool small = count * full * desc_.codewords <= kSmallWork;
  const auto share = [&](int64_t tasks, auto&& task) {
    if (small || tasks == 1) {
      for (int64_t t = 0; t < tasks; ++t) task(t, 0);
    } else {
      device_->aside(tasks, task);
    }
  };

  const int64_t fair = count / (2 * device_->threads.size());
  const int64_t group = std::max<int64_t>(1, std::min(kGroupFloats / full, fair) / tile) * tile;
  std::atomic<int64_t> wrong{INT64_MAX};  // the first row that is not finite
  std::vector<std::unique_ptr<Lane>> lanes(static_cast<size_t>(device_->threads.size()));
  share((count + group - 1) / group, [&](int64_t t, int thread) {
    std::unique_ptr<Lane>& lane = lanes[static_cast<size_t>(thread)];
    if (lane == nullptr) lane = std::make_unique<Lane>(*this, group, args->neighbours > 1, args->distances != nullptr);
    if (t * group > wrong.load()) return;
    const int64_t at = encode_group(*args, t * group, std::min(group, count - t * group), lane.get());
    for (int64_t least = wrong.load(); at < least && !wrong.compare_exchange_weak(least, at);) {
    }
  });
  if (wrong != INT64_MAX)
    fail(MR_INVALID_ARGUMENT, "row %lld has a NaN or an infinity: rows must be finite", static_cast<long long>(wrong.load()));
  for (const std::unique_ptr<Lane>& lane : lanes)
    if (lane != nullptr) args->recomputed += static_cast<uint64_t>(lane->recomputed);
}

// Returns the first row that is not finite, or INT64_MAX.
int64_t Codebook::encode_group(const mr_encode_args& args, int64_t first, int64_t count, Lane* lane) const {
  const int64_t full = desc_.dimension, spaces = desc_.subspaces;
  const int64_t row_bytes = full * static_cast<int64_t>(element_size(args.element_type));
  const uint8_t* const from = static_cast<const uint8_t*>(args.rows) + first * row_bytes;
  const float* rows = lane->rows;
  const bool cosine = desc_.metric == MR_METRIC_COSINE;
  if (args.element_type == MR_VECTOR_F32 && !cosine && reinterpret_cast<uintptr_t>(from) % alignof(float) == 0)
    rows = reinterpret_cast<const float*>(from);
  else
    kernels_.decode(args.element_type, from, count * full, lane->rows);
  if (cosine || args.neighbours > 1) {
    if (const int64_t wrong = first_not_finite(rows, count); wrong < count) return first + wrong;
  }
  if (cosine)
    for (int64_t i = 0; i < count; ++i) normalise(lane->rows + i * full, full, lane->rows + i * full);
  if (args.neighbours > 1) {
    encode_neighbours(args, first, count, rows, lane);
    return INT64_MAX;
  }
  double* const least = args.distances != nullptr ? lane->least.data() : nullptr;
  std::fill(lane->sums.begin(), lane->sums.end(), 0.0);
  for (int64_t s = 0; s < spaces; ++s) {
    const int64_t settled = Search(kernels_, spaces_[static_cast<size_t>(s)])
                                .nearest(rows + s * width_, full, count, lane->search, lane->ids.data(), least);
    if (settled < 0) return first + first_not_finite(rows, count);
    lane->recomputed += settled;
    for (int64_t i = 0; i < count; ++i) put_code(args.codes, (first + i) * spaces + s, lane->ids[static_cast<size_t>(i)]);
    for (int64_t i = 0; least != nullptr && i < count; ++i) lane->sums[static_cast<size_t>(i)] += least[i];
  }
  for (int64_t i = 0; least != nullptr && i < count; ++i)
    args.distances[first + i] =
        static_cast<float>(desc_.kind == MR_CODEBOOK_PRODUCT ? lane->sums[static_cast<size_t>(i)] : told(least[i]));
  return INT64_MAX;
}

// The first of some rows that is not finite, or how many there are.
int64_t Codebook::first_not_finite(const float* rows, int64_t count) const {
  int64_t i = 0;
  while (i < count && kernels_.finite(MR_VECTOR_F32, rows + i * desc_.dimension, desc_.dimension)) ++i;
  return i;
}

void Codebook::encode_neighbours(const mr_encode_args& args, int64_t first, int64_t count, const float* rows, Lane* lane) const {
  const Search search(kernels_, spaces_[0]);
  for (int64_t i = 0; i < count; ++i) {
    const float* const row = rows + i * desc_.dimension;
    if (search.neighbours(row, args.neighbours, lane->search, lane->order, lane->found.data())) ++lane->recomputed;
    for (int64_t h = 0; h < args.neighbours; ++h) {
      const Search::Neighbour& found = lane->found[static_cast<size_t>(h)];
      put_code(args.codes, (first + i) * args.neighbours + h, found.id);
      if (args.distances != nullptr) args.distances[(first + i) * args.neighbours + h] = static_cast<float>(told(found.distance));
    }
  }
}

void Codebook::decode(const void* codes, uint64_t count, void* out) const {
  if (count == 0) return;
  if (count > kMostRows)
    fail(MR_INVALID_ARGUMENT, "count is %llu: want at most 2^40 rows", static_cast<unsigned long long>(count));
  if (codes == nullptr) fail(MR_INVALID_ARGUMENT, "codes is null");
  if (out == nullptr) fail(MR_INVALID_ARGUMENT, "out is null");
  const std::shared_lock<std::shared_mutex> lock(bits_);
  const int64_t spaces = desc_.subspaces, all = static_cast<int64_t>(count) * spaces;
  const uint64_t size = static_cast<uint64_t>(width_) * element_size(desc_.codeword_type);
  const auto code = [&](int64_t i) {
    uint16_t two = 0;
    std::memcpy(&two, static_cast<const uint8_t*>(codes) + i * static_cast<int64_t>(code_size(desc_)), code_size(desc_));
    return int64_t{two};
  };
  for (int64_t i = 0; i < all; ++i)  // before anything is written
    if (code(i) >= desc_.codewords)
      fail(MR_INVALID_ARGUMENT, "row %lld has code %lld in subspace %lld: there are %d codewords", static_cast<long long>(i / spaces),
           static_cast<long long>(code(i)), static_cast<long long>(i % spaces), desc_.codewords);
  const int64_t runs = (static_cast<int64_t>(count) + kDecodedRows - 1) / kDecodedRows;
  const auto gather = [&](int64_t task, int) {
    const int64_t begin = task * kDecodedRows * spaces, end = std::min(all, begin + kDecodedRows * spaces);
    for (int64_t i = begin; i < end; ++i)
      std::memcpy(static_cast<uint8_t*>(out) + static_cast<uint64_t>(i) * size,
                  bytes_ + static_cast<uint64_t>(i % spaces * desc_.codewords + code(i)) * size, size);
  };
  if (runs == 1) gather(0, 0);
  else device_->aside(runs, gather);
}

void Codebook::digest(uint8_t out[32]) const {
  const std::shared_lock<std::shared_mutex> lock(bits_);
  digest_memory(*device_, bytes_, codebook_size(desc_), out);
}

void Codebook::flip_bit(uint64_t bit) {
  if (bit >= 8 * codebook_size(desc_))
    fail(MR_INVALID_ARGUMENT, "bit %llu is beyond %llu bytes of codewords", static_cast<unsigned long long>(bit),
         static_cast<unsigned long long>(codebook_size(desc_)));
  const std::lock_guard<std::shared_mutex> lock(bits_);
  bytes_[bit / 8] = static_cast<uint8_t>(bytes_[bit / 8] ^ (1u << (bit % 8)));
  prepare();
}

}  // namespace mr::cpu
