// The sampler against a plain one in double that sorts everything, and its draws as a distribution.
#include <algorithm>
#include <cfloat>
#include <memory>
#include <numeric>

#include "b2_check.h"
#include "error.h"
#include "philox.h"
#include "sampler.h"

using namespace mr;
using namespace mr::cpu;

namespace {

struct Space {
  std::vector<uint8_t> memory;
  SamplerSpace space;
  explicit Space(int32_t vocab)
      : memory(SamplerSpace::bytes(vocab) + 64),
        space(reinterpret_cast<void *>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64), vocab) {}
};

// What the rules in sampler.h say, by sorting. margin: how near any decision was to going the other way.
struct Plain {
  int32_t token = -1;
  double margin = 1;
  std::vector<int32_t> kept;  // ascending
};

Plain plain(const Choice& c) {
  const SlotParams& p = *c.params;
  const size_t n = static_cast<size_t>(c.vocab);
  std::vector<double> x(n);
  for (size_t i = 0; i < n; ++i) x[i] = static_cast<double>(c.logits[i]);
  if (c.mask != nullptr)
    for (size_t i = 0; i < n; ++i)
      if ((c.mask[i / 32] >> (i % 32) & 1u) == 0) x[i] = -INFINITY;
  if (!p.all_allowed)
    for (size_t i = 0; i < n; ++i)
      if (std::find(p.allowed.begin(), p.allowed.end(), static_cast<int32_t>(i)) == p.allowed.end()) x[i] = -INFINITY;
  if (c.position - p.prompt_length < p.min_tokens)
    for (const int32_t id : p.suppressed) x[static_cast<size_t>(id)] = -INFINITY;
  for (size_t i = 0; i < p.bias_ids.size(); ++i) x[static_cast<size_t>(p.bias_ids[i])] += static_cast<double>(p.bias_values[i]);
  std::vector<int> counts(n, 0);
  const int32_t window = p.penalty_window < 0 ? c.history_length : std::min(p.penalty_window, c.history_length);
  for (int32_t i = c.history_length - window; i < c.history_length; ++i) ++counts[static_cast<size_t>(c.history[i])];
  for (size_t i = 0; i < n; ++i) {
    if (counts[i] == 0) continue;
    x[i] = x[i] > 0 ? x[i] / static_cast<double>(p.repetition_penalty) : x[i] * static_cast<double>(p.repetition_penalty);
    x[i] -= static_cast<double>(p.frequency_penalty) * counts[i] + static_cast<double>(p.presence_penalty);
  }
  Plain result;
  // Equal logits that went through arithmetic here and there may differ in the last bit: near ties count as a margin.
  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  const auto at = [&](int32_t i) { return x[static_cast<size_t>(i)]; };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return at(a) > at(b); });
  const double top = at(order[0]);
  if (top == -INFINITY) return result;
  const auto near = [&](double distance) { result.margin = std::min(result.margin, std::fabs(distance)); };
  if (p.temperature == 0) {
    for (size_t i = 1; i < n && at(order[i]) > top - 1e-5; ++i)
      if (at(order[i]) != top) near(at(order[i]) - top);
    result.token = order[0];
    return result;
  }
  std::vector<double> w(n);
  for (size_t i = 0; i < n; ++i) w[i] = std::exp((x[i] - top) / static_cast<double>(p.temperature));
  const auto weight = [&](int32_t i) { return w[static_cast<size_t>(i)]; };
  const auto total = [&] {
    double sum = 0;
    for (const int32_t i : order) sum += weight(i);
    return sum;
  };
  const auto keep_mass = [&](double fraction) {
    const double sum = total();
    double running = 0;
    size_t kept = 0;
    while (kept < order.size()) {
      running += weight(order[kept++]) / sum;
      near(running - fraction);
      if (running >= fraction) break;
    }
    order.resize(kept);
  };
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < n) {
    const double last = at(order[static_cast<size_t>(p.top_k) - 1]), next = at(order[static_cast<size_t>(p.top_k)]);
    if (last != next) near(last - next);
    order.resize(static_cast<size_t>(p.top_k));
  }
  if (p.typical_p < 1) {
    const double sum = total();
    double entropy = 0;
    for (const int32_t i : order)
      if (weight(i) > 0) entropy -= weight(i) / sum * std::log(weight(i) / sum);
    const auto deviation = [&](int32_t i) { return std::fabs(-std::log(weight(i) / sum) - entropy); };
    std::sort(order.begin(), order.end());
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return deviation(a) < deviation(b); });
    for (size_t i = 1; i < order.size(); ++i)
      if (at(order[i]) != at(order[i - 1]) && weight(order[i]) > 1e-9) near(10 * (deviation(order[i]) - deviation(order[i - 1])));
    keep_mass(static_cast<double>(p.typical_p));
    std::sort(order.begin(), order.end());
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return at(a) > at(b); });
  }
  if (p.top_p < 1) keep_mass(static_cast<double>(p.top_p));
  if (p.min_p > 0) {
    const double floor = static_cast<double>(p.min_p) * weight(order[0]);
    std::vector<int32_t> left;
    for (const int32_t i : order) {
      near((weight(i) - floor) / floor);
      if (weight(i) >= floor) left.push_back(i);
    }
    order = left;
  }
  std::sort(order.begin(), order.end());
  result.kept = order;
  const double u = std::ldexp(static_cast<double>(random_bits(p.seed, static_cast<uint32_t>(c.position), static_cast<uint32_t>(p.output_index), random_sample)), -64);
  const double sum = total();
  double running = 0;
  for (const int32_t i : order) {
    running += weight(i) / sum;
    near(running - u);
    if (u < running && result.token < 0) result.token = i;
  }
  return result;
}

SlotParams random_params(check::Numbers& n, int32_t vocab) {
  SlotParams p;
  p.seed = n.next();
  p.output_index = static_cast<int32_t>(n.below(3));
  p.prompt_length = static_cast<int32_t>(n.below(6));
  if (n.below(6) != 0) p.temperature = static_cast<float>(0.2 + 1.5 * n.uniform());
  if (n.below(3) == 0) p.top_k = static_cast<int32_t>(1 + n.below(n.below(2) == 0 ? 10 : vocab + 2));
  if (n.below(3) == 0) p.top_p = static_cast<float>(n.uniform());
  if (n.below(3) == 0) p.min_p = static_cast<float>(0.5 * n.uniform());
  if (n.below(4) == 0) p.typical_p = static_cast<float>(n.uniform());
  if (n.below(3) == 0) p.repetition_penalty = static_cast<float>(0.5 + n.uniform());
  if (n.below(3) == 0) p.presence_penalty = static_cast<float>(n.uniform() - 0.5);
  if (n.below(3) == 0) p.frequency_penalty = static_cast<float>(n.uniform() - 0.5);
  p.penalty_window = static_cast<int32_t>(n.below(20)) - 1;
  if (n.below(4) == 0)
    for (int i = 0; i < 4; ++i) {
      p.bias_ids.push_back(static_cast<int32_t>(n.below(vocab)));
      p.bias_values.push_back(n.below(4) == 0 ? -INFINITY : n.normal());
    }
  if (n.below(6) == 0) {
    p.all_allowed = false;
    for (int i = 0; i < 5; ++i) p.allowed.push_back(static_cast<int32_t>(n.below(vocab)));
  }
  if (n.below(4) == 0) {
    p.min_tokens = 4;
    for (int i = 0; i < 3; ++i) p.suppressed.push_back(static_cast<int32_t>(n.below(vocab)));
  }
  return p;
}

void against_plain(Isa isa) {
  const VecOps& ops = vec_ops(isa);
  int compared = 0, skipped = 0;
  for (const int32_t vocab : {1, 2, 7, 33, 257, 3001}) {
    Space space(vocab);
    check::Numbers n(static_cast<uint64_t>(vocab) * 7);
    const int rounds = vocab > 1000 ? 1500 : 4000;
    for (int round = 0; round < rounds; ++round) {
      std::vector<float> logits(static_cast<size_t>(vocab));
      const double spread = 0.2 + 4 * n.uniform();
      const bool ties = n.below(3) == 0;
      for (float& x : logits) {
        x = static_cast<float>(spread) * n.normal();
        if (ties) x = std::round(x);
        if (n.below(20) == 0) x = -INFINITY;
      }
      const SlotParams p = random_params(n, vocab);
      std::vector<int32_t> history(static_cast<size_t>(n.below(30)));
      for (int32_t& id : history) id = static_cast<int32_t>(n.below(std::min(vocab, 12)));
      std::vector<uint32_t> mask(static_cast<size_t>((vocab + 31) / 32));
      for (uint32_t& word : mask) word = static_cast<uint32_t>(n.next() | n.next());
      const Choice c{logits.data(), vocab, n.below(4) == 0 ? mask.data() : nullptr, &p, history.data(),
                     static_cast<int32_t>(history.size()), static_cast<int32_t>(history.size())};
      const Plain want = plain(c);
      const int32_t got = choose_token(ops, c, space.space);
      if (want.margin < 1e-5) {
        ++skipped;
        continue;
      }
      ++compared;
      CHECK(got == want.token, "%s vocab %d round %d: %d, wanted %d (T %g, k %d, p %g, min %g, typ %g)", name(isa), vocab,
            round, got, want.token, static_cast<double>(p.temperature), p.top_k, static_cast<double>(p.top_p),
            static_cast<double>(p.min_p), static_cast<double>(p.typical_p));
      if (check::failures > 10) return;
    }
  }
  std::printf("%s: %d choices compared, %d too near to call\n", name(isa), compared, skipped);
  CHECK(compared > 4 * skipped, "too few choices could be compared");
}

// 2^18 draws over 50 tokens: chi-square with 49 degrees of freedom; 94 is passed by chance once in 10 000.
void distribution(Isa isa) {
  constexpr int32_t vocab = 50;
  constexpr int draws = 1 << 18;
  Space space(vocab);
  check::Numbers n(3);
  std::vector<float> logits(vocab);
  for (float& x : logits) x = n.normal();
  SlotParams p;
  p.temperature = 0.9f;
  double sum = 0;
  std::vector<double> expected(vocab);
  for (int32_t i = 0; i < vocab; ++i) sum += expected[static_cast<size_t>(i)] = std::exp(static_cast<double>(logits[static_cast<size_t>(i)]) / static_cast<double>(p.temperature));
  for (const bool filtered : {false, true}) {
    if (filtered) p.top_k = vocab - 1;  // the filtered path draws in another way
    std::vector<double> seen(vocab, 0), wanted = expected;
    double kept = sum;
    if (filtered) {
      const auto least = std::min_element(wanted.begin(), wanted.end());
      kept -= *least;
      *least = 0;
    }
    for (int i = 0; i < draws; ++i) {
      p.seed = static_cast<uint64_t>(i % 512);
      const int32_t token = choose_token(vec_ops(isa), Choice{logits.data(), vocab, nullptr, &p, nullptr, 0, i / 512}, space.space);
      if (token >= 0) ++seen[static_cast<size_t>(token)];
    }
    double chi = 0;
    for (size_t i = 0; i < vocab; ++i) {
      const double e = wanted[i] / kept * draws;
      if (e == 0) CHECK(seen[i] == 0, "%s: a token outside top-k was drawn", name(isa));
      else chi += (seen[i] - e) * (seen[i] - e) / e;
    }
    CHECK(chi < 94, "%s: chi-square is %g", name(isa), chi);
  }
}

void statistics(Isa isa) {
  const VecOps& ops = vec_ops(isa);
  constexpr int32_t vocab = 1003;
  Space space(vocab);
  check::Numbers n(8);
  std::vector<float> x(vocab);
  for (float& v : x) v = std::round(3 * n.normal()) / 2;
  double sum = 0, top = -1e9;
  for (const float v : x) top = std::max(top, static_cast<double>(v));
  for (const float v : x) sum += std::exp(static_cast<double>(v) - top);
  std::vector<int32_t> order(vocab);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return x[static_cast<size_t>(a)] > x[static_cast<size_t>(b)]; });
  const RowStats stats = row_stats(ops, x.data(), vocab);
  CHECK(stats.status == MR_ROW_OK, "status %d", stats.status);
  for (int32_t rank = 1; rank <= vocab; ++rank) {
    const int32_t token = order[static_cast<size_t>(rank - 1)];
    CHECK(row_rank(ops, x.data(), vocab, token) == rank, "%s: rank of %d", name(isa), token);
    const double want = static_cast<double>(x[static_cast<size_t>(token)]) - top - std::log(sum);
    CHECK(check::close(stats.logprob(x[static_cast<size_t>(token)]), want, 1e-6, 1e-6), "%s: logprob", name(isa));
  }
  for (const int32_t count : {0, 1, 5, 64}) {
    mr_candidate best[64];
    CHECK(best_tokens(ops, x.data(), vocab, count, stats, space.space, best) == count, "%s: candidates", name(isa));
    for (int32_t i = 0; i < count; ++i) CHECK(best[i].token == order[static_cast<size_t>(i)], "%s: candidate %d of %d", name(isa), i, count);
  }
  mr_candidate few[64];
  CHECK(best_tokens(ops, x.data(), 3, 64, stats, space.space, few) == 3, "%s: more candidates than tokens", name(isa));
}

void odd_rows(Isa isa) {
  const VecOps& ops = vec_ops(isa);
  constexpr int32_t vocab = 100;
  Space space(vocab);
  std::vector<float> x(vocab, -INFINITY);
  SlotParams p;
  const auto choose = [&] { return choose_token(ops, Choice{x.data(), vocab, nullptr, &p, nullptr, 0, 0}, space.space); };
  for (const float temperature : {0.0f, FLT_TRUE_MIN, 1e-10f, 1.0f, 1e30f}) {
    p = SlotParams();
    p.temperature = temperature;
    x.assign(vocab, -INFINITY);
    CHECK(choose() == -1, "%s: a token out of nothing", name(isa));
    CHECK(row_stats(ops, x.data(), vocab).status == MR_ROW_EMPTY, "%s: an empty row", name(isa));
    x[40] = -3e38f;
    CHECK(choose() == 40, "%s: the only token", name(isa));
    x[41] = 3e38f;
    if (temperature < 1) CHECK(choose() == 41, "%s: far apart", name(isa));
    x[70] = x[60] = INFINITY;
    const int32_t infinite = choose();
    CHECK(infinite == 60 || (infinite == 70 && temperature > 0), "%s: infinite logits share the probability, got %d", name(isa), infinite);
    const RowStats stats = row_stats(ops, x.data(), vocab);
    CHECK(check::close(stats.logprob(x[60]), std::log(0.5), 1e-6, 0), "%s: logprob of an infinite logit", name(isa));
    CHECK(stats.logprob(x[41]) == -INFINITY, "%s: logprob beside an infinite logit", name(isa));
    for (const int filter : {0, 1, 2, 3}) {
      p = SlotParams();
      p.temperature = temperature;
      if (filter == 0) p.top_k = 1;
      if (filter == 1) p.top_p = 0;
      if (filter == 2) p.typical_p = 0;
      if (filter == 3) p.min_p = 1;
      const int32_t token = choose();
      CHECK(token == 60 || token == 70, "%s: filter %d chose %d", name(isa), filter, token);
    }
    x[3] = NAN;
    CHECK(row_stats(ops, x.data(), vocab).status == MR_ROW_NAN, "%s: a row with NaN", name(isa));
  }
  // Penalties without bounds give no NaN.
  x.assign(vocab, 1.5f);
  x[7] = 3e38f;
  const int32_t history[] = {7, 7};
  p = SlotParams();
  p.penalty_window = -1;
  p.repetition_penalty = 1e-38f;
  p.frequency_penalty = FLT_MAX;
  const int32_t other = choose_token(ops, Choice{x.data(), vocab, nullptr, &p, history, 2, 2}, space.space);
  CHECK(other == 0, "%s: penalties without bounds chose %d", name(isa), other);
  // Equal logits: greedy and top-k 1 take the lowest id; any threshold keeps the lowest ids.
  x.assign(vocab, 1.5f);
  p = SlotParams();
  CHECK(choose() == 0, "%s: greedy tie", name(isa));
  for (uint64_t seed = 0; seed < 200; ++seed) {
    p = SlotParams();
    p.seed = seed;
    p.temperature = 1;
    p.top_k = 3;
    CHECK(choose() < 3, "%s: top-k tie", name(isa));
    p.top_k = 0;
    p.top_p = 0.0499f;
    CHECK(choose() < 5, "%s: top-p tie", name(isa));
    p.top_p = 1;
    p.typical_p = 0.0299f;
    CHECK(choose() < 3, "%s: typical-p tie", name(isa));
  }
}

void refusals() {
  const auto refused = [](auto change) {
    mr_slot_params p{};
    p.struct_size = sizeof p;
    p.top_p = p.typical_p = p.repetition_penalty = 1;
    p.allowed_count = -1;
    change(p);
    try {
      SlotParams::copy(p, 100, 8, "slot");
    } catch (const Error& e) {
      return e.code == MR_INVALID_ARGUMENT && e.message.compare(0, 6, "slot: ") == 0;
    }
    return false;
  };
  static const int32_t outside[] = {5, 100};
  static const float values[] = {0, NAN};
  static const float huge[] = {INFINITY};
  CHECK(!refused([](mr_slot_params&) {}), "plain parameters are accepted");
  CHECK(refused([](mr_slot_params& p) { p.temperature = NAN; }), "temperature NaN");
  CHECK(refused([](mr_slot_params& p) { p.temperature = -1; }), "temperature below 0");
  CHECK(refused([](mr_slot_params& p) { p.temperature = INFINITY; }), "temperature infinite");
  CHECK(refused([](mr_slot_params& p) { p.top_k = -1; }), "top_k below 0");
  CHECK(refused([](mr_slot_params& p) { p.top_p = 1.5f; }), "top_p above 1");
  CHECK(refused([](mr_slot_params& p) { p.min_p = -0.1f; }), "min_p below 0");
  CHECK(refused([](mr_slot_params& p) { p.typical_p = NAN; }), "typical_p NaN");
  CHECK(refused([](mr_slot_params& p) { p.repetition_penalty = 0; }), "repetition_penalty 0");
  CHECK(refused([](mr_slot_params& p) { p.presence_penalty = INFINITY; }), "presence_penalty infinite");
  CHECK(refused([](mr_slot_params& p) { p.penalty_window = -2; }), "penalty_window below -1");
  CHECK(refused([](mr_slot_params& p) { p.allowed_count = 0; }), "no token allowed");
  CHECK(refused([](mr_slot_params& p) { p.allowed_count = 2; p.allowed_ids = outside; }), "allowed id outside");
  CHECK(refused([](mr_slot_params& p) { p.suppressed_count = 1; }), "suppressed ids null");
  CHECK(refused([](mr_slot_params& p) { p.bias_count = 2; p.bias_ids = outside; p.bias_values = values; }), "bias id outside");
  CHECK(refused([](mr_slot_params& p) { p.bias_count = 1; p.bias_ids = outside; p.bias_values = huge; }), "bias infinite");
  CHECK(refused([](mr_slot_params& p) { p.bias_count = 1; p.bias_ids = outside; }), "bias values null");
  CHECK(refused([](mr_slot_params& p) { p.top_n = 9; }), "top_n above the runner's");
  CHECK(refused([](mr_slot_params& p) { p.prompt_length = -1; }), "prompt_length below 0");
  CHECK(refused([](mr_slot_params& p) { p.output_index = -1; }), "output_index below 0");
}

}  // namespace

int main() {
  check::each_isa(against_plain);
  check::each_isa(distribution);
  check::each_isa(statistics);
  check::each_isa(odd_rows);
  refusals();
  return check::report("sampler");
}
