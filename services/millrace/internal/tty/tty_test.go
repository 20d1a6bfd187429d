package tty

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

func TestCounterShowsTheLargestCount(t *testing.T) {
	var out bytes.Buffer
	container := mpb.New(mpb.WithOutput(&out), mpb.WithAutoRefresh())
	c := &Counter{container: container, bar: container.New(3, BarStyle(), mpb.PrependDecorators(decor.CountersNoUnit("%d of %d ")))}
	for _, done := range []int{1, 3, 2} {
		c.Set(done)
	}
	c.Close()
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Contains(t, lines[len(lines)-1], "3 of 3 ")
}
