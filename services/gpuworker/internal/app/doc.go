// Package app wires a worker: device, models, server. Run blocks until its context ends.
package app
