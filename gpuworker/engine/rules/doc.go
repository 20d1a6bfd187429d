// Package rules is the part of the engine's contract that needs no device: which models, tensors, runners and steps are
// well formed.
//
// Tensors and TensorSize describe a model's tensors; CheckModel, CheckConfig and CheckParams refuse what is out of range;
// a Slots mirrors the slots of one runner and admits or refuses steps. The sim engine and the conformance suite use it,
// and so may any caller that wants to refuse early.
//
// It refuses to know memory, time and arithmetic: every function is pure, and a Slots changes only when a step is
// admitted. Nothing here is safe for concurrent use.
package rules
