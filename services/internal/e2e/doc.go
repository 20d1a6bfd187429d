// Package e2e tests the shipped programs from outside: whole worker and scheduler processes on loopback, driven over
// gRPC and by signals.
//
// Its tests build the programs once, start their own processes on their own ports, and read what those say over the
// contract, what /proc says of them, and how they exit; the log of each process of a failed test is shown. They run in
// parallel and need nothing but Go, g++ and Linux.
//
// It refuses to know what is inside: nothing of the programs is linked into a test.
package e2e
