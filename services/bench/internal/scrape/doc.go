// Package scrape reads measures that a worker serves to Prometheus, and how much of a time its device was idle between steps.
//
// It reads the text format, and of that the sums of whole measures; it keeps nothing and knows no worker.
package scrape
