// Package metrics collects the gateway's metrics and answers its probes. Package monitor serves
// both over HTTP.
//
// New makes the metrics, which observe the requests of package httpapi. Clients cannot create
// labels: routes are patterns of the program, reasons those of package reason or names of codes.
package metrics
