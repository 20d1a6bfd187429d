// divided_cases: models with experts, and with all else that several GPUs divide.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/random_tensors.h"

namespace mr::cuda::test {

struct DividedCase {
  Description desc;
  std::function<int32_t(int32_t)> type;  // of the matrices of a role
};

// Routers are F16, as no engine has quantised ones.
inline std::function<int32_t(int32_t)> types(int32_t experts, int32_t others) {
  return [=](int32_t role) -> int32_t {
    if (role == MR_ROLE_ROUTER) return kF16;
    return role == MR_ROLE_EXPERT_GATE || role == MR_ROLE_EXPERT_UP || role == MR_ROLE_EXPERT_DOWN ? experts : others;
  };
}

inline mr_experts_desc experts_of(int32_t count, int32_t used, uint32_t flags, int32_t shared_width = 0) {
  mr_experts_desc e{};
  e.count = count;
  e.used = used;
  e.flags = flags;
  e.shared_width = shared_width;
  return e;
}

// A dense layer and two of experts.
inline Description mixture_of(int32_t ranks, const mr_experts_desc& experts, int32_t width) {
  UniformShape shape = desc_of(2 * ranks, ranks, 64);
  shape.layers = 3;
  Description desc = description_of(shape);
  for (size_t i = 1; i < desc.layers.size(); ++i) {
    desc.layers[i].mlp.kind = MR_MLP_EXPERTS;
    desc.layers[i].mlp.width = width;
    desc.layers[i].experts = experts;
  }
  return desc;
}

// As gpt-oss: sinks, biases, the clamped activation, MXFP4.
inline DividedCase with_biases(int32_t ranks) {
  Description desc = mixture_of(ranks, experts_of(8, 4, MR_EXPERTS_RENORM | MR_EXPERTS_ROUTER_BIAS | MR_EXPERTS_BIAS), 160);
  for (mr_layer_desc& layer : desc.layers) {
    layer.mixer.flags |= MR_MIX_SINKS | MR_MIX_QKV_BIAS | MR_MIX_OUT_BIAS;
    if (layer.mlp.kind == MR_MLP_EXPERTS) layer.mlp.activation = MR_ACT_CLAMPED;
  }
  return {desc, types(kMXFP4, kQ8_0)};
}

// As Gemma 4: layers with heads of other widths, a shared expert, norms of every branch, scales.
inline DividedCase with_norms(int32_t ranks) {
  Description desc =
      mixture_of(ranks, experts_of(12, 3, MR_EXPERTS_RENORM | MR_EXPERTS_APART | MR_EXPERTS_SCALES, 16 * ranks + 32), 16 * ranks + 64);
  for (mr_layer_desc& layer : desc.layers) {
    layer.mixer.flags |= MR_MIX_END_NORM | MR_MIX_QK_NORM;
    layer.mlp.flags |= MR_MLP_END_NORM;
    layer.mlp.activation = MR_ACT_GELU_TANH;
    layer.output_scale = 1;
  }
  desc.layers[0].mixer.window = 20;
  mr_mixer_desc& last = desc.layers[2].mixer;
  last.key_dim = last.value_dim = 128;
  last.flags |= MR_MIX_VALUE_IS_KEY | MR_MIX_V_NORM;
  return {desc, types(kQ8_0, kQ8_0)};
}

inline std::vector<std::pair<std::string, DividedCase>> divided_cases(int32_t ranks) {
  std::vector<std::pair<std::string, DividedCase>> all;
  // 200: parts of unlike size, the last of which ends within a panel.
  all.push_back({"few of many", {mixture_of(ranks, experts_of(16, 2, MR_EXPERTS_RENORM), 200), types(kF16, kF16)}});
  all.push_back({"biases", with_biases(ranks)});
  all.push_back({"norms", with_norms(ranks)});
  const mr_experts_desc with_gate = experts_of(8, 2, MR_EXPERTS_CHOICE_BIAS | MR_EXPERTS_SHARED_GATE, 16 * ranks + 32);
  DividedCase shared{mixture_of(ranks, with_gate, 128), types(kQ8_0, kQ8_0)};
  for (mr_layer_desc& layer : shared.desc.layers)
    if (layer.mlp.kind == MR_MLP_EXPERTS) layer.experts.gating = MR_GATE_SIGMOID;
  all.push_back({"a shared expert and its gate", shared});
  all.push_back({"a shared expert", {mixture_of(ranks, experts_of(8, 2, 0, 16 * ranks + 16), 128), types(kQ8_0, kF16)}});
  DividedCase scaled{mixture_of(ranks, experts_of(8, 2, 0, 96), 128), types(kQ8_0, kF16)};
  scaled.desc.residual_scale = 0.25f;
  all.push_back({"branches that are scaled", scaled});
  // Gate and up of unlike types; all experts, so that a step's rows are more than are computed at once.
  all.push_back({"types that differ", {mixture_of(ranks, experts_of(24, 24, MR_EXPERTS_RENORM), 128), [](int32_t role) -> int32_t {
    return role == MR_ROLE_EXPERT_UP ? kQ8_0 : kF16;
  }}});
  DividedCase gated{mixture_of(ranks, experts_of(4, 4, MR_EXPERTS_RENORM), 128), types(kQ8_0, kQ8_0)};
  for (mr_layer_desc& layer : gated.desc.layers) layer.mixer.flags |= MR_MIX_OUT_GATE;
  all.push_back({"attention with an output gate", gated});
  // As MiniMax-M2; and with biases, which the norms read, with values that are keys, and keys of another layer.
  DividedCase rows{mixture_of(ranks, experts_of(8, 2, MR_EXPERTS_RENORM), 128), types(kQ8_0, kQ8_0)};
  for (mr_layer_desc& layer : rows.desc.layers) layer.mixer.flags |= MR_MIX_QK_ROW_NORM;
  rows.desc.layers[0].mixer.flags |= MR_MIX_QKV_BIAS;
  rows.desc.layers[1].mixer.flags |= MR_MIX_VALUE_IS_KEY;
  rows.desc.layers[2].mixer.kv_layer = 1;
  all.push_back({"norms over whole rows of Q and K", rows});
  return all;
}

}  // namespace mr::cuda::test
