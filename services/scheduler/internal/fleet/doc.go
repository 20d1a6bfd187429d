// Package fleet follows the health of workers and publishes what it knows as immutable snapshots.
//
// New takes addresses and how to dial them; Run keeps one health stream to each worker until its context ends. Snapshot
// is read from any goroutine without a lock; Snapshot.Next tells when a newer one is out. A Link is the way to a worker
// for the requests of this process, over as many connections as they need: it is lost when the worker is silent for a while, when
// a step of it hangs and when it contradicts itself, and closes when nobody holds it any more.
//
// What messages mean is decided by the tracker, which is pure and knows no clock; the scripts in testdata say what it promises. Only
// the watch for silence goes by a clock: it counts ticks.
//
// All state comes from the workers' own reports, so any number of schedulers may follow the same fleet, and one that
// restarts knows it again after one message a worker. The package routes nothing and knows no request.
package fleet
