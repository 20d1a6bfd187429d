// vectors: elements and configurations for trainers and codebooks.
#pragma once

#include "fuzz/devices.h"

namespace fuzz {

inline uint64_t element_bytes(int32_t type) {
  return type == MR_VECTOR_F32 ? 4 : type == MR_VECTOR_F16 || type == MR_VECTOR_BF16 ? 2 : 1;
}

// Elements of a type, mostly small numbers, at times any bits; null when they are more than a caller has.
inline uint8_t* elements(Input& in, Arena& arena, uint64_t count, int32_t type) {
  const uint64_t bytes = element_bytes(type);
  uint8_t* const to = arena.room(count, bytes);
  if (to == nullptr) return nullptr;
  const bool any = in.once_in(16);
  for (uint64_t i = 0; i < count; ++i) {
    const float small = static_cast<float>(in.byte()) / 16 + static_cast<float>(i % 7);
    uint32_t bits;
    std::memcpy(&bits, &small, 4);
    if (type == MR_VECTOR_BF16) bits >>= 16;
    if (type == MR_VECTOR_F16) bits = 0x3000 + (bits >> 12) % 0x1800;  // from 2^-3 to 8
    if (any) bits = in.hostile32();
    std::memcpy(to + i * bytes, &bits, bytes);
  }
  return to;
}

inline mr_trainer_config small_trainer(Input& in) {
  mr_trainer_config c{};
  c.struct_size = sizeof c;
  c.dimension = 1 + static_cast<int32_t>(in.below(8));
  c.subspaces = 1;
  if (in.once_in(3)) {
    c.kind = MR_CODEBOOK_PRODUCT;
    c.subspaces = in.once_in(2) ? c.dimension : 1;
  } else {
    c.metric = static_cast<int32_t>(in.below(3));
  }
  c.codewords = 1 + static_cast<int32_t>(in.below(12));
  c.rows = static_cast<uint64_t>(c.codewords) + in.below(24);
  c.element_type = static_cast<int32_t>(in.below(5));
  c.codeword_type = static_cast<int32_t>(in.below(3));
  c.init = static_cast<int32_t>(in.below(4));
  c.max_iterations = static_cast<int32_t>(in.below(6));
  c.stable_iterations = 1;
  c.energy_tolerance = c.min_changes = -1;
  if (in.once_in(2) && c.metric == MR_METRIC_L2) {
    c.algorithm = MR_ALGORITHM_ANNEALED;
    c.temperature = 0.5;
    c.cooling_rate = c.momentum = 0.25;
    c.learning_rate = 1;
    c.trim = in.once_in(2) ? 0.1 : 0;
    c.maintenance_interval = static_cast<int32_t>(in.below(3));
    c.merge_distance = c.split_load = 1.5;
  }
  return c;
}

}  // namespace fuzz
