// codebooks: fuzzed calls on codebooks.
#pragma once

#include "fuzz/vectors.h"

namespace fuzz {

inline void create_codebook(World& w, Input& in) {
  Arena arena;
  const mr_trainer_config c = small_trainer(in);
  mr_codebook_desc d{sizeof d, c.kind, c.metric, c.dimension, c.codewords, c.subspaces, c.codeword_type};
  in.bend(&d);
  d = known(d);
  const uint64_t count = static_cast<uint64_t>(std::max(d.codewords, 0)) * static_cast<uint64_t>(std::max(d.dimension, 0));
  uint64_t size = count > kMostBytes ? count : count * element_bytes(d.codeword_type);
  const uint8_t* const words = count > kMostBytes / 8 ? nullptr : elements(in, arena, count, d.codeword_type);
  if (in.once_in(16)) size = words == nullptr ? in.hostile64() : std::min(size, in.hostile64());
  if (w.codebooks.size() >= kMostHandles) return;
  mr_codebook_desc* const given = in.once_in(64) ? nullptr : arena.place(d);
  const auto device = w.devices.pick(in);
  mr_codebook* codebook = nullptr;
  if (w.code(api->vectors->codebook_create(device.handle, given, in.once_in(32) ? nullptr : words, size, &codebook)) == MR_OK)
    w.codebooks.add(codebook, d);
}

inline void encode_rows(World& w, Input& in) {
  Arena arena;
  if (w.codebooks.size() == 0) create_codebook(w, in);
  const auto codebook = w.codebooks.pick(in);
  const mr_codebook_desc d = codebook.known != nullptr ? *codebook.known : mr_codebook_desc{sizeof d, 0, 0, 4, 4, 1, 0};
  mr_encode_args a{};
  a.struct_size = sizeof a;
  a.count = in.below(20);
  a.element_type = static_cast<int32_t>(in.below(5));
  a.neighbours = in.once_in(2) ? 1 + static_cast<int32_t>(in.below(static_cast<uint32_t>(d.codewords))) : 1;
  in.bend(&a);
  a = known(a);
  const uint64_t each = static_cast<uint64_t>(d.kind == MR_CODEBOOK_PRODUCT ? d.subspaces : std::clamp(a.neighbours, 1, 64));
  const bool fits = a.count <= 64;
  a.rows = fits ? elements(in, arena, a.count * static_cast<uint64_t>(d.dimension), a.element_type) : nullptr;
  a.codes = fits ? arena.room(a.count * each, d.codewords <= 256 ? 1 : 2) : nullptr;
  a.distances = fits && in.once_in(2) ? reinterpret_cast<float*>(arena.room(a.count * each, 4)) : nullptr;
  mr_encode_args* const given = in.once_in(64) ? nullptr : arena.place(a);
  const int32_t code = w.code(api->vectors->codebook_encode(codebook.handle, given));
  if (code != MR_OK || given->struct_size < sizeof a) return;
  if (d.kind != MR_CODEBOOK_PRODUCT && a.neighbours != 1) return;
  std::vector<uint8_t> bytes(a.count * static_cast<uint64_t>(d.dimension) * element_bytes(d.codeword_type));
  must(api->vectors->codebook_decode(codebook.handle, a.codes, a.count, bytes.data()), "what was encoded can be decoded");
}

inline void use_codebook(World& w, Input& in) {
  Arena arena;
  const auto codebook = w.codebooks.pick(in);
  const mr_codebook_desc d = codebook.known != nullptr ? *codebook.known : mr_codebook_desc{sizeof d, 0, 0, 4, 4, 1, 0};
  mr_digest digest;
  switch (in.below(4)) {
    case 0: {
      const uint64_t count = in.once_in(8) ? in.hostile64() : in.below(20), all = count * static_cast<uint64_t>(d.subspaces);
      const uint64_t size = d.codewords <= 256 ? 1 : 2;
      const bool fits = count <= 64;
      uint8_t* const codes = fits ? arena.room(all, size) : nullptr;
      for (uint64_t i = 0; codes != nullptr && i < all; ++i)
        codes[i * size] = static_cast<uint8_t>(in.below(static_cast<uint32_t>(d.codewords) + 1));
      uint8_t* const out = fits ? arena.room(count * static_cast<uint64_t>(d.dimension), element_bytes(d.codeword_type)) : nullptr;
      return (void)w.code(api->vectors->codebook_decode(codebook.handle, codes, count, out));
    }
    case 1: return (void)w.code(api->vectors->codebook_digest(codebook.handle, in.once_in(16) ? nullptr : &digest));
    case 2: {
      const int32_t fault = in.once_in(8) ? static_cast<int32_t>(in.hostile32()) : MR_FAULT_FLIP_BIT, index = in.once_in(8);
      return (void)w.code(api->vectors->codebook_fault(codebook.handle, fault, index, in.once_in(4) ? in.hostile64() : in.byte()));
    }
    default:
      if (!in.once_in(2)) return;
      if (w.code(api->vectors->codebook_destroy(codebook.handle)) == MR_OK) w.codebooks.drop(codebook.handle);
  }
}

}  // namespace fuzz
