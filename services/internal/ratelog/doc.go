// Package ratelog bounds what callers can make a process log, in lines and in bytes, so that no
// caller fills a disk.
//
// A Limiter is asked before a line is written, with the kind of the line. There must be few kinds,
// whatever callers send. Clip bounds each text of a caller that is logged, annotated, or put into a
// span or a metric's label. The package has no logger.
package ratelog
