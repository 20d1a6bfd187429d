package template

import (
	"os/exec"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// idleChild is a child whose process has ended already.
func idleChild() *child { return &child{cmd: &exec.Cmd{}, dead: true} }

// idleOf is the idle children when the pool's timer, if it was due, has run.
func idleOf(p *pool) []*child {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.mu.idle)
}

func TestIdleChildrenBeyondTheFirstEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pool{}
		p.mu.idle = []*child{idleChild()}
		var all []*child
		for range 3 {
			c, err := p.acquire()
			require.NoError(t, err)
			if c == nil {
				c = idleChild()
			}
			all = append(all, c)
		}
		p.release(all[0])
		time.Sleep(idleTime / 2)
		p.release(all[1])
		p.release(nil)
		time.Sleep(idleTime / 2)
		require.Len(t, idleOf(p), 2)
		time.Sleep(idleTime)
		require.Equal(t, []*child{all[1]}, idleOf(p))
		p.close()
		_, err := p.acquire()
		require.ErrorIs(t, err, ErrClosed)
	})
}
