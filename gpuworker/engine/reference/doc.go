// Package reference is a second, plain implementation of what engines compute, in float64: every operation, and a whole
// decoder over the dequantised weights of a model.
//
// Matmul, Softmax and the others take and return slices; a Decoder runs token ids to logits through a Sequence, which
// keeps keys and values. Everything is written for reading: no blocking of loops, no approximation, no state outside the
// values in hand.
//
// It refuses to know engines, devices and batches, so that no mistake can be shared with what it judges.
package reference
