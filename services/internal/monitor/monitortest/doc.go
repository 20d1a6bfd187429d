// Package monitortest helps tests of metrics: it compares the metrics document with the code,
// checks names, and parses a page like Prometheus.
package monitortest
