#include "src/forward.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "src/error.h"

namespace mr::cuda {
namespace {

constexpr int64_t kPiece = 16;  // bytes that gathers are fast with: a last part takes padding along to be whole ones

// Places of packets. No gather has that of the one before, nor the first of a step that of the last.
enum Place : int32_t {
  kHeadsPlace = 0, kAttentionPlace = 0, kAttentionAfterHeadsPlace = 2, kFfnPlace = 0, kHiddenPlace = 1, kSharedPlace = 2, kLogitsPlace = 2
};
static_assert(kLogitsPlace < kPacketPlaces);

// Most gathers of one layer.
int32_t gathers_of(const Description& desc, int32_t layer, const Rank& rank, int32_t tokens) {
  constexpr int32_t kDense = 2, kPieceOfMixture = 3;
  const int32_t mixer = rank.heads_apart(layer) ? 3 : 2;
  if (!rank.is_mixture(layer)) return mixer + kDense;
  const int32_t most = rank.expert_rows(layer);
  const int32_t pieces = (tokens + most - 1) / most + 1;  // both classes may end with a piece that is not full
  return mixer + pieces * (desc.experts(layer).shared_width == 0 ? kPieceOfMixture - 1 : kPieceOfMixture);
}

}  // namespace

Forward::Forward(const std::shared_ptr<const Model>& model, const mr_runner_config& config, const Sizes& sizes)
    : desc_(model->desc()), hidden_stride_(sizes.hidden_stride), vocab_stride_(sizes.vocab_stride), heads_stride_(sizes.heads_stride),
      logit_rows_(sizes.logit_rows), states_(sizes.state_floats != 0) {
  for (int32_t r = 0; r < model->ranks(); ++r) ranks_.push_back(std::make_unique<Rank>(model, r, config, sizes));
  if (ranks() == 1) return;
  for (int32_t i = 0; i < desc_.layer_count(); ++i) layer_gathers_ += gathers_of(desc_, i, rank(0), sizes.tokens);
  gathers_ = layer_gathers_ + 2 * ((sizes.rows_wanted + logit_rows_ - 1) / logit_rows_);
  stop_ = Pinned(sizeof(int32_t));
  *stop_.as<int32_t>() = 0;
}

void Forward::stop() {
  if (ranks() > 1) *static_cast<volatile int32_t*>(stop_.as<int32_t>()) = 1;
}

template <class Queue>
void Forward::each(const Lanes& on, Queue queue) {
  if (ranks() == 1) return queue(rank(0), on[0]);
  for (int32_t r = ranks(); r-- > 0;)  // ends with rank 0's GPU as the thread's own
    at(r, [&] { queue(rank(r), on[static_cast<size_t>(r)]); });
}

template <class Base, class Part>
void Forward::gather(const Gather& what, const Lanes& on, Base base, Part part) {
  if (ranks() == 1) return;
  GatherArgs args{};
  args.links.ranks = ranks();
  args.links.stop = stop_.as<int32_t>();
  for (int32_t r = 0; r < ranks(); ++r) {
    const Workspace& space = rank(r).space();
    args.links.packets[r] = space.packets;
    args.links.arrived[r] = space.arrived;
    args.rows_of[r] = static_cast<uint8_t*>(static_cast<void*>(base(space)));
    const RowRange range = part(rank(r).shard());
    GatherPart& bytes = args.parts[r];
    bytes = {range.first * what.element, range.count * what.element};
    // What begins at a whole piece has padding to the next one.
    if (r + 1 == ranks() && bytes.first % kPiece == 0) bytes.bytes = (bytes.bytes + kPiece - 1) / kPiece * kPiece;
  }
  args.stride = what.stride * what.element;
  args.rows = what.rows;
  args.index = what.index;
  args.most = gathers_;
  args.place = what.place;
  each(on, [&](const Rank& rank, const Stream& stream) {
    args.links.rank = rank.index();
    args.links.step = rank.space().step;
    CUDA_CHECK(launch_gather(args, stream));
  });
}

void Forward::gather_hidden(bool branch, int32_t first, int32_t rows, int32_t index, const Lanes& on) {
  gather({hidden_stride_, sizeof(float), rows, index, kHiddenPlace}, on,
         [&](const Workspace& s) { return (branch ? s.branch : s.x) + first * hidden_stride_; },
         [](const Shard& s) { return s.hidden(); });
}

void Forward::gather_logits(int32_t rows, int32_t index, int32_t place, const Lanes& on) {
  gather({vocab_stride_, sizeof(float), rows, index, place}, on, [](const Workspace& s) { return s.logits; },
         [](const Shard& s) { return s.vocab(); });
}

void Forward::queue(const StepShape& shape, const Lanes& on) {
  body(shape, on);
  heads(shape, on);
}

// Padding: slots, chains and gathered rows of -1, chains without segments, and jobs of no kind.
void Forward::run_padding(const StepShape& shape, const Lanes& on) {
  in_turn(on, [&] { queue_padding(shape, on); });
  (void)settle(on);
  each(on, [&](Rank&, const Stream& stream) { CUDA_CHECK(cudaStreamSynchronize(stream.stream)); });
}

void Forward::queue_padding(const StepShape& shape, const Lanes& on) {
  each(on, [&](Rank& rank, const Stream& stream) {
    uint8_t* const input = rank.space().input;
    CUDA_CHECK(cudaMemsetAsync(input, 0, shape.bytes, stream.stream));
    CUDA_CHECK(cudaMemsetAsync(input + shape.slot, 0xff, static_cast<size_t>(shape.rows) * sizeof(int32_t), stream.stream));
    if (shape.chains > 0)
      CUDA_CHECK(cudaMemsetAsync(input + shape.chain_of, 0xff, static_cast<size_t>(shape.rows) * sizeof(int32_t), stream.stream));
    CUDA_CHECK(cudaMemsetAsync(input + shape.gather, 0xff, static_cast<size_t>(shape.jobs) * sizeof(int32_t), stream.stream));
  });
  queue(shape, on);
}

void Forward::in_turn(const Lanes& on, const std::function<void()>& queue) {
  if (ranks() == 1) return queue();
  const SlowCall alone(slow_calls());
  Turns& turns = rank(0).device().turns;
  each(on, [&](const Rank& rank, const Stream& stream) { turns.begin(static_cast<size_t>(rank.index()), stream.stream); });
  queue();
  each(on, [&](const Rank& rank, const Stream& stream) { turns.end(static_cast<size_t>(rank.index()), stream.stream); });
}

bool Forward::settle(const Lanes& on) {
  for (bool alive = true;;) {
    bool busy = false;
    for (int32_t r = 0; r < ranks(); ++r) {
      (void)cudaSetDevice(rank(r).device().index);
      const cudaStream_t stream = on[static_cast<size_t>(r)].stream;
      const cudaError_t error = ranks() == 1 ? cudaStreamSynchronize(stream) : cudaStreamQuery(stream);
      if (error == cudaSuccess) continue;
      (void)cudaGetLastError();
      if (error == cudaErrorNotReady) {
        busy = true;
        continue;
      }
      alive = false;
      stop();
    }
    if (!busy) return alive;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

void Forward::queue_before_masks(const StepShape& shape, const Lanes& on) {
  body(shape, on);
  if (keeps_logits(shape)) heads(shape, on);
}

void Forward::queue_behind_masks(const StepShape& shape, const Lanes& on) {
  if (keeps_logits(shape)) {
    if (shape.jobs > 0) each(on, [&](Rank& rank, const Stream& stream) { rank.sample(shape, 0, shape.jobs, stream); });
  } else {
    heads(shape, on);  // each piece of rows takes the place of the one before it: they are multiplied as they are sampled
  }
}

void Forward::body(const StepShape& shape, const Lanes& on) {
  if (shape.rows == 0) return;
  each(on, [&](Rank& rank, const Stream& stream) { rank.begin(shape, stream); });
  int32_t index = 0;
  for (int32_t layer = 0; layer < desc_.layer_count(); ++layer) {
    const size_t i = static_cast<size_t>(layer);
    const bool apart = rank(0).heads_apart(layer);
    if (apart) index = gather_heads(shape, layer, index, on);
    each(on, [&](Rank& rank, const Stream& stream) { rank.mix_tokens(shape, layer, stream); });
    const int32_t place = apart ? kAttentionAfterHeadsPlace : kAttentionPlace;
    gather({rank(0).space().attention[i].stride, kActBytes, shape.rows, index++, place}, on,
           [&](const Workspace& s) { return s.attention[i].base; }, [&](const Shard& s) { return s.rows(layer).attended; });
    each(on, [&](Rank& rank, const Stream& stream) { rank.project(shape, layer, stream); });
    gather_hidden(ends_mixer(desc_, layer), 0, shape.rows, index++, on);
    index = rank(0).is_mixture(layer) ? mixture(shape, layer, index, on) : dense(shape, layer, index, on);
    if (rank(0).ends_layer(layer))
      each(on, [&](Rank& rank, const Stream& stream) { rank.finish_layer(shape, layer, stream); });
  }
}

int32_t Forward::gather_heads(const StepShape& shape, int32_t layer, int32_t index, const Lanes& on) {
  each(on, [&](Rank& rank, const Stream& stream) { rank.multiply_heads(shape, layer, stream); });
  const int64_t width = heads_width(rank(0).shard().desc().mixer(layer));  // the same on each
  gather({heads_stride_, sizeof(float), shape.rows, index++, kHeadsPlace}, on, [](const Workspace& s) { return s.heads; },
         [&](const Shard& s) { return RowRange{s.rank() * width, width}; });
  return index;
}

int32_t Forward::dense(const StepShape& shape, int32_t layer, int32_t index, const Lanes& on) {
  const size_t i = static_cast<size_t>(layer);
  each(on, [&](Rank& rank, const Stream& stream) {
    rank.end_mixer_branch(shape, layer, stream);
    rank.feed_forward(shape, layer, stream);
  });
  gather({rank(0).space().ffn[i].stride, kActBytes, shape.rows, index++, kFfnPlace}, on,
         [&](const Workspace& s) { return s.ffn[i].base; }, [&](const Shard& s) { return s.rows(layer).ffn; });
  each(on, [&](Rank& rank, const Stream& stream) { rank.project_down(shape, layer, stream); });
  gather_hidden(ends_mlp(desc_, layer), 0, shape.rows, index++, on);
  return index;
}

int32_t Forward::mixture(const StepShape& shape, int32_t layer, int32_t index, const Lanes& on) {
  each(on, [&](Rank& rank, const Stream& stream) { rank.end_mixer_branch(shape, layer, stream); });
  const int32_t most = rank(0).expert_rows(layer);
  for (const Rank::Span& span : Rank::spans(shape))
    for (int32_t done = 0; done < span.count; done += most)
      index = mix(shape, {span.first + done, std::min(most, span.count - done), span.kind}, layer, index, on);
  return index;
}

int32_t Forward::mix(const StepShape& shape, const Rank::Span& rows, int32_t layer, int32_t index, const Lanes& on) {
  const mr_experts_desc& e = desc_.experts(layer);
  const size_t i = static_cast<size_t>(layer);
  const bool shared = e.shared_width != 0;
  each(on, [&](Rank& rank, const Stream& stream) { rank.gate_experts(shape, rows, layer, stream); });
  gather({row_stride(desc_.mlp(layer).width), kActBytes, rows.count * e.used, index++, kFfnPlace}, on,
         [](const Workspace& s) { return s.experts.ffn; }, [&](const Shard& s) { return s.rows(layer).ffn; });
  if (shared)
    gather({rank(0).space().experts.shared_ffn[i].stride, kActBytes, rows.count, index++, kSharedPlace}, on,
           [&](const Workspace& s) { return s.experts.shared_ffn[i].base; }, [&](const Shard& s) { return s.rows(layer).shared; });
  each(on, [&](Rank& rank, const Stream& stream) { rank.project_experts(rows, layer, stream); });
  if (!rank(0).sums_apart(layer)) {
    gather_hidden(ends_mlp(desc_, layer), rows.first, rows.count, index++, on);
    return index;
  }
  gather({hidden_stride_, sizeof(float), shared ? 2 * rows.count : rows.count, index++, kHiddenPlace}, on,
         [](const Workspace& s) { return s.experts.sums; }, [](const Shard& s) { return s.hidden(); });
  each(on, [&](Rank& rank, const Stream& stream) { rank.combine_experts(rows, layer, stream); });
  return index;
}

// Rows of logits some at a time. Behind the first of them no rank's logits are written before every rank has sampled from what they
// were.
void Forward::heads(const StepShape& shape, const Lanes& on) {
  int32_t index = layer_gathers_;
  for (int32_t first = 0; first < shape.jobs; first += logit_rows_) {
    const int32_t count = std::min(logit_rows_, shape.jobs - first);
    each(on, [&](Rank& rank, const Stream& stream) { rank.head(shape, first, count, stream); });
    if (first > 0) gather_logits(0, index++, kHiddenPlace, on);
    gather_logits(count, index++, kLogitsPlace, on);
    each(on, [&](Rank& rank, const Stream& stream) { rank.sample(shape, first, count, stream); });
  }
}

}  // namespace mr::cuda
