// Package filewatch reads files again that an operator replaces while a process runs: certificates,
// keys, tokens.
//
// A Source reads its files when it is made, and when Current is called, at most once a second. It
// has no timer or goroutine, and needs no Close. While one caller reads the files, the others get
// the previous value. Unusable files keep the previous value and are reported once.
//
// The package knows no format and no flag.
package filewatch
