#include "src/vectors/codebook.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cpu/vector_config.h"
#include "kernels/vectors/codebook.h"
#include "kernels/vectors/training.h"
#include "src/digest.h"
#include "src/error.h"
#include "src/event_wait.h"

namespace mr::cuda {
namespace {

constexpr int64_t kPieceBytes = int64_t{16} << 20;      // of rows as float32
constexpr int64_t kLeastRows = 256, kMostRows = 65536;  // of a piece
constexpr int64_t kNeighbourBytes = int64_t{64} << 20;  // of all distances of the rows whose neighbours are looked for at once

bool finite(int32_t type, const void* from, int64_t n) {
  if (type == MR_VECTOR_F32) {
    const uint32_t* const v = static_cast<const uint32_t*>(from);
    return std::none_of(v, v + n, [](uint32_t bits) { return (bits & 0x7f800000u) == 0x7f800000u; });
  }
  const uint16_t* const v = static_cast<const uint16_t*>(from);
  const uint16_t exponent = type == MR_VECTOR_F16 ? 0x7c00 : 0x7f80;
  return std::none_of(v, v + n, [exponent](uint16_t bits) { return (bits & exponent) == exponent; });
}

void check_values(const mr_codebook_desc& desc, const void* codewords) {
  cpu::VectorKernels kernels{};
  kernels.finite = finite;
  check_codewords(kernels, desc, codewords);
}

int64_t rows_of_piece(const mr_codebook_desc& desc) { return std::clamp(kPieceBytes / (4 * int64_t{desc.dimension}), kLeastRows, kMostRows); }

}  // namespace

// Rows in flight: their input, their result, and the event that follows it.
struct Codebook::Piece {
  Memory rows, floats, ids, q, codes, distances;
  Memory counts;  // the first row that is not finite, and rows with more than one candidate
  EventHandle done{cudaEventDisableTiming};
  int64_t first = 0, count = 0;
  const int64_t most;

  Piece(const Codebook& book, const mr_encode_args& args)
      : most(std::min(book.piece_rows_, static_cast<int64_t>(args.count))) {
    Ledger& ledger = book.device_->ledger;
    const uint64_t n = static_cast<uint64_t>(most), full = static_cast<uint64_t>(book.desc_.dimension);
    const uint64_t each = static_cast<uint64_t>(std::max(args.neighbours, book.desc_.subspaces));
    rows = ledger.allocate(n * full * element_size(args.element_type), MR_PURPOSE_WORKSPACE);
    if (book.desc_.metric == MR_METRIC_COSINE) floats = ledger.allocate(n * full * 4, MR_PURPOSE_WORKSPACE);
    codes = ledger.allocate(n * each * code_size(book.desc_), MR_PURPOSE_WORKSPACE);
    counts = ledger.allocate(16, MR_PURPOSE_WORKSPACE);
    if (args.distances != nullptr) distances = ledger.allocate(n * static_cast<uint64_t>(args.neighbours) * 4, MR_PURPOSE_WORKSPACE);
    if (args.neighbours > 1) {
      q = ledger.allocate(static_cast<uint64_t>(book.desc_.codewords) * 8 * static_cast<uint64_t>(at_once(book)), MR_PURPOSE_WORKSPACE);
      return;
    }
    ids = ledger.allocate(n * each * 4, MR_PURPOSE_WORKSPACE);
    if (args.distances != nullptr) q = ledger.allocate(n * each * 8, MR_PURPOSE_WORKSPACE);
  }
  // Rows whose distances to all codewords are held at once.
  int64_t at_once(const Codebook& book) const {
    return std::clamp<int64_t>(kNeighbourBytes / (8 * book.desc_.codewords), 1, most);
  }
};

Codebook::Codebook(std::shared_ptr<Device> device, const mr_codebook_desc& desc, const void* codewords, uint64_t size)
    : device_(std::move(device)), desc_((check_codebook(desc), desc)), width_(desc.dimension / desc.subspaces),
      piece_rows_(rows_of_piece(desc)) {
  if (size != codebook_size(desc_))
    fail(MR_INVALID_ARGUMENT, "size is %llu: want %llu bytes of codewords", static_cast<unsigned long long>(size),
         static_cast<unsigned long long>(codebook_size(desc_)));
  if (codewords == nullptr) fail(MR_INVALID_ARGUMENT, "codewords is null");
  check_values(desc_, codewords);
  device_->enter();
  stream_ = StreamHandle(device_->priority_low);
  bytes_ = device_->ledger.allocate(size, MR_PURPOSE_WORKSPACE);
  values_ = bytes_.as<float>();
  if (desc_.codeword_type != MR_VECTOR_F32) {
    floats_ = device_->ledger.allocate(static_cast<uint64_t>(desc_.codewords) * static_cast<uint64_t>(desc_.dimension) * 4,
                                       MR_PURPOSE_WORKSPACE);
    values_ = floats_.as<float>();
  }
  uint64_t most = 0;
  for (int32_t type = MR_VECTOR_F32; type <= MR_VECTOR_I8; ++type) most = std::max(most, Search::bytes(shape(type), device_->index));
  search_memory_ = device_->ledger.allocate(most, MR_PURPOSE_WORKSPACE);
  device_->transfers.upload(bytes_.data(), codewords, size);
  widen();
  device_->codebooks.fetch_add(1);
}

Codebook::~Codebook() {
  (void)cudaSetDevice(device_->index);
  (void)cudaStreamSynchronize(stream_);
  device_->codebooks.fetch_sub(1);
}

// Called after the bytes changed; the next search prepares itself again.
void Codebook::widen() {
  const Rest rest(stream_);
  searched_type_ = -1;
  if (floats_)
    CUDA_CHECK(launch_widen_codewords(bytes_.data(), desc_.codeword_type, int64_t{desc_.codewords} * desc_.dimension, floats_.as<float>(), on()));
  CUDA_CHECK(cudaStreamSynchronize(stream_));
}

SearchShape Codebook::shape(int32_t row_type) const {
  SearchShape s;
  s.metric = desc_.metric;
  s.row_type = desc_.metric == MR_METRIC_COSINE ? int32_t{MR_VECTOR_F32} : row_type;
  s.codeword_type = desc_.codeword_type;
  s.spaces = desc_.subspaces;
  s.codewords = desc_.codewords;
  s.width = width_;
  s.most_rows = piece_rows_;
  return s;
}

Search& Codebook::search(int32_t row_type) const {
  if (searched_type_ != row_type) {
    searched_type_ = -1;
    search_.emplace(shape(row_type), device_->index, search_memory_.data());
    search_->prepare(values_, on());
    searched_type_ = row_type;
  }
  return *search_;
}

void Codebook::begin(const mr_encode_args& args, int64_t first, int64_t count, Piece* piece) const {
  const int64_t full = desc_.dimension, row_bytes = full * static_cast<int64_t>(element_size(args.element_type));
  const bool narrow = code_size(desc_) == 1, cosine = desc_.metric == MR_METRIC_COSINE;
  const Stream on = this->on();
  piece->first = first;
  piece->count = count;
  device_->transfers.upload(piece->rows.data(), static_cast<const uint8_t*>(args.rows) + first * row_bytes,
                            static_cast<uint64_t>(count * row_bytes));
  unsigned long long* const counts = piece->counts.as<unsigned long long>();
  CUDA_CHECK(cudaMemsetAsync(counts, 0xff, 8, on.stream));
  CUDA_CHECK(cudaMemsetAsync(counts + 1, 0, 8, on.stream));
  if (args.element_type <= MR_VECTOR_BF16)
    CUDA_CHECK(launch_inspect_rows(piece->rows.data(), args.element_type, count, full, static_cast<uint64_t>(first), counts, nullptr, on));
  const void* rows = piece->rows.data();
  int32_t type = args.element_type;
  if (cosine) {
    CUDA_CHECK(launch_normalise_rows(rows, type, count, full, piece->floats.as<float>(), on));
    rows = piece->floats.data();
    type = MR_VECTOR_F32;
  }
  if (args.neighbours > 1) {
    const int64_t some = piece->at_once(*this), size = static_cast<int64_t>(element_size(type));
    for (int64_t at = 0; at < count; at += some) {
      NeighboursArgs a{};
      a.rows = static_cast<const uint8_t*>(rows) + at * full * size;
      a.values = values_;
      a.q = piece->q.as<double>();
      a.codes = piece->codes.data() + at * args.neighbours * static_cast<int64_t>(code_size(desc_));
      a.distances = args.distances == nullptr ? nullptr : piece->distances.as<float>() + at * args.neighbours;
      a.count = std::min(some, count - at);
      a.codewords = desc_.codewords;
      a.width = full;
      a.row_type = type;
      a.wanted = args.neighbours;
      a.inner = desc_.metric != MR_METRIC_L2;
      a.cosine = cosine;
      a.narrow = narrow;
      CUDA_CHECK(launch_neighbours(a, on));
    }
  } else {
    double* const q = args.distances == nullptr ? nullptr : piece->q.as<double>();
    uint32_t* const ids = piece->ids.as<uint32_t>();
    search(type).nearest(rows, count, ids, q, piece->most, reinterpret_cast<uint64_t*>(counts + 1), on);
    CUDA_CHECK(launch_put_codes(ids, count, desc_.subspaces, piece->most, narrow, piece->codes.data(), on));
    if (q != nullptr)
      CUDA_CHECK(launch_put_distances(q, count, desc_.subspaces, piece->most, desc_.kind == MR_CODEBOOK_PRODUCT, cosine,
                                      piece->distances.as<float>(), on));
  }
  CUDA_CHECK(cudaEventRecord(piece->done, on.stream));
}

void Codebook::end(mr_encode_args* args, Piece* piece) const {
  if (piece->count == 0) return;
  wait_for_event(piece->done);
  const int64_t each = args->neighbours > 1 ? args->neighbours : desc_.subspaces, codes = each * static_cast<int64_t>(code_size(desc_));
  uint64_t counts[2];
  device_->transfers.download(counts, piece->counts.data(), sizeof counts);
  if (counts[0] != UINT64_MAX)
    fail(MR_INVALID_ARGUMENT, "row %llu has a NaN or an infinity: rows must be finite", static_cast<unsigned long long>(counts[0]));
  args->recomputed += args->neighbours > 1 ? static_cast<uint64_t>(piece->count) : counts[1];
  device_->transfers.download(static_cast<uint8_t*>(args->codes) + piece->first * codes, piece->codes.data(),
                              static_cast<uint64_t>(piece->count * codes));
  if (args->distances != nullptr)
    device_->transfers.download(args->distances + piece->first * args->neighbours, piece->distances.data(),
                                static_cast<uint64_t>(piece->count) * static_cast<uint64_t>(args->neighbours) * 4);
  piece->count = 0;
}

// While the device works on one piece the next one's rows are copied, and the codes of the one before.
void Codebook::encode(mr_encode_args* args) const {
  check_encoding(desc_, *args);
  args->recomputed = 0;
  if (args->count == 0) return;
  const std::shared_lock<std::shared_mutex> lock(bits_);
  const std::lock_guard<std::mutex> turn(turn_);
  device_->enter();
  const int64_t count = static_cast<int64_t>(args->count);
  Piece first(*this, *args);
  std::optional<Piece> second;
  if (count > piece_rows_) second.emplace(*this, *args);
  const Rest rest(stream_);
  Piece* pieces[2] = {&first, second ? &*second : &first};
  int which = 0;
  for (int64_t at = 0; at < count; at += piece_rows_, which ^= 1) {
    end(args, pieces[which]);
    begin(*args, at, std::min(piece_rows_, count - at), pieces[which]);
  }
  end(args, pieces[which]);
  end(args, pieces[which ^ 1]);
}

void Codebook::decode(const void* codes, uint64_t count, void* out) const {
  if (count == 0) return;
  if (count > mr::kMostRows)
    fail(MR_INVALID_ARGUMENT, "count is %llu: want at most 2^40 rows", static_cast<unsigned long long>(count));
  if (codes == nullptr) fail(MR_INVALID_ARGUMENT, "codes is null");
  if (out == nullptr) fail(MR_INVALID_ARGUMENT, "out is null");
  const int64_t spaces = desc_.subspaces, all = static_cast<int64_t>(count) * spaces, size = static_cast<int64_t>(code_size(desc_));
  for (int64_t i = 0; i < all; ++i) {  // before anything is written
    uint16_t code = 0;
    std::memcpy(&code, static_cast<const uint8_t*>(codes) + i * size, static_cast<size_t>(size));
    if (code >= desc_.codewords)
      fail(MR_INVALID_ARGUMENT, "row %lld has code %d in subspace %lld: there are %d codewords", static_cast<long long>(i / spaces), code,
           static_cast<long long>(i % spaces), desc_.codewords);
  }
  const std::shared_lock<std::shared_mutex> lock(bits_);
  const std::lock_guard<std::mutex> turn(turn_);
  device_->enter();
  GatherArgs a{};
  a.codewords = bytes_.data();
  a.spaces = spaces;
  a.codewords_each = desc_.codewords;
  a.width = width_;
  a.element_bytes = static_cast<int32_t>(element_size(desc_.codeword_type));
  a.narrow = size == 1;
  const int64_t most = std::min(piece_rows_, static_cast<int64_t>(count)), row_bytes = int64_t{desc_.dimension} * a.element_bytes;
  const Memory some_codes = device_->ledger.allocate(static_cast<uint64_t>(most * spaces * size), MR_PURPOSE_WORKSPACE);
  const Memory some_rows = device_->ledger.allocate(static_cast<uint64_t>(most * row_bytes), MR_PURPOSE_WORKSPACE);
  a.codes = some_codes.data();
  a.rows = some_rows.data();
  const Rest rest(stream_);
  for (int64_t at = 0; at < static_cast<int64_t>(count); at += most) {
    a.count = std::min(most, static_cast<int64_t>(count) - at);
    device_->transfers.upload(some_codes.data(), static_cast<const uint8_t*>(codes) + at * spaces * size,
                              static_cast<uint64_t>(a.count * spaces * size));
    CUDA_CHECK(launch_gather_codewords(a, on()));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    device_->transfers.download(static_cast<uint8_t*>(out) + at * row_bytes, some_rows.data(), static_cast<uint64_t>(a.count * row_bytes));
  }
}

void Codebook::digest(uint8_t out[32]) const {
  const std::shared_lock<std::shared_mutex> lock(bits_);
  device_->digester->bytes(bytes_.data(), bytes_.size(), out);
}

void Codebook::flip_bit(uint64_t bit) {
  if (bit >= 8 * codebook_size(desc_))
    fail(MR_INVALID_ARGUMENT, "bit %llu is beyond %llu bytes of codewords", static_cast<unsigned long long>(bit),
         static_cast<unsigned long long>(codebook_size(desc_)));
  const std::lock_guard<std::shared_mutex> lock(bits_);
  device_->enter();
  uint8_t byte = 0;
  device_->transfers.download(&byte, bytes_.data() + bit / 8, 1);
  byte = static_cast<uint8_t>(byte ^ (1u << (bit % 8)));
  device_->transfers.upload(bytes_.data() + bit / 8, &byte, 1);
  widen();
}

}  // namespace mr::cuda
