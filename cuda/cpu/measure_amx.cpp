// The int8 roof of the amx path: products of full tiles, 16 rows by 64 inputs by 16 columns.
#include "amx.h"

#if MR_AMX

#pragma GCC target("amx-tile,amx-int8")

#include <immintrin.h>
#include <stdint.h>

namespace mr::cpu {

// As int8_rounds in measure.h. Four sums hide the latency of one: a product waits for the one before it to the same sum.
double int8_rounds_amx(int64_t rounds, float* sink) {
  struct alignas(64) Config {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  alignas(64) int8_t inputs[1024];
  for (int i = 0; i < 1024; ++i) inputs[i] = int8_t((i + rounds) & 7);
  before_tiles_read(&config);
  before_tiles_read(inputs);
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, inputs, 64);
  _tile_loadd(5, inputs, 64);
  _tile_loadd(6, inputs, 64);
  _tile_loadd(7, inputs, 64);
  for (int64_t r = 0; r < rounds; ++r) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  alignas(64) int32_t sums[4][256];
  _tile_stored(0, sums[0], 64);
  _tile_stored(1, sums[1], 64);
  _tile_stored(2, sums[2], 64);
  _tile_stored(3, sums[3], 64);
  _tile_release();
  *sink = float(sums[0][1] ^ sums[1][2] ^ sums[2][3] ^ sums[3][4]);
  return double(rounds) * 4 * 2 * 16 * 64 * 16;
}

} // namespace mr::cpu

#endif
