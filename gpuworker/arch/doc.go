// Package arch reads the description of a model from its file: the shape of the decoder, and which
// tensor has which role.
//
// Parse takes an open gguf.File of one of the Architectures and returns a Model: hyperparameters as
// an engine.ModelDesc, and one Binding per tensor, in file order, with checked dimensions. The
// caller uploads and binds them in that order. Parse refuses by name every key that changes results
// and that the family does not read, such as those of recurrent states, and every tensor without a
// role. A model either runs as its file says or does not load.
//
// A family is one file: a function from keys to a description. It is accepted when synth has a small
// model of it whose logprobs are those of another implementation (testdata).
//
// The package reads descriptions only, not tensor bytes. It has no knowledge of devices or
// tokenizers.
package arch
