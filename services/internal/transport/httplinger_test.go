package transport_test

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/certs/certstest"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/internal/transport"
)

// talk connects without a certificate, and sends more after the server has logged that it refuses
// the connection. It returns how long that took, and the errors of sending and reading.
func talk(t *testing.T, address string, log *lines) (took time.Duration, sent, read error) {
	t.Helper()
	before := len(log.with("handshake error"))
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(t.Context(), "tcp", address)
	require.NoError(t, err, "who is refused learns it later")
	begun := time.Now()
	_, sent = conn.Write([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"))
	require.Eventually(t, func() bool { return len(log.with("handshake error")) > before }, hang, time.Millisecond)
	for range 20 {
		time.Sleep(time.Millisecond)
		_, err := conn.Write([]byte("more"))
		sent = errors.Join(sent, err)
	}
	_, read = conn.Read(make([]byte, 1))
	_ = conn.Close() // it is refused
	return time.Since(begun), sent, read
}

func TestHTTPLingersForRefusedClients(t *testing.T) {
	// The client sends more after it was refused.
	rpctest.NoLeaks(t)
	ca := certstest.New(t)
	own := certstest.Save(t, ca.Issue(t, "ip:127.0.0.1"))
	f := transport.Flags{Cert: own.Cert, Key: own.Key, ClientCA: ca.File}
	cfg, _, err := f.HTTP(rpctest.Logger(t))
	require.NoError(t, err)
	log := &lines{}
	s := &http.Server{
		TLSConfig: cfg, ReadHeaderTimeout: hang, Handler: http.NotFoundHandler(),
		ErrorLog: hclog.New(&hclog.LoggerOptions{Output: log}).StandardLogger(nil),
	}
	var lc net.ListenConfig
	lis, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- s.ServeTLS(transport.Linger(lis), "", "") }()
	took, sent, read := talk(t, lis.Addr().String(), log)
	for guard := time.Now().Add(hang); took > 500*time.Millisecond; took, sent, read = talk(t, lis.Addr().String(), log) {
		require.True(t, time.Now().Before(guard), "the server lingers for a second, and this machine stood still for as long")
	}
	require.NoError(t, sent)
	require.ErrorContains(t, read, "certificate required")
	require.NotErrorIs(t, read, io.EOF)
	require.NoError(t, s.Close())
	require.ErrorIs(t, <-ended, http.ErrServerClosed)
}
