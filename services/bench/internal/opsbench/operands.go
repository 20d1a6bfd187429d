package opsbench

import (
	"math/rand/v2"
	"unsafe"
)

// Distances of the operands in the numbers that all of them are cut from: prime, so that no row of one is a row of another.
const (
	shiftB = 1009
	shiftC = 2003
)

// numbers makes n numbers of mean 0 and variance 1 that are the same in every run.
func numbers(n int) []float32 {
	rng := rand.New(rand.NewPCG(9, 0x6d696c6c72616365))
	out := make([]float32, n)
	for i := range out {
		bits := rng.Uint64()
		// A sum of three uniform numbers has tails, as activations do.
		sum := int64(bits&0x1fffff) + int64(bits>>21&0x1fffff) + int64(bits>>42&0x1fffff)
		out[i] = float32(float64(sum)/(1<<20) - 3)
	}
	return out
}

// longest is how many numbers the operands of these tasks are cut from.
func longest(all []task) int {
	n := 0
	for i := range all {
		n = max(n, all[i].a, all[i].b, all[i].c)
	}
	return n + shiftC
}

func (t *task) operands(from []float32) operands {
	cut := func(n, shift int) []float32 {
		if n == 0 {
			return nil
		}
		return from[shift : shift+n]
	}
	return operands{a: cut(t.a, 0), b: cut(t.b, shiftB), c: cut(t.c, shiftC)}
}

// bytesOf is f32 numbers as buffers hold them; every supported processor is little endian.
func bytesOf(f []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(f))), 4*len(f))
}
