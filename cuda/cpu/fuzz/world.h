// world: the handles of one fuzz input, live and freed, and their known state.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "fuzz/described.h"
#include "fuzz/input.h"
#include "millrace/vectors.h"

namespace fuzz {

inline const mr_api* const api = mr_engine_api(MR_ABI_MAJOR, nullptr);

inline void require(bool promise, const char* text) {
  if (promise) return;
  std::fprintf(stderr, "the engine broke a promise: %s\n", text);
  std::abort();
}

// The code of a call's error, which is freed. No argument is the engine's own fault.
inline int32_t code_of(mr_error* error, bool may_be_internal = false) {
  const int32_t code = api->error_code(error);
  const bool told = error == nullptr || api->error_message(error)[0] != 0;
  if (code == MR_INTERNAL && !may_be_internal) std::fprintf(stderr, "%s\n", api->error_message(error));
  (void)api->error_native(error);
  api->error_destroy(error);
  require(told, "an error says what happened");
  require(code >= MR_OK && code <= MR_DATA_LOSS && code != MR_UNKNOWN, "an error has a code of the ABI");
  require(code != MR_INTERNAL || may_be_internal, "arguments cause no internal error");
  return code;
}

inline void must(mr_error* error, const char* what) {
  if (error != nullptr) std::fprintf(stderr, "%s\n", api->error_message(error));
  require(error == nullptr, what);
}

// Handles of one kind with the known state of each.
template <class Handle, class Known>
class Handles {
 public:
  struct Picked {
    Handle* handle;
    Known* known;  // null: not live
  };

  void add(Handle* handle, Known known) { live_.emplace_back(handle, std::move(known)); }
  size_t size() const { return live_.size(); }

  // Mostly a live one; else null, one given back, or what never was one of this kind.
  Picked pick(Input& in) {
    const uint8_t choice = in.byte();
    if (choice < 240 && !live_.empty()) {
      auto& one = live_[choice % live_.size()];
      return {one.first, &one.second};
    }
    if (choice % 4 == 1 && !stale_.empty()) return {stale_[in.byte() % stale_.size()], nullptr};
    if (choice % 4 == 2) return {reinterpret_cast<Handle*>(uintptr_t{in.byte()} << 56 | uintptr_t{0x1ffffff}), nullptr};
    if (choice % 4 == 3) return {reinterpret_cast<Handle*>(UINTPTR_MAX), nullptr};
    return {nullptr, nullptr};
  }

  // After a call that gave the handle back.
  void drop(Handle* handle) {
    for (size_t i = 0; i < live_.size(); ++i)
      if (live_[i].first == handle) {
        stale_.push_back(handle);
        live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(i));
        return;
      }
  }

  std::vector<std::pair<Handle*, Known>>& live() { return live_; }

 private:
  std::vector<std::pair<Handle*, Known>> live_;
  std::vector<Handle*> stale_;
};

struct KnownDevice {
  bool lasting;  // outlives the input
  bool faulty = false;
};
struct KnownModel {
  Described described;
  bool lasting, sealed;
};
struct Slot {
  bool set;
  uint32_t generation;
  int32_t length;
};
struct KnownRunner {
  mr_runner_config config;
  int32_t vocab, context;
  std::vector<Slot> slots;
  int64_t late_words = 0;  // of the masks that a step waits for
};
struct KnownTrainer {
  mr_trainer_config config;
  uint64_t written = 0;
};
struct KnownBuffer {
  uint64_t size;
};

constexpr size_t kMostHandles = 6;  // of a kind

struct World {
  Handles<mr_device, KnownDevice> devices;
  Handles<mr_buffer, KnownBuffer> buffers;
  Handles<mr_model, KnownModel> models;
  Handles<mr_runner, KnownRunner> runners;
  Handles<mr_trainer, KnownTrainer> trainers;
  Handles<mr_codebook, mr_codebook_desc> codebooks;
  std::vector<uint8_t> state;  // of a training, read before
  bool faults = false;         // a device refuses memory on purpose

  int32_t code(mr_error* error) const { return code_of(error, faults); }

  // Gives everything back that does not last, dependants first.
  void close() {
    const auto each = [](auto& handles, auto destroy) {
      for (auto& one : handles.live()) destroy(one);
    };
    for (auto& [device, known] : devices.live())
      if (known.faulty)
        for (const int32_t fault : {MR_FAULT_REFUSE_ALLOC, MR_FAULT_REFUSE_FREE})
          must(api->device_fault(device, fault, 0, 0), "a fault can be ended");
    each(runners, [](auto& one) { must(api->runner_destroy(one.first), "a runner can be destroyed"); });
    each(trainers, [](auto& one) { must(api->vectors->trainer_destroy(one.first), "a trainer can be destroyed"); });
    each(codebooks, [](auto& one) { must(api->vectors->codebook_destroy(one.first), "a codebook can be destroyed"); });
    each(models, [](auto& one) {
      if (!one.second.lasting) must(api->model_destroy(one.first), "a model without runners can be destroyed");
    });
    each(buffers, [](auto& one) { must(api->buffer_free(one.first), "a buffer can be freed"); });
    each(devices, [](auto& one) {
      if (one.second.lasting) return;
      mr_device_info info{};
      info.struct_size = sizeof info;
      must(api->device_info(one.first, &info), "a device tells of itself");
      require(info.live_buffers == 0, "a buffer given back is not counted");
      must(api->device_close(one.first), "an idle device can be closed");
    });
  }
};

}  // namespace fuzz
