// What is read of a training, and given to one.
#include <algorithm>
#include <cstring>

#include "error.h"
#include "training.h"
#include "vector_config.h"
#include "vector_math.h"
#include "vector_state.h"

namespace mr::cpu {
namespace {

// A window on a sequence of bytes that is never whole in memory.
class Window {
 public:
  Window(uint64_t offset, void* dst, uint64_t size) : begin_(offset), end_(offset + size), dst_(static_cast<uint8_t*>(dst)) {}

  // The next part: `count` elements of `size` bytes, each written by element(index, to).
  template <class F>
  void part(uint64_t count, uint64_t size, F element) {
    const uint64_t from = at_, to = at_ + count * size;
    at_ = to;
    if (to <= begin_ || from >= end_) return;
    const uint64_t first = begin_ > from ? (begin_ - from) / size : 0, last = std::min(count, (end_ - from + size - 1) / size);
    uint8_t whole[sizeof(StateHeader)];
    for (uint64_t i = first; i < last; ++i) {
      element(i, whole);
      const uint64_t start = from + i * size, low = std::max(start, begin_), high = std::min(start + size, end_);
      std::memcpy(dst_ + (low - begin_), whole + (low - start), high - low);
    }
  }
  void codewords(int32_t type, const float* values, uint64_t count) {
    part(count, element_size(type), [=](uint64_t i, uint8_t* to) { encode_codewords(type, values + i, 1, to); });
  }
  void numbers(const double* values, uint64_t count) {
    part(count, 8, [=](uint64_t i, uint8_t* to) { std::memcpy(to, values + i, 8); });
  }

 private:
  const uint64_t begin_, end_;
  uint8_t* const dst_;
  uint64_t at_ = 0;
};

}  // namespace

void Training::decode_part(int64_t row, int64_t space, float* to) const {
  const uint64_t size = element_size(shape_.stored);
  kernels_.decode(shape_.stored,
                  at_.rows + static_cast<uint64_t>(row) * shape_.row_bytes + static_cast<uint64_t>(space * shape_.width) * size,
                  shape_.width, to);
}

void Training::give(const void* codewords, uint64_t size) {
  if (begun()) fail(MR_FAILED_PRECONDITION, "the training has begun: codewords come before");
  if (config_.init != MR_INIT_GIVEN) fail(MR_INVALID_ARGUMENT, "codewords are given and init is %d: want 3 (given)", config_.init);
  const mr_codebook_desc desc = codebook_of(config_);
  if (size != codebook_size(desc))
    fail(MR_INVALID_ARGUMENT, "size is %llu: want %llu bytes of codewords", static_cast<unsigned long long>(size),
         static_cast<unsigned long long>(codebook_size(desc)));
  if (codewords == nullptr) fail(MR_INVALID_ARGUMENT, "codewords is null");
  check_codewords(kernels_, desc, codewords);
  kernels_.decode(config_.codeword_type, codewords, shape_.values, at_.now);
  given_ = true;
}

void Training::restore(const void* state, uint64_t size) {
  if (begun()) fail(MR_FAILED_PRECONDITION, "the training has begun: a state comes before");
  const StateHeader h = read_state_header(config_, state, size);
  const uint64_t book = codebook_size(codebook_of(config_)), moving = shape_.annealed ? 16 * static_cast<uint64_t>(shape_.values) : 0;
  const uint8_t* const books = static_cast<const uint8_t*>(state) + sizeof(StateHeader);
  const uint8_t* const doubles = books + book * (h.iteration > 0 ? 2 : 1);
  bool all = true;
  for (const uint8_t* at = books; at < doubles; at += book) all = all && kernels_.finite(config_.codeword_type, at, shape_.values);
  for (uint64_t i = 0; i < moving / 8; ++i) {
    double v;
    std::memcpy(&v, doubles + 8 * i, 8);
    all = all && is_finite(v);
  }
  if (!all) fail(MR_INVALID_ARGUMENT, "a state with a NaN or an infinity");

  kernels_.decode(config_.codeword_type, books, shape_.values, at_.now);
  if (h.iteration > 0) kernels_.decode(config_.codeword_type, books + book, shape_.values, at_.last);
  const uint64_t part = static_cast<uint64_t>(shape_.codewords * shape_.width) * 8;
  for (int64_t s = 0; shape_.annealed && s < shape_.spaces; ++s) {
    std::memcpy(at_.place + s * shape_.codewords * shape_.width, doubles + 2 * static_cast<uint64_t>(s) * part, part);
    std::memcpy(at_.velocity + s * shape_.codewords * shape_.width, doubles + (2 * static_cast<uint64_t>(s) + 1) * part, part);
  }
  iteration_ = h.iteration;
  temperature_ = h.temperature;
  stable_ = h.stable;
  energy_ = h.energy;
  restored_ = true;
}

uint64_t Training::size(int32_t what) const {
  if (what < MR_TRAINER_CODEWORDS || what > MR_TRAINER_VARIANCES)
    fail(MR_INVALID_ARGUMENT, "what is %d: want 0 to %d", what, MR_TRAINER_VARIANCES);
  if (!seeded_) fail(MR_FAILED_PRECONDITION, "no codeword is seeded yet");
  if ((what == MR_TRAINER_IDS || what == MR_TRAINER_LOADS) && !measured_) fail(MR_FAILED_PRECONDITION, "no round has ended yet");
  if (what == MR_TRAINER_VARIANCES && !done()) fail(MR_FAILED_PRECONDITION, "the training is not done: variances are the last round's");
  const uint64_t book = codebook_size(codebook_of(config_));
  switch (what) {
    case MR_TRAINER_CODEWORDS: return book;
    case MR_TRAINER_IDS: return config_.rows * static_cast<uint64_t>(shape_.spaces) * 4;
    case MR_TRAINER_LOADS:
    case MR_TRAINER_VARIANCES: return static_cast<uint64_t>(shape_.spaces * shape_.codewords) * 8;
    default: return state_size(config_, iteration_);
  }
}

void Training::read(int32_t what, uint64_t offset, void* dst, uint64_t size) const {
  const uint64_t all = this->size(what);
  if (offset > all || size > all - offset)
    fail(MR_OUT_OF_RANGE, "%llu bytes at offset %llu are beyond %llu", static_cast<unsigned long long>(size),
         static_cast<unsigned long long>(offset), static_cast<unsigned long long>(all));
  if (size == 0) return;
  if (dst == nullptr) fail(MR_INVALID_ARGUMENT, "dst is null");
  const FloatEnvironment environment;
  const uint64_t values = static_cast<uint64_t>(shape_.values), spaces = static_cast<uint64_t>(shape_.spaces);
  Window out(offset, dst, size);
  switch (what) {
    case MR_TRAINER_CODEWORDS: out.codewords(config_.codeword_type, at_.now, values); return;
    case MR_TRAINER_IDS:
      out.part(config_.rows * spaces, 4, [&](uint64_t i, uint8_t* to) {
        std::memcpy(to, at_.ids + i % spaces * config_.rows + i / spaces, 4);
      });
      return;
    case MR_TRAINER_LOADS:
      out.part(spaces * static_cast<uint64_t>(shape_.codewords), 8,
               [&](uint64_t i, uint8_t* to) { std::memcpy(to, at_.loads + i, 8); });
      return;
    case MR_TRAINER_VARIANCES:
      out.part(spaces * static_cast<uint64_t>(shape_.codewords), 8, [&](uint64_t i, uint8_t* to) {
        const double v = variance(static_cast<int64_t>(i));
        std::memcpy(to, &v, 8);
      });
      return;
    default: break;
  }
  const StateHeader h = state_header(iteration_, temperature_, stable_, energy_);
  out.part(1, sizeof h, [&](uint64_t, uint8_t* to) { std::memcpy(to, &h, sizeof h); });
  out.codewords(config_.codeword_type, at_.now, values);
  if (iteration_ > 0) out.codewords(config_.codeword_type, at_.last, values);
  const uint64_t part = values / spaces;
  for (uint64_t s = 0; shape_.annealed && s < spaces; ++s) {
    out.numbers(at_.place + s * part, part);
    out.numbers(at_.velocity + s * part, part);
  }
}

}  // namespace mr::cpu
