// Package flood bounds what strangers can make a process log, in lines and in bytes, so that no caller fills a disk.
//
// A Bound is asked before a line is written, with the line's kind, of which there are few whatever strangers send. Clip bounds each
// text of a caller that is logged, annotated, or put into a span or a metric's label. The package has no logger.
package flood
