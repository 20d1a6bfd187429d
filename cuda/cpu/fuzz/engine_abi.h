// engine_abi: one fuzz input is a program of calls of the C ABI. Each begins as a valid call; then the input
// bends members, handles and sizes. The caller's duties of the header are met: pointers point to as many bytes as said,
// outputs have the room they claim, and no call waits for a later call of the same thread. Everything else must be refused
// with an error or done, and every handle can be released in the end.
//
// What an input may ask for is small, so that one takes milliseconds: structs that mean large work are only priced.
#pragma once

#include "fuzz/codebooks.h"
#include "fuzz/steps.h"
#include "fuzz/trainers.h"

namespace fuzz {

// A device with sealed models that all inputs share.
struct Ground {
  mr_device* device = nullptr;
  mr_model *small = nullptr, *rich = nullptr, *stateful = nullptr, *latents = nullptr;

  Ground(const char* path, int32_t threads) {
    const mr_device_options options = device_options(path, threads);
    must(api->device_open(&options, &device), "a device opens");
    small = make(small_description(), [](int32_t) { return 0; });
    rich = make(rich_description(), rich_type);
    stateful = make(state_description(), [](int32_t) { return 0; });
    latents = make(latent_description(), [](int32_t) { return 0; });
  }

  template <class TypeOf>
  mr_model* make(const Described& described, TypeOf type_of) const {
    World world;
    mr_model* model = nullptr;
    must(api->model_create(device, &described.desc, &model), "a model is made");
    require(complete(world, device, model, described.desc, type_of), "a model takes its tensors");
    return model;
  }

  mr_device_info info() const {
    mr_device_info info{};
    info.struct_size = sizeof info;
    must(api->device_info(device, &info), "a device tells of itself");
    return info;
  }
};

inline void run(const uint8_t* data, size_t size) {
  static const Ground grounds[] = {{"portable", 1}, {nullptr, 2}};
  using Call = void (*)(World&, Input&);
  static constexpr Call calls[] = {
      open_device,   tell_device, close_device,  fault_device, measure_device, alloc_buffer,   use_buffer,   run_op,
      create_model,  bind_tensor, use_model,     create_runner, use_runner,    submit_step,    submit_step,  wait_step,
      wait_step,     create_trainer, feed_trainer, feed_trainer, use_trainer,  use_trainer,    create_codebook, encode_rows,
      use_codebook,  run_op,      alloc_buffer,  submit_step,  wait_step,      use_runner,     use_trainer,  submit_step};
  Input in(data, size);
  const Ground& ground = grounds[in.below(std::size(grounds))];
  const mr_device_info before = ground.info();
  {
    World world;
    world.devices.add(ground.device, {true});
    world.models.add(ground.small, {small_description(), true, true});
    world.models.add(ground.rich, {rich_description(), true, true});
    world.models.add(ground.stateful, {state_description(), true, true});
    world.models.add(ground.latents, {latent_description(), true, true});
    for (int i = 0; i < 48 && !in.done(); ++i) calls[in.below(std::size(calls))](world, in);
    world.close();
  }
  const mr_device_info after = ground.info();
  require(std::equal(std::begin(before.bytes_used), std::end(before.bytes_used), std::begin(after.bytes_used)),
          "what is given back is not counted");
  require(after.live_buffers == 0, "a buffer given back does not live");
}

}  // namespace fuzz
