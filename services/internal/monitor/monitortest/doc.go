// Package monitortest is what tests of measures share: comparing docs/measures.md with what there is, checking names, and reading a
// page as Prometheus does.
package monitortest
