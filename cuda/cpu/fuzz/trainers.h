// trainers: fuzzed calls on trainers.
#pragma once

#include "fuzz/vectors.h"

namespace fuzz {

inline void create_trainer(World& w, Input& in) {
  Arena arena;
  mr_trainer_config c = small_trainer(in);
  in.bend(&c);
  c = known(c);
  if (c.max_iterations > 8 && c.max_iterations <= 1'000'000) c.max_iterations = 8;
  const auto device = w.devices.pick(in);
  mr_trainer_cost cost{};
  cost.struct_size = sizeof cost;
  mr_trainer_config* const given = in.once_in(64) ? nullptr : arena.place(c);
  if (w.code(api->vectors->trainer_cost(device.handle, given, &cost)) == MR_OK)
    require(cost.device_bytes / c.rows > 0 && cost.device_bytes < uint64_t{1} << 60, "a trainer's cost is that of its rows");
  in.bend(&cost);
  (void)w.code(api->vectors->trainer_cost(device.handle, given, arena.place(cost)));
  const bool large = c.rows <= UINT32_MAX && c.rows > 256, wide = c.dimension > 64 && c.dimension <= MR_VECTOR_MAX_DIMENSION;
  if (large || wide || w.trainers.size() >= kMostHandles) return;
  mr_trainer* trainer = nullptr;
  if (w.code(api->vectors->trainer_create(device.handle, given, in.once_in(64) ? nullptr : &trainer)) == MR_OK)
    w.trainers.add(trainer, {c, 0});
}

inline void feed_trainer(World& w, Input& in) {
  Arena arena;
  if (w.trainers.size() == 0) create_trainer(w, in);
  const auto trainer = w.trainers.pick(in);
  const mr_trainer_config c = trainer.known != nullptr ? trainer.known->config : small_trainer(in);
  const uint64_t written = trainer.known != nullptr ? trainer.known->written : 0, width = static_cast<uint64_t>(c.dimension);
  switch (in.below(4)) {
    default: {
      const uint64_t first = in.once_in(8) ? in.hostile64() : written;
      const uint64_t count = in.once_in(8) ? in.hostile64() : in.once_in(4) ? in.byte() % (c.rows - written + 1) : c.rows - written;
      uint8_t* const rows = count > kMostBytes ? nullptr : elements(in, arena, count * width, c.element_type);
      if (w.code(api->vectors->trainer_write(trainer.handle, first, rows, count)) == MR_OK) trainer.known->written += count;
      return;
    }
    case 2: {
      const uint64_t count = static_cast<uint64_t>(c.codewords) * width;
      uint64_t size = count * element_bytes(c.codeword_type);
      const uint8_t* const words = in.once_in(16) ? nullptr : elements(in, arena, count, c.codeword_type);
      if (in.once_in(8)) size = std::min(size, in.hostile64());
      return (void)w.code(api->vectors->trainer_give(trainer.handle, words, size));
    }
    case 3: {
      std::vector<uint8_t> state = w.state;
      struct { uint64_t words[5]; } header;
      if (state.size() < sizeof header) state.resize(in.byte());
      if (state.size() >= sizeof header) {
        std::memcpy(&header, state.data(), sizeof header);
        in.bend(&header);
        std::memcpy(state.data(), &header, sizeof header);
      }
      if (in.once_in(8)) state.resize(state.size() - std::min<size_t>(state.size(), in.byte()));
      const uint8_t* const bytes = in.once_in(32) ? nullptr : arena.array(state, static_cast<int64_t>(state.size()));
      return (void)w.code(api->vectors->trainer_restore(trainer.handle, bytes, state.size()));
    }
  }
}

inline void wait_training(World& w, Input& in, mr_trainer* trainer) {
  Arena arena;
  mr_training t{};
  t.struct_size = sizeof t;
  t.round_stride = sizeof(mr_round);
  t.round_capacity = 16;
  in.bend(&t);
  t.rounds = nullptr;
  if (t.round_stride <= 256 && t.round_capacity >= 0)
    t.rounds = reinterpret_cast<mr_round*>(arena.room(static_cast<uint64_t>(t.round_capacity), t.round_stride));
  constexpr uint64_t timeouts[] = {UINT64_MAX, 1'000'000'000, 0, 1};
  const uint64_t timeout = timeouts[in.below(std::size(timeouts))];
  mr_training* const given = in.once_in(64) ? nullptr : arena.place(t);
  if (w.code(api->vectors->trainer_wait(trainer, timeout, given)) != MR_OK || given->struct_size < sizeof *given) return;
  require(given->round_count >= 0 && given->round_count <= given->round_capacity, "rounds are as many as there is room for");
  require(given->rows_done <= given->rows_total, "no more rows are done than there are");
  require(given->phase != MR_TRAINING_DONE || given->reason != MR_REASON_NONE, "a training that ended says why");
}

inline void use_trainer(World& w, Input& in) {
  Arena arena;
  const auto trainer = w.trainers.pick(in);
  switch (in.below(6)) {
    default: {
      mr_slice slice{};
      slice.struct_size = sizeof slice;
      slice.max_rounds = 1 + static_cast<int32_t>(in.below(10));
      in.bend(&slice);
      return (void)w.code(api->vectors->trainer_submit(trainer.handle, in.once_in(64) ? nullptr : arena.place(slice)));
    }
    case 2:
    case 3: return wait_training(w, in, trainer.handle);
    case 4: {
      const int32_t what = static_cast<int32_t>(in.once_in(8) ? in.hostile32() : in.below(4));
      uint64_t size = 0, offset = 0;
      const int32_t told = w.code(api->vectors->trainer_size(trainer.handle, what, in.once_in(32) ? nullptr : &size));
      if (told != MR_OK && !in.once_in(4)) return;
      if (in.once_in(3)) size = in.hostile64();
      if (in.once_in(3)) offset = in.hostile64();
      uint8_t* const to = arena.room(size, 1);
      const int32_t code = w.code(api->vectors->trainer_read(trainer.handle, what, offset, to, size));
      if (code == MR_OK && what == MR_TRAINER_STATE && offset == 0 && to != nullptr) w.state.assign(to, to + size);
      return;
    }
    case 5:
      if (!in.once_in(2)) return;
      if (w.code(api->vectors->trainer_destroy(trainer.handle)) == MR_OK) w.trainers.drop(trainer.handle);
  }
}

}  // namespace fuzz
