package cli

import (
	"io"

	"github.com/vbauerster/mpb/v8"
	"golang.org/x/term"
)

const (
	// barWidth is the cells of a bar, its ends included.
	barWidth = 32
	// unknownWidth is the columns of a terminal that does not tell its size.
	unknownWidth = 120
)

// container draws bars on the terminal that errors go to.
func (a *app) container() *mpb.Progress {
	if fd, tty := terminal(a.Err); tty {
		if width, height, err := term.GetSize(fd); err == nil && width > 0 && height > 0 {
			return mpb.New(mpb.WithOutput(a.Err))
		}
	}
	out := struct{ io.Writer }{a.Err} // a writer that is not asked for its size
	return mpb.New(mpb.WithOutput(out), mpb.WithWidth(unknownWidth), mpb.WithAutoRefresh())
}

// barStyle is the same in ASCII as Bar of package render.
func barStyle() mpb.BarStyleComposer {
	return mpb.BarStyle().Lbound("[").Filler("#").Tip("").Padding(".").Rbound("]")
}
