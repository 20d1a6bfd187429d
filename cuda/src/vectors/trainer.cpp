#include "src/vectors/trainer.h"

#include <atomic>
#include <utility>

#include "cpu/slices.h"
#include "cpu/vector_config.h"
#include "src/vectors/training.h"

namespace mr::cuda {
namespace {

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
        slices([this] { training.begin(); },
               [this](Slice* slice, const std::atomic<bool>& stop) { training.run(slice, stop); }) {}

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
  Training::cost(device, config, out);
}

Trainer::Trainer(std::shared_ptr<Device> device, const mr_trainer_config& config) {
  check_trainer(config);
  state_ = std::make_unique<State>(std::move(device), config);
}

Trainer::~Trainer() = default;

void Trainer::write(uint64_t first, const void* rows, uint64_t count) { state_->at_rest().write(first, rows, count); }
void Trainer::give(const void* codewords, uint64_t size) { state_->at_rest().give(codewords, size); }
void Trainer::restore(const void* state, uint64_t size) { state_->at_rest().restore(state, size); }
void Trainer::submit(const mr_slice& slice) { state_->slices.submit(slice); }
void Trainer::wait(uint64_t timeout_ns, mr_training* out) { state_->slices.wait(timeout_ns, out); }
uint64_t Trainer::size(int32_t what) const { return state_->at_rest().size(what); }
void Trainer::read(int32_t what, uint64_t offset, void* dst, uint64_t size) const { state_->at_rest().read(what, offset, dst, size); }

}  // namespace mr::cuda
