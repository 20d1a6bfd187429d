// mxfp4_unit: unpacks a unit of MXFP4 with one product a pair of weights where RoundedUnit (fragment.cuh) needs two.
#pragma once

#include "kernels/gemm/fragment.cuh"

namespace mr::cuda {

// Returns whether each of four exponents, the bytes of a word, is from 104 to 127. Then 2^(exponent - 113) is a normal number of f16, and
// a quant times this power is exact: the same as by small_power and large_power.
__device__ __forceinline__ bool single_powers(uint32_t exponents) {
  return (exponents & 0x80808080u) == 0 && ((exponents + 0x18181818u) & 0x80808080u) == 0x80808080u;
}

// Makes the fragments of the four steps. Nearly all blocks of a model have such exponents, so the warp chooses once for a unit.
__device__ __forceinline__ void take_mxfp4_unit(uint32_t (&a)[4][4], uint32_t quants_address, uint32_t scales_address, int32_t lane) {
  UnitQuants<kMXFP4> quants;
  quants.begin(quants_address, 0, lane);
  quants.take<0>(a[0]);
  quants.take<1>(a[1]);
  quants.take<2>(a[2]);
  quants.take<3>(a[3]);
  const uint32_t exponents = load_shared4(scales_address + exponent_at(lane >> 2, 0));
  if (!__any_sync(0xffffffffu, !single_powers(exponents))) {
    // In each byte the upper byte of the power's f16 number: its five exponent bits are at bit 2.
    const uint32_t powers = (exponents - 98 * 0x01010101u) << 2;
#pragma unroll
    for (int32_t step = 0; step < 4; ++step)
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const uint32_t byte = i % 2 * 2 + step / 2;
        a[step][i] = times(a[step][i], __byte_perm(powers, 0, byte << 12 | 4 << 8 | byte << 4 | 4));
      }
  } else {
    UnitScales<kMXFP4> scales;
    scales.load(scales_address, GroupHeader<kMXFP4>{}, lane);
    scales.apply<0>(a[0]);
    scales.apply<1>(a[1]);
    scales.apply<2>(a[2]);
    scales.apply<3>(a[3]);
  }
}

}  // namespace mr::cuda
