// The part of a model that each of several GPUs holds. No GPU is needed.
#include "src/division.h"

#include <gtest/gtest.h>

#include "cpu/error.h"
#include "tests/uniform.h"

namespace mr::cuda::test {
namespace {

Description desc_of(int32_t hidden, int32_t heads, int32_t kv_heads, int32_t head_dim, int32_t ffn, int32_t vocab) {
  UniformShape d{};
  d.hidden = hidden;
  d.heads = heads;
  d.kv_heads = kv_heads;
  d.head_dim = head_dim;
  d.ffn = ffn;
  d.vocab = vocab;
  d.layers = 1;
  return description_of(d);
}

std::string refusal(const Description& desc, int32_t ranks) {
  try {
    check_division(desc, ranks);
  } catch (const mr::Error& e) {
    EXPECT_EQ(e.code, MR_UNIMPLEMENTED);
    return e.message;
  }
  return "";
}

TEST(Division, RangesCoverEveryRowOnce) {
  for (int32_t ranks = 1; ranks <= 8; ++ranks) {
    for (const int64_t rows : {128, 129, 143, 144, 145, 509, 4096, 11008, 14336, 32001, 128256, 151936}) {
      for (const int32_t role : {MR_ROLE_O, MR_ROLE_GATE, MR_ROLE_UP, MR_ROLE_DOWN, MR_ROLE_OUTPUT, MR_ROLE_O_BIAS, MR_ROLE_EXPERT_GATE,
                                 MR_ROLE_EXPERT_UP_BIAS, MR_ROLE_EXPERT_DOWN_BIAS, MR_ROLE_SHARED_UP}) {
        int64_t next = 0;
        for (int32_t rank = 0; rank < ranks; ++rank) {
          const RowRange range = rows_of(role, rows, rank, ranks);
          EXPECT_EQ(range.first, next);
          EXPECT_TRUE(range.first % 16 == 0 || range.count == 0) << rows << " rows, rank " << rank << " of " << ranks;
          EXPECT_GE(range.count, 0);
          next += range.count;
        }
        EXPECT_EQ(next, rows);
      }
    }
  }
}

TEST(Division, HeadsAreDividedWhole) {
  for (const int32_t role : {MR_ROLE_Q, MR_ROLE_K, MR_ROLE_V, MR_ROLE_Q_BIAS, MR_ROLE_K_BIAS, MR_ROLE_V_BIAS}) {
    const RowRange second = rows_of(role, 6 * 80, 1, 2);
    EXPECT_EQ(second.first, 3 * 80);
    EXPECT_EQ(second.count, 3 * 80);
  }
  const Description part = part_of(desc_of(4096, 32, 8, 128, 14336, 128256), 1, 2);
  EXPECT_EQ(part.mixer(0).heads, 16);
  EXPECT_EQ(part.mixer(0).kv_heads, 4);
  EXPECT_EQ(part.mlp(0).width, 7168);
  EXPECT_EQ(part.hidden, 4096);
  EXPECT_EQ(part.vocab, 128256);
}

// The bytes of a stack, divided and put together again in pieces of any size, are the file's in their order.
TEST(Division, PartsOfStacksAreFoundInTheFile) {
  for (const int32_t ranks : {1, 2, 3, 8}) {
    for (const int64_t members : {1, 2, 7}) {
      for (const int64_t rows : {16 * ranks, 16 * ranks + 5, 200}) {
        constexpr int64_t kRowBytes = 17;
        std::vector<int32_t> file(static_cast<size_t>(members * rows * kRowBytes));
        for (size_t i = 0; i < file.size(); ++i) file[i] = static_cast<int32_t>(i);
        std::vector<std::vector<int32_t>> held(static_cast<size_t>(ranks));
        std::vector<uint64_t> sizes;
        for (int32_t rank = 0; rank < ranks; ++rank) {
          const RowRange range = rows_of(MR_ROLE_EXPERT_DOWN, rows, rank, ranks);
          for (int64_t m = 0; m < members; ++m) {
            const auto first = file.begin() + (m * rows + range.first) * kRowBytes;
            held[static_cast<size_t>(rank)].insert(held[static_cast<size_t>(rank)].end(), first, first + range.count * kRowBytes);
          }
          sizes.push_back(held[static_cast<size_t>(rank)].size());
        }
        for (const uint64_t piece : {uint64_t{1}, uint64_t{100}, uint64_t{1} << 40}) {
          std::vector<int32_t> whole;
          while (whole.size() < file.size()) {
            const uint64_t left = file.size() - whole.size();
            const FilePart part = file_part(sizes.data(), ranks, members, whole.size(), std::min(piece, left));
            ASSERT_GT(part.bytes, 0u);
            ASSERT_LE(part.bytes, piece);
            const auto first = held[static_cast<size_t>(part.rank)].begin() + static_cast<int64_t>(part.offset);
            whole.insert(whole.end(), first, first + static_cast<int64_t>(part.bytes));
          }
          EXPECT_EQ(whole, file) << ranks << " ranks, " << members << " members of " << rows << " rows, in pieces of " << piece;
        }
      }
    }
  }
}

TEST(Division, WhatIsReadWholeIsHeldByAll) {
  for (const int32_t role : {MR_ROLE_EMBEDDING, MR_ROLE_OUTPUT_NORM, MR_ROLE_ATTN_NORM, MR_ROLE_FFN_NORM, MR_ROLE_Q_NORM,
                             MR_ROLE_K_NORM, MR_ROLE_ROUTER, MR_ROLE_ROUTER_BIAS, MR_ROLE_CHOICE_BIAS, MR_ROLE_SHARED_ROUTER,
                             MR_ROLE_SINKS, MR_ROLE_EXPERT_SCALE, MR_ROLE_EXPERT_END_NORM}) {
    EXPECT_TRUE(held_by_all(role));
    EXPECT_EQ(rows_of(role, 100, 1, 2).first, 0);
    EXPECT_EQ(rows_of(role, 100, 1, 2).count, 100);
  }
}

TEST(Division, OneGpuTakesWhateverThereIs) {
  EXPECT_EQ(refusal(desc_of(2, 1, 1, 1, 1, 1), 1), "");
  EXPECT_EQ(rows_of(MR_ROLE_DOWN, 2, 0, 1).count, 2);
}

TEST(Division, NamesWhatCannotBeDivided) {
  EXPECT_EQ(refusal(desc_of(4096, 32, 8, 128, 14336, 128256), 2), "");
  EXPECT_NE(refusal(desc_of(4096, 32, 1, 128, 14336, 128256), 2).find("layer 0 has 1 kv_heads"), std::string::npos);
  EXPECT_NE(refusal(desc_of(4096, 12, 6, 128, 14336, 128256), 4).find("layer 0 has 6 kv_heads"), std::string::npos);
  EXPECT_EQ(refusal(desc_of(64, 2, 2, 1, 64, 64), 2), "");
  EXPECT_EQ(refusal(desc_of(144, 4, 4, 36, 128, 100), 4), "");
  EXPECT_EQ(refusal(desc_of(64, 4, 4, 16, 64, 65), 4), "");
  EXPECT_NE(refusal(desc_of(48, 4, 4, 12, 64, 65), 4).find("hidden is 48"), std::string::npos);
  EXPECT_NE(refusal(desc_of(64, 4, 4, 16, 64, 33), 4).find("vocab is 33: too little for 4 GPUs"), std::string::npos);
  EXPECT_NE(refusal(desc_of(16, 2, 2, 16, 64, 64), 2).find("hidden is 16"), std::string::npos);
  EXPECT_NE(refusal(desc_of(64, 2, 2, 16, 16, 64), 2).find("MLP width is 16"), std::string::npos);
  EXPECT_NE(refusal(desc_of(64, 2, 2, 16, 64, 9), 2).find("vocab is 9"), std::string::npos);
  Description desc = desc_of(64, 2, 2, 16, 64, 64);
  desc.layers[0].mlp.kind = MR_MLP_EXPERTS;
  EXPECT_EQ(refusal(desc, 2), "");
  desc.layers[0].experts.shared_width = 16;
  EXPECT_NE(refusal(desc, 2).find("shared_width is 16"), std::string::npos);
  desc.layers[0].mlp.width = 16;
  EXPECT_NE(refusal(desc, 2).find("expert width is 16"), std::string::npos);
}

}  // namespace
}  // namespace mr::cuda::test
