// Package command is the command line of millrace-bench.
//
// Run runs one command. Reports go to the first writer, as text or with --json as one JSON object;
// progress goes to the second. The package measures nothing itself.
package command
