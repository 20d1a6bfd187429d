// vector_state: the bytes of a training's state, as docs/decisions/029-vector-numerics.md lists them.
#pragma once

#include <cstdint>
#include <cstring>

#include "error.h"
#include "vector_config.h"
#include "vector_rules.h"

namespace mr {

// What a state begins with. Behind it: the codebook; from iteration 1 on the one before; for ANNEALED of each subspace places and
// velocities as float64.
struct StateHeader {
  char mark[8];
  int64_t iteration;
  double temperature;
  int64_t stable;
  double energy;  // of the round before; 0 in round 0
};
static_assert(sizeof(StateHeader) == 40, "a state begins with five words");
constexpr char kStateMark[8] = {'M', 'R', 'V', 'S', 'T', 'A', 'T', 1};

// Bytes of a state.
inline uint64_t state_size(const mr_trainer_config& c, int64_t iteration) {
  const uint64_t values = static_cast<uint64_t>(c.codewords) * static_cast<uint64_t>(c.dimension);
  const uint64_t books = codebook_size(codebook_of(c)) * (iteration > 0 ? 2 : 1);
  return sizeof(StateHeader) + books + (c.algorithm == MR_ALGORITHM_ANNEALED ? 16 * values : 0);
}

// A state's header; throws INVALID_ARGUMENT where it is not one, or not of this configuration.
inline StateHeader read_state_header(const mr_trainer_config& c, const void* state, uint64_t size) {
  if (size != 0 && state == nullptr) fail(MR_INVALID_ARGUMENT, "state is null");
  StateHeader h{};
  if (size < sizeof h || std::memcmp(state, kStateMark, sizeof kStateMark) != 0)
    fail(MR_INVALID_ARGUMENT, "a state of %llu bytes does not begin as one", static_cast<unsigned long long>(size));
  std::memcpy(&h, state, sizeof h);
  const uint64_t want = state_size(c, h.iteration);
  if (size != want)
    fail(MR_INVALID_ARGUMENT, "a state of %llu bytes: this configuration's has %llu", static_cast<unsigned long long>(size),
         static_cast<unsigned long long>(want));
  if (h.iteration < 0 || h.iteration > kMostIterations || h.stable < 0 || h.stable > h.iteration || !is_finite(h.energy) ||
      !(h.temperature >= 0 && h.temperature <= 1))
    fail(MR_INVALID_ARGUMENT, "a state with iteration %lld, %lld stable rounds, energy %g and temperature %g",
         static_cast<long long>(h.iteration), static_cast<long long>(h.stable), h.energy, h.temperature);
  return h;
}

inline StateHeader state_header(int64_t iteration, double temperature, int64_t stable, double energy) {
  StateHeader h{{}, iteration, temperature, stable, energy};
  std::memcpy(h.mark, kStateMark, sizeof kStateMark);
  return h;
}

}  // namespace mr
