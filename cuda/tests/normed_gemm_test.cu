// A GEMM that norms its one token gives the bits of the norm kernel followed by the plain GEMM.
#include "kernels/norm.h"
#include "tests/gemm_fixture.h"

namespace mr::cuda {
namespace {

class NormedGemm : public testing::TestWithParam<TypeName> {
 protected:
  static void SetUpTestSuite() { ASSERT_EQ(prepare_gemms(), cudaSuccess); }
};

INSTANTIATE_TEST_SUITE_P(All, NormedGemm, testing::ValuesIn(kTypeNames), name_of);

TEST_P(NormedGemm, GivesTheBitsOfBothKernels) {
  const int32_t type = GetParam().type;
  const int64_t rows = 600, block = reference::shape(type).block;
  std::mt19937 random(11);
  for (const Act act : acts_of(type)) {
    for (const int64_t cols : {block == 1 ? int64_t{52} : block, block == 1 ? int64_t{1028} : 3 * block, int64_t{2048}, int64_t{4096}}) {
      SCOPED_TRACE(testing::Message() << cols << " columns of activations " << static_cast<int>(act));
      const Packed first(type, rows, cols, ordinary_file(type, rows, cols, random));
      const Packed second(type, rows, cols, ordinary_file(type, rows, cols, random));
      Guarded x(normals(cols, 3, random)), weight(normals(cols, 1, random)), normed(static_cast<size_t>(cols) * 2);
      const Guarded unread(static_cast<size_t>(cols + 7) * 2, 0xff);  // NaNs
      for (const bool pair : {false, true}) {
        ASSERT_EQ(launch_rms_norm({x.as<float>(), weight.as<float>(), nullptr, normed.data(), act, 1, static_cast<int32_t>(cols), cols,
                                   cols, 1e-5f}, Stream{}), cudaSuccess);
        GemmArgs args;
        args.targets[0] = {first.weight, nullptr, nullptr, rows};
        args.targets[1] = {second.weight, nullptr, nullptr, rows};
        args.count = pair ? 2 : 1;
        args.epilogue = pair ? Epilogue::kSwiGLU : Epilogue::kStoreF32;
        args.x = normed.data();
        args.x_stride = (cols + 7) / 8 * 8;
        args.act = act;
        args.tokens = 1;
        Guarded want(static_cast<size_t>(rows) * 4), got(static_cast<size_t>(rows) * 4);
        args.targets[0].out = want.data();
        ASSERT_EQ(launch_gemm(args, Stream{}), cudaSuccess);
        ASSERT_TRUE(gemm_fuses_norm(args));
        args.targets[0].out = got.data();
        args.x = unread.data();
        args.norm = {x.as<float>(), weight.as<float>(), 1e-5f};
        ASSERT_EQ(launch_gemm(args, Stream{}), cudaSuccess);
        ASSERT_EQ(got.read<uint32_t>(), want.read<uint32_t>()) << (pair ? "a pair" : "one weight");
        args.norm.scale = args.x_scale = 4;  // of a norm that is larger
        ASSERT_EQ(launch_gemm(args, Stream{}), cudaSuccess);
        const std::vector<uint32_t> larger = got.read<uint32_t>();
        ASSERT_EQ(launch_rms_norm({x.as<float>(), weight.as<float>(), nullptr, normed.data(), act, 1, static_cast<int32_t>(cols), cols,
                                   cols, 1e-5f, args.norm.scale}, Stream{}), cudaSuccess);
        args.x = normed.data();
        args.norm = {};
        ASSERT_EQ(launch_gemm(args, Stream{}), cudaSuccess);
        ASSERT_EQ(got.read<uint32_t>(), larger) << (pair ? "a pair" : "one weight");
        ASSERT_NE(larger, want.read<uint32_t>());
      }
    }
  }
}

TEST(GemmNorms, OfOneTokenThatABlockHolds) {
  GemmArgs args;
  args.targets[0].weight = {kF16, 16, 4096, nullptr};
  args.tokens = 1;
  EXPECT_TRUE(gemm_fuses_norm(args));
  args.tokens = 2;
  EXPECT_FALSE(gemm_fuses_norm(args));
  args.tokens = 1;
  args.targets[0].weight.cols = 4098;
  EXPECT_FALSE(gemm_fuses_norm(args));
  args.targets[0].weight.cols = 64;
  args.kind = GemmClass::kPrefill;
  EXPECT_FALSE(gemm_fuses_norm(args));
}

}  // namespace
}  // namespace mr::cuda
