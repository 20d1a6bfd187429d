// Package replay measures what routing by cached prefixes gains: the same requests at the same times, on the same workers
// started fresh, sent where a scheduler, two schedulers or a rule of the benchmark's own says.
//
// A trace names the blocks of each prompt; a replayed prompt is made of them, shorter by a factor, and time runs faster by
// another, the workers' too (Scale). Calls begin at the trace's times whether earlier ones have ended or not. Rules (rules.go)
// send calls to workers directly, with counts of their own; the oracle keeps each worker's cache book (book.go), so that it
// knows at once and exactly what schedulers are told. Run starts the shipped programs; a failed call fails it, and so do
// processors that were busy: what waits for a processor says nothing of routing.
package replay
