// Package batch is the step loop: it turns requests into steps of one runner and their results into streams.
//
// New gives a Loop, Run owns the device thread until its context ends, Submit may be called from any goroutine and
// gives a Stream. Two steps are in flight: each is planned and submitted before the result of the one before it is read, so that
// the device never waits for the loop. Each round takes cancelled sequences out, admits waiting ones by age, decodes every
// running sequence and fills what is left of the token budget with prefill chunks: as many tokens as keep a step short, and
// shorter still where sequences decode in it. When blocks run out, the youngest sequence is preempted and computed again later, to the same bits.
// A step that the engine refuses is cut in two until what is refused is one sequence: that one ends with the engine's error.
// Only a lost device ends the loop and every sequence with it.
//
// It knows token ids and blocks; it refuses to know text, models, files and calls.
package batch
