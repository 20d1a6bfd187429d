// Package relaybench measures what the scheduler adds to a stream: processor time for each relayed token, time to the
// first token, and whether a thousand streams at once come through.
//
// Run starts the shipped programs, a worker on the sim engine and a scheduler with its default flags, drives them over
// loopback and stops them. Timing alone never fails a run; a failed call, a lost token or a program that does not end
// well does.
package relaybench
