package template

import (
	"sync"
	"time"
)

// idleTime is how long a child other than the first may be idle before it is ended.
const idleTime = time.Minute

// pool is the idle children of one template. Children are used from the end, so that the first ones
// have been idle longest. It is safe for concurrent use.
type pool struct {
	taken sync.WaitGroup // renderings under way

	mu struct {
		sync.Mutex
		idle   []*child
		closed bool
		timer  *time.Timer // nil: no child has to be ended
	}
}

// acquire returns an idle child, or nil if all are busy; the caller then starts one. The caller
// must call giveBack.
func (p *pool) acquire() (*child, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return nil, ErrClosed
	}
	p.taken.Add(1)
	if len(p.mu.idle) == 0 {
		return nil, nil
	}
	last := len(p.mu.idle) - 1
	c := p.mu.idle[last]
	p.mu.idle[last], p.mu.idle = nil, p.mu.idle[:last]
	return c, nil
}

// release returns a child; c is nil if the child is dead.
func (p *pool) release(c *child) {
	defer p.taken.Done()
	if c == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c.used = time.Now()
	p.mu.idle = append(p.mu.idle, c)
	p.watchLocked()
}

// watchLocked schedules shrink while there is more than one idle child.
func (p *pool) watchLocked() {
	if p.mu.timer == nil && !p.mu.closed && len(p.mu.idle) > 1 {
		p.mu.timer = time.AfterFunc(idleTime, p.shrink)
	}
}

// shrink ends the children other than the first that have been idle for idleTime.
func (p *pool) shrink() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.timer = nil
	if p.mu.closed {
		return
	}
	for len(p.mu.idle) > 1 && time.Since(p.mu.idle[0].used) >= idleTime {
		p.mu.idle[0].kill()
		p.mu.idle = append(p.mu.idle[:0], p.mu.idle[1:]...)
	}
	p.watchLocked()
}

// close waits for running renderings and ends all children.
func (p *pool) close() {
	p.mu.Lock()
	p.mu.closed = true
	if p.mu.timer != nil {
		p.mu.timer.Stop()
	}
	p.mu.Unlock()
	p.taken.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.mu.idle {
		c.kill()
	}
	p.mu.idle = nil
}
