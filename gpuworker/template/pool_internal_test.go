package template

import (
	"os/exec"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// idleChild is a child whose process has ended already.
func idleChild() *child { return &child{cmd: &exec.Cmd{}, dead: true} }

func TestIdleChildrenBeyondTheFirstEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pool{idle: []*child{idleChild()}}
		var all []*child
		for range 3 {
			c, err := p.take()
			require.NoError(t, err)
			if c == nil {
				c = idleChild()
			}
			all = append(all, c)
		}
		p.giveBack(all[0])
		time.Sleep(idleTime / 2)
		p.giveBack(all[1])
		p.giveBack(nil)
		time.Sleep(idleTime / 2)
		require.Len(t, p.idle, 2)
		time.Sleep(idleTime)
		require.Len(t, p.idle, 1)
		require.Same(t, all[1], p.idle[0])
		p.close()
		_, err := p.take()
		require.ErrorIs(t, err, ErrClosed)
	})
}
