// Package admission gives each attempt of a call a place on a worker, and counts it there until the attempt ends.
//
// It asks route where the attempt may go, over the newest snapshot of the fleet and with what this process itself has under way.
// What it gives is a Lease: the worker's link, held, and a share of its load. While no worker has a place the call waits here and not
// at a worker, in the queue of its model: by priority, then so that tenants share tokens alike, then by age. Who resumes goes before
// all. The end of a lease and every new snapshot give places to as many as there are places for, and wake nobody else.
//
// A queue is bounded and refuses what it cannot hold, what a more urgent request takes the place of, what by measured rates would come
// too late, and what has waited for as long as one may; queue is the pure core of that. Admission holds no request's bytes: the server's
// budget counts them while they wait.
package admission
