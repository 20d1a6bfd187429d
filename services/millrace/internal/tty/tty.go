package tty

import (
	"io"
	"os"
	"sync"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

const (
	// BarWidth is the cells of a bar, its ends included.
	BarWidth = 32
	// unknownWidth is the columns of a terminal whose size is not known.
	unknownWidth = 120
)

// Of returns the descriptor of a stream that is a terminal.
func Of(stream any) (fd int, ok bool) {
	f, ok := stream.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0, false
	}
	return int(f.Fd()), true
}

// Bars draws progress bars on a terminal.
func Bars(w io.Writer) *mpb.Progress {
	if fd, tty := Of(w); tty {
		if width, height, err := term.GetSize(fd); err == nil && width > 0 && height > 0 {
			return mpb.New(mpb.WithOutput(w))
		}
	}
	out := struct{ io.Writer }{w} // hides the file, so that its size is not asked for
	return mpb.New(mpb.WithOutput(out), mpb.WithWidth(unknownWidth), mpb.WithAutoRefresh())
}

// BarStyle draws bars in ASCII, like Bar of package render.
func BarStyle() mpb.BarStyleComposer {
	return mpb.BarStyle().Lbound("[").Filler("#").Tip("").Padding(".").Rbound("]")
}

// Counter is a bar that counts things. Without a terminal it draws nothing. Set is safe for
// concurrent use.
type Counter struct {
	container *mpb.Progress
	bar       *mpb.Bar

	mu   sync.Mutex
	most int // guarded by mu; the largest count that was set
}

// NewCounter starts a bar that counts to total on w, a terminal or not. Close it.
func NewCounter(w io.Writer, what string, total int) *Counter {
	if _, tty := Of(w); !tty {
		return &Counter{}
	}
	container := Bars(w)
	return &Counter{container: container, bar: container.New(int64(total), BarStyle(), mpb.BarWidth(BarWidth),
		mpb.PrependDecorators(decor.Name(what+" "), decor.CountersNoUnit("%d of %d ")),
		mpb.AppendDecorators(decor.AverageETA(decor.ET_STYLE_GO), decor.Name(" left")))}
}

// Set sets how many are done. A number below an earlier one is ignored, because goroutines that count
// may call Set in another order.
func (c *Counter) Set(done int) {
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

// Close ends the display.
func (c *Counter) Close() {
	if c.bar != nil {
		c.bar.Abort(false) // no effect on a complete one
		c.container.Wait()
	}
}
