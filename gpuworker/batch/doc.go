// Package batch is the step loop of one model. It combines requests into steps of one engine.Runner
// and delivers the results to streams.
//
// The loop does continuous batching (Orca, Yu et al., OSDI 2022): sequences join and leave the
// running batch between any two steps, so a short answer never waits for a long one. It computes
// prompts by chunked prefill (Sarathi-Serve, Agrawal et al., OSDI 2024): a prompt is cut into
// chunks that share steps with decoding sequences, because a step of a whole long prompt would
// delay the next token of every decoding sequence. Keys and values are in fixed-size KV blocks that
// sequences share (PagedAttention in vLLM, Kwon et al., SOSP 2023); package kvcache accounts for
// them.
//
// Two steps are in flight. While the device computes one step, the loop delivers the results of the
// step before it and plans the step after it, so the device does not wait for the host:
//
//	loop    plan 1 | plan 2 | wait | deliver 1 | plan 3 | wait | deliver 2 | plan 4 | wait
//	         submit|  submit|                     submit|                     submit|
//	               v        v                           v                           v
//	device         [==== step 1 ===][========= step 2 =========][========= step 3 ====...
//
// Step 3 is therefore planned before the tokens that step 2 samples are known. This works because
// positions, blocks and slots follow from the plan alone, and the one missing value, the sampled
// id, never leaves the device: a segment names it as engine.PreviousSample. The price is one wasted
// row when a result turns out to be a stop token; the loop drops that row's result.
//
// # A round
//
// Loop.round does this, each part in the file of its name:
//
//  1. reap ends sequences that were cancelled, that waited too long, or whose reader is a slow
//     consumer (backpressure: a stream buffers bufferLimit events, then its sequence pauses).
//  2. admit gives slots to waiting sequences: by priority, then by tenant (fair queueing), then
//     by age. A sequence starts with its prefix hit (prefix), with the prompt that another
//     continuation of its request computed (group), or with blocks from host memory (swap).
//  3. plan chooses the tokens of the step: one for each decoding sequence, then prompt chunks.
//     chunksizer keeps the step near its target length, coalesce delays short prompts so that
//     they share a step, tenantguard holds prompts back while they would slow another tenant's
//     decoding. When blocks run out, the least urgent sequence is preempted (depart); fairness
//     preempts for a tenant that has no slot.
//  4. compose builds the engine.Step and flight submits it. If the engine refuses a step, refusal
//     splits it until it finds the one sequence to blame and ends only that sequence.
//     The masks of sequences under a grammar follow a step (masks). Tokens that a grammar forces
//     are appended without sampling, several in a step (forced).
//  5. flight waits for the oldest step if two are in flight or nothing can be planned, and
//     deliver passes its results to the streams.
//
// Layers of some models carry a state from position to position (Config.States). states cuts parts
// where a state is saved, and a sequence then starts where one stands, not where blocks end.
//
// Prefixes that the device evicts may go to host memory (Config.Tier). tier plans their copies.
//
// Layers with a window may have blocks of their own (Config.Window). windows frees those that left
// the window.
//
// # Rules
//
// A change must keep these:
//
//   - The tokens of a continuation depend on its prompt and parameters alone. Batch composition,
//     chunk sizes, preemption, cache hits and timing must not change a bit. That is why the loop
//     may schedule by the clock.
//   - compose changes no sequence. Only an accepted step changes state (flight.go, submit), so a
//     refused step needs no rollback.
//   - Run's goroutine owns every field that no lock or atomic guards. Other goroutines
//     communicate through inbox, counters, prefixes and the streams.
//   - A sequence gives up blocks only after its last step in flight has ended, except blocks of the
//     window group that none of its steps in flight reads.
//   - Only a lost device ends the loop. Every other failure ends one sequence.
//
// The package handles token ids and blocks. It has no knowledge of text, models, files or calls.
package batch
