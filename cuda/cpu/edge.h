// edge: the ABI over any engine. Every function resolves handles to objects, completes structs, calls one function of the
// engine and converts an exception into an mr_error.
//
// Engine names what an engine is made of: the types Device, Buffer, Model, Runner and Operands, and the functions
// device_count, run_op, measure_roof, host_alloc and host_free. Their members throw Error as engine.h documents their C faces.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <utility>

#include "error.h"
#include "millrace/engine.h"
#include "registry.h"
#include "shape.h"
#include "structs.h"

namespace mr {

template <class Engine>
struct Edge {
  using Device = typename Engine::Device;
  using Buffer = typename Engine::Buffer;
  using Model = typename Engine::Model;
  using Runner = typename Engine::Runner;

  // A runner with the model it keeps alive.
  struct BoundRunner {
    std::shared_ptr<Model> model;
    Runner runner;
    BoundRunner(std::shared_ptr<Model> m, const mr_runner_config& config) : model(std::move(m)), runner(model, config) {}
  };

  struct Handles {
    Registry<mr_device, Device, 0xd1> devices{"device"};
    Registry<mr_buffer, Buffer, 0xb1> buffers{"buffer"};
    Registry<mr_model, Model, 0x31> models{"model"};
    Registry<mr_runner, BoundRunner, 0x51> runners{"runner"};
  };

  // Lives as long as the process: a call that runs while the process ends finds it whole.
  static Handles& handles() {
    static Handles* const all = new Handles;
    return *all;
  }

  template <class T>
  static void check_out(const T* out, const char* noun) {
    if (out == nullptr) fail(MR_INVALID_ARGUMENT, "%s is null", noun);
  }

  static int32_t error_code(const mr_error* e) { return e == nullptr ? MR_OK : e->code; }
  static const char* error_message(const mr_error* e) { return e == nullptr ? "" : e->message.c_str(); }
  static int64_t error_native(const mr_error* e) { return e == nullptr ? 0 : e->native; }
  static void error_destroy(mr_error* e) { destroy_error(e); }

  static mr_error* device_count(int32_t* count) {
    return guard([&] {
      check_out(count, "count");
      *count = Engine::device_count();
    });
  }

  static mr_error* device_open(const mr_device_options* options, mr_device** out) {
    return guard([&] {
      check_out(out, "out");
      *out = handles().devices.add(std::make_shared<Device>(read_struct(options, "mr_device_options")));
    });
  }

  static mr_error* device_info(const mr_device* device, mr_device_info* out) {
    return guard([&] {
      mr_device_info info = read_output(out, "mr_device_info");
      handles().devices.get(device)->info(&info);
      write_struct(info, out);
    });
  }

  static mr_error* device_close(mr_device* device) {
    return guard([&] {
      if (device == nullptr) return;
      handles().devices.get(device)->check_idle();
      handles().devices.take(device);
    });
  }

  static mr_error* buffer_alloc(mr_device* device, uint64_t size, int32_t purpose, mr_buffer** out) {
    return guard([&] {
      check_out(out, "out");
      std::shared_ptr<Device> on = handles().devices.get(device);
      if (size == 0) fail(MR_INVALID_ARGUMENT, "size of a buffer is 0: want at least 1 byte");
      if (purpose < 0 || purpose >= MR_PURPOSE_COUNT)
        fail(MR_INVALID_ARGUMENT, "purpose is %d: want 0 to %d", purpose, MR_PURPOSE_COUNT - 1);
      *out = handles().buffers.add(std::make_shared<Buffer>(std::move(on), size, purpose));
    });
  }

  static mr_error* buffer_write(mr_buffer* buffer, uint64_t offset, const void* src, uint64_t size) {
    return guard([&] {
      const std::shared_ptr<Buffer> to = handles().buffers.get(buffer);
      if (size != 0) check_out(src, "src");
      to->write(offset, src, size);
    });
  }

  static mr_error* buffer_read(const mr_buffer* buffer, uint64_t offset, void* dst, uint64_t size) {
    return guard([&] {
      const std::shared_ptr<Buffer> from = handles().buffers.get(buffer);
      if (size != 0) check_out(dst, "dst");
      from->read(offset, dst, size);
    });
  }

  static mr_error* buffer_copy(mr_buffer* dst, uint64_t dst_offset, const mr_buffer* src, uint64_t src_offset, uint64_t size) {
    return guard([&] {
      const std::shared_ptr<Buffer> to = handles().buffers.get(dst), from = handles().buffers.get(src);
      if (to->device() != from->device())
        fail(MR_INVALID_ARGUMENT, "dst lies on %s and src on %s: a copy stays on one device, go by way of the host",
             to->device()->label().c_str(), from->device()->label().c_str());
      to->copy_from(dst_offset, *from, src_offset, size);
    });
  }

  static mr_error* buffer_fill(mr_buffer* buffer, uint64_t offset, uint8_t value, uint64_t size) {
    return guard([&] { handles().buffers.get(buffer)->fill(offset, value, size); });
  }

  static mr_error* buffer_digest(const mr_buffer* buffer, uint64_t offset, uint64_t size, mr_digest* out) {
    return guard([&] {
      const std::shared_ptr<Buffer> of = handles().buffers.get(buffer);
      check_out(out, "out");
      of->digest(offset, size, out->bytes);
    });
  }

  static mr_error* buffer_free(mr_buffer* buffer) {
    return guard([&] {
      if (buffer == nullptr) return;
      std::shared_ptr<Buffer> leaving = handles().buffers.withdraw(buffer);
      if (leaving.use_count() == 1) {  // else a call in another thread still uses it and frees it at its end
        std::atomic_thread_fence(std::memory_order_acquire);  // after the effects of the last of those calls
        try {
          leaving->release();
        } catch (...) {
          handles().buffers.restore(buffer, std::move(leaving));
          throw;
        }
      }
      handles().buffers.drop(buffer);
    });
  }

  static mr_error* op_run(mr_device* device, const mr_op_args* args, uint64_t* device_ns) {
    return guard([&] {
      const std::shared_ptr<Device> on = handles().devices.get(device);
      const mr_op_args complete = read_struct(args, "mr_op_args");
      typename Engine::Operands operands;
      const auto find = [](const mr_buffer* buffer) { return buffer == nullptr ? nullptr : handles().buffers.get(buffer); };
      operands.a = find(complete.a);
      operands.b = find(complete.b);
      operands.c = find(complete.c);
      operands.out = find(complete.out);
      const uint64_t nanoseconds = Engine::run_op(*on, complete, operands);
      if (device_ns != nullptr) *device_ns = nanoseconds;
    });
  }

  static mr_error* model_create(mr_device* device, const mr_model_desc* desc, mr_model** out) {
    return guard([&] {
      check_out(out, "out");
      Description complete = read_description(read_struct(desc, "mr_model_desc"));
      *out = handles().models.add(std::make_shared<Model>(handles().devices.get(device), std::move(complete)));
    });
  }

  static mr_error* model_resident_size(const mr_device* device, const mr_tensor_desc* tensor, uint64_t* bytes) {
    return guard([&] {
      check_out(bytes, "bytes");
      *bytes = Model::resident_size(*handles().devices.get(device), read_struct(tensor, "mr_tensor_desc"));
    });
  }

  static mr_error* model_bind(mr_model* model, const mr_tensor_desc* tensor, mr_buffer* buffer) {
    return guard([&] {
      std::shared_ptr<Buffer> staging = handles().buffers.take(buffer);  // first: the buffer is consumed whatever follows
      const std::shared_ptr<Model> to = handles().models.get(model);
      to->bind(read_struct(tensor, "mr_tensor_desc"), std::move(staging));
    });
  }

  static mr_error* model_seal(mr_model* model) {
    return guard([&] { handles().models.get(model)->seal(); });
  }

  static mr_error* model_digest(const mr_model* model, int32_t tensor_index, mr_digest* out) {
    return guard([&] {
      check_out(out, "out");
      handles().models.get(model)->digest(tensor_index, out->bytes);
    });
  }

  static mr_error* model_fault(mr_model* model, int32_t fault, int32_t index, uint64_t value) {
    return guard([&] {
      const std::shared_ptr<Model> of = handles().models.get(model);
      if (fault != MR_FAULT_FLIP_BIT) fail(MR_INVALID_ARGUMENT, "fault is %d: a model knows %d", fault, MR_FAULT_FLIP_BIT);
      of->flip_bit(index, value);
    });
  }

  static mr_error* model_destroy(mr_model* model) {
    return guard([&] {
      if (model == nullptr) return;
      const long long runners = handles().models.get(model)->runners.load();
      if (runners != 0) fail(MR_FAILED_PRECONDITION, "%lld runners of the model are alive: destroy them first", runners);
      handles().models.take(model);
    });
  }

  static mr_error* runner_cost(const mr_model* model, const mr_runner_config* config, mr_runner_cost* out) {
    return guard([&] {
      mr_runner_cost cost = read_output(out, "mr_runner_cost");
      Runner::cost(*handles().models.get(model), read_struct(config, "mr_runner_config"), &cost);
      write_struct(cost, out);
    });
  }

  static mr_error* runner_create(mr_model* model, const mr_runner_config* config, mr_runner** out) {
    return guard([&] {
      check_out(out, "out");
      const mr_runner_config complete = read_struct(config, "mr_runner_config");
      *out = handles().runners.add(std::make_shared<BoundRunner>(handles().models.get(model), complete));
    });
  }

  static mr_error* step_submit(mr_runner* runner, const mr_step* step) {
    return guard([&] { handles().runners.get(runner)->runner.submit(read_struct(step, "mr_step")); });
  }

  static mr_error* step_masks(mr_runner* runner, const uint32_t* masks, int64_t words) {
    return guard([&] { handles().runners.get(runner)->runner.masks(masks, words); });
  }

  static mr_error* step_wait(mr_runner* runner, uint64_t timeout_ns, mr_step_result* result) {
    return guard([&] {
      mr_step_result complete = read_output(result, "mr_step_result");
      handles().runners.get(runner)->runner.wait(timeout_ns, &complete);
      write_struct(complete, result);
    });
  }

  static mr_error* runner_progress(const mr_runner* runner, mr_progress* out) {
    return guard([&] {
      mr_progress progress = read_output(out, "mr_progress");
      handles().runners.get(runner)->runner.progress(&progress);
      write_struct(progress, out);
    });
  }

  static mr_error* runner_fault(mr_runner* runner, int32_t fault, int32_t index, uint64_t value) {
    return guard([&] { handles().runners.get(runner)->runner.fault(fault, index, value); });
  }

  static mr_error* runner_destroy(mr_runner* runner) {
    return guard([&] {
      if (runner != nullptr) handles().runners.take(runner);
    });
  }

  static mr_error* device_measure(mr_device* device, int32_t what, uint64_t duration_ns, double* rate) {
    return guard([&] {
      check_out(rate, "rate");
      *rate = Engine::measure_roof(*handles().devices.get(device), what, duration_ns);
    });
  }

  static mr_error* host_alloc(mr_device* device, uint64_t size, void** out) {
    return guard([&] {
      check_out(out, "out");
      const std::shared_ptr<Device> on = handles().devices.get(device);
      if (size == 0) fail(MR_INVALID_ARGUMENT, "size of host memory is 0: want at least 1 byte");
      *out = Engine::host_alloc(*on, size);
    });
  }

  static mr_error* host_free(mr_device* device, void* memory) {
    return guard([&] {
      const std::shared_ptr<Device> on = handles().devices.get(device);
      if (memory != nullptr) Engine::host_free(*on, memory);
    });
  }

  static mr_error* device_fault(mr_device* device, int32_t fault, int32_t index, uint64_t value) {
    return guard([&] { handles().devices.get(device)->ledger.refuse(fault, index, value); });
  }

  // The whole table; build is a static text, vectors a static table.
  static constexpr mr_api table(const char* build, const mr_vector_api* vectors) {
    return {sizeof(mr_api), MR_ABI_MAJOR, MR_ABI_MINOR, build,
            error_code, error_message, error_native, error_destroy,
            device_count, device_open, device_info, device_close,
            buffer_alloc, buffer_write, buffer_read, buffer_copy, buffer_fill, buffer_digest, buffer_free,
            op_run,
            model_create, model_resident_size, model_bind, model_seal, model_digest, model_fault, model_destroy,
            runner_cost, runner_create, step_submit, step_wait, runner_progress, runner_fault, runner_destroy,
            device_measure, host_alloc, host_free, device_fault, step_masks, vectors};
  }
};

}  // namespace mr
