// Package reread is how files that an operator replaces are read again while a process runs: certificates, keys, tokens.
//
// A Source reads its files when it is made, and again when Current is asked for, at most once a second. Nothing runs between: there
// is no timer to set and nothing to close. Who finds another reading gets what was there a moment before. Files that cannot be used
// leave what was there before, and are told of once.
//
// The package knows no format and no flag.
package reread
