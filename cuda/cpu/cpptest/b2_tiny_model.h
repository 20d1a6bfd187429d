// A small decoder of random f32 weights, bound to the engine and kept for a reference in double.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "b2_check.h"
#include "buffer.h"
#include "device.h"
#include "model.h"
#include "plain_model.h"

namespace tiny {

using namespace mr;
using namespace mr::cpu;

inline plain_model llama_shape() {  // adjacent pairs, grouped queries, a head of its own
  plain_model d{};
  d.layers = 2;
  d.hidden = 64;
  d.heads = 4;
  d.kv_heads = 2;
  d.head_dim = 16;
  d.ffn = 96;
  d.vocab = 83;
  d.context = 700;
  d.rope_dims = 16;
  d.rope_style = MR_ROPE_NORM;
  d.rope_base = 10000;
  d.rope_scale = 1;
  d.norm_eps = 1e-5f;
  return d;
}

inline plain_model qwen_shape() {  // split halves, biases, norms of Q and K, a head of odd size, rope factors
  plain_model d = llama_shape();
  d.hidden = 80;
  d.heads = 6;
  d.head_dim = 22;
  d.rope_dims = 20;
  d.rope_style = MR_ROPE_NEOX;
  d.rope_base = 1000000;
  d.rope_scale = 2;
  d.attn_scale = 0.3f;
  d.qkv_bias = d.o_bias = d.qk_norm = d.tied_head = d.rope_factors = 1;
  return d;
}

inline std::shared_ptr<Device> open_device(const char* path, int32_t threads) {
  mr_device_options options{};
  options.struct_size = sizeof options;
  options.threads = threads;
  options.path = path;
  options.bytes_limit = uint64_t{1} << 30;
  return std::make_shared<Device>(options);
}

struct Weights {
  plain_model desc;
  std::map<std::pair<int, int>, std::vector<float>> tensor;  // by role and layer

  explicit Weights(const plain_model& d) : desc(d) {
    check::Numbers n(42);
    const auto add = [&](int role, int layer, int64_t count, float centre, float spread) {
      std::vector<float>& t = tensor[{role, layer}];
      for (int64_t i = 0; i < count; ++i) t.push_back(centre + spread * n.normal());
    };
    const int64_t q = d.heads * d.head_dim, kv = d.kv_heads * d.head_dim;
    add(MR_ROLE_EMBEDDING, -1, static_cast<int64_t>(d.vocab) * d.hidden, 0, 1);
    add(MR_ROLE_OUTPUT_NORM, -1, d.hidden, 1, 0.1f);
    if (!d.tied_head) add(MR_ROLE_OUTPUT, -1, static_cast<int64_t>(d.vocab) * d.hidden, 0, 0.2f);
    for (int l = 0; l < d.layers; ++l) {
      add(MR_ROLE_ATTN_NORM, l, d.hidden, 1, 0.1f);
      add(MR_ROLE_FFN_NORM, l, d.hidden, 1, 0.1f);
      add(MR_ROLE_Q, l, d.hidden * q, 0, 0.2f);
      add(MR_ROLE_K, l, d.hidden * kv, 0, 0.2f);
      add(MR_ROLE_V, l, d.hidden * kv, 0, 0.2f);
      add(MR_ROLE_O, l, d.hidden * q, 0, 0.1f);
      add(MR_ROLE_GATE, l, static_cast<int64_t>(d.hidden) * d.ffn, 0, 0.2f);
      add(MR_ROLE_UP, l, static_cast<int64_t>(d.hidden) * d.ffn, 0, 0.2f);
      add(MR_ROLE_DOWN, l, static_cast<int64_t>(d.hidden) * d.ffn, 0, 0.1f);
      if (d.qkv_bias) {
        add(MR_ROLE_Q_BIAS, l, q, 0, 0.5f);
        add(MR_ROLE_K_BIAS, l, kv, 0, 0.5f);
        add(MR_ROLE_V_BIAS, l, kv, 0, 0.5f);
      }
      if (d.o_bias) add(MR_ROLE_O_BIAS, l, d.hidden, 0, 0.1f);
      if (d.qk_norm) {
        add(MR_ROLE_Q_NORM, l, d.head_dim, 1, 0.1f);
        add(MR_ROLE_K_NORM, l, d.head_dim, 1, 0.1f);
      }
    }
  }

  const std::vector<float>& at(int role, int layer = -1) const { return tensor.at({role, layer}); }

  std::shared_ptr<Model> bind(std::shared_ptr<Device> device) const {
    plain_arrays arrays;
    auto model = std::make_shared<Model>(device, read_description(plain_desc(&desc, &arrays)));
    for (const auto& [key, values] : tensor) {
      mr_tensor_desc t{};
      t.struct_size = sizeof t;
      t.role = key.first;
      t.layer = key.second;
      t.ndims = 2;
      const int64_t count = static_cast<int64_t>(values.size());
      switch (key.first) {
        case MR_ROLE_EMBEDDING: case MR_ROLE_OUTPUT: case MR_ROLE_Q: case MR_ROLE_K: case MR_ROLE_V: case MR_ROLE_GATE:
        case MR_ROLE_UP: t.dims[0] = desc.hidden; break;
        case MR_ROLE_O: t.dims[0] = desc.heads * desc.head_dim; break;
        case MR_ROLE_DOWN: t.dims[0] = desc.ffn; break;
        default: t.ndims = 1; t.dims[0] = count;
      }
      t.dims[1] = t.ndims == 1 ? 0 : count / t.dims[0];
      auto buffer = std::make_shared<Buffer>(device, values.size() * 4, MR_PURPOSE_STAGING);
      buffer->write(0, values.data(), values.size() * 4);
      model->bind(t, buffer);
    }
    model->seal();
    return model;
  }

  // Logits after every token, in double.
  std::vector<std::vector<double>> logits(const std::vector<int32_t>& tokens) const {
    using Row = std::vector<double>;
    const size_t n = tokens.size(), hidden = static_cast<size_t>(desc.hidden), dim = static_cast<size_t>(desc.head_dim);
    const size_t heads = static_cast<size_t>(desc.heads), kv_heads = static_cast<size_t>(desc.kv_heads), group = heads / kv_heads;
    const auto times = [](const std::vector<float>& w, const Row& x) {
      Row y(w.size() / x.size(), 0);
      for (size_t r = 0; r < y.size(); ++r)
        for (size_t i = 0; i < x.size(); ++i) y[r] += static_cast<double>(w[r * x.size() + i]) * x[i];
      return y;
    };
    const auto norm = [&](double* x, size_t count, const std::vector<float>& w) {
      double square = 0;
      for (size_t i = 0; i < count; ++i) square += x[i] * x[i];
      const double factor = 1 / std::sqrt(square / static_cast<double>(count) + static_cast<double>(desc.norm_eps));
      for (size_t i = 0; i < count; ++i) x[i] *= factor * static_cast<double>(w[i]);
    };
    const auto plus = [](Row& x, const Row& y) {
      for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
    };
    const auto plus_bias = [](Row& x, const std::vector<float>& y) {
      for (size_t i = 0; i < x.size(); ++i) x[i] += static_cast<double>(y[i]);
    };
    std::vector<Row> x(n);
    for (size_t t = 0; t < n; ++t) {
      const float* row = at(MR_ROLE_EMBEDDING).data() + static_cast<size_t>(tokens[t]) * hidden;
      x[t].assign(row, row + hidden);
    }
    for (int l = 0; l < desc.layers; ++l) {
      std::vector<Row> q(n), k(n), v(n);
      const auto finish = [&](Row& row, size_t count, size_t t, int norm_role) {
        for (size_t h = 0; h < count; ++h) {
          double* head = row.data() + h * dim;
          if (desc.qk_norm) norm(head, dim, at(norm_role, l));
          const int half = desc.rope_dims / 2;
          for (int i = 0; i < half; ++i) {
            double f = std::pow(static_cast<double>(desc.rope_base), -2.0 * i / desc.rope_dims) / static_cast<double>(desc.rope_scale);
            if (desc.rope_factors) f /= plain_divisor(i);
            const double c = std::cos(f * static_cast<double>(t)), s = std::sin(f * static_cast<double>(t));
            double& a = head[desc.rope_style == MR_ROPE_NEOX ? i : 2 * i];
            double& b = head[desc.rope_style == MR_ROPE_NEOX ? i + half : 2 * i + 1];
            const double turned = a * c - b * s;
            b = a * s + b * c;
            a = turned;
          }
        }
      };
      for (size_t t = 0; t < n; ++t) {
        Row h = x[t];
        norm(h.data(), hidden, at(MR_ROLE_ATTN_NORM, l));
        q[t] = times(at(MR_ROLE_Q, l), h);
        k[t] = times(at(MR_ROLE_K, l), h);
        v[t] = times(at(MR_ROLE_V, l), h);
        if (desc.qkv_bias) {
          plus_bias(q[t], at(MR_ROLE_Q_BIAS, l));
          plus_bias(k[t], at(MR_ROLE_K_BIAS, l));
          plus_bias(v[t], at(MR_ROLE_V_BIAS, l));
        }
        finish(q[t], heads, t, MR_ROLE_Q_NORM);
        finish(k[t], kv_heads, t, MR_ROLE_K_NORM);
      }
      for (size_t t = 0; t < n; ++t) {
        Row out(heads * dim, 0);
        for (size_t h = 0; h < heads; ++h) {
          const size_t from = h / group * dim;
          Row score(t + 1, 0);
          double top = -1e300, sum = 0;
          for (size_t j = 0; j <= t; ++j) {
            for (size_t d = 0; d < dim; ++d) score[j] += q[t][h * dim + d] * k[j][from + d];
            score[j] *= desc.attn_scale != 0 ? static_cast<double>(desc.attn_scale) : 1 / std::sqrt(static_cast<double>(dim));
            top = std::fmax(top, score[j]);
          }
          for (double& s : score) sum += s = std::exp(s - top);
          for (size_t j = 0; j <= t; ++j)
            for (size_t d = 0; d < dim; ++d) out[h * dim + d] += score[j] / sum * v[j][from + d];
        }
        plus(x[t], times(at(MR_ROLE_O, l), out));
        if (desc.o_bias) plus_bias(x[t], at(MR_ROLE_O_BIAS, l));
        Row h = x[t];
        norm(h.data(), hidden, at(MR_ROLE_FFN_NORM, l));
        Row gate = times(at(MR_ROLE_GATE, l), h);
        const Row up = times(at(MR_ROLE_UP, l), h);
        for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
        plus(x[t], times(at(MR_ROLE_DOWN, l), gate));
      }
    }
    for (Row& row : x) {
      norm(row.data(), hidden, at(MR_ROLE_OUTPUT_NORM));
      row = times(at(desc.tied_head ? MR_ROLE_EMBEDDING : MR_ROLE_OUTPUT), row);
    }
    return x;
  }
};

}  // namespace tiny
