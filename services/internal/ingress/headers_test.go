package ingress

import (
	"bytes"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
)

// slowly runs the server's end of a connection whose client pauses after each byte of a call's
// headers, then calls behind. It returns the error that ends reading, when that was, and what the
// listener was notified of.
func slowly(t *testing.T, pause time.Duration, behind func(net.Conn)) (refused []error, after time.Duration, err error) {
	t.Helper()
	var begin, block bytes.Buffer
	begin.WriteString(http2.ClientPreface)
	require.NoError(t, http2.NewFramer(&begin, nil).WriteSettings())
	framer := http2.NewFramer(&block, nil)
	require.NoError(t, framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}}))
	require.NoError(t, framer.WriteContinuation(1, true, []byte{0x86}))

	server, client := net.Pipe()
	done := make(chan struct{})
	defer func() { require.NoError(t, server.Close()); <-done }()
	lis := &limiter{limits: Limits{Refused: func(_ net.Addr, why error) { refused = append(refused, why) }}}
	c, _, err := Credentials(nil).ServerHandshake(&accepted{Conn: server, owner: lis})
	require.NoError(t, err)
	begun := time.Now()
	go func() {
		defer close(done)
		defer func() { _ = client.Close() }()
		for _, part := range [][]byte{begin.Bytes(), block.Bytes()} {
			for i := range part {
				if _, err := client.Write(part[i : i+1]); err != nil {
					return
				}
				if len(part) == block.Len() {
					time.Sleep(pause)
				}
			}
		}
		behind(client)
	}()
	for p := make([]byte, 64); err == nil; {
		require.NoError(t, c.SetReadDeadline(time.Time{})) // as grpc-go does after a handshake
		_, err = c.Read(p)
	}
	return refused, time.Since(begun), err
}

func TestSlowHeadersEndTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused, after, err := slowly(t, 3*time.Second, func(net.Conn) {})
		require.ErrorIs(t, err, ErrSlowHeaders)
		require.Equal(t, 8*3*time.Second+headersTimeout, after, "the block begins with the last byte of its frame's head, the ninth")
		require.Equal(t, []error{ErrSlowHeaders}, refused)
	})
}

func TestSilenceAfterHeadersIsAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused, after, _ := slowly(t, time.Second, func(net.Conn) { time.Sleep(time.Hour) })
		require.Greater(t, after, time.Hour)
		require.Empty(t, refused)
	})
}

// one is a listener of one connection.
type one struct {
	conn   chan net.Conn
	closed chan struct{}
}

func (l one) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (l one) Close() error { close(l.closed); return nil }
func (one) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

func TestServerClosesOnSlowHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := net.Pipe()
		lis := one{make(chan net.Conn, 1), make(chan struct{})}
		lis.conn <- server
		s := grpc.NewServer(grpc.Creds(Credentials(nil)))
		served := make(chan error, 1)
		go func() { served <- s.Serve(Limit(lis, Limits{})) }()
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			if _, err := client.Write([]byte(http2.ClientPreface)); err != nil {
				return
			}
			framer := http2.NewFramer(client, nil)
			err := framer.WriteSettings()
			if err == nil {
				// the header of a frame of 256 bytes
				_, err = client.Write([]byte{0, 1, 0, byte(http2.FrameHeaders), 0, 0, 0, 0, 1})
			}
			for err == nil {
				time.Sleep(time.Second)
				_, err = client.Write([]byte{0})
			}
		}()
		begun := time.Now()
		_, err := io.Copy(io.Discard, client)
		require.NoError(t, err, "the server has closed its end")
		require.Equal(t, headersTimeout, time.Since(begun))
		<-sent
		s.Stop()
		require.NoError(t, <-served)
	})
}
