// vector_edge: the ABI of vector codebooks over any engine that has them, as edge.h is that of the rest.
//
// Engine must also define the types Trainer and Codebook; their members throw as vectors.h documents the C functions.
#pragma once

#include <memory>

#include "edge.h"
#include "millrace/vectors.h"

namespace mr {

template <class Engine>
struct VectorEdge {
  using Trainer = typename Engine::Trainer;
  using Codebook = typename Engine::Codebook;
  using Device = typename Engine::Device;

  struct Handles {
    Registry<mr_trainer, Trainer, 0x71> trainers{"trainer"};
    Registry<mr_codebook, Codebook, 0xc1> codebooks{"codebook"};
  };

  static Handles& handles() {
    static Handles* const all = new Handles;
    return *all;
  }

  template <class T>
  static void check_out(const T* out, const char* noun) {
    if (out == nullptr) fail(MR_INVALID_ARGUMENT, "%s is null", noun);
  }

  static std::shared_ptr<Device> device_of(const mr_device* device) { return Edge<Engine>::handles().devices.get(device); }

  static mr_error* trainer_cost(const mr_device* device, const mr_trainer_config* config, mr_trainer_cost* out) {
    return guard([&] {
      mr_trainer_cost cost = read_output(out, "mr_trainer_cost");
      Trainer::cost(*device_of(device), read_struct(config, "mr_trainer_config"), &cost);
      write_struct(cost, out);
    });
  }

  static mr_error* trainer_create(mr_device* device, const mr_trainer_config* config, mr_trainer** out) {
    return guard([&] {
      check_out(out, "out");
      const mr_trainer_config complete = read_struct(config, "mr_trainer_config");
      *out = handles().trainers.add(std::make_shared<Trainer>(device_of(device), complete));
    });
  }

  static mr_error* trainer_write(mr_trainer* trainer, uint64_t first, const void* rows, uint64_t count) {
    return guard([&] { handles().trainers.get(trainer)->write(first, rows, count); });
  }

  static mr_error* trainer_give(mr_trainer* trainer, const void* codewords, uint64_t size) {
    return guard([&] { handles().trainers.get(trainer)->give(codewords, size); });
  }

  static mr_error* trainer_restore(mr_trainer* trainer, const void* state, uint64_t size) {
    return guard([&] { handles().trainers.get(trainer)->restore(state, size); });
  }

  static mr_error* trainer_submit(mr_trainer* trainer, const mr_slice* slice) {
    return guard([&] { handles().trainers.get(trainer)->submit(read_struct(slice, "mr_slice")); });
  }

  static mr_error* trainer_wait(mr_trainer* trainer, uint64_t timeout_ns, mr_training* out) {
    return guard([&] {
      mr_training complete = read_output(out, "mr_training");
      handles().trainers.get(trainer)->wait(timeout_ns, &complete);
      write_struct(complete, out);
    });
  }

  static mr_error* trainer_size(const mr_trainer* trainer, int32_t what, uint64_t* size) {
    return guard([&] {
      check_out(size, "size");
      *size = handles().trainers.get(trainer)->size(what);
    });
  }

  static mr_error* trainer_read(const mr_trainer* trainer, int32_t what, uint64_t offset, void* dst, uint64_t size) {
    return guard([&] { handles().trainers.get(trainer)->read(what, offset, dst, size); });
  }

  static mr_error* trainer_destroy(mr_trainer* trainer) {
    return guard([&] {
      if (trainer != nullptr) handles().trainers.take(trainer);
    });
  }

  static mr_error* codebook_create(mr_device* device, const mr_codebook_desc* desc, const void* codewords, uint64_t size,
                                   mr_codebook** out) {
    return guard([&] {
      check_out(out, "out");
      const mr_codebook_desc complete = read_struct(desc, "mr_codebook_desc");
      *out = handles().codebooks.add(std::make_shared<Codebook>(device_of(device), complete, codewords, size));
    });
  }

  static mr_error* codebook_encode(const mr_codebook* codebook, mr_encode_args* args) {
    return guard([&] {
      mr_encode_args complete = read_struct(args, "mr_encode_args");
      handles().codebooks.get(codebook)->encode(&complete);
      write_struct(complete, args);
    });
  }

  static mr_error* codebook_decode(const mr_codebook* codebook, const void* codes, uint64_t count, void* out) {
    return guard([&] { handles().codebooks.get(codebook)->decode(codes, count, out); });
  }

  static mr_error* codebook_digest(const mr_codebook* codebook, mr_digest* out) {
    return guard([&] {
      const std::shared_ptr<Codebook> of = handles().codebooks.get(codebook);
      check_out(out, "out");
      of->digest(out->bytes);
    });
  }

  static mr_error* codebook_fault(mr_codebook* codebook, int32_t fault, int32_t index, uint64_t value) {
    return guard([&] {
      const std::shared_ptr<Codebook> of = handles().codebooks.get(codebook);
      if (fault != MR_FAULT_FLIP_BIT) fail(MR_INVALID_ARGUMENT, "fault is %d: a codebook knows %d", fault, MR_FAULT_FLIP_BIT);
      if (index != 0) fail(MR_INVALID_ARGUMENT, "index is %d: want 0", index);
      of->flip_bit(value);
    });
  }

  static mr_error* codebook_destroy(mr_codebook* codebook) {
    return guard([&] {
      if (codebook != nullptr) handles().codebooks.take(codebook);
    });
  }

  static constexpr mr_vector_api table() {
    return {sizeof(mr_vector_api), trainer_cost, trainer_create, trainer_write, trainer_give, trainer_restore, trainer_submit,
            trainer_wait, trainer_size, trainer_read, trainer_destroy, codebook_create, codebook_encode, codebook_decode,
            codebook_digest, codebook_fault, codebook_destroy};
  }
};

}  // namespace mr
