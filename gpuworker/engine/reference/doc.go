// Package reference is a second, plain implementation of the engines' arithmetic in float64: every
// operation, and a whole decoder over the dequantised weights of a model.
//
// Matmul, Softmax and the others are functions of slices. A Decoder computes the logits of token
// ids for a Sequence, which has the keys and values. The code is written for reading: no blocked
// loops, no approximations, no hidden state.
//
// It shares no code with engines, devices and batches, so that no mistake can be shared.
package reference
