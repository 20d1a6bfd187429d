package cli

import (
	"sync"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// counter is a bar over things of equal size, on a terminal; elsewhere it shows nothing.
type counter struct {
	container *mpb.Progress
	bar       *mpb.Bar

	mu   sync.Mutex
	most int // guarded by mu; that was set
}

// counter starts a bar over total things of a kind.
func (a *app) counter(what string, total int) *counter {
	if _, tty := terminal(a.Err); !tty {
		return &counter{}
	}
	container := a.container()
	return &counter{container: container, bar: container.New(int64(total), barStyle(), mpb.BarWidth(barWidth),
		mpb.PrependDecorators(decor.Name(what+" "), decor.CountersNoUnit("%d of %d ")),
		mpb.AppendDecorators(decor.AverageETA(decor.ET_STYLE_GO), decor.Name(" left")))}
}

// set says how many are done; it may be called from several goroutines. The most that any of them says counts: who counted last need not
// come here last.
func (c *counter) set(done int) {
	if c.bar == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if done > c.most {
		c.most = done
		c.bar.SetCurrent(int64(done))
	}
}

// close ends the display.
func (c *counter) close() {
	if c.bar != nil {
		c.bar.Abort(false) // no effect on one that is complete
		c.container.Wait()
	}
}
