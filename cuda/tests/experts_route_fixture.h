// Fixture for tests of the choice of experts: packed routers, and the choice on the device next to that of float64.
#pragma once

#include <algorithm>
#include <numeric>

#include "kernel_fixture.h"
#include "kernels/experts/choose.h"
#include "kernels/experts/plan.h"
#include "kernels/experts/route.h"
#include "kernels/gemm/packed_access.cuh"

namespace mr::cuda::testing {
namespace {

constexpr float kEps = 1e-5f;

// Packs a row-major matrix of floats as weight.h says, without the kernels of repack.h.
std::vector<uint8_t> packed_floats(int32_t type, const std::vector<float>& values, int32_t rows, int32_t cols) {
  const int32_t bytes = type == kF32 ? 4 : 2, units = (cols + 63) / 64;
  std::vector<uint8_t> out(static_cast<size_t>((rows + 15) / 16 * units * 1024 * bytes));
  for (int32_t row = 0; row < rows; ++row)
    for (int32_t col = 0; col < cols; ++col) {
      const int32_t k = col % 64, within = k & 15;
      const int32_t lane = (row & 7) * 4 + ((within & 7) >> 1), step = k >> 4, reg = ((row >> 3) & 1) + 2 * (within >> 3), half = within & 1;
      const int64_t unit = (int64_t{row / 16} * units + col / 64) * 1024 * bytes;
      const float v = values[static_cast<size_t>(row * cols + col)];
      if (bytes == 4) {
        std::memcpy(&out[static_cast<size_t>(unit + (step * 2 + (reg & 1)) * 512 + lane * 16 + (reg >> 1) * 8 + half * 4)], &v, 4);
      } else {
        const uint16_t bits = to_act(type == kF16 ? Act::kF16 : Act::kBF16, v);
        std::memcpy(&out[static_cast<size_t>(unit + step * 512 + lane * 16 + reg * 4 + half * 2)], &bits, 2);
      }
    }
  return out;
}

std::vector<float> logits_of(int32_t type, const std::vector<float>& x, const std::vector<float>& router, const std::vector<float>& norm,
                             const std::vector<float>& bias, int32_t rows, int32_t hidden, int32_t experts, int32_t stride) {
  Guarded<float> dx(x), dnorm(norm), dbias(bias), out(static_cast<size_t>(rows * experts));
  Guarded<uint8_t> packed(packed_floats(type, router, experts, hidden));
  RouterArgs args{};
  args.x = dx;
  args.x_stride = stride;
  args.norm = norm.empty() ? nullptr : dnorm.data();
  args.eps = kEps;
  args.scale = 0.25f;
  args.router = {type, experts, hidden, packed.data()};
  args.bias = bias.empty() ? nullptr : dbias.data();
  args.logits = out;
  args.rows = rows;
  MUST(launch_router(args, Stream{}));
  return out.read();
}

struct Chosen {
  std::vector<int32_t> ids;
  std::vector<float> weights;
  std::vector<int32_t> pairs, tile_count;  // of the plan of a single row
  std::vector<ExpertTile> tiles;
  uint64_t bytes;
};

Chosen route_of(const mr_experts_desc& e, const std::vector<float>& logits, const std::vector<float>& bias, const std::vector<float>& scales,
                const std::vector<int32_t>& slots, const ExpertBytes& piece = {}) {
  Guarded<float> dlogits(logits), dbias(bias), dscales(scales), weights(slots.size() * static_cast<size_t>(e.used));
  Guarded<int32_t> dslots(slots), ids(weights.size()), pairs(static_cast<size_t>(e.used)), tile_count(1);
  Guarded<ExpertTile> tiles(static_cast<size_t>(e.used));
  Guarded<uint64_t> bytes(1);
  bytes.zero();
  RouteArgs args{};
  args.experts = e;
  args.logits = dlogits;
  args.choice_bias = bias.empty() ? nullptr : dbias.data();
  args.scales = scales.empty() ? nullptr : dscales.data();
  args.slot = dslots;
  args.ids = ids;
  args.weights = weights;
  args.rows = static_cast<int32_t>(slots.size());
  args.plan = {pairs, nullptr, nullptr, tiles, tile_count, nullptr};
  args.bytes = {bytes, 10};
  if (piece.total != nullptr) args.bytes = piece;
  MUST(launch_route(args, Stream{}));
  return {ids.read(), weights.read(), pairs.read(), tile_count.read(), tiles.read(), bytes.read()[0]};
}

// The choice of millrace/model.h in float64, by sorting.
std::vector<std::pair<int32_t, double>> reference_route(const mr_experts_desc& e, const float* logits, const std::vector<float>& bias,
                                                        const std::vector<float>& scales) {
  const auto count = static_cast<size_t>(e.count), used = static_cast<size_t>(e.used);
  std::vector<double> p(count), c(count);
  double top = -INFINITY, sum = 0;
  for (size_t i = 0; i < count; ++i) top = std::max(top, static_cast<double>(logits[i]));
  for (size_t i = 0; i < count; ++i) sum += std::exp(logits[i] - top);
  for (size_t i = 0; i < count; ++i) {
    p[i] = e.gating == MR_GATE_SOFTMAX ? std::exp(logits[i] - top) / sum : 1 / (1 + std::exp(-static_cast<double>(logits[i])));
    c[i] = p[i] + (bias.empty() ? 0 : static_cast<double>(bias[i]));
  }
  const auto best = [](const std::vector<double>& scores, std::vector<int32_t> of, size_t n) {
    std::sort(of.begin(), of.end(), [&](int32_t a, int32_t b) {
      const double x = scores[static_cast<size_t>(a)], y = scores[static_cast<size_t>(b)];
      return x != y ? x > y : a < b;
    });
    of.resize(n);
    return of;
  };
  std::vector<int32_t> candidates;
  if (e.groups == 0) {
    candidates.resize(count);
    std::iota(candidates.begin(), candidates.end(), 0);
  } else {
    const int32_t size = e.count / e.groups;
    std::vector<double> scores;
    std::vector<int32_t> groups;
    for (int32_t g = 0; g < e.groups; ++g) {
      std::vector<double> of(c.begin() + g * size, c.begin() + (g + 1) * size);
      std::sort(of.rbegin(), of.rend());
      scores.push_back((e.flags & MR_EXPERTS_GROUP_BEST_TWO) != 0 && size > 1 ? of[0] + of[1] : of[0]);
      groups.push_back(g);
    }
    for (const int32_t g : best(scores, groups, static_cast<size_t>(e.groups_used)))
      for (int32_t i = 0; i < size; ++i) candidates.push_back(g * size + i);
  }
  std::vector<int32_t> chosen = best(c, candidates, used);
  std::sort(chosen.begin(), chosen.end());
  double total = 0;
  for (const int32_t id : chosen) total += p[static_cast<size_t>(id)];
  std::vector<std::pair<int32_t, double>> out;
  for (const int32_t id : chosen) {
    double weight = p[static_cast<size_t>(id)];
    if ((e.flags & MR_EXPERTS_RENORM) != 0) weight /= std::max(total, 1e-20);
    if (e.weight_scale != 0) weight *= static_cast<double>(e.weight_scale);
    out.emplace_back(id, scales.empty() ? weight : weight * static_cast<double>(scales[static_cast<size_t>(id)]));
  }
  return out;
}

mr_experts_desc experts(int32_t count, int32_t used, int32_t gating, uint32_t flags = 0, int32_t groups = 0, int32_t groups_used = 0,
                        float scale = 0) {
  mr_experts_desc e{};
  e.flags = flags;
  e.count = count;
  e.used = used;
  e.gating = gating;
  e.groups = groups;
  e.groups_used = groups_used;
  e.weight_scale = scale;
  return e;
}

const mr_experts_desc kMixtures[] = {
    experts(1, 1, MR_GATE_SOFTMAX, MR_EXPERTS_RENORM),
    experts(8, 2, MR_GATE_SOFTMAX, MR_EXPERTS_RENORM),
    experts(33, 4, MR_GATE_SOFTMAX),
    experts(128, 8, MR_GATE_SIGMOID, MR_EXPERTS_RENORM | MR_EXPERTS_CHOICE_BIAS, 8, 4, 2.5f),
    experts(64, 6, MR_GATE_SIGMOID, MR_EXPERTS_CHOICE_BIAS | MR_EXPERTS_GROUP_BEST_TWO, 8, 3),
    experts(5, 2, MR_GATE_SIGMOID, MR_EXPERTS_GROUP_BEST_TWO, 5, 2),
    experts(5, 5, MR_GATE_SOFTMAX, MR_EXPERTS_CHOICE_BIAS, 1, 1),
    experts(512, 10, MR_GATE_SOFTMAX, MR_EXPERTS_RENORM),
    experts(1100, 1100, MR_GATE_SIGMOID, MR_EXPERTS_RENORM),
};

}  // namespace
}  // namespace mr::cuda::testing
