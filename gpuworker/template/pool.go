package template

import (
	"sync"
	"time"
)

// idleTime is how long a child beyond the first may have nothing to do before it is ended.
const idleTime = time.Minute

// pool is the children of one template that render nothing now. Children are taken from the end, so that those at the beginning
// are idle for longest. Safe for concurrent use.
type pool struct {
	taken sync.WaitGroup // renderings under way

	mu     sync.Mutex
	idle   []*child    // guarded by mu
	closed bool        // guarded by mu
	timer  *time.Timer // guarded by mu; nil: no child has to be ended
}

// take returns an idle child, or nil if there is none: then the caller starts one. The caller gives back what it has in the end.
func (p *pool) take() (*child, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	p.taken.Add(1)
	if len(p.idle) == 0 {
		return nil, nil
	}
	last := len(p.idle) - 1
	c := p.idle[last]
	p.idle[last], p.idle = nil, p.idle[:last]
	return c, nil
}

// giveBack ends what take began; c is nil if the caller's child is gone.
func (p *pool) giveBack(c *child) {
	defer p.taken.Done()
	if c == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c.used = time.Now()
	p.idle = append(p.idle, c)
	p.watch()
}

// watch has shrink called as long as there is more than one idle child. The caller holds mu.
func (p *pool) watch() {
	if p.timer == nil && !p.closed && len(p.idle) > 1 {
		p.timer = time.AfterFunc(idleTime, p.shrink)
	}
}

// shrink ends the children beyond the first that were idle for long.
func (p *pool) shrink() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = nil
	if p.closed {
		return
	}
	for len(p.idle) > 1 && time.Since(p.idle[0].used) >= idleTime {
		p.idle[0].kill()
		p.idle = append(p.idle[:0], p.idle[1:]...)
	}
	p.watch()
}

// close waits for the renderings under way and ends all children.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Unlock()
	p.taken.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.idle {
		c.kill()
	}
	p.idle = nil
}
