// Package cli holds the client's commands, one file each.
//
// Run executes one command line over a System (streams, signals, configuration) and returns the exit code; main is its
// only caller, except for tests. A command parses its flags, makes calls through the generated stubs, and writes results to
// System.Out and everything else (statistics, progress, errors) to System.Err. Control characters are written only to
// terminals. Signals end the command's context, except in a conversation, where Ctrl-C ends the answer.
//
// The package reads no environment, exits no process, and depends on the servers through the contract only.
package cli
