// What is read of a training, and given to one.
#include <algorithm>
#include <cstring>

#include "cpu/vector_config.h"
#include "cpu/vector_math.h"
#include "cpu/vector_state.h"
#include "src/error.h"
#include "src/vectors/training.h"

namespace mr::cuda {
namespace {

// Whether elements of MR_VECTOR_* are finite.
bool all_finite(int32_t type, const uint8_t* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    if (!is_finite(decode_element(type, from, i))) return false;
  return true;
}

// A window on a sequence of bytes that is never whole in memory: parts come one after another.
class Window {
 public:
  Window(uint64_t offset, void* dst, uint64_t size) : begin_(offset), end_(offset + size), dst_(static_cast<uint8_t*>(dst)) {}

  // The next part: `count` elements of `size` bytes. get(first, some) gives the bytes of at most `most` elements of them.
  template <class F>
  void part(uint64_t count, uint64_t size, uint64_t most, F get) {
    const uint64_t from = at_, to = at_ + count * size;
    at_ = to;
    if (to <= begin_ || from >= end_) return;
    uint64_t i = begin_ > from ? (begin_ - from) / size : 0;
    const uint64_t last = std::min(count, (end_ - from + size - 1) / size);
    for (; i < last; i += most) {
      const uint64_t some = std::min(most, last - i), start = from + i * size;
      const uint8_t* const bytes = get(i, some);
      const uint64_t low = std::max(start, begin_), high = std::min(start + some * size, end_);
      std::memcpy(dst_ + (low - begin_), bytes + (low - start), high - low);
    }
  }

 private:
  const uint64_t begin_, end_;
  uint8_t* const dst_;
  uint64_t at_ = 0;
};

constexpr uint64_t kAtOnce = uint64_t{128} << 10;  // bytes of one staging memory, which has at least twice as many

}  // namespace

void Training::give(const void* codewords, uint64_t size) {
  if (begun()) fail(MR_FAILED_PRECONDITION, "the training has begun: codewords come before");
  if (config_.init != MR_INIT_GIVEN) fail(MR_INVALID_ARGUMENT, "codewords are given and init is %d: want 3 (given)", config_.init);
  const mr_codebook_desc desc = codebook_of(config_);
  const uint64_t want = codebook_size(desc), bytes = static_cast<uint64_t>(shape_.width) * element_size(desc.codeword_type);
  if (size != want)
    fail(MR_INVALID_ARGUMENT, "size is %llu: want %llu bytes of codewords", static_cast<unsigned long long>(size),
         static_cast<unsigned long long>(want));
  if (codewords == nullptr) fail(MR_INVALID_ARGUMENT, "codewords is null");
  const uint8_t* const from = static_cast<const uint8_t*>(codewords);
  for (int64_t c = 0; c < shape_.spaces * shape_.codewords; ++c)
    if (!all_finite(desc.codeword_type, from + static_cast<uint64_t>(c) * bytes, shape_.width))
      fail(MR_INVALID_ARGUMENT, "codeword %lld has a NaN or an infinity: codewords must be finite", static_cast<long long>(c));
  upload_codewords(from, view_.a.now);
  given_ = true;
}

// The whole codebook, decoded on its way.
void Training::upload_codewords(const uint8_t* from, float* to) {
  device_.enter();
  const Rest rest(stream_);
  const int64_t most = static_cast<int64_t>(kAtOnce / sizeof(float));
  float* const staged = staging_[0].as<float>();
  for (int64_t i = 0; i < shape_.values; i += most) {
    const int64_t some = std::min(most, shape_.values - i);
    for (int64_t j = 0; j < some; ++j) staged[j] = decode_element(config_.codeword_type, from, i + j);
    CUDA_CHECK(cudaMemcpyAsync(to + i, staged, static_cast<size_t>(some) * sizeof(float), cudaMemcpyHostToDevice, stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
  }
}

void Training::restore(const void* state, uint64_t size) {
  if (begun()) fail(MR_FAILED_PRECONDITION, "the training has begun: a state comes before");
  const StateHeader h = read_state_header(config_, state, size);
  const uint64_t book = codebook_size(codebook_of(config_));
  const uint8_t* const books = static_cast<const uint8_t*>(state) + sizeof h;
  const uint8_t* const numbers = books + book * (h.iteration > 0 ? 2 : 1);
  const int64_t moving = shape_.annealed ? 2 * shape_.values : 0;
  bool all = true;
  for (const uint8_t* at = books; at < numbers; at += book) all = all && all_finite(config_.codeword_type, at, shape_.values);
  for (int64_t i = 0; i < moving; ++i) {
    double v;
    std::memcpy(&v, numbers + 8 * i, 8);
    all = all && is_finite(v);
  }
  if (!all) fail(MR_INVALID_ARGUMENT, "a state with a NaN or an infinity");

  upload_codewords(books, view_.a.now);
  if (h.iteration > 0) upload_codewords(books + book, view_.a.last);
  const int64_t part = shape_.codewords * shape_.width;
  for (int64_t s = 0; shape_.annealed && s < shape_.spaces; ++s) {
    const uint8_t* const from = numbers + 16 * s * part;
    upload_numbers(from, view_.a.place + s * part, part);
    upload_numbers(from + 8 * part, view_.a.velocity + s * part, part);
  }
  iteration_ = h.iteration;
  temperature_ = h.temperature;
  stable_ = h.stable;
  energy_ = h.energy;
  restored_ = true;
}

void Training::upload_numbers(const uint8_t* from, double* to, int64_t count) {
  device_.transfers.upload(to, from, static_cast<uint64_t>(count) * sizeof(double));
}

uint64_t Training::size(int32_t what) const {
  if (what < MR_TRAINER_CODEWORDS || what > MR_TRAINER_VARIANCES)
    fail(MR_INVALID_ARGUMENT, "what is %d: want 0 to %d", what, MR_TRAINER_VARIANCES);
  if (!seeded_) fail(MR_FAILED_PRECONDITION, "no codeword is seeded yet");
  if ((what == MR_TRAINER_IDS || what == MR_TRAINER_LOADS) && !measured_) fail(MR_FAILED_PRECONDITION, "no round has ended yet");
  if (what == MR_TRAINER_VARIANCES && at_ != At::done)
    fail(MR_FAILED_PRECONDITION, "the training is not done: variances are the last round's");
  switch (what) {
    case MR_TRAINER_CODEWORDS: return codebook_size(codebook_of(config_));
    case MR_TRAINER_IDS: return config_.rows * static_cast<uint64_t>(shape_.spaces) * 4;
    case MR_TRAINER_LOADS:
    case MR_TRAINER_VARIANCES: return static_cast<uint64_t>(shape_.spaces * shape_.codewords) * 8;
    default: return state_size(config_, iteration_);
  }
}

void Training::read(int32_t what, uint64_t offset, void* dst, uint64_t size) {
  const uint64_t all = this->size(what);
  if (offset > all || size > all - offset)
    fail(MR_OUT_OF_RANGE, "%llu bytes at offset %llu are beyond %llu", static_cast<unsigned long long>(size),
         static_cast<unsigned long long>(offset), static_cast<unsigned long long>(all));
  if (size == 0) return;
  if (dst == nullptr) fail(MR_INVALID_ARGUMENT, "dst is null");
  device_.enter();
  const Rest rest(stream_);
  uint8_t* const staged = staging_[0].data();
  const auto fetched = [&](const void* from, uint64_t bytes) -> const uint8_t* {
    CUDA_CHECK(cudaMemcpyAsync(staged, from, bytes, cudaMemcpyDeviceToHost, stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    return staged;
  };
  Window out(offset, dst, size);
  const uint64_t values = static_cast<uint64_t>(shape_.values), spaces = static_cast<uint64_t>(shape_.spaces);
  const uint64_t code = element_size(config_.codeword_type);
  const auto codewords = [&](const float* book) {
    out.part(values, code, kAtOnce / sizeof(float), [&](uint64_t i, uint64_t some) -> const uint8_t* {
      const float* const whole = reinterpret_cast<const float*>(fetched(book + i, some * sizeof(float)));
      uint8_t* const encoded = staging_[1].data();
      encode_codewords(config_.codeword_type, whole, static_cast<int64_t>(some), encoded);
      return encoded;
    });
  };
  const auto plain = [&](const auto* from, uint64_t count) {
    out.part(count, sizeof *from, kAtOnce / sizeof *from, [&](uint64_t i, uint64_t some) { return fetched(from + i, some * sizeof *from); });
  };
  switch (what) {
    case MR_TRAINER_CODEWORDS: codewords(view_.a.now); return;
    case MR_TRAINER_LOADS: plain(view_.a.loads, spaces * static_cast<uint64_t>(shape_.codewords)); return;
    case MR_TRAINER_VARIANCES:
      if (!variances_ready_) {
        CUDA_CHECK(launch_variances(view_, on()));
        variances_ready_ = true;
      }
      plain(view_.a.sums, spaces * static_cast<uint64_t>(shape_.codewords));
      return;
    case MR_TRAINER_IDS:
      // Whole rows of at most 65 536 ids fit; the device writes them into pinned memory in their order.
      out.part(config_.rows, 4 * spaces, std::max<uint64_t>(1, 2 * kAtOnce / (4 * spaces)), [&](uint64_t i, uint64_t some) -> const uint8_t* {
        CUDA_CHECK(launch_gather_ids(view_, static_cast<int64_t>(i), static_cast<int64_t>(some), staging_[0].as<uint32_t>(), on()));
        CUDA_CHECK(cudaStreamSynchronize(stream_));
        return staged;
      });
      return;
    default: break;
  }
  const StateHeader h = state_header(iteration_, temperature_, stable_, energy_);
  out.part(1, sizeof h, 1, [&](uint64_t, uint64_t) { return reinterpret_cast<const uint8_t*>(&h); });
  codewords(view_.a.now);
  if (iteration_ > 0) codewords(view_.a.last);
  const uint64_t part = values / spaces;
  for (uint64_t s = 0; shape_.annealed && s < spaces; ++s) {
    plain(view_.a.place + s * part, part);
    plain(view_.a.velocity + s * part, part);
  }
}

}  // namespace mr::cuda
