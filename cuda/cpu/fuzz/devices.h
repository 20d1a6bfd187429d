// devices: fuzzed calls on devices, buffers and plain operations.
#pragma once

#include "fuzz/world.h"

namespace fuzz {

constexpr uint64_t kDeviceBytes = 12 << 20;

inline mr_device_options device_options(const char* path, int32_t threads) {
  mr_device_options options{};
  options.struct_size = sizeof options;
  options.threads = threads;
  options.bytes_limit = kDeviceBytes;
  options.pool_limit = UINT64_MAX;  // freed bytes leave the pool, so that the address sanitizer finds later uses
  options.path = path;
  return options;
}

inline void open_device(World& w, Input& in) {
  static const char* const paths[] = {nullptr, "portable", "avx2", "", "a path that no processor and no engine has"};
  Arena arena;
  mr_device_options options = device_options(nullptr, 1);
  in.bend(&options);
  options.path = paths[in.below(std::size(paths))];
  if (options.threads == 0 || (options.threads > 2 && options.threads <= 1024)) options.threads = 2;
  if (w.devices.size() >= kMostHandles) return;
  mr_device* device = nullptr;
  if (w.code(api->device_open(in.once_in(32) ? nullptr : arena.place(options), &device)) != MR_OK) return;
  if (options.bytes_limit != 0 && options.bytes_limit <= kDeviceBytes) return w.devices.add(device, {false});
  must(api->device_close(device), "a fresh device can be closed");  // it would let an input take the machine's memory
}

inline void tell_device(World& w, Input& in) {
  Arena arena;
  mr_device_info info{};
  info.struct_size = sizeof info;
  in.bend(&info);
  int32_t count = 0;
  (void)w.code(api->device_count(in.once_in(8) ? nullptr : &count));
  (void)w.code(api->device_info(w.devices.pick(in).handle, in.once_in(16) ? nullptr : arena.place(info)));
}

inline void close_device(World& w, Input& in) {
  const auto device = w.devices.pick(in);
  if (w.code(api->device_close(device.handle)) != MR_OK || device.handle == nullptr) return;
  require(!device.known->lasting, "a device with models does not close");
  w.devices.drop(device.handle);
}

inline void fault_device(World& w, Input& in) {
  const auto device = w.devices.pick(in);
  if (device.known != nullptr && device.known->lasting) return;
  const int32_t fault = static_cast<int32_t>(in.once_in(4) ? in.hostile32() : MR_FAULT_REFUSE_ALLOC + in.below(2));
  const int32_t index = static_cast<int32_t>(in.once_in(4) ? in.hostile32() : in.below(8));
  if (w.code(api->device_fault(device.handle, fault, index, in.hostile64())) == MR_OK) w.faults = device.known->faulty = true;
}

inline void measure_device(World& w, Input& in) {
  uint64_t duration = in.hostile64();
  if (duration >= 1'000'000 && duration <= 60'000'000'000) duration = 1'000'000;  // a millisecond
  double rate = 0;
  (void)w.code(api->device_measure(w.devices.pick(in).handle, static_cast<int32_t>(in.hostile32()), duration,
                                   in.once_in(8) ? nullptr : &rate));
  void* memory = nullptr;
  (void)w.code(api->host_alloc(w.devices.pick(in).handle, in.hostile64(), &memory));
  (void)w.code(api->host_free(w.devices.pick(in).handle, &rate));
}

inline void alloc_buffer(World& w, Input& in) {
  if (w.buffers.size() >= kMostHandles) return;
  const uint64_t size = in.once_in(4) ? in.hostile64() : 4 * (1 + uint64_t{in.byte()});
  const int32_t purpose = in.once_in(8) ? static_cast<int32_t>(in.hostile32()) : static_cast<int32_t>(in.below(MR_PURPOSE_COUNT));
  mr_buffer* buffer = nullptr;
  if (w.code(api->buffer_alloc(w.devices.pick(in).handle, size, purpose, in.once_in(32) ? nullptr : &buffer)) == MR_OK)
    w.buffers.add(buffer, {size});
}

inline void use_buffer(World& w, Input& in) {
  Arena arena;
  const auto buffer = w.buffers.pick(in);
  const uint64_t offset = in.once_in(3) ? in.hostile64() : in.byte(), size = in.once_in(3) ? in.hostile64() : in.byte();
  uint8_t* const bytes = arena.room(size, 1);
  switch (in.below(6)) {
    case 0:
      for (uint64_t i = 0; bytes != nullptr && i < size; ++i) bytes[i] = in.byte();
      return (void)w.code(api->buffer_write(buffer.handle, offset, bytes, size));
    case 1: return (void)w.code(api->buffer_read(buffer.handle, offset, bytes, size));
    case 2: return (void)w.code(api->buffer_copy(buffer.handle, offset, w.buffers.pick(in).handle, in.byte(), size));
    case 3: return (void)w.code(api->buffer_fill(buffer.handle, offset, in.byte(), size));
    case 4: {
      mr_digest digest;
      return (void)w.code(api->buffer_digest(buffer.handle, offset, size, in.once_in(16) ? nullptr : &digest));
    }
    default:
      if (w.code(api->buffer_free(buffer.handle)) == MR_OK) w.buffers.drop(buffer.handle);
  }
}

inline void run_op(World& w, Input& in) {
  Arena arena;
  mr_op_args args{};
  args.struct_size = sizeof args;
  args.op = static_cast<int32_t>(in.below(MR_OP_COUNT));
  args.rows = 1 + in.below(4);
  args.cols = 1 + in.below(20);
  args.inner = args.rows + in.below(8);
  args.batch = 1 + static_cast<int32_t>(in.below(2));
  args.kv_heads = 1 + static_cast<int32_t>(in.below(2));
  args.heads = args.kv_heads * (1 + static_cast<int32_t>(in.below(2)));
  args.rope_style = static_cast<int32_t>(in.below(2));
  args.eps = 1e-5f;
  args.scale = 0.5f;
  args.rope_base = 1e4f;
  in.bend(&args);
  while (w.buffers.size() < 3) {
    mr_buffer* buffer = nullptr;  // of up to 16 KiB: enough for unmodified calls
    must(api->buffer_alloc(w.devices.live()[0].first, 64u << in.below(9), MR_PURPOSE_STAGING, &buffer), "a small buffer is there");
    w.buffers.add(buffer, {0});
  }
  args.a = w.buffers.pick(in).handle;
  args.b = w.buffers.pick(in).handle;
  args.c = w.buffers.pick(in).handle;
  args.out = w.buffers.pick(in).handle;
  uint64_t nanoseconds = 0;
  (void)w.code(api->op_run(w.devices.pick(in).handle, in.once_in(64) ? nullptr : arena.place(args),
                           in.once_in(8) ? nullptr : &nanoseconds));
}

}  // namespace fuzz
