package batch

import (
	"sync"
	"time"
)

// recorder records the calls of a loop to its observer.
type recorder struct {
	sync.Mutex
	waited    []time.Duration
	cached    []int
	steps     int
	sequences int
	prompt    int
	decode    int
	first     []time.Duration
	next      []time.Duration
	preempted map[Preemption]int
	freed     []int
}

func (r *recorder) Admitted(waited time.Duration, _, cached int) {
	r.Lock()
	defer r.Unlock()
	r.waited, r.cached = append(r.waited, waited), append(r.cached, cached)
}

func (r *recorder) Stepped(sequences, prompt, decode int, _ time.Duration) {
	r.Lock()
	defer r.Unlock()
	r.steps++
	r.sequences, r.prompt, r.decode = r.sequences+sequences, r.prompt+prompt, r.decode+decode
}

func (r *recorder) FirstToken(d time.Duration) {
	r.Lock()
	defer r.Unlock()
	r.first = append(r.first, d)
}

func (r *recorder) NextToken(d time.Duration) {
	r.Lock()
	defer r.Unlock()
	r.next = append(r.next, d)
}

func (r *recorder) Preempted(p Preemption) {
	r.Lock()
	defer r.Unlock()
	if r.preempted == nil {
		r.preempted = map[Preemption]int{}
	}
	r.preempted[p]++
}

func (r *recorder) Freed(_ time.Duration, steps int) {
	r.Lock()
	defer r.Unlock()
	r.freed = append(r.freed, steps)
}
