#include "textflag.h"

// BLAKE3 of sixteen inputs at once, one a lane of 32 bits: Z0 to Z15 hold the state, Z16 to Z31 the words of a block.

DATA iv<>+0(SB)/4, $0x6a09e667
DATA iv<>+4(SB)/4, $0xbb67ae85
DATA iv<>+8(SB)/4, $0x3c6ef372
DATA iv<>+12(SB)/4, $0xa54ff53a
DATA iv<>+16(SB)/4, $0x510e527f
DATA iv<>+20(SB)/4, $0x9b05688c
DATA iv<>+24(SB)/4, $0x1f83d9ab
DATA iv<>+28(SB)/4, $0x5be0cd19
GLOBL iv<>(SB), RODATA|NOPTR, $32

DATA lane<>+0(SB)/4, $0
DATA lane<>+4(SB)/4, $1
DATA lane<>+8(SB)/4, $2
DATA lane<>+12(SB)/4, $3
DATA lane<>+16(SB)/4, $4
DATA lane<>+20(SB)/4, $5
DATA lane<>+24(SB)/4, $6
DATA lane<>+28(SB)/4, $7
DATA lane<>+32(SB)/4, $8
DATA lane<>+36(SB)/4, $9
DATA lane<>+40(SB)/4, $10
DATA lane<>+44(SB)/4, $11
DATA lane<>+48(SB)/4, $12
DATA lane<>+52(SB)/4, $13
DATA lane<>+56(SB)/4, $14
DATA lane<>+60(SB)/4, $15
GLOBL lane<>(SB), RODATA|NOPTR, $64

// ADD4 and XORROR4 do one step of four independent mixes.
#define ADD4(a0, a1, a2, a3, b0, b1, b2, b3) \
	VPADDD b0, a0, a0; \
	VPADDD b1, a1, a1; \
	VPADDD b2, a2, a2; \
	VPADDD b3, a3, a3

#define XORROR4(bits, a0, a1, a2, a3, b0, b1, b2, b3) \
	VPXORD b0, a0, a0;     \
	VPXORD b1, a1, a1;     \
	VPXORD b2, a2, a2;     \
	VPXORD b3, a3, a3;     \
	VPRORD $bits, a0, a0; \
	VPRORD $bits, a1, a1; \
	VPRORD $bits, a2, a2; \
	VPRORD $bits, a3, a3

// MIX4 is four mixes: (ai, bi, ci, di) take in the words xi and yi.
#define MIX4(a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3, x0, y0, x1, y1, x2, y2, x3, y3) \
	ADD4(a0, a1, a2, a3, x0, x1, x2, x3);        \
	ADD4(a0, a1, a2, a3, b0, b1, b2, b3);        \
	XORROR4(16, d0, d1, d2, d3, a0, a1, a2, a3); \
	ADD4(c0, c1, c2, c3, d0, d1, d2, d3);        \
	XORROR4(12, b0, b1, b2, b3, c0, c1, c2, c3); \
	ADD4(a0, a1, a2, a3, y0, y1, y2, y3);        \
	ADD4(a0, a1, a2, a3, b0, b1, b2, b3);        \
	XORROR4(8, d0, d1, d2, d3, a0, a1, a2, a3);  \
	ADD4(c0, c1, c2, c3, d0, d1, d2, d3);        \
	XORROR4(7, b0, b1, b2, b3, c0, c1, c2, c3)

// ROUND mixes the columns, then the diagonals, with the words in this round's order.
#define ROUND(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15) \
	MIX4(Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7, Z8, Z9, Z10, Z11, Z12, Z13, Z14, Z15, m0, m1, m2, m3, m4, m5, m6, m7); \
	MIX4(Z0, Z1, Z2, Z3, Z5, Z6, Z7, Z4, Z10, Z11, Z8, Z9, Z15, Z12, Z13, Z14, m8, m9, m10, m11, m12, m13, m14, m15)

// WORDS4 transposes the 4 x 4 words in every 128-bit part of four rows.
#define WORDS4(r0, r1, r2, r3, t0, t1, t2, t3) \
	VPUNPCKLDQ  r1, r0, t0; \
	VPUNPCKHDQ  r1, r0, t1; \
	VPUNPCKLDQ  r3, r2, t2; \
	VPUNPCKHDQ  r3, r2, t3; \
	VPUNPCKLQDQ t2, t0, r0; \
	VPUNPCKHQDQ t2, t0, r1; \
	VPUNPCKLQDQ t3, t1, r2; \
	VPUNPCKHQDQ t3, t1, r3

// PARTS4 transposes the 4 x 4 parts of 128 bits of four rows.
#define PARTS4(r0, r1, r2, r3, t0, t1, t2, t3) \
	VSHUFI32X4 $0x44, r1, r0, t0; \
	VSHUFI32X4 $0xee, r1, r0, t1; \
	VSHUFI32X4 $0x44, r3, r2, t2; \
	VSHUFI32X4 $0xee, r3, r2, t3; \
	VSHUFI32X4 $0x88, t2, t0, r0; \
	VSHUFI32X4 $0xdd, t2, t0, r1; \
	VSHUFI32X4 $0x88, t3, t1, r2; \
	VSHUFI32X4 $0xdd, t3, t1, r3

// STORE4 stores the parts of a row, each four words of one lane, to the values of lanes 0, 4, 8 and 12 from off(DI) on.
#define STORE4(off, r) \
	VEXTRACTI32X4 $0, r, (off+0)(DI);   \
	VEXTRACTI32X4 $1, r, (off+128)(DI); \
	VEXTRACTI32X4 $2, r, (off+256)(DI); \
	VEXTRACTI32X4 $3, r, (off+384)(DI)

// func hash16AVX512(values *[16][8]uint32, data *byte, stride, blocks uintptr, chunk uint64, step, first, last uint32)
TEXT ·hash16AVX512(SB), NOSPLIT, $72-52
	MOVQ values+0(FP), DI
	MOVQ data+8(FP), SI
	MOVQ stride+16(FP), R8
	MOVQ blocks+24(FP), CX
	MOVL first+44(FP), BX
	LEAQ (R8)(R8*2), R9 // three strides

	// The counters: 0(SP) their lower halves, 64(SP) the upper one, which is the same in all lanes.
	MOVQ         chunk+32(FP), AX
	VPBROADCASTD AX, Z8
	SHRQ         $32, AX
	MOVL         AX, 64(SP)
	MOVL         step+40(FP), AX
	VPBROADCASTD AX, Z9
	VPMULLD      lane<>(SB), Z9, Z9
	VPADDD       Z9, Z8, Z8
	VMOVDQU32    Z8, 0(SP)

	VPBROADCASTD iv<>+0(SB), Z0
	VPBROADCASTD iv<>+4(SB), Z1
	VPBROADCASTD iv<>+8(SB), Z2
	VPBROADCASTD iv<>+12(SB), Z3
	VPBROADCASTD iv<>+16(SB), Z4
	VPBROADCASTD iv<>+20(SB), Z5
	VPBROADCASTD iv<>+24(SB), Z6
	VPBROADCASTD iv<>+28(SB), Z7

block:
	// Every row is the block of one input; transposed, every row is one word of all inputs.
	LEAQ      (SI)(R8*4), R10
	LEAQ      (SI)(R8*8), R11
	LEAQ      (R10)(R8*8), R12
	VMOVDQU32 (SI), Z16
	VMOVDQU32 (SI)(R8*1), Z17
	VMOVDQU32 (SI)(R8*2), Z18
	VMOVDQU32 (SI)(R9*1), Z19
	VMOVDQU32 (R10), Z20
	VMOVDQU32 (R10)(R8*1), Z21
	VMOVDQU32 (R10)(R8*2), Z22
	VMOVDQU32 (R10)(R9*1), Z23
	VMOVDQU32 (R11), Z24
	VMOVDQU32 (R11)(R8*1), Z25
	VMOVDQU32 (R11)(R8*2), Z26
	VMOVDQU32 (R11)(R9*1), Z27
	VMOVDQU32 (R12), Z28
	VMOVDQU32 (R12)(R8*1), Z29
	VMOVDQU32 (R12)(R8*2), Z30
	VMOVDQU32 (R12)(R9*1), Z31
	ADDQ      $64, SI

	WORDS4(Z16, Z17, Z18, Z19, Z8, Z9, Z10, Z11)
	WORDS4(Z20, Z21, Z22, Z23, Z12, Z13, Z14, Z15)
	WORDS4(Z24, Z25, Z26, Z27, Z8, Z9, Z10, Z11)
	WORDS4(Z28, Z29, Z30, Z31, Z12, Z13, Z14, Z15)
	PARTS4(Z16, Z20, Z24, Z28, Z8, Z9, Z10, Z11)
	PARTS4(Z17, Z21, Z25, Z29, Z12, Z13, Z14, Z15)
	PARTS4(Z18, Z22, Z26, Z30, Z8, Z9, Z10, Z11)
	PARTS4(Z19, Z23, Z27, Z31, Z12, Z13, Z14, Z15)

	CMPQ CX, $1
	JNE  state
	ORL  last+48(FP), BX

state:
	VPBROADCASTD iv<>+0(SB), Z8
	VPBROADCASTD iv<>+4(SB), Z9
	VPBROADCASTD iv<>+8(SB), Z10
	VPBROADCASTD iv<>+12(SB), Z11
	VMOVDQU32    0(SP), Z12
	VPBROADCASTD 64(SP), Z13
	MOVL         $64, AX
	VPBROADCASTD AX, Z14
	VPBROADCASTD BX, Z15
	XORL         BX, BX

	ROUND(Z16, Z17, Z18, Z19, Z20, Z21, Z22, Z23, Z24, Z25, Z26, Z27, Z28, Z29, Z30, Z31)
	ROUND(Z18, Z22, Z19, Z26, Z23, Z16, Z20, Z29, Z17, Z27, Z28, Z21, Z25, Z30, Z31, Z24)
	ROUND(Z19, Z20, Z26, Z28, Z29, Z18, Z23, Z30, Z22, Z21, Z25, Z16, Z27, Z31, Z24, Z17)
	ROUND(Z26, Z23, Z28, Z25, Z30, Z19, Z29, Z31, Z20, Z16, Z27, Z18, Z21, Z24, Z17, Z22)
	ROUND(Z28, Z29, Z25, Z27, Z31, Z26, Z30, Z24, Z23, Z18, Z21, Z19, Z16, Z17, Z22, Z20)
	ROUND(Z25, Z30, Z27, Z21, Z24, Z28, Z31, Z17, Z29, Z19, Z16, Z26, Z18, Z22, Z20, Z23)
	ROUND(Z27, Z31, Z21, Z16, Z17, Z25, Z24, Z22, Z30, Z26, Z18, Z28, Z19, Z20, Z23, Z29)

	VPXORD Z8, Z0, Z0
	VPXORD Z9, Z1, Z1
	VPXORD Z10, Z2, Z2
	VPXORD Z11, Z3, Z3
	VPXORD Z12, Z4, Z4
	VPXORD Z13, Z5, Z5
	VPXORD Z14, Z6, Z6
	VPXORD Z15, Z7, Z7
	DECQ   CX
	JNZ    block

	WORDS4(Z0, Z1, Z2, Z3, Z8, Z9, Z10, Z11)
	WORDS4(Z4, Z5, Z6, Z7, Z12, Z13, Z14, Z15)
	STORE4(0, Z0)
	STORE4(16, Z4)
	STORE4(32, Z1)
	STORE4(48, Z5)
	STORE4(64, Z2)
	STORE4(80, Z6)
	STORE4(96, Z3)
	STORE4(112, Z7)
	VZEROUPPER
	RET
