// Package relay compares the scheduler with nginx: the processor time for each relayed token and
// the time to first token (TTFT).
//
// Run starts the shipped programs (a worker on the sim engine and a scheduler with default flags)
// and nginx, which relays gRPC to the same worker. It sends the same streams through each of them
// and to the worker itself, in turn, at the rates asked for. Timing alone does not fail a run. A
// failed call, a lost token or a program that does not exit with 0 does.
package relay
