// Package batch is the step loop: it turns requests into steps of one runner and their results into streams.
//
// New gives a Loop, Run owns the device thread until its context ends, Submit may be called from any goroutine and gives a Stream
// for each continuation. What a continuation generates is a function of its prompt and parameters alone, whatever happens around
// it. A round, in order, each in the file of its name:
//
//   - reap takes out cancelled sequences, those that have waited for too long (expire), and readers that stall others;
//   - admit gives places to those that wait: by priority, then so that tenants share alike, then by age. They begin with what the
//     prefix cache or their family has computed (prefix, family), or what of them waits in host memory (swap);
//   - plan chooses the work: every sequence that decodes, then chunks of prompts, so long that a step takes the time it is to take
//     (pace); short prompts may wait for each other (gather), and those of a tenant with many sequences for the tokens of one with
//     few (slowdown). Who lacks a block takes the place of the last in urgency (depart), and share takes places back for tenants
//     without;
//   - compose makes a step of it and flight submits it, while the step before it is still on the device. A step that the engine
//     refuses is cut in two until what is refused is one sequence: that one ends with the engine's error (refusal);
//   - flight reads the oldest step in flight when there are two of them or nothing is to be planned, and deliver hands out its results.
//
// Only a lost device ends the loop and every sequence with it.
//
// It knows token ids and blocks; it refuses to know text, models, files and calls.
package batch
