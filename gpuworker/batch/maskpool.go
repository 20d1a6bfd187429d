package batch

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/gpuworker/guide"
)

// maskPiece are the steps of a walk that a goroutine of the pool makes at once, about a quarter of a
// millisecond. The grammar is locked for as long.
const maskPiece = 1 << 16

// maskJob is a mask on its way. Its walk and mask may be used once done is set.
type maskJob struct {
	walk   *guide.Walk
	spent  int  // steps of its sequence's recent masks
	pooled bool // the pool has or had it; owned by the loop
	done   atomic.Bool
	unused atomic.Bool // its sequence has ended
}

// try continues the walk without waiting for the grammar, and takes the steps from a budget.
func (j *maskJob) try(budget *int) bool {
	if *budget <= 0 {
		return false
	}
	before := j.walk.Steps()
	done := j.walk.TryRun(*budget)
	*budget -= j.walk.Steps() - before
	if done {
		j.done.Store(true)
	}
	return done
}

// maskPool makes masks on goroutines of its own, of which there are a quarter of the processors, because
// the engine, the loop and the server need the others.
//
// A mask begins with one piece, which is enough for nearly all. The others are heavy: those of the
// sequences with the least work come first, and between their pieces the pool makes the first pieces of
// new masks. So the masks of a sequence whose grammar is cheap never wait for many of one whose grammar
// is not. A goroutine makes a heavy mask to its end, because a begun one keeps memory.
type maskPool struct {
	workers  int
	finished chan struct{} // holds one token after a mask was finished
	notify   func()        // called after a mask was finished
	running  sync.WaitGroup
	mu       struct {
		sync.Mutex
		fresh, heavy []*maskJob
		workers      int
		closed       bool
	}
}

func newMaskPool(notify func()) *maskPool {
	return &maskPool{workers: min(max(runtime.GOMAXPROCS(0)/4, 1), 8), finished: make(chan struct{}, 1), notify: notify}
}

// add begins a mask, unless it has begun or the pool is closed. The loop's goroutine calls it.
func (p *maskPool) add(j *maskJob) {
	if j.pooled || j.done.Load() {
		return
	}
	j.pooled = true
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return
	}
	p.mu.fresh = append(p.mu.fresh, j)
	if p.mu.workers < p.workers {
		p.mu.workers++
		p.running.Go(p.work)
	}
}

// await waits until all jobs are done, but not longer than patience, if any.
func (p *maskPool) await(jobs []*maskJob, patience time.Duration) {
	open := func(j *maskJob) bool { return !j.done.Load() }
	if patience <= 0 || !slices.ContainsFunc(jobs, open) {
		return
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for slices.ContainsFunc(jobs, open) {
		select {
		case <-p.finished:
		case <-timer.C:
			return
		}
	}
}

// close drops the masks that are not done and waits for the goroutines.
func (p *maskPool) close() {
	p.mu.Lock()
	p.mu.closed, p.mu.fresh, p.mu.heavy = true, nil, nil
	p.mu.Unlock()
	p.running.Wait()
}

// work makes masks until none is left.
func (p *maskPool) work() {
	for {
		p.firstPieces()
		j := p.heavy()
		if j == nil {
			return
		}
		for !p.piece(j) {
			p.firstPieces()
		}
	}
}

// firstPieces makes the first piece of each new mask.
func (p *maskPool) firstPieces() {
	for {
		p.mu.Lock()
		if len(p.mu.fresh) == 0 {
			p.mu.Unlock()
			return
		}
		j := p.mu.fresh[0]
		p.mu.fresh = slices.Delete(p.mu.fresh, 0, 1)
		p.mu.Unlock()
		if !p.piece(j) {
			p.mu.Lock()
			p.mu.heavy = append(p.mu.heavy, j)
			p.mu.Unlock()
		}
	}
}

// heavy returns the begun mask that comes next. If there is no mask, it counts the goroutine as gone and
// returns nil.
func (p *maskPool) heavy() *maskJob {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.mu.heavy) == 0 {
		if len(p.mu.fresh) > 0 { // added since the last look
			j := p.mu.fresh[0]
			p.mu.fresh = slices.Delete(p.mu.fresh, 0, 1)
			return j
		}
		p.mu.workers--
		return nil
	}
	next := 0
	for i, j := range p.mu.heavy {
		if j.spent < p.mu.heavy[next].spent {
			next = i
		}
	}
	j := p.mu.heavy[next]
	p.mu.heavy = slices.Delete(p.mu.heavy, next, next+1)
	return j
}

// piece makes a piece of a mask, and reports whether nothing is left of it.
func (p *maskPool) piece(j *maskJob) bool {
	p.mu.Lock()
	closed := p.mu.closed
	p.mu.Unlock()
	if closed || j.unused.Load() {
		return true
	}
	if !j.walk.Run(maskPiece) {
		return false
	}
	j.done.Store(true)
	select {
	case p.finished <- struct{}{}:
	default:
	}
	p.notify()
	return true
}
