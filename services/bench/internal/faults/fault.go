package faults

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Kind is a kind of fault.
type Kind string

// Kinds of faults.
const (
	Kill      Kind = "kill"   // SIGKILL; restoring starts the member again
	Freeze    Kind = "freeze" // all threads stop, connections stay open
	Partition Kind = "cut"    // no byte passes either way, connections stay open
	drain     Kind = "drain"  // DrainWorker, which the tests of containers call; not a fault to choose
)

// Kinds are the kinds that a driver injects.
var Kinds = []Kind{Kill, Freeze, Partition}

// maxPause is the time that a fault may stop a stream, besides what the same resume takes
// undisturbed. A frozen or partitioned worker is silent, and schedulers must notice the silence
// first.
var maxPause = map[Kind]time.Duration{Kill: time.Second, Freeze: 3 * time.Second, Partition: 3 * time.Second}

// ParseKinds reads names of kinds.
func ParseKinds(names []string) ([]Kind, error) {
	var kinds []Kind
	for _, name := range names {
		if !slices.Contains(Kinds, Kind(name)) {
			return nil, fmt.Errorf("fault %q: want %v", name, Kinds)
		}
		if !slices.Contains(kinds, Kind(name)) {
			kinds = append(kinds, Kind(name))
		}
	}
	return kinds, nil
}

// Fault is one fault that was injected.
type Fault struct {
	Kind Kind          `json:"kind"`
	Node string        `json:"node"`
	At   time.Duration `json:"at_ns"`     // since the stage began
	Over time.Duration `json:"over_ns"`   // when the member was restored
	Busy uint32        `json:"sequences"` // streams of clients that began there and were open
}

// driver injects faults into the members of a fleet: the workers, by their ids, and the schedulers,
// by their names. Its methods may be called concurrently for different members.
type driver interface {
	// inject returns when the fault has taken effect, and since when it has.
	inject(ctx context.Context, kind Kind, member string) (time.Time, error)
	// restore takes a fault back. A member that was killed is started and need not be ready on
	// return.
	restore(ctx context.Context, kind Kind, member string) error
	// check returns an error if a program has ended without a fault.
	check() error
}

// inFlight is how long after a fault tokens may still arrive that the worker sent before it.
const inFlight = 250 * time.Millisecond

// interruption is a fault between two tokens of a stream.
type interruption struct {
	record  *record
	fault   int           // index
	after   int           // arrivals before the pause
	pause   time.Duration // the longest between two arrivals around the fault
	resumed bool          // tokens came while the worker could not send: another one continued the stream
	moved   bool          // an earlier fault moved the stream, so its worker is unknown and need not be the faulty one
}

// interruptions returns the faults that met a stream. A stream reports its first worker; after its
// first interruption only the scheduler knows where it runs. From then on a pause counts for a
// fault if it spans the fault's moment and is longer than the fault may cause.
func interruptions(r *record, faults []Fault) (all []interruption) {
	worker, counted := r.worker, time.Duration(0)
	for k, f := range faults {
		n := r.before(f.At)
		if n == 0 || n == len(r.arrivals) || r.ended <= f.At || f.At < counted {
			continue // before the first token, after the last, or in the pause of an earlier fault
		}
		if worker == "" {
			if pause := r.arrivals[n].at - r.arrivals[n-1].at; pause > maxPause[f.Kind] {
				all, counted = append(all, interruption{record: r, fault: k, after: n, pause: pause, moved: true}), r.arrivals[n].at
			}
			continue
		}
		end := r.before(f.At + inFlight)
		if worker != f.Node || end == len(r.arrivals) {
			continue // on another worker, or at its end before a token could be missed
		}
		found := interruption{record: r, fault: k, resumed: f.Kind == Kill || r.arrivals[end].at < f.Over}
		for i := n; i <= end; i++ {
			if pause := r.arrivals[i].at - r.arrivals[i-1].at; pause > found.pause {
				found.pause, found.after = pause, i
			}
		}
		all, counted = append(all, found), r.arrivals[found.after].at
		if found.resumed {
			worker = ""
		}
	}
	return all
}
