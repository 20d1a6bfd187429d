// Package tty finds terminals among streams and draws progress bars on them.
//
// Elsewhere bars are not drawn: a Counter is silent, and callers of Bars write lines instead.
package tty
