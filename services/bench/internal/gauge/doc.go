// Package gauge drives a runner directly, without the step loop, and takes the time of its steps.
//
// Load binds a model file to a device; a Gauge plays prompts and greedy decoding of several sequences on one runner of
// it. Prompts are random token ids of a seed: sequence i has the same prompt in every batch, so its tokens must be the
// same too. Digest sums tokens up.
//
// One goroutine uses a Gauge. It knows steps and blocks; it prints nothing and compares with no roof.
package gauge
