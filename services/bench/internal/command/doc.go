// Package command is the command line of millrace-bench: flags in, reports out.
//
// Run runs one command. Reports go to the first writer, as text or with --json as one JSON object; what is going on goes
// to the second. It measures nothing itself.
package command
