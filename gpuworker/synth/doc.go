// Package synth writes model files of random weights, for benchmarks and for tests that need only a
// shape.
//
// Write streams a complete GGUF file of a Shape in a weight type or a mix of types; Lookup returns
// the shapes that benchmarks use by name. The same shape, type and seed give the same bytes.
// Weights are drawn directly in the stored format: random quants under a scale that varies from
// block to block. So matrices have a standard deviation of 1/sqrt(row length), logits are finite
// and spread out, and every bit of the format is used. Norms scatter around one.
//
// If the blocks of a type do not fit a matrix's rows, another type replaces it, as in llama.cpp:
// rows that are not a multiple of 256 turn Q4_K into Q5_0, Q5_K into Q5_1 and Q6_K into Q8_0. Rows
// that are not a multiple of 64 turn NVFP4 into MXFP4. Rows that are not a multiple of 32 are stored
// as F16.
//
// The package writes no tokenizer: such a model works on token ids, and its text has no meaning.
package synth
