// Fixture for tests of layers that carry a state: a layer and its weights, steps of it over states on the device, and what float64 gives.
#pragma once

#include <algorithm>
#include <string>

#include "kernel_fixture.h"
#include "kernels/states/states.h"

namespace mr::cuda::testing {
namespace {

constexpr float kEps = 1e-5f;

// The shape of a layer and its weights.
struct Layer {
  int32_t conv, key_heads, key_dim, heads, value_dim;
  bool tiled = false, gates = false;  // gates: a short convolution, value_dim wide
  std::vector<float> taps{}, a{}, dt{};

  int32_t width() const { return gates ? value_dim : 2 * key_heads * key_dim + heads * value_dim; }
  int32_t in_width() const { return gates ? 3 * value_dim : width(); }
  int32_t values() const { return heads * value_dim; }
  float scale() const { return 1 / std::sqrt(static_cast<float>(key_dim)); }
  int64_t stride() const { return (int64_t{conv - 1} * width() + (gates ? 0 : int64_t{values()} * key_dim) + 3) / 4 * 4; }
  int32_t group_of(int32_t head) const { return tiled ? head % key_heads : head / (heads / key_heads); }
  std::string name() const {
    return std::to_string(conv) + " taps, keys " + std::to_string(key_heads) + " x " + std::to_string(key_dim) + ", values " +
           std::to_string(heads) + " x " + std::to_string(value_dim);
  }
};

Layer with_weights(Layer l, Numbers& numbers) {
  l.taps = numbers.normals(static_cast<size_t>(l.conv * l.width()), 0.5f);
  for (int32_t h = 0; h < l.heads; ++h) {
    l.a.push_back(-0.02f - static_cast<float>(numbers.uniform()));
    l.dt.push_back(numbers.normal());
  }
  return l;
}

// The inputs of a sequence from its first position on.
struct Sequence {
  int32_t length;
  std::vector<float> in, alpha, beta;
};

Sequence sequence_of(const Layer& l, int32_t length, Numbers& numbers) {
  const auto many = [&](int32_t width) { return numbers.normals(static_cast<size_t>(length) * static_cast<size_t>(width)); };
  return {length, many(l.in_width()), many(l.heads), many(l.heads)};
}

struct Cut {
  int32_t count, from, to;
};

// Some positions of a sequence, in segments of one slot.
struct Piece {
  const Sequence* sequence;
  int32_t first;
  std::vector<Cut> cuts;
};

// The results of a piece, row by row.
struct Computed {
  std::vector<float> u, o;
  std::vector<uint16_t> gated;
};

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}
bool same(const Computed& a, const Computed& b) { return same(a.u, b.u) && same(a.o, b.o) && same(a.gated, b.gated); }

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from, int64_t first, int64_t count) {
  to.insert(to.end(), from.begin() + first, from.begin() + first + count);
}

Computed joined(const Computed& a, const Computed& b) {
  Computed both = a;
  append(both.u, b.u, 0, static_cast<int64_t>(b.u.size()));
  append(both.o, b.o, 0, static_cast<int64_t>(b.o.size()));
  append(both.gated, b.gated, 0, static_cast<int64_t>(b.gated.size()));
  return both;
}

// Runs steps of one layer over states on the device. Fresh states are NaN.
class Steps {
 public:
  // sm_count: with 1, delta gives a group three columns where three value heads share a key head.
  Steps(const Layer& layer, int32_t states, int32_t pad = 4, Act act = Act::kF16, float out_scale = 0.25f, int32_t sm_count = 1)
      : l_(layer), pad_(pad), act_(act), out_scale_(out_scale), sm_count_(sm_count), states_(static_cast<size_t>(states * layer.stride())),
        taps_(layer.taps), a_(layer.a), dt_(layer.dt) {}

  // The segments of all pieces come in turns. Padding rows and chains are the last ones. Without padding the recurrence writes its results
  // over the values.
  std::vector<Computed> run(const std::vector<Piece>& pieces, int32_t padding = 0) {
    std::vector<StateChain> chains;
    std::vector<StateSegment> segments;
    size_t turns = 0;
    for (const Piece& p : pieces) {
      chains.push_back({static_cast<int32_t>(segments.size()), static_cast<int32_t>(p.cuts.size())});
      for (const Cut& c : p.cuts) segments.push_back({0, c.count, c.from, c.to});
      turns = std::max(turns, p.cuts.size());
    }
    std::vector<int32_t> chain_of, segment_of;
    for (size_t turn = 0; turn < turns; ++turn)
      for (size_t c = 0; c < pieces.size(); ++c) {
        if (turn >= pieces[c].cuts.size()) continue;
        const int32_t at = chains[c].first_segment + static_cast<int32_t>(turn);
        StateSegment& s = segments[static_cast<size_t>(at)];
        s.first_row = static_cast<int32_t>(chain_of.size());
        for (int32_t i = 0; i < s.count; ++i) {
          chain_of.push_back(static_cast<int32_t>(c));
          segment_of.push_back(at);
        }
      }
    for (int32_t i = 0; i < padding; ++i) {
      chain_of.push_back(-1);
      segment_of.push_back(-1);
      chains.push_back({0, 0});
    }
    const int32_t rows = static_cast<int32_t>(chain_of.size()), width = l_.width(), values = l_.values();
    const int32_t in_stride = l_.in_width() + pad_, scalar_stride = l_.heads + 1, gated_stride = width + pad_;
    const bool over_values = padding == 0;
    const int32_t first_value = over_values ? 2 * l_.key_heads * l_.key_dim : 0, out_stride = over_values ? width : values + 1;

    const auto elements = [rows](int32_t stride) { return static_cast<size_t>(rows) * static_cast<size_t>(stride); };
    const auto rows_of = [&](int32_t stride, int32_t columns, auto member) {
      std::vector<float> all(elements(stride), NAN);
      each_row(pieces, chains, segments, [&](const Piece& p, int64_t position, int64_t row) {
        std::copy_n((p.sequence->*member).begin() + position * columns, columns, all.begin() + row * stride);
      });
      return all;
    };
    const Guarded<StateChain> d_chains(chains);
    const Guarded<StateSegment> d_segments(segments);
    const Guarded<int32_t> d_chain_of(chain_of), d_segment_of(segment_of);
    const Guarded<float> in(rows_of(in_stride, l_.in_width(), &Sequence::in));
    const StateRows step{d_chains, d_segments, d_chain_of, d_segment_of, rows, static_cast<int32_t>(chains.size())};
    const StateMemory memory{states_, l_.stride()};
    Guarded<float> u(elements(width)), o(elements(out_stride));
    Guarded<uint16_t> gated(elements(gated_stride));
    ConvolveArgs convolve{};
    convolve.rows = step;
    convolve.states = memory;
    convolve.in = in;
    convolve.in_stride = in_stride;
    convolve.taps = taps_;
    convolve.conv = l_.conv;
    convolve.width = width;
    convolve.gates = l_.gates;
    convolve.key_heads = l_.key_heads;
    convolve.key_dim = l_.key_dim;
    convolve.scale = l_.scale();
    convolve.out = u;
    convolve.gated_out = gated.data();
    convolve.gated_stride = gated_stride;
    convolve.act = act_;
    convolve.out_scale = out_scale_;
    const StoreInputsArgs inputs{step, memory, in, in_stride, l_.conv, width, l_.gates};
    MUST(launch_convolve(convolve, Stream{}));
    std::vector<float> all_u, all_o;
    if (l_.gates) {
      MUST(launch_store_inputs(inputs, Stream{}));
    } else {
      const Guarded<float> alpha(rows_of(scalar_stride, l_.heads, &Sequence::alpha));
      const Guarded<float> beta(rows_of(scalar_stride, l_.heads, &Sequence::beta));
      DeltaArgs delta{};
      delta.inputs = inputs;
      delta.u = u;
      delta.u_stride = width;
      delta.alpha = alpha;
      delta.beta = beta;
      delta.scalar_stride = scalar_stride;
      delta.a = a_;
      delta.dt = dt_;
      delta.heads = l_.heads;
      delta.key_heads = l_.key_heads;
      delta.key_dim = l_.key_dim;
      delta.value_dim = l_.value_dim;
      delta.tiled_heads = l_.tiled;
      delta.out = (over_values ? u.data() : o.data()) + first_value;
      delta.out_stride = out_stride;
      delta.sm_count = sm_count_;
      all_u = u.read();
      MUST(launch_delta(delta, Stream{}));
      all_o = (over_values ? u : o).read();
    }
    const std::vector<uint16_t> all_gated = gated.read();
    std::vector<Computed> computed(pieces.size());
    each_row(pieces, chains, segments, [&](const Piece& p, int64_t, int64_t row) {
      Computed& to = computed[static_cast<size_t>(&p - pieces.data())];
      if (l_.gates) append(to.gated, all_gated, row * gated_stride, width);
      else append(to.u, all_u, row * width, width), append(to.o, all_o, row * out_stride + first_value, values);
    });
    for (int64_t row = rows - padding; row < rows; ++row)
      for (int32_t i = 0; i < width; ++i) {
        if (l_.gates) EXPECT_EQ(all_gated[static_cast<size_t>(row * gated_stride + i)], 0) << "padding";
        else EXPECT_EQ(all_u[static_cast<size_t>(row * width + i)], 0) << "padding";
      }
    return computed;
  }

  // The bits of a state.
  std::vector<float> state(int32_t i) const {
    const std::vector<float> all = states_.read();
    return {all.begin() + i * l_.stride(), all.begin() + (i + 1) * l_.stride()};
  }

 private:
  template <class Body>
  static void each_row(const std::vector<Piece>& pieces, const std::vector<StateChain>& chains, const std::vector<StateSegment>& segments,
                       Body body) {
    for (size_t c = 0; c < pieces.size(); ++c) {
      int64_t position = pieces[c].first;
      for (int32_t i = 0; i < chains[c].segments; ++i) {
        const StateSegment& s = segments[static_cast<size_t>(chains[c].first_segment + i)];
        for (int32_t r = 0; r < s.count; ++r) body(pieces[c], position++, int64_t{s.first_row} + r);
      }
    }
  }

  const Layer& l_;
  int32_t pad_;
  Act act_;
  float out_scale_;
  int32_t sm_count_;
  Guarded<float> states_, taps_, a_, dt_;
};

double silu(double x) { return x / (1 + std::exp(-x)); }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// The input of the convolution at a position, as it is stored.
float input_at(const Layer& l, const Sequence& s, int64_t position, int32_t column) {
  if (position < 0) return 0;
  const float* const row = s.in.data() + position * l.in_width();
  return l.gates ? row[column] * row[2 * l.value_dim + column] : row[column];
}

struct Wanted {
  std::vector<double> value, bound;
};

// The sums of a position, and their absolute terms.
Wanted sums_at(const Layer& l, const Sequence& s, int64_t position) {
  Wanted w;
  for (int32_t c = 0; c < l.width(); ++c) {
    double sum = 0, terms = 0;
    for (int32_t i = 0; i < l.conv; ++i) {
      const double tap = static_cast<double>(l.taps[static_cast<size_t>(i * l.width() + c)]);
      const double term = tap * input_at(l, s, position - l.conv + 1 + i, c);
      sum += term;
      terms += std::fabs(term);
    }
    w.value.push_back(sum);
    w.bound.push_back(0x1p-18 * terms);
  }
  return w;
}

Wanted convolved_at(const Layer& l, const Sequence& s, int64_t position) {
  Wanted w = sums_at(l, s, position);
  for (double& x : w.value) x = silu(x);
  for (int32_t h = 0; h < 2 * l.key_heads; ++h) {
    double sum = 1e-6, bound = 0;
    for (int32_t c = h * l.key_dim; c < (h + 1) * l.key_dim; ++c) {
      const size_t at = static_cast<size_t>(c);
      sum += w.value[at] * w.value[at];
      bound = std::max(bound, w.bound[at]);
    }
    const double factor = (h < l.key_heads ? static_cast<double>(l.scale()) : 1.0) / std::sqrt(sum);
    for (int32_t c = h * l.key_dim; c < (h + 1) * l.key_dim; ++c) {
      w.value[static_cast<size_t>(c)] *= factor;
      w.bound[static_cast<size_t>(c)] = bound * factor;
    }
  }
  return w;
}

::testing::AssertionResult within(const float* got, const Wanted& want) {
  for (size_t i = 0; i < want.value.size(); ++i) {
    const double error = std::fabs(got[i] - want.value[i]);
    if (!(error <= want.bound[i] + 1e-12))
      return ::testing::AssertionFailure() << "column " << i << " is " << got[i] << ", want " << want.value[i] << ", error "
                                           << error / want.bound[i] << " of the bound";
  }
  return ::testing::AssertionSuccess();
}

// The recurrence in float64 over the queries, keys and values that the device computed.
std::vector<double> recurrence(const Layer& l, const Sequence& s, const std::vector<float>& u, int32_t positions) {
  std::vector<double> out;
  std::vector<std::vector<double>> states(static_cast<size_t>(l.heads), std::vector<double>(static_cast<size_t>(l.key_dim * l.value_dim)));
  for (int32_t t = 0; t < positions; ++t)
    for (int32_t h = 0; h < l.heads; ++h) {
      const float* const q = u.data() + int64_t{t} * l.width() + l.group_of(h) * l.key_dim;
      const float* const k = q + l.key_heads * l.key_dim;
      const float* const v = u.data() + int64_t{t} * l.width() + 2 * l.key_heads * l.key_dim + h * l.value_dim;
      const size_t scalar = static_cast<size_t>(t * l.heads + h);
      const double x = static_cast<double>(s.alpha[scalar]) + l.dt[static_cast<size_t>(h)];
      const double decay = std::exp(l.a[static_cast<size_t>(h)] * (std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x)))));
      std::vector<double>& state = states[static_cast<size_t>(h)];
      for (int32_t j = 0; j < l.value_dim; ++j) {
        double remembered = 0, o = 0;
        const auto of = [&](int32_t i) -> double& { return state[static_cast<size_t>(i * l.value_dim + j)]; };
        for (int32_t i = 0; i < l.key_dim; ++i) remembered += k[i] * (of(i) *= decay);
        const double d = (v[j] - remembered) * sigmoid(static_cast<double>(s.beta[scalar]));
        for (int32_t i = 0; i < l.key_dim; ++i) o += q[i] * (of(i) += k[i] * d);
        out.push_back(o);
      }
    }
  return out;
}

// The stored inputs of a state after `position` positions.
void expect_inputs(const Layer& l, const Sequence& s, int64_t position, const std::vector<float>& state) {
  for (int32_t j = 0; j < l.conv - 1; ++j)
    for (int32_t c = 0; c < l.width(); ++c)
      ASSERT_EQ(state[static_cast<size_t>(j * l.width() + c)], input_at(l, s, position - (l.conv - 1) + j, c))
          << "input " << j << " of column " << c;
}

const std::vector<Layer>& delta_layers() {
  static const std::vector<Layer> layers = [] {
    Numbers numbers(1);
    std::vector<Layer> all;
    for (const Layer& l : {Layer{4, 1, 128, 2, 64}, Layer{4, 2, 128, 4, 32, true}, Layer{4, 2, 64, 2, 32}, Layer{3, 1, 256, 1, 32},
                           Layer{4, 2, 16, 2, 8}, Layer{2, 1, 1, 1, 1}, Layer{3, 2, 2, 6, 3, true}, Layer{5, 1, 31, 2, 33},
                           Layer{64, 3, 3, 3, 5}, Layer{4, 1, 512, 1, 2}, Layer{4, 2, 100, 2, 12}, Layer{4, 1, 128, 1, 20},
                           Layer{4, 1, 128, 3, 64}, Layer{4, 2, 128, 6, 32, true}})
      all.push_back(with_weights(l, numbers));
    return all;
  }();
  return layers;
}

}  // namespace
}  // namespace mr::cuda::testing
