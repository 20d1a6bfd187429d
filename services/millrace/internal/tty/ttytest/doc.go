// Package ttytest opens pseudo terminals for tests of commands, and makes texts that a terminal must not
// be sent.
package ttytest
