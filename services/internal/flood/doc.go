// Package flood bounds the lines of a log that strangers can cause, so that who makes thousands of them fills no disk.
//
// A Bound is asked before a line is written, with the line's kind, of which there are few whatever strangers send. It knows no logger.
package flood
