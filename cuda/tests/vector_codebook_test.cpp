// Codebooks on the device against binary64 on the host: codes, neighbours, reported distances, and refusals.
#include <algorithm>
#include <numeric>
#include <string>

#include "cpu/error.h"
#include "src/vectors/codebook.h"
#include "vector_fixture.h"

namespace mr::cuda::testing {
namespace {

std::shared_ptr<Device> open_device() {
  mr_device_options options{};
  options.struct_size = sizeof options;
  options.bytes_limit = uint64_t{8} << 30;
  return std::make_shared<Device>(options);
}

mr_codebook_desc desc_of(int32_t kind, int32_t metric, int32_t dimension, int32_t codewords, int32_t subspaces, int32_t type) {
  return {sizeof(mr_codebook_desc), kind, metric, dimension, codewords, subspaces, type};
}

struct Encoded {
  std::vector<uint8_t> codes;
  std::vector<float> distances;
  uint64_t recomputed;
};

uint32_t code_at(const mr_codebook_desc& d, const std::vector<uint8_t>& codes, size_t i) {
  if (d.codewords <= 256) return codes[i];
  uint16_t two;
  std::memcpy(&two, codes.data() + 2 * i, 2);
  return two;
}

Encoded encode(const Codebook& book, const mr_codebook_desc& d, const Values& rows, int32_t type, size_t count, int32_t neighbours) {
  const size_t each = static_cast<size_t>(std::max(neighbours, d.subspaces));
  Encoded out{std::vector<uint8_t>(count * each * (d.codewords <= 256 ? 1 : 2)), std::vector<float>(count * static_cast<size_t>(neighbours)), 0};
  mr_encode_args args{};
  args.struct_size = sizeof args;
  args.rows = rows.bytes.data();
  args.count = count;
  args.element_type = type;
  args.neighbours = neighbours;
  args.codes = out.codes.data();
  args.distances = out.distances.data();
  book.encode(&args);
  out.recomputed = args.recomputed;
  return out;
}

// Returns the message with which a call is refused; "" if it is not.
template <class F>
std::string refusal(F call) {
  try {
    call();
  } catch (const mr::Error& e) {
    return e.code == MR_INVALID_ARGUMENT ? e.what() : "another code";
  }
  return "";
}

std::vector<float> normalised(const std::vector<float>& rows, size_t width) {
  std::vector<float> out = rows;
  for (size_t i = 0; i < rows.size(); i += width) {
    const double length = std::sqrt(-reference_distance(&rows[i], &rows[i], static_cast<int64_t>(width), MR_METRIC_INNER_PRODUCT));
    for (size_t j = 0; j < width; ++j)
      if (length > 0) out[i + j] = static_cast<float>(static_cast<double>(rows[i + j]) / length);
  }
  return out;
}

void expect_encoding(const std::shared_ptr<Device>& device, const mr_codebook_desc& d, int32_t type, size_t count, int32_t neighbours) {
  Numbers numbers(static_cast<uint64_t>(d.dimension) * 1000 + static_cast<uint64_t>(d.codewords) + static_cast<uint64_t>(type));
  const double scale = type >= MR_VECTOR_U8 ? 30 : 1;
  const auto value = [&](size_t) { return scale * static_cast<double>(numbers.normal()); };
  const size_t full = static_cast<size_t>(d.dimension), width = full / static_cast<size_t>(d.subspaces);
  const Values rows = values_of(type, count * full, value);
  const Values codewords = values_of(d.codeword_type, static_cast<size_t>(d.codewords) * full, value);
  const Codebook book(device, d, codewords.bytes.data(), codewords.bytes.size());
  const Encoded got = encode(book, d, rows, type, count, neighbours);
  const std::vector<float> seen = d.metric == MR_METRIC_COSINE ? normalised(rows.floats, full) : rows.floats;
  const size_t k = static_cast<size_t>(d.codewords), spaces = static_cast<size_t>(d.subspaces), wanted = static_cast<size_t>(neighbours);
  std::vector<double> q(k);
  std::vector<uint32_t> order(k);
  for (size_t r = 0; r < count; ++r) {
    double sum = 0;
    for (size_t s = 0; s < spaces; ++s) {
      for (size_t c = 0; c < k; ++c)
        q[c] = reference_distance(&seen[r * full + s * width], &codewords.floats[(s * k + c) * width], static_cast<int64_t>(width), d.metric);
      std::iota(order.begin(), order.end(), 0u);
      std::partial_sort(order.begin(), order.begin() + neighbours, order.end(),
                        [&](uint32_t a, uint32_t b) { return q[a] != q[b] ? q[a] < q[b] : a < b; });
      for (size_t h = 0; h < wanted; ++h) {
        ASSERT_EQ(code_at(d, got.codes, d.kind == MR_CODEBOOK_PRODUCT ? r * spaces + s : r * wanted + h), order[h]) << "row " << r;
        if (d.kind == MR_CODEBOOK_PRODUCT) continue;
        const float told = static_cast<float>(d.metric == MR_METRIC_COSINE ? 1 + q[order[h]] : q[order[h]]);
        ASSERT_TRUE(same_bits(&got.distances[r * wanted + h], &told, 1)) << "row " << r;
      }
      sum += q[order[0]];
    }
    const float told = static_cast<float>(sum);
    if (d.kind == MR_CODEBOOK_PRODUCT) {
      ASSERT_TRUE(same_bits(&got.distances[r], &told, 1)) << "row " << r;
    }
  }
  std::vector<uint8_t> decoded(count * full * type_bytes(d.codeword_type));
  if (neighbours > 1) return;
  book.decode(got.codes.data(), count, decoded.data());
  const size_t bytes = width * type_bytes(d.codeword_type);
  for (size_t i = 0; i < count * spaces; ++i)
    ASSERT_EQ(std::memcmp(&decoded[i * bytes], &codewords.bytes[(i % spaces * k + code_at(d, got.codes, i)) * bytes], bytes), 0) << i;
}

TEST(VectorCodebook, EncodesAndDecodesWhatBinary64Chooses) {
  const auto device = open_device();
  for (int32_t type = MR_VECTOR_F32; type <= MR_VECTOR_I8; ++type)
    for (const int32_t codeword_type : {MR_VECTOR_F32, MR_VECTOR_F16, MR_VECTOR_BF16}) {
      expect_encoding(device, desc_of(MR_CODEBOOK_FLAT, MR_METRIC_L2, 33, 300, 1, codeword_type), type, 100, 1);
      expect_encoding(device, desc_of(MR_CODEBOOK_FLAT, MR_METRIC_COSINE, 20, 100, 1, codeword_type), type, 100, 1);
      expect_encoding(device, desc_of(MR_CODEBOOK_FLAT, MR_METRIC_INNER_PRODUCT, 7, 256, 1, codeword_type), type, 100, 1);
      expect_encoding(device, desc_of(MR_CODEBOOK_PRODUCT, MR_METRIC_L2, 24, 256, 3, codeword_type), type, 100, 1);
    }
  expect_encoding(device, desc_of(MR_CODEBOOK_FLAT, MR_METRIC_L2, 2, 5, 1, MR_VECTOR_F32), MR_VECTOR_F32, 200000, 1);
}

TEST(VectorCodebook, OrdersNeighboursByDistanceThenId) {
  const auto device = open_device();
  for (const int32_t metric : {MR_METRIC_L2, MR_METRIC_INNER_PRODUCT, MR_METRIC_COSINE})
    for (const int32_t wanted : {2, 10, 64})
      expect_encoding(device, desc_of(MR_CODEBOOK_FLAT, metric, 9, 64 + wanted, 1, MR_VECTOR_F16), MR_VECTOR_I8, 70, wanted);
  expect_encoding(device, desc_of(MR_CODEBOOK_FLAT, MR_METRIC_L2, 1, 700, 1, MR_VECTOR_F16), MR_VECTOR_U8, 40, 64);
}

TEST(VectorCodebook, NamesTheFirstRowThatIsNotFinite) {
  const auto device = open_device();
  const mr_codebook_desc d = desc_of(MR_CODEBOOK_FLAT, MR_METRIC_L2, 3, 4, 1, MR_VECTOR_F32);
  const Values codewords = values_of(MR_VECTOR_F32, 12, [](size_t i) { return static_cast<double>(i); });
  const Codebook book(device, d, codewords.bytes.data(), codewords.bytes.size());
  const size_t count = 150000;  // of several pieces
  for (const int32_t neighbours : {1, 2})
    for (const size_t wrong : {size_t{0}, size_t{70000}, count - 1}) {
      Values rows = values_of(MR_VECTOR_F32, count * 3, [](size_t i) { return static_cast<double>(i % 11); });
      const float infinity = std::numeric_limits<float>::infinity(), none = std::numeric_limits<float>::quiet_NaN();
      std::memcpy(&rows.bytes[(wrong * 3 + 2) * 4], wrong % 2 == 0 ? &infinity : &none, 4);
      std::memcpy(&rows.bytes[(count * 3 - 1) * 4], &none, 4);
      EXPECT_EQ(refusal([&] { encode(book, d, rows, MR_VECTOR_F32, count, neighbours); }),
                "row " + std::to_string(wrong) + " has a NaN or an infinity: rows must be finite");
    }
}

TEST(VectorCodebook, RefusesCodesThatNoCodewordHas) {
  const auto device = open_device();
  const mr_codebook_desc d = desc_of(MR_CODEBOOK_PRODUCT, MR_METRIC_L2, 4, 3, 2, MR_VECTOR_F16);
  const Values codewords = values_of(MR_VECTOR_F16, 12, [](size_t i) { return static_cast<double>(i); });
  const Codebook book(device, d, codewords.bytes.data(), codewords.bytes.size());
  const uint8_t codes[] = {0, 2, 1, 3};
  uint16_t out[8];
  EXPECT_EQ(refusal([&] { book.decode(codes, 2, out); }), "row 1 has code 3 in subspace 1: there are 3 codewords");
  book.decode(codes, 1, out);
  EXPECT_EQ(std::memcmp(out, codewords.bytes.data(), 4), 0);
  EXPECT_EQ(std::memcmp(out + 2, codewords.bytes.data() + (3 + 2) * 4, 4), 0);
}

TEST(VectorCodebook, SeesFlippedBits) {
  const auto device = open_device();
  const mr_codebook_desc d = desc_of(MR_CODEBOOK_FLAT, MR_METRIC_L2, 1, 2, 1, MR_VECTOR_F32);
  const Values codewords = values_of(MR_VECTOR_F32, 2, [](size_t i) { return i == 0 ? 1.0 : 5.0; });
  Codebook book(device, d, codewords.bytes.data(), codewords.bytes.size());
  const Values row = values_of(MR_VECTOR_F32, 1, [](size_t) { return -1.0; });
  uint8_t before[32], after[32];
  book.digest(before);
  EXPECT_EQ(encode(book, d, row, MR_VECTOR_F32, 1, 1).codes[0], 0);
  book.flip_bit(8 * 4 + 31);  // 5 becomes -5
  book.flip_bit(8 * 4 + 30);  // and that very small
  book.digest(after);
  EXPECT_NE(std::memcmp(before, after, 32), 0);
  EXPECT_EQ(encode(book, d, row, MR_VECTOR_F32, 1, 1).codes[0], 1);
  EXPECT_NE(refusal([&] { book.flip_bit(64); }), "");
}

TEST(VectorCodebook, RefusesCodewordsThatAreNotFinite) {
  const auto device = open_device();
  const mr_codebook_desc d = desc_of(MR_CODEBOOK_FLAT, MR_METRIC_L2, 2, 2, 1, MR_VECTOR_BF16);
  const uint16_t codewords[] = {0x3f80, 0, 0, 0x7f80};
  EXPECT_EQ(refusal([&] { Codebook(device, d, codewords, 8); }), "codeword 1 has a NaN or an infinity: codewords must be finite");
  EXPECT_EQ(refusal([&] { Codebook(device, d, codewords, 7); }), "size is 7: want 8 bytes of codewords");
}

}  // namespace
}  // namespace mr::cuda::testing
