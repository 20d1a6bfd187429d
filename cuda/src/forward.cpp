#include "src/forward.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "src/error.h"

namespace mr::cuda {
namespace {

constexpr int64_t kPiece = 16;  // bytes that gathers are fast with: a last part takes padding along to be whole ones
constexpr int32_t kLayerGathers = 4;
constexpr int32_t kLogitsPlace = kPacketPlaces - 1;  // layers' gathers take the others by turns

}  // namespace

template <class Base, class Range>
Forward::Divided Forward::divided(int64_t stride, int64_t element, Base base, Range range) const {
  Divided what{};
  what.stride = stride * element;
  for (int32_t r = 0; r < ranks(); ++r) {
    const RowRange part = range(rank(r).shard());
    what.rows_of[r] = reinterpret_cast<uint8_t*>(base(rank(r).space()));
    what.parts[r] = {part.first * element, part.count * element};
    // What begins at a whole piece has padding to the next one.
    if (r + 1 == ranks() && what.parts[r].first % kPiece == 0) what.parts[r].bytes = (what.parts[r].bytes + kPiece - 1) / kPiece * kPiece;
  }
  return what;
}

Forward::Forward(const std::shared_ptr<const Model>& model, const mr_runner_config& config, const Sizes& sizes)
    : layers_(model->desc().layer_count()), logit_rows_(sizes.logit_rows), states_(sizes.state_floats != 0) {
  for (int32_t r = 0; r < model->ranks(); ++r) ranks_.push_back(std::make_unique<Rank>(model, r, config, sizes));
  if (ranks() == 1) return;
  gathers_ = kLayerGathers * layers_ + 2 * ((sizes.rows_wanted + logit_rows_ - 1) / logit_rows_);
  const Workspace& space = rank(0).space();
  attention_ = divided(space.attention[0].stride, kActBytes, [](const Workspace& s) { return s.attention[0].base; },
                       [](const Shard& s) { return s.queries(); });
  x_ = divided(sizes.hidden_stride, sizeof(float), [](const Workspace& s) { return s.x; }, [](const Shard& s) { return s.hidden(); });
  ffn_ = divided(space.ffn[0].stride, kActBytes, [](const Workspace& s) { return s.ffn[0].base; }, [](const Shard& s) { return s.ffn(); });
  logits_ = divided(sizes.vocab_stride, sizeof(float), [](const Workspace& s) { return s.logits; },
                    [](const Shard& s) { return s.vocab(); });
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

void Forward::gather(const Divided& what, int32_t rows, int32_t index, int32_t place, const Lanes& on) {
  if (ranks() == 1) return;
  GatherArgs args{};
  args.links.ranks = ranks();
  args.links.stop = stop_.as<int32_t>();
  for (int32_t r = 0; r < ranks(); ++r) {
    args.links.packets[r] = rank(r).space().packets;
    args.links.arrived[r] = rank(r).space().arrived;
    args.rows_of[r] = what.rows_of[r];
    args.parts[r] = what.parts[r];
  }
  args.stride = what.stride;
  args.rows = rows;
  args.index = index;
  args.most = gathers_;
  args.place = place;
  each(on, [&](const Rank& rank, const Stream& stream) {
    args.links.rank = rank.index();
    args.links.step = rank.space().step;
    CUDA_CHECK(launch_gather(args, stream));
  });
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
  for (int32_t layer = 0; layer < layers_; ++layer) {
    const int32_t first = kLayerGathers * layer;
    each(on, [&](Rank& rank, const Stream& stream) { rank.mix_tokens(shape, layer, stream); });
    gather(attention_, shape.rows, first, 0, on);
    each(on, [&](Rank& rank, const Stream& stream) { rank.project(shape, layer, stream); });
    gather(x_, shape.rows, first + 1, 1, on);
    each(on, [&](Rank& rank, const Stream& stream) { rank.feed_forward(shape, layer, stream); });
    gather(ffn_, shape.rows, first + 2, 0, on);
    each(on, [&](Rank& rank, const Stream& stream) { rank.project_down(shape, layer, stream); });
    gather(x_, shape.rows, first + 3, 1, on);
  }
}

// Rows of logits some at a time. Behind the first of them no rank's logits are written before every rank has sampled from what they
// were.
void Forward::heads(const StepShape& shape, const Lanes& on) {
  int32_t index = kLayerGathers * layers_;
  for (int32_t first = 0; first < shape.jobs; first += logit_rows_) {
    const int32_t count = std::min(logit_rows_, shape.jobs - first);
    each(on, [&](Rank& rank, const Stream& stream) { rank.head(shape, first, count, stream); });
    if (first > 0) gather(logits_, 0, index++, 0, on);
    gather(logits_, count, index++, kLogitsPlace, on);
    each(on, [&](Rank& rank, const Stream& stream) { rank.sample(shape, first, count, stream); });
  }
}

}  // namespace mr::cuda
