// Package rules has the part of the engine's contract that needs no device: which models, tensors,
// runners and steps are well formed.
//
// Tensors and TensorSize describe a model's tensors. CheckModel, CheckConfig and CheckParams refuse
// values that are out of range. A Slots mirrors the slots of one runner and admits or refuses
// steps. The sim engine and the conformance suite use the package, and any caller may use it to
// refuse early.
//
// Every function is pure, and a Slots changes only when a step is admitted. Nothing here is safe
// for concurrent use.
package rules
