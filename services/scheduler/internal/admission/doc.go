// Package admission gives each attempt of a call a worker, and counts it there until the attempt ends.
//
// It asks route where the attempt may go, over the newest snapshot of the fleet and with what this process itself has under way.
// What it gives is a Lease: the worker's link, held, and a share of its load.
package admission
