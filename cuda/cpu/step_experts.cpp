// Mixtures of experts: a layer's rows are routed, gathered by expert, multiplied, and summed row by row. An expert's weights are read
// once for all of its rows. A row's bits do not depend on the others: products are computed row by row, and its sum runs by ascending
// expert.
#pragma GCC optimize("fp-contract=off")
#include <algorithm>
#include <cmath>

#include "step_forward.h"
#include "step_phase.h"

namespace mr::cpu {
namespace {

// Where the prepared inputs of an expert begin that is the index-th of a piece and has `before` rows before its own.
uint64_t prepared_at(Activation kind, int64_t width, int64_t before, int64_t index) {
  return activation_size(kind, width, before) + static_cast<uint64_t>(64 * index);
}

}  // namespace

void StepForward::mixture(int32_t index, const Cut& then) {
  const Layer& l = model_->layer(index);
  const int64_t hidden = desc_.hidden;
  const float* h = space_.x;
  const auto norm = [&](const float* weight) {
    each_token([&](int64_t t) { ops_.rms_norm(space_.x + t * hidden, weight, desc_.norm_eps, hidden, space_.norm + t * hidden); });
    h = space_.norm;
  };
  if (l.router_norm != nullptr) {
    norm(l.router_norm);
    const float factor = 1 / std::sqrt(static_cast<float>(hidden));
    each_token([&](int64_t t) { ops_.scale(space_.norm + t * hidden, factor, hidden, space_.norm + t * hidden); });
  } else if (l.ffn_norm != nullptr) {
    norm(l.ffn_norm);
  }
  route_rows(index, h);
  std::fill(expert_read_.begin(), expert_read_.end(), uint8_t{0});
  if (l.expert_norm != nullptr) norm(l.expert_norm);
  const int64_t piece = space_.expert_rows;
  const Cut after = l.shared_down == nullptr ? then : cut(l.shared_gate);
  for (int64_t first = 0; first < tokens_; first += piece) mix_experts(index, h, first, std::min(tokens_, first + piece), after);
  if (l.expert_end_norm != nullptr) {
    each_token([&](int64_t t) {
      ops_.rms_norm(space_.branch + t * hidden, l.expert_end_norm, desc_.norm_eps, hidden, space_.branch + t * hidden);
    });
    norm(l.ffn_norm);
  }
  if (l.shared_down != nullptr) add_shared_expert(index, h, then);
  finish_branch(l.ffn_end_norm);
}

// The experts of every token.
void StepForward::route_rows(int32_t index, const float* h) {
  const Layer& l = model_->layer(index);
  const mr_experts_desc& e = desc_.experts(index);
  const Cut router = cut(l.router);
  with_prepared(h, desc_.hidden, nullptr, router, router.tasks, [&](int64_t task, int, const Prepared& prepared) {
    const Piece p = router.at(task);
    multiply(isa_, p.matrix, prepared.of(activation_kind(isa_, p.matrix.type)), tokens_, space_.router_logits, e.count, p.first, p.last,
             begin_of(*l.expert_gate, 0));
  });
  phase((tokens_ + kTokensATask - 1) / kTokensATask, [](int) {}, [&](int64_t task, int thread) {
    for (int64_t t = task * kTokensATask; t < std::min(tokens_, (task + 1) * kTokensATask); ++t) {
      float* const logits = space_.router_logits + t * e.count;
      if (l.router_bias != nullptr) ops_.add(logits, l.router_bias, e.count, logits);
      route(ops_, e, l.choice_bias, logits, space_.threads[static_cast<size_t>(thread)].route, space_.routed + t * e.used);
    }
  });
}

// Lists the rows of tokens [first, last) by expert, in the order of the tokens.
void StepForward::gather_rows(const mr_experts_desc& e, int64_t first, int64_t last) {
  int32_t* const end = space_.expert_end;
  std::fill_n(end, e.count, 0);
  const RoutedExpert* const routed = space_.routed + first * e.used;
  const int64_t pairs = (last - first) * e.used;
  for (int64_t i = 0; i < pairs; ++i) ++end[routed[i].expert];
  active_.clear();
  int32_t rows = 0;
  for (int32_t x = 0; x < e.count; ++x) {
    if (end[x] != 0) active_.push_back(ActiveExpert{x, rows, end[x]});
    rows += end[x];
    end[x] = rows - end[x];
  }
  for (int64_t i = 0; i < pairs; ++i) {
    const int32_t row = end[routed[i].expert]++;
    space_.row_token[row] = static_cast<int32_t>(first + i / e.used);
    space_.row_of[i] = row;
  }
}

// branch = sum of the weighted experts, for tokens [first, last). `then` is the product after the experts.
void StepForward::mix_experts(int32_t index, const float* h, int64_t first, int64_t last, const Cut& then) {
  const Layer& l = model_->layer(index);
  const mr_experts_desc& e = desc_.experts(index);
  const int64_t hidden = desc_.hidden, width = desc_.mlp(index).width;
  gather_rows(e, first, last);
  const int64_t active = static_cast<int64_t>(active_.size());
  for (const ActiveExpert& x : active_) {
    uint8_t& read = expert_read_[static_cast<size_t>(x.expert)];
    if (read == 0) expert_bytes_ += l.expert_gate->bytes + l.expert_up->bytes + l.expert_down->bytes;
    read = 1;
  }
  const auto prepared = [&](const Matrix& m, int64_t i) {
    const Activation kind = activation_kind(isa_, m.type);
    return space_.expert_rows_prepared.of(kind) + prepared_at(kind, m.in, active_[static_cast<size_t>(i)].first, i);
  };
  // Two matrices that read the same kind of activations read the same ones.
  const auto prepare_for = [&](const Matrix& m, int64_t i, int64_t row, const float* from) {
    prepare_activations(isa_, activation_kind(isa_, m.type), from, 0, m.in, active_[static_cast<size_t>(i)].rows, row, row + 1,
                        prepared(m, i));
  };
  const ExpertCut gates(l.expert_gate, active_, task_panels(active * panels(width)));
  const ExpertCut downs(l.expert_down, active_, task_panels(active * panels(hidden)));
  phase(active, [](int) {}, [&](int64_t i, int) {
    const ActiveExpert& x = active_[static_cast<size_t>(i)];
    for (int32_t row = 0; row < x.rows; ++row) {
      const float* const from = h + int64_t{space_.row_token[x.first + row]} * hidden;
      prepare_for(*l.expert_gate, i, row, from);
      if (activation_kind(isa_, l.expert_up->type) != activation_kind(isa_, l.expert_gate->type)) prepare_for(*l.expert_up, i, row, from);
    }
  });
  const auto gated = gated_by(desc_.mlp(index).activation);
  phase(gates.tasks, [](int) {}, [&](int64_t task, int thread) {
    const auto [i, p0, p1] = gates.at(task);
    const ActiveExpert& x = active_[static_cast<size_t>(i)];
    const Matrix &gate = l.expert_gate[x.expert], &up = l.expert_up[x.expert];
    const auto& own = space_.threads[static_cast<size_t>(thread)];
    const int64_t row = p0 * panel_rows, n = std::min(width, p1 * panel_rows) - row, ld = gates.chunk * panel_rows;
    multiply(isa_, gate, prepared(gate, i), x.rows, own.panel[0] - row, ld, p0, p1, begin_of(up, p0));
    multiply(isa_, up, prepared(up, i), x.rows, own.panel[1] - row, ld, p0, p1, weights_after(gates, task, thread, downs));
    for (int64_t r = 0; r < x.rows; ++r) {
      float *const a = own.panel[0] + r * ld, *const b = own.panel[1] + r * ld;
      if (l.expert_gate_bias != nullptr) {
        ops_.add(a, l.expert_gate_bias + x.expert * width + row, n, a);
        ops_.add(b, l.expert_up_bias + x.expert * width + row, n, b);
      }
      gated(a, b, n, space_.expert_ffn + (x.first + r) * width + row);
    }
  });
  phase(active, [](int) {}, [&](int64_t i, int) {
    const ActiveExpert& x = active_[static_cast<size_t>(i)];
    for (int32_t row = 0; row < x.rows; ++row) prepare_for(*l.expert_down, i, row, space_.expert_ffn + (x.first + row) * width);
  });
  phase(downs.tasks, [](int) {}, [&](int64_t task, int thread) {
    const auto [i, p0, p1] = downs.at(task);
    const ActiveExpert& x = active_[static_cast<size_t>(i)];
    const Matrix& down = l.expert_down[x.expert];
    multiply(isa_, down, prepared(down, i), x.rows, space_.expert_out + x.first * hidden, hidden, p0, p1,
             weights_after(downs, task, thread, then));
  });
  phase((last - first + kTokensATask - 1) / kTokensATask, [](int) {}, [&](int64_t task, int) {
    for (int64_t t = first + task * kTokensATask; t < std::min(last, first + (task + 1) * kTokensATask); ++t) {
      float* const sum = space_.branch + t * hidden;
      for (int32_t c = 0; c < e.used; ++c) {
        const RoutedExpert routed = space_.routed[t * e.used + c];
        float* const out = space_.expert_out + int64_t{space_.row_of[(t - first) * e.used + c]} * hidden;
        if (l.expert_down_bias != nullptr) ops_.add(out, l.expert_down_bias + routed.expert * hidden, hidden, out);
        const float weight = l.expert_scale == nullptr ? routed.weight : routed.weight * l.expert_scale[routed.expert];
        ops_.scale(out, weight, hidden, c == 0 ? sum : out);
        if (c > 0) ops_.add(sum, out, hidden, sum);
      }
    }
  });
}

// Adds the expert that every token reads to the branch. Its output takes the place of h, the normed rows.
void StepForward::add_shared_expert(int32_t index, const float* h, const Cut& then) {
  const Layer& l = model_->layer(index);
  const int64_t hidden = desc_.hidden, width = desc_.experts(index).shared_width;
  const Cut gate = cut(l.shared_gate), down = cut(l.shared_down);
  gated_product(h, nullptr, *l.shared_gate, *l.shared_up, desc_.mlp(index).activation, gate, down);
  if (l.shared_router != nullptr)
    each_token([&](int64_t t) {
      double sum = 0;
      for (int64_t i = 0; i < hidden; ++i) sum += static_cast<double>(h[t * hidden + i]) * static_cast<double>(l.shared_router[i]);
      space_.shared_weights[t] = static_cast<float>(sum);
      sigmoid(ops_, space_.shared_weights + t, 1);
    });
  with_prepared(space_.ffn, width, nullptr, down, down.tasks, [&](int64_t task, int thread, const Prepared& prepared) {
    const Piece p = down.at(task);
    multiply(isa_, p.matrix, prepared.of(activation_kind(isa_, p.matrix.type)), tokens_, space_.norm, hidden, p.first, p.last,
             weights_after(down, task, thread, then));
  });
  each_token([&](int64_t t) {
    float *const out = space_.norm + t * hidden, *const sum = space_.branch + t * hidden;
    if (l.shared_router != nullptr) ops_.scale(out, space_.shared_weights[t], hidden, out);
    if (l.shared_end_norm != nullptr) ops_.rms_norm(out, l.shared_end_norm, desc_.norm_eps, hidden, out);
    ops_.add(sum, out, hidden, sum);
  });
}

}  // namespace mr::cpu
