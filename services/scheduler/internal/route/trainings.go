package route

import (
	"fmt"
	"strconv"
	"sync"
)

// trainings counts trainings on one worker. Safe for concurrent use.
type trainings struct {
	mu sync.Mutex // held by who changes the count
	count
}

func (t *trainings) take(most int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sum() >= most {
		return false
	}
	t.add(1)
	return true
}

func (t *trainings) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.add(-1)
}

func (t *trainings) reported(total int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count.reported(total)
}

// TrainingRequest is what routing needs of a training.
type TrainingRequest struct {
	// Rows are the bytes of the rows that are trained on, Rest those that the device must hold beside them, both lower bounds.
	Rows, Rest uint64
	// Exclude are workers that have refused it.
	Exclude []string
	// Tie is a random number.
	Tie uint64
}

// fit is how a training fits a worker, the best first.
type fit uint8

const (
	resident fit = iota // the device holds its rows
	streamed            // the host does
	unfit
)

// fit is by the worker's last report: the worker itself knows exactly.
func (v *Vectors) fit(r *TrainingRequest) fit {
	switch {
	case r.Rest > v.FreeDevice:
		return unfit
	case r.Rows <= v.FreeDevice-r.Rest:
		return resident
	case r.Rows <= v.FreeSpool:
		return streamed
	}
	return unfit
}

// PickTraining chooses the worker that should run a training: one that takes trainings and has memory for it, with the fewest
// trainings; of equals one whose device holds the rows, and of those the one with more device memory free of two that are drawn. Where
// none has the memory, one that has a place is chosen, which knows best why it cannot. Take it with Load.Vectors.Train, of
// MaxTrainings. The error is a *Refusal.
func PickTraining(s *Snapshot, r TrainingRequest) (index int, err error) {
	if !s.Known {
		return 0, unknown(s)
	}
	var able []int
	best := [2]int64{}
	connected, takes, roomy := 0, 0, 0 // workers that are there, that take trainings, and that have memory for this one
	for i := range s.Workers {
		w := &s.Workers[i]
		if w.Connected {
			connected++
		}
		if !w.Serves() || w.Vectors == nil || w.Vectors.MaxTrainings == 0 {
			continue
		}
		takes++
		if passed(r.Exclude, w.ID) {
			continue
		}
		is := w.Vectors.fit(&r)
		if is != unfit {
			roomy++
		}
		busy := w.Load.Vectors.Trainings()
		if busy >= w.Vectors.MaxTrainings {
			continue
		}
		// Those with memory come first, then those with fewer trainings.
		order := [2]int64{int64(is / unfit), busy*int64(unfit) + int64(is)}
		switch {
		case len(able) == 0 || less(order, best):
			able, best = append(able[:0], i), order
		case order == best:
			able = append(able, i)
		}
	}
	switch {
	case connected == 0:
		return 0, nobodyConnected(s)
	case takes == 0:
		return 0, refuse(ErrNoTrainings, fmt.Sprintf("none of the %d workers that are reached takes trainings now: start one that does, "+
			"with --max-trainings", connected), "connected", strconv.Itoa(connected))
	case len(able) == 0 && roomy == 0 && len(r.Exclude) > 0:
		return 0, refuse(ErrNoWorker, "no other worker takes the training")
	case len(able) == 0 || best[0] > 0 && roomy > 0:
		return 0, refuse(ErrTrainingsFull, fmt.Sprintf("each of the workers that have memory for the training runs as many as it may: "+
			"try again when one has ended, %d workers take trainings", takes), "workers", strconv.Itoa(takes))
	}
	first, second := able[r.Tie%uint64(len(able))], able[(r.Tie>>32)%uint64(len(able))]
	if s.Workers[second].Vectors.FreeDevice > s.Workers[first].Vectors.FreeDevice {
		return second, nil
	}
	return first, nil
}

func less(a, b [2]int64) bool { return a[0] < b[0] || a[0] == b[0] && a[1] < b[1] }
