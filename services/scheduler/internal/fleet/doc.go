// Package fleet follows the health of workers and publishes what it knows as immutable snapshots.
//
// New takes addresses and how to dial them; Run keeps one health stream to each worker until its context ends. Snapshot
// is read from any goroutine without a lock; Snapshot.Next tells when a newer one is out. A Link is the way to a worker
// for the requests of this process: it is lost when nothing has come from the worker for a while, over this connection or
// a later one, and its connection closes when nobody holds it any more.
//
// All state comes from the workers' own reports, so any number of schedulers may follow the same fleet, and one that
// restarts knows it again after one message a worker. The package routes nothing and knows no request.
package fleet
