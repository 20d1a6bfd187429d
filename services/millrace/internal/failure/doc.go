// Package failure turns errors into exit codes and into text that says what happened and what to do.
//
// Code chooses the exit code. Explain writes the lines for the terminal: the message, every
// violation, the reason, its numbers, how far the request came, and the next step. Both are pure
// functions of the error and of the command's request.
//
// The package makes no call and prints nothing.
package failure
