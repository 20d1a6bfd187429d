// Package e2e tests the shipped programs from outside: worker and scheduler processes on loopback,
// driven over gRPC and by signals.
//
// TestMain builds the programs once. Each test starts its own processes on its own ports and checks
// their answers, their state in /proc and their exit codes; the logs of the processes of a failed
// test are printed. Tests run in parallel and need only Go, g++ and Linux. They assert no times: a
// machine may be slow.
//
// No code of the programs is linked into a test.
package e2e
