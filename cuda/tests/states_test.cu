// Layers that carry a state: each kernel against float64, and the same bits for every cut, batch and number of rows.
#include "states_fixture.h"

namespace mr::cuda::testing {
namespace {

TEST(States, ConvolveAndStoreMatchFloat64) {
  Numbers numbers(2);
  for (const Layer& l : delta_layers()) {
    const Sequence first = sequence_of(l, 9, numbers), second = sequence_of(l, 5, numbers), third = sequence_of(l, 12, numbers);
    Steps steps(l, 5);
    const std::vector<Computed> got =
        steps.run({{&first, 0, {{9, -1, 0}}}, {&second, 0, {{1, -1, 3}, {2, 3, 3}, {1, 3, 1}}}, {&third, 0, {{4, -1, 4}, {8, 4, 2}}}}, 2);
    const std::vector<Computed> next = steps.run({{&second, 4, {{1, 1, 1}}}});
    SCOPED_TRACE(l.name());
    const auto expect_rows = [&](const Sequence& s, const std::vector<float>& u, int32_t begin, int32_t end) {
      for (int32_t t = begin; t < end; ++t)
        EXPECT_TRUE(within(u.data() + (t - begin) * l.width(), convolved_at(l, s, t))) << "position " << t;
    };
    expect_rows(first, got[0].u, 0, 9);
    expect_rows(second, got[1].u, 0, 4);
    expect_rows(third, got[2].u, 0, 12);
    expect_rows(second, next[0].u, 4, 5);
    expect_inputs(l, first, 9, steps.state(0));
    expect_inputs(l, second, 5, steps.state(1));
    expect_inputs(l, third, 12, steps.state(2));
    expect_inputs(l, second, 3, steps.state(3));
    expect_inputs(l, third, 4, steps.state(4));
  }
}

TEST(States, DeltaMatchesFloat64) {
  Numbers numbers(3);
  for (const Layer& l : delta_layers()) {
    const int32_t length = 40;
    const Sequence s = sequence_of(l, length, numbers);
    Steps steps(l, 1);
    const Computed got = steps.run({{&s, 0, {{length, -1, 0}}}})[0];
    const std::vector<double> want = recurrence(l, s, got.u, length);
    double largest = 0;
    for (const double x : want) largest = std::max(largest, std::fabs(x));
    EXPECT_TRUE(near(got.o, want, {0x1p-20 * largest, 0})) << l.name();
  }
}

// Softplus and sigmoid must not overflow where exp(x) does.
TEST(States, ScalarsMayBeLarge) {
  Numbers numbers(4);
  Layer l = delta_layers()[0];
  l.a = {-0.001f, -0.002f};
  Sequence s = sequence_of(l, 8, numbers);
  const float large[] = {0, 200, -200, 1e30f, -1e30f, 90, -90, 0};
  for (int32_t t = 0; t < 8; ++t)
    for (int32_t h = 0; h < l.heads; ++h) {
      s.alpha[static_cast<size_t>(t * l.heads + h)] = large[t];
      s.beta[static_cast<size_t>(t * l.heads + h)] = large[7 - t];
    }
  Steps steps(l, 1);
  const Computed got = steps.run({{&s, 0, {{8, -1, 0}}}})[0];
  EXPECT_TRUE(near(got.o, recurrence(l, s, got.u, 8), {0x1p-20, 0}));
}

TEST(States, CutsChangeNoBits) {
  Numbers numbers(5);
  for (const Layer& l : delta_layers()) {
    const int32_t length = l.key_dim == 64 ? 19 : l.key_dim == 128 ? 11 : 7;  // more than a tile of delta's
    const Sequence s = sequence_of(l, length, numbers), other = sequence_of(l, 6, numbers);
    Steps whole(l, 1);
    const Computed want = whole.run({{&s, 0, {{length, -1, 0}}}})[0];
    const std::vector<float> end = whole.state(0);
    SCOPED_TRACE(l.name());
    for (int32_t cut = 1; cut < length; ++cut) {
      Steps steps(l, 4);
      // Two steps over the slot's own state.
      const Computed first = steps.run({{&s, 0, {{cut, -1, 0}}}})[0];
      EXPECT_TRUE(same(joined(first, steps.run({{&s, cut, {{length - cut, 0, 0}}}})[0]), want)) << "cut at " << cut;
      EXPECT_TRUE(same(steps.state(0), end)) << "cut at " << cut;
      // One step that saves a state at the cut, among other sequences.
      const std::vector<Computed> among = steps.run({{&other, 0, {{6, -1, 3}}}, {&s, 0, {{cut, -1, 1}, {length - cut, 1, 2}}}}, 1);
      EXPECT_TRUE(same(among[1], want)) << "saved at " << cut;
      EXPECT_TRUE(same(steps.state(2), end)) << "saved at " << cut;
      // From the saved state on.
      EXPECT_TRUE(same(joined(first, steps.run({{&s, cut, {{length - cut, 1, 2}}}}, 3)[0]), want)) << "from " << cut;
      EXPECT_TRUE(same(steps.state(2), end)) << "from " << cut;
    }
  }
}

// A segment without rows copies a state, wherever it is in a chain.
TEST(States, EmptySegmentsCopyStates) {
  Numbers numbers(16);
  for (const Layer& l : delta_layers()) {
    const int32_t length = 9;
    const Sequence s = sequence_of(l, length, numbers);
    Steps whole(l, 1);
    const Computed want = whole.run({{&s, 0, {{length, -1, 0}}}})[0];
    const std::vector<float> end = whole.state(0);
    SCOPED_TRACE(l.name());
    Steps steps(l, 4);
    EXPECT_TRUE(same(steps.run({{&s, 0, {{0, -1, 0}, {4, 0, 1}, {0, 1, 2}, {0, 2, 0}, {length - 4, 0, 1}, {0, 1, 3}}}})[0], want));
    EXPECT_TRUE(same(steps.state(0), steps.state(2)));
    EXPECT_TRUE(same(steps.state(1), end));
    EXPECT_TRUE(same(steps.state(3), end));
  }
}

// Blocks have two or three columns of a group, and both have the same bits and the same order of S.
TEST(States, SmCountsChangeNoBits) {
  Numbers numbers(17);
  for (const Layer& l : {delta_layers()[12], delta_layers()[13]}) {
    const int32_t length = 21;
    const Sequence s = sequence_of(l, length, numbers);
    Steps three(l, 1), two(l, 1, 4, Act::kF16, 0.25f, 64);
    const Computed want = three.run({{&s, 0, {{length, -1, 0}}}})[0];
    EXPECT_TRUE(same(two.run({{&s, 0, {{length, -1, 0}}}})[0], want)) << l.name();
    EXPECT_TRUE(same(two.state(0), three.state(0))) << l.name();
  }
}

// Decode, one position a step, gives the bits of a prompt of more rows than the kernels for few rows compute.
TEST(States, PromptsAndDecodeGiveTheSameBits) {
  Numbers numbers(6);
  for (const Layer& l : {delta_layers()[1], delta_layers()[4], delta_layers()[12]}) {
    const int32_t length = 300;
    const Sequence s = sequence_of(l, length, numbers);
    Steps prompt(l, 1), decode(l, 1);
    const Computed want = prompt.run({{&s, 0, {{length, -1, 0}}}})[0];
    Computed got = decode.run({{&s, 0, {{length - 8, -1, 0}}}})[0];
    for (int32_t t = length - 8; t < length; ++t) got = joined(got, decode.run({{&s, t, {{1, 0, 0}}}})[0]);
    EXPECT_TRUE(same(got, want)) << l.name();
    EXPECT_TRUE(same(prompt.state(0), decode.state(0))) << l.name();
  }
}

// A launch of few rows has a form for chains of one row, which reads its inputs without tiles, and one for all others.
TEST(States, OneRowAmongOthersGivesTheSameBits) {
  Numbers numbers(18);
  for (const int32_t padding : {0, 1})
    for (const Layer& l : delta_layers()) {
      const int32_t length = 9;
      std::vector<Sequence> all;
      std::vector<Piece> whole;
      for (int32_t i = 0; i < 5; ++i) all.push_back(sequence_of(l, length, numbers));
      for (int32_t i = 0; i < 5; ++i) whole.push_back({&all[static_cast<size_t>(i)], 0, {{length, -1, i}}});
      Steps prompts(l, 5), steps(l, 7);
      const std::vector<Computed> want = prompts.run(whole, padding);
      const std::vector<Computed> first = steps.run({{&all[0], 0, {{length - 1, -1, 0}}},
                                                     {&all[1], 0, {{length - 2, -1, 1}}},
                                                     {&all[3], 0, {{length - 1, -1, 3}}},
                                                     {&all[4], 0, {{length - 2, -1, 5}}}});
      const std::vector<Computed> next = steps.run({{&all[0], length - 1, {{1, 0, 0}}},
                                                    {&all[1], length - 2, {{2, 1, 1}}},
                                                    {&all[2], 0, {{1, -1, 2}}},
                                                    {&all[3], length - 1, {{1, 3, 4}}},
                                                    {&all[4], length - 2, {{1, 5, 6}, {1, 6, 6}}}},
                                                   padding);
      const Computed last = steps.run({{&all[2], 1, {{length - 1, 2, 2}}}})[0];
      SCOPED_TRACE(l.name());
      EXPECT_TRUE(same(joined(first[0], next[0]), want[0]));
      EXPECT_TRUE(same(joined(first[1], next[1]), want[1])) << "two rows";
      EXPECT_TRUE(same(joined(next[2], last), want[2])) << "from zeros";
      EXPECT_TRUE(same(joined(first[2], next[3]), want[3])) << "to another state";
      EXPECT_TRUE(same(joined(first[3], next[4]), want[4])) << "two segments";
      const int32_t states[] = {0, 1, 2, 4, 6};
      for (int32_t i = 0; i < 5; ++i) EXPECT_TRUE(same(steps.state(states[i]), prompts.state(i))) << "state of sequence " << i;
    }
}

TEST(States, RowsOfManySequencesGiveTheBitsOfOne) {
  Numbers numbers(7);
  const Layer& l = delta_layers()[4];
  std::vector<Sequence> all;
  for (int32_t i = 0; i < 70; ++i) all.push_back(sequence_of(l, 1 + i % 7, numbers));
  Steps batch(l, 70), alone(l, 1);
  std::vector<Piece> pieces;
  for (int32_t i = 0; i < 70; ++i) pieces.push_back({&all[static_cast<size_t>(i)], 0, {{1 + i % 7, -1, i}}});
  const std::vector<Computed> got = batch.run(pieces, 5);  // 280 rows, which convolve_many computes
  for (int32_t i = 0; i < 70; ++i) {
    EXPECT_TRUE(same(got[static_cast<size_t>(i)], alone.run({{&all[static_cast<size_t>(i)], 0, {{1 + i % 7, -1, 0}}}})[0])) << i;
    EXPECT_TRUE(same(batch.state(i), alone.state(0))) << i;
  }
}

TEST(States, NaNStaysInItsSequence) {
  Numbers numbers(8);
  for (const Layer& l : {delta_layers()[0], delta_layers()[7]}) {
    const Sequence good = sequence_of(l, 6, numbers);
    Sequence bad = sequence_of(l, 6, numbers);
    Steps steps(l, 4);
    const Computed want = steps.run({{&good, 0, {{6, -1, 0}}}})[0];
    const std::vector<float> end = steps.state(0);
    bad.in[static_cast<size_t>(2 * l.in_width())] = NAN;        // of a query
    bad.alpha[static_cast<size_t>(3 * l.heads)] = NAN;
    bad.in[static_cast<size_t>(5 * l.in_width() - 1)] = INFINITY;  // of a value
    const std::vector<Computed> got = steps.run({{&bad, 0, {{6, -1, 1}}}, {&good, 0, {{2, -1, 3}, {4, 3, 2}}}, {&bad, 0, {{6, -1, 0}}}}, 1);
    EXPECT_TRUE(same(got[1], want)) << l.name();
    EXPECT_TRUE(same(steps.state(2), end)) << l.name();
    EXPECT_TRUE(std::isnan(got[0].o[static_cast<size_t>(2 * l.values())])) << l.name();
    EXPECT_TRUE(std::isnan(got[0].o[static_cast<size_t>(3 * l.values())])) << l.name();
  }
}

TEST(States, PaddingChainsChangeNothing) {
  const Layer& l = delta_layers()[0];
  Steps steps(l, 2);
  const std::vector<float> before = steps.state(0);
  (void)steps.run({}, 3);
  EXPECT_TRUE(same(steps.state(0), before));
}

const std::vector<Layer>& short_layers() {
  static const std::vector<Layer> layers = [] {
    Numbers numbers(9);
    std::vector<Layer> all;
    const std::vector<std::pair<int32_t, int32_t>> shapes{{3, 256}, {3, 128}, {3, 12}, {4, 40}, {2, 1}, {64, 33}};  // taps, width
    for (const auto& [conv, width] : shapes) {
      Layer l{conv, 0, 0, 0, width};
      l.gates = true;
      all.push_back(with_weights(l, numbers));
    }
    return all;
  }();
  return layers;
}

TEST(States, ShortConvolutionsMatchFloat64) {
  Numbers numbers(10);
  for (const Act act : {Act::kF16, Act::kBF16})
    for (const Layer& l : short_layers())
      for (const int32_t length : {6, 290}) {
        SCOPED_TRACE(std::string(name(act)) + ", " + l.name() + ", length " + std::to_string(length));
        Sequence s = sequence_of(l, length, numbers);
        s.in[static_cast<size_t>(l.value_dim)] = 4e7f;  // a gate that makes f16 overflow
        Steps steps(l, 3, 4, act);
        const Computed got = steps.run({{&s, 0, {{length - 3, -1, 2}, {1, 2, 0}, {2, 0, 1}}}}, 3)[0];
        expect_inputs(l, s, length, steps.state(1));
        expect_inputs(l, s, length - 2, steps.state(0));
        for (int32_t t = 0; t < length; ++t) {
          Wanted w = sums_at(l, s, t);
          for (size_t c = 0; c < w.value.size(); ++c) {
            const double factor = 0.25 * static_cast<double>(s.in[static_cast<size_t>((3 * t + 1) * l.value_dim) + c]);
            w.value[c] *= factor;
            if (act == Act::kF16) w.value[c] = std::min(std::max(w.value[c], -64992.0), 64992.0);
            w.bound[c] = w.bound[c] * std::fabs(factor) + half_step(act) * 1.01 * std::fabs(w.value[c]) + half_least(act);
          }
          const auto first = got.gated.begin() + int64_t{t} * l.width();
          const std::vector<float> row = from_acts(act, {first, first + l.width()});
          ASSERT_TRUE(within(row.data(), w)) << "position " << t;
        }
      }
}

TEST(States, CutsOfShortConvolutionsChangeNoBits) {
  Numbers numbers(11);
  for (const Layer& l : short_layers()) {
    const int32_t length = 280;
    const Sequence s = sequence_of(l, length, numbers);
    Steps whole(l, 1);
    const Computed want = whole.run({{&s, 0, {{length, -1, 0}}}})[0];
    for (const int32_t cut : {1, 2, 3, 100, 278, 279}) {
      Steps steps(l, 3);
      const Computed first = steps.run({{&s, 0, {{cut, -1, 0}}}})[0];
      EXPECT_TRUE(same(joined(first, steps.run({{&s, cut, {{length - cut, 0, 0}}}}, 2)[0]), want)) << l.name() << ", cut at " << cut;
      EXPECT_TRUE(same(steps.run({{&s, 0, {{cut, -1, 1}, {length - cut, 1, 2}}}})[0], want)) << l.name() << ", saved at " << cut;
      EXPECT_TRUE(same(steps.state(0), whole.state(0))) << l.name() << ", cut at " << cut;
      EXPECT_TRUE(same(steps.state(2), whole.state(0))) << l.name() << ", saved at " << cut;
    }
  }
}

// Alignment of rows selects kernels, which give the same bits.
TEST(States, StridesChangeNoBits) {
  Numbers numbers(12);
  for (const Layer& l : {delta_layers()[4], short_layers()[0]}) {
    const Sequence s = sequence_of(l, 9, numbers);
    Steps aligned(l, 1, 4), odd(l, 1, 3);
    EXPECT_TRUE(same(aligned.run({{&s, 0, {{9, -1, 0}}}})[0], odd.run({{&s, 0, {{9, -1, 0}}}})[0])) << l.name();
    EXPECT_TRUE(same(aligned.state(0), odd.state(0))) << l.name();
  }
}

TEST(States, ImpossibleShapesAreRefused) {
  DeltaArgs delta{};
  delta.inputs.conv = 4;
  delta.inputs.width = 2 * 513 + 1;
  delta.heads = delta.key_heads = delta.value_dim = 1;
  delta.key_dim = 513;
  delta.sm_count = 1;
  EXPECT_EQ(launch_delta(delta, Stream{}), cudaErrorInvalidValue);
  delta.key_dim = 512;
  EXPECT_EQ(launch_delta(delta, Stream{}), cudaErrorInvalidValue) << "width";
  delta.inputs.width = 2 * 512 + 1;
  EXPECT_EQ(launch_delta(delta, Stream{}), cudaSuccess) << "no chains";
  delta.sm_count = 0;
  EXPECT_EQ(launch_delta(delta, Stream{}), cudaErrorInvalidValue) << "no SMs";
  delta.sm_count = 1;
  delta.inputs.conv = 65;
  EXPECT_EQ(launch_delta(delta, Stream{}), cudaErrorInvalidValue);
  ConvolveArgs convolve{};
  convolve.conv = 1;
  convolve.width = 3;
  convolve.key_heads = convolve.key_dim = 1;
  EXPECT_EQ(launch_convolve(convolve, Stream{}), cudaErrorInvalidValue);
  convolve.conv = 2;
  EXPECT_EQ(launch_convolve(convolve, Stream{}), cudaSuccess) << "no rows";
}

struct GateCase {
  int32_t rows, heads, dim, pad;
};

TEST(States, GateNormMatchesFloat64) {
  Numbers numbers(13);
  const std::vector<GateCase> cases{{3, 4, 128, 4}, {2, 1, 1, 1},   {2, 3, 33, 1},  {1, 2, 64, 0},
                                    {5, 3, 512, 8}, {2, 2, 1000, 0}, {2, 2, 1001, 3}};
  for (const Act act : {Act::kF16, Act::kBF16})
    for (const GateCase& c : cases) {
      const int32_t width = c.heads * c.dim, stride = width + c.pad;
      const size_t all = static_cast<size_t>(c.rows * stride);
      const std::vector<float> o = numbers.normals(all, 3), norm = numbers.normals(static_cast<size_t>(c.dim));
      std::vector<float> gates = numbers.normals(all, 2);
      gates[0] = 3e8f;  // saturated in f16
      if (c.dim > 1) gates[1] = -3e8f;
      const Guarded<float> d_o(o), d_gates(gates), d_norm(norm);
      Guarded<uint16_t> out(all);
      MUST(launch_gate_norm({d_o, d_gates, stride, stride, d_norm, kEps, c.rows, c.heads, c.dim, out.data(), stride, act, 0.5f}, Stream{}));
      const std::vector<uint16_t> bits = out.read();
      const std::vector<float> got = from_acts(act, bits);
      for (int32_t r = 0; r < c.rows; ++r) {
        for (int32_t h = 0; h < c.heads; ++h) {
          const size_t first = static_cast<size_t>(r * stride + h * c.dim);
          double square = 0;
          for (int32_t d = 0; d < c.dim; ++d) square += std::pow(static_cast<double>(o[first + static_cast<size_t>(d)]), 2);
          const double factor = 1 / std::sqrt(square / c.dim + static_cast<double>(kEps));
          std::vector<double> want;
          for (int32_t d = 0; d < c.dim; ++d) {
            const size_t at = first + static_cast<size_t>(d);
            const double y = 0.5 * o[at] * factor * norm[static_cast<size_t>(d)] * silu(static_cast<double>(gates[at]));
            want.push_back(act == Act::kF16 ? std::min(std::max(y, -64992.0), 64992.0) : y);
          }
          EXPECT_TRUE(near({got.begin() + static_cast<int64_t>(first), got.begin() + static_cast<int64_t>(first) + c.dim}, want,
                           {half_least(act), half_step(act) + 0x1p-19}))
              << name(act) << " dim " << c.dim << " row " << r << " head " << h;
        }
        for (int32_t d = width; d < stride; ++d) EXPECT_EQ(bits[static_cast<size_t>(r * stride + d)], 0xffff) << "padding written";
      }
    }
}

TEST(States, GateOutputMatchesFloat64) {
  Numbers numbers(14);
  const std::vector<GateCase> cases{{3, 4, 128, 4}, {2, 1, 1, 1}, {2, 3, 33, 1}, {1, 16, 256, 0}, {2, 3, 4, 3}};
  for (const Act act : {Act::kF16, Act::kBF16})
    for (const GateCase& c : cases) {
      const int32_t width = c.heads * c.dim, stride = width + c.pad, q_stride = 2 * width + c.pad;
      const std::vector<uint16_t> before = to_acts(act, numbers.normals(static_cast<size_t>(c.rows * stride), 4));
      std::vector<float> q = numbers.normals(static_cast<size_t>(c.rows * q_stride), 3);
      q[static_cast<size_t>(c.dim)] = 1e30f;
      q[static_cast<size_t>((c.rows - 1) * q_stride + 2 * width - 1)] = -1e30f;
      Guarded<uint16_t> out(before);
      const Guarded<float> d_q(q);
      MUST(launch_gate_output({out.data(), stride, act, d_q, q_stride, c.rows, c.heads, c.dim}, Stream{}));
      const std::vector<uint16_t> after = out.read();
      for (int32_t r = 0; r < c.rows; ++r) {
        std::vector<float> got;
        std::vector<double> want;
        for (int32_t i = 0; i < width; ++i) {
          const size_t at = static_cast<size_t>(r * stride + i);
          got.push_back(from_act(act, after[at]));
          const int32_t gate = r * q_stride + (2 * (i / c.dim) + 1) * c.dim + i % c.dim;
          want.push_back(from_act(act, before[at]) * sigmoid(static_cast<double>(q[static_cast<size_t>(gate)])));
        }
        EXPECT_TRUE(near(got, want, {half_least(act), half_step(act) + 0x1p-19})) << name(act) << " dim " << c.dim << " row " << r;
        for (size_t i = static_cast<size_t>(r * stride + width); i < static_cast<size_t>((r + 1) * stride); ++i)
          EXPECT_EQ(after[i], before[i]) << "padding written";
      }
    }
}

// A layer's kernels as dependent launches, over states that each launch reads and writes.
TEST(States, DependentLaunchesRepeatTheirBits) {
  Numbers numbers(15);
  const Layer l = with_weights({4, 1, 128, 2, 32}, numbers);
  const int32_t chains = 3, width = l.width(), values = l.values(), rows = chains;
  int major = 0;
  MUST(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  cudaStream_t stream = nullptr;
  MUST(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0));
  const Stream on{stream, major >= 9};
  const std::vector<StateChain> all{{0, 1}, {1, 1}, {2, 1}};
  const std::vector<StateSegment> segments{{0, 1, 0, 0}, {1, 1, 1, 1}, {2, 1, 2, 2}};
  const std::vector<int32_t> index{0, 1, 2};
  const auto many = [&](int64_t count) { return numbers.normals(static_cast<size_t>(count)); };
  const std::vector<float> begin = many(chains * l.stride());
  const Guarded<StateChain> d_chains(all);
  const Guarded<StateSegment> d_segments(segments);
  const Guarded<int32_t> d_index(index);
  const Guarded<float> in(many(rows * width)), scalars(many(rows * l.heads)), gates(many(rows * values)), norm(many(l.value_dim));
  const Guarded<float> taps(l.taps), a(l.a), dt(l.dt);
  const StateRows step{d_chains, d_segments, d_index, d_index, rows, chains};
  std::vector<uint16_t> first_out;
  std::vector<float> first_states;
  for (int32_t turn = 0; turn < 8; ++turn) {
    Guarded<float> states(begin), u(static_cast<size_t>(rows * width)), o(static_cast<size_t>(rows * values));
    Guarded<uint16_t> out(static_cast<size_t>(rows * values));
    const StateMemory memory{states, l.stride()};
    synchronize();
    for (int32_t i = 0; i < 25; ++i) {
      MUST(launch_convolve({step, memory, in, width, taps, l.conv, width, false, l.key_heads, l.key_dim, l.scale(), u, nullptr, 0,
                            Act::kF16, 1}, on));
      MUST(launch_delta({{step, memory, in, width, l.conv, width, false}, u, width, scalars, scalars, l.heads, a, dt, l.heads,
                         l.key_heads, l.key_dim, l.value_dim, false, o, values, 1}, on));
      MUST(launch_gate_norm({o, gates, values, values, norm, kEps, rows, l.heads, l.value_dim, out.data(), values, Act::kF16, 1}, on));
    }
    MUST(cudaStreamSynchronize(stream));
    if (turn == 0) first_out = out.read(), first_states = states.read();
    EXPECT_TRUE(same(out.read(), first_out)) << turn;
    EXPECT_TRUE(same(states.read(), first_states)) << turn;
  }
  MUST(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace mr::cuda::testing
