// Package proc starts the programs that a benchmark measures and reads what they use from /proc.
//
// A Program is one process: Start runs it and keeps the end of its log, CPU and Memory read its
// usage, Stop ends it and returns an error if it does not exit with 0. A Fleet is workers on the
// sim engine with one model loaded, and schedulers over them. Machine describes the machine that a
// figure was measured on.
package proc
