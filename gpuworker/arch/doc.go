// Package arch reads from a model file what an engine must be told: the shape of the decoder, and which tensor plays
// which role.
//
// Parse takes an open gguf.File of one of the architectures that Architectures lists and returns a Model: hyperparameters
// as an engine.ModelDesc, and one Binding per tensor, in file order, with dimensions already checked against them. The
// caller uploads and binds them in that order. Whatever would change results and is not built - experts, sliding windows,
// soft caps, rope scalings other than linear and by factors - is refused by name, and so is every tensor without a role:
// a model either runs as its file says or does not load.
//
// The package reads descriptions only. It knows nothing of tensor bytes, devices or tokenizers.
package arch
