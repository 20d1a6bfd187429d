// Package safeguards measures what an operator's safeguards cost: processor time of scheduler and worker for each token that a caller
// gets, bare, with each of logs, measures, keys and mutual TLS, and with all of them.
//
// Run starts one scheduler and one worker on the sim engine for each of these, both the shipped programs, and drives them in turn over
// loopback: a round has a turn of each, and costs are differences within a round. A failed call or a lost token fails the run.
package safeguards
