package monitor

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// pipes is a listener whose connections are pipes, so that a fake clock controls their deadlines.
type pipes struct {
	calls chan net.Conn
	done  chan struct{}
}

func newPipes() *pipes { return &pipes{calls: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.calls:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.done); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

func (p *pipes) dial() net.Conn {
	here, there := net.Pipe()
	p.calls <- there
	return here
}

// newPage returns the page of a healthy process with the runtime's metrics.
func newPage(t *testing.T) Page {
	t.Helper()
	registry, err := Registry()
	require.NoError(t, err)
	well := func() (bool, string) { return true, "ready\n" }
	return Page{Metrics: registry, Alive: well, Able: well}
}

// serveOn serves in a synctest bubble. end stops it and waits.
func serveOn(t *testing.T, p *pipes) (end func() error) {
	t.Helper()
	page := newPage(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- page.Serve(ctx, p, rpctest.Logger(t)) }()
	return func() error {
		cancel()
		return <-ended
	}
}

func TestSlowClientsAreCutOff(t *testing.T) {
	for name, tc := range map[string]struct {
		send  string
		limit time.Duration
	}{
		"one that says nothing":               {"", readTimeout},
		"one that does not end its question":  {"GET /metrics HTTP/1.1\r\nHost: w\r\n", readTimeout},
		"one that does not read its answer":   {"GET /metrics HTTP/1.1\r\nHost: w\r\n\r\n", writeTimeout},
		"one that sends a body it never ends": {"GET /metrics HTTP/1.1\r\nHost: w\r\nContent-Length: 9\r\n\r\n", writeTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPipes()
				end := serveOn(t, p)
				c := p.dial()
				if tc.send != "" {
					_, err := io.WriteString(c, tc.send)
					require.NoError(t, err)
				}
				time.Sleep(tc.limit + time.Second)
				synctest.Wait()
				begin := time.Now()
				_, _ = io.Copy(io.Discard, c) // what is buffered, then the end
				require.Zero(t, time.Since(begin), "it was cut off before")
				require.NoError(t, end())
				require.NoError(t, c.Close())
			})
		})
	}
}

func TestServedClientHoldsNoConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		end := serveOn(t, p)
		for range maxConnections + 1 { // none of them hangs up
			c := p.dial()
			_, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: w\r\n\r\n")
			require.NoError(t, err)
			begin := time.Now()
			answer, err := io.ReadAll(c)
			require.NoError(t, err)
			require.Contains(t, string(answer), "200 OK")
			require.Zero(t, time.Since(begin), "the server hangs up at once")
			t.Cleanup(func() { require.NoError(t, c.Close()) })
		}
		require.NoError(t, end())
	})
}

func TestServeEndsDespiteOpenClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		end := serveOn(t, p)
		idle, busy := p.dial(), p.dial()
		_, err := io.WriteString(idle, "GET /healthz HTTP/1.1\r\nHost: w\r\n\r\n")
		require.NoError(t, err)
		answer, err := http.ReadResponse(bufio.NewReader(idle), nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, answer.StatusCode)
		require.NoError(t, answer.Body.Close())
		_, err = io.WriteString(busy, "GET /metrics HTTP/1.1\r\nHost: w\r\n\r\n") // and never reads
		require.NoError(t, err)
		begin := time.Now()
		require.NoError(t, end())
		require.LessOrEqual(t, time.Since(begin), stopTimeout)
		require.NoError(t, idle.Close())
		require.NoError(t, busy.Close())
	})
}

func TestLongHeaderIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		end := serveOn(t, p)
		c := p.dial()
		go func() { _, _ = io.WriteString(c, "GET /metrics HTTP/1.1\r\nX: "+strings.Repeat("x", 64<<10)) }()
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, answer.StatusCode)
		require.NoError(t, answer.Body.Close())
		require.NoError(t, c.Close())
		require.NoError(t, end())
	})
}
