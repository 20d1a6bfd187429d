#include "trainer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "slices.h"
#include "training.h"
#include "vector_config.h"

namespace mr::cpu {
namespace {

// The team is given back so often, so that what else wants it comes in between.
constexpr auto kTurn = std::chrono::milliseconds(5);

// Counts a trainer in its device while it lives.
class Presence {
 public:
  explicit Presence(Device& device) : device_(device) { ++device_.trainers; }
  ~Presence() { --device_.trainers; }
  Presence(const Presence&) = delete;
  Presence& operator=(const Presence&) = delete;

 private:
  Device& device_;
};

}  // namespace

struct Trainer::State {
  State(std::shared_ptr<Device> on, const mr_trainer_config& config)
      : device(std::move(on)), presence(*device), training(*device, config),
        slices([this] { training.begin(); }, [this](Slice* slice, const std::atomic<bool>& stop) { run(slice, stop); }) {}

  void run(Slice* slice, const std::atomic<bool>& stop) {
    using Clock = Training::Clock;
    const FloatEnvironment environment;
    const Clock::time_point begin = Clock::now();
    const uint64_t budget = std::min<uint64_t>(slice->budget_ns, uint64_t{1} << 60);
    const Clock::time_point end = budget == 0 ? Clock::time_point::max() : begin + std::chrono::nanoseconds(budget);
    Clock::time_point now = begin;
    do {
      const Clock::time_point turn = std::min(end, now + kTurn);
      const int64_t left = slice->most_rounds - static_cast<int64_t>(slice->rounds.size());
      const auto advance = [&](bool alone) { training.advance(turn, left, alone, stop, &slice->rounds); };
      if (device->runners.load() == 0) advance(false);
      else device->background.run([&] { advance(true); });
      now = Clock::now();
    } while (now < end && !stop && !training.done() && static_cast<int64_t>(slice->rounds.size()) < slice->most_rounds);
    training.report(&slice->told);
    slice->told.device_ns = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now - begin).count());
  }

  // The training between slices.
  Training& at_rest() {
    slices.check_at_rest();
    return training;
  }

  const std::shared_ptr<Device> device;
  const Presence presence;
  Training training;  // the slices' thread's while one is in flight
  Slices slices;
};

void Trainer::cost(const Device& device, const mr_trainer_config& config, mr_trainer_cost* out) {
  check_trainer(config);
  out->device_bytes = Training::cost(device, config);
  out->spool_bytes = 0;  // device memory is the host's
}

Trainer::Trainer(std::shared_ptr<Device> device, const mr_trainer_config& config) {
  check_trainer(config);
  state_ = std::make_unique<State>(std::move(device), config);
}

Trainer::~Trainer() = default;

void Trainer::write(uint64_t first, const void* rows, uint64_t count) { state_->at_rest().write(first, rows, count); }
void Trainer::give(const void* codewords, uint64_t size) { state_->at_rest().give(codewords, size); }
void Trainer::restore(const void* state, uint64_t size) { state_->at_rest().restore(state, size); }
uint64_t Trainer::size(int32_t what) const { return state_->at_rest().size(what); }
void Trainer::read(int32_t what, uint64_t offset, void* dst, uint64_t size) const { state_->at_rest().read(what, offset, dst, size); }

void Trainer::submit(const mr_slice& slice) { state_->slices.submit(slice); }
void Trainer::wait(uint64_t timeout_ns, mr_training* out) { state_->slices.wait(timeout_ns, out); }

}  // namespace mr::cpu
