package transport

import (
	"bytes"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/ratelog"
)

func TestRefusalLinesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		r := refusals{logger: hclog.New(&hclog.LoggerOptions{Output: &log})}
		refuse := func(n int) (lines []string) {
			log.Reset()
			for range n {
				r.log(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}, errors.New("no certificate"))
			}
			for line := range strings.Lines(log.String()) {
				lines = append(lines, line)
			}
			return lines
		}
		require.Len(t, refuse(4), 4)
		require.Len(t, refuse(36), ratelog.LinesPerSecond-4)
		time.Sleep(time.Second)
		lines := refuse(2)
		require.Len(t, lines, 2)
		require.Contains(t, lines[0], "refused_without_a_line=30", "the next line tells how many had none")
		require.Contains(t, lines[0], "peer=127.0.0.1:1")
		require.Contains(t, lines[0], `error="no certificate"`)
		require.NotContains(t, lines[1], "refused_without_a_line")
	})
}
