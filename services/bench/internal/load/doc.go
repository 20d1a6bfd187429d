// Package load plays requests against a server of the contract and takes their times.
//
// A Maker makes requests of random token ids or of one text; Closed keeps a number of calls running, Open starts calls
// at given times whether earlier ones have ended or not. Both tell a Recorder, whose Report has the latencies, the
// throughput and the errors by code and reason. In an open loop, times count from when a request was due, so that a
// server that falls behind cannot hide it.
//
// It knows the contract and clocks; it does not know what is behind the connection.
package load
