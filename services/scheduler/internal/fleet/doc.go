// Package fleet follows the health of workers and publishes it as immutable snapshots.
//
//	worker -- Health stream --> member --> tracker (pure) --> Snapshot --> route, server, console
//	worker <-- Generate ... --- Link <---------------------- Acquire ---- admission
//
// New takes addresses and a function that dials them. Run keeps one health stream to each worker
// until its context ends. Any goroutine may read Snapshot without a lock; Snapshot.Next is closed
// when a newer one exists.
//
// A Link carries the requests of this process to one run of a worker, over as many connections as
// they need. It is lost if the worker is silent for too long, if one of its steps hangs, or if the
// worker contradicts itself about its model. It closes when its last holder has released it.
//
// The tracker interprets messages. It is pure and has no clock: it decides by the worker's own
// counters and ages, so that skewed clocks do not matter. Its promises are golden scripts in
// testdata. Only the detection of silence depends on time, and it counts ticks.
//
// All state comes from the workers' reports. Any number of schedulers may therefore follow one
// fleet, and a scheduler that restarts knows it again after one message from each worker. The
// package routes nothing and sees no request.
package fleet
