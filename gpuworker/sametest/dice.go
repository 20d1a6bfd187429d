package sametest

import (
	"math/rand/v2"
)

// dice are a seeded source of choices: the same seed makes the same ones everywhere.
type dice struct{ *rand.Rand }

// Streams of random numbers that one seed gives, apart from each other.
const (
	streamScenario = iota + 1
	streamAsk
	streamTokens
)

func roll(stream, seed uint64) dice { return dice{rand.New(rand.NewPCG(seed, stream))} }

// one is a number of low .. high.
func (d dice) one(low, high int) int { return low + d.IntN(high-low+1) }

// in says yes once in n times.
func (d dice) in(n int) bool { return d.IntN(n) == 0 }

// ids are n ids of a vocabulary.
func (d dice) ids(n, vocab int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(d.IntN(vocab))
	}
	return out
}

// pick is one of some values.
func pick[T any](d dice, values ...T) T { return values[d.IntN(len(values))] }
