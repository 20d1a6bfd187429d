// Package relaybench measures what the scheduler adds to a stream: processor time for each relayed token, time to the
// first token, memory for each open stream, and time for each large prompt.
//
// Cost, Streams and Prompts start the shipped programs, workers on the sim engine and a scheduler with its default flags,
// drive them over loopback and stop them. Cost has two yardsticks in the same run: the worker without anything between,
// and nginx relaying gRPC. Timing alone never fails a run; a failed call, a lost token or a program that does not end well
// does.
package relaybench
