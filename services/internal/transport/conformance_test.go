package transport_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/internal/certs/certstest"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/internal/transport"
)

// hang is a hang guard: the tests wait for a far shorter time.
const hang = time.Minute

// lines is a log that is safe for concurrent use.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// with returns the lines that contain text.
func (l *lines) with(text string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []string
	for line := range strings.Lines(l.b.String()) {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// serve runs a server with the standard services on loopback. It logs at Info.
func serve(t *testing.T, f transport.Flags) (address string, log *lines) {
	t.Helper()
	log = &lines{}
	logger := hclog.New(&hclog.LoggerOptions{Level: hclog.Info, Output: log})
	cfg := rpc.ServerConfig{Domain: rpc.WorkerDomain}
	require.NoError(t, f.Serve(&cfg, logger))
	lis, err := rpc.Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	rpctest.Serve(t, rpc.NewServer(cfg, logger), lis)
	return lis.Addr().String(), log
}

// once prevents a second attempt after a refused connection.
var once = grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: time.Hour, MaxDelay: time.Hour}, MinConnectTimeout: hang})

// dial returns a connection with the given flags.
func dial(t *testing.T, address string, f transport.Flags) *grpc.ClientConn {
	t.Helper()
	creds, err := f.Dialer(rpctest.Logger(t))
	require.NoError(t, err)
	return dialWith(t, address, creds)
}

func dialWith(t *testing.T, address string, creds credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	conn, err := rpc.Dial(address, "test", grpc.WithTransportCredentials(creds), once)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() }) // some tests close it themselves
	return conn
}

// ask requests the server's health.
func ask(t *testing.T, conn *grpc.ClientConn) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	return err
}

func TestServerRefusesClients(t *testing.T) {
	// A refused client gets the right code, and the log one line.
	ca, stranger := certstest.New(t), certstest.New(t)
	server := certstest.Save(t, ca.Issue(t, "ip:127.0.0.1", "dns:worker", "uri:spiffe://example.org/worker"))
	old := certstest.Save(t, ca.IssueUntil(t, time.Now().Add(-time.Hour), "ip:127.0.0.1", "dns:scheduler", "dns:worker"))
	mutual := transport.Flags{Cert: server.Cert, Key: server.Key, ClientCA: ca.File}
	named := mutual
	named.ClientSANs = []string{"dns:scheduler", "uri:spiffe://example.org/scheduler"}
	// client returns the flags of a client with a certificate of an authority and one name.
	client := func(by *certstest.Authority, name string) transport.Flags {
		own := certstest.Save(t, by.Issue(t, name))
		return transport.Flags{CA: ca.File, Cert: own.Cert, Key: own.Key}
	}
	with := func(f transport.Flags, change func(*transport.Flags)) transport.Flags {
		change(&f)
		return f
	}
	for name, tc := range map[string]struct {
		server, client transport.Flags
		code           codes.Code
		says           string // the client's error
		line           string // the one line of the server; "": none
	}{
		"TLS":              {transport.Flags{Cert: server.Cert, Key: server.Key}, transport.Flags{CA: ca.File}, codes.OK, "", ""},
		"mutual TLS":       {mutual, client(ca, "dns:anybody"), codes.OK, "", ""},
		"a DNS name":       {named, client(ca, "dns:Scheduler"), codes.OK, "", ""},
		"a SPIFFE id":      {named, client(ca, "uri:spiffe://example.org/scheduler"), codes.OK, "", ""},
		"a server by name": {mutual, with(client(ca, "dns:a"), func(f *transport.Flags) { f.ServerName = "worker" }), codes.OK, "", ""},
		"a server by its SPIFFE id": {mutual, with(client(ca, "dns:a"), func(f *transport.Flags) {
			f.ServerSANs = []string{"dns:other", "uri:spiffe://example.org/worker"}
		}), codes.OK, "", ""},
		"a server by both": {mutual, with(client(ca, "dns:a"), func(f *transport.Flags) {
			f.ServerName, f.ServerSANs = "worker", []string{"uri:spiffe://example.org/worker"}
		}), codes.OK, "", ""},

		"no certificate":              {mutual, transport.Flags{CA: ca.File}, codes.Unavailable, "tls: certificate required", "client didn't provide a certificate"},
		"a certificate of a stranger": {mutual, client(stranger, "dns:scheduler"), codes.Unavailable, "tls: unknown certificate authority", "certificate signed by unknown authority"},
		"an expired certificate":      {mutual, transport.Flags{CA: ca.File, Cert: old.Cert, Key: old.Key}, codes.Unavailable, "tls: expired certificate", "certificate has expired"},
		"a wrong name":                {named, client(ca, "dns:scheduler.example"), codes.PermissionDenied, "the names of your certificate are dns:scheduler.example", reason.CallerNotAllowed},
		"a wrong SPIFFE id":           {named, client(ca, "uri:spiffe://example.org/scheduler/x"), codes.PermissionDenied, "spiffe://example.org/scheduler/x", reason.CallerNotAllowed},
		"no name":                     {named, client(ca, "ip:127.0.0.1"), codes.PermissionDenied, "", reason.CallerNotAllowed},
		"plaintext":                   {mutual, transport.Flags{}, codes.Unavailable, "", "first record does not look like a TLS handshake"},

		"a server of a stranger": {mutual, with(client(ca, "dns:a"), func(f *transport.Flags) { f.CA = stranger.File }), codes.Unavailable,
			"certificate signed by unknown authority", "bad certificate"},
		"a server of nobody that this machine trusts": {mutual, with(client(ca, "dns:a"), func(f *transport.Flags) { f.CA = transport.System }),
			codes.Unavailable, "certificate signed by unknown authority", "bad certificate"},
		"a server of another name": {mutual, with(client(ca, "dns:a"), func(f *transport.Flags) { f.ServerName = "other" }), codes.Unavailable,
			"certificate is valid for worker, not other", "bad certificate"},
		"a server of another SPIFFE id": {mutual, with(client(ca, "dns:a"), func(f *transport.Flags) {
			f.ServerSANs = []string{"uri:spiffe://example.org/other"}
		}), codes.Unavailable, "--tls-server-san allows none of them", "bad certificate"},
		"a server by one of both": {mutual, with(client(ca, "dns:a"), func(f *transport.Flags) {
			f.ServerName, f.ServerSANs = "other", []string{"dns:worker"}
		}), codes.Unavailable, "certificate is valid for worker, not other", "bad certificate"},
		"a server by name of a stranger": {mutual, with(client(ca, "dns:a"), func(f *transport.Flags) {
			f.CA, f.ServerSANs = stranger.File, []string{"dns:worker"}
		}), codes.Unavailable, "certificate signed by unknown authority", "bad certificate"},
		"an expired server": {with(mutual, func(f *transport.Flags) { f.Cert, f.Key = old.Cert, old.Key }), client(ca, "dns:a"), codes.Unavailable,
			"certificate has expired", "bad certificate"},
		"a server without TLS": {transport.Flags{}, client(ca, "dns:a"), codes.Unavailable, "first record does not look like a TLS handshake", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var log *lines
			var err error
			// A server waits a second for a refused client to read the reason. If the machine
			// stopped this process for that long, the test tries again.
			for again := true; again; {
				stop := rpctest.WatchStalls()
				var address string
				address, log = serve(t, tc.server)
				conn := dial(t, address, tc.client)
				err = ask(t, conn)
				require.NoError(t, conn.Close())
				again = stop() > time.Second/2 && err != nil && !strings.Contains(err.Error(), tc.says)
			}
			require.Equal(t, tc.code, status.Code(err), "%v", err)
			if tc.says != "" {
				require.ErrorContains(t, err, tc.says)
			}
			if tc.code == codes.PermissionDenied {
				require.Equal(t, reason.CallerNotAllowed, rpc.Reason(err))
				require.Equal(t, rpc.WorkerDomain, rpc.Domain(err))
			}
			refused := func() []string { return append(log.with("connection refused"), log.with("PermissionDenied")...) }
			if tc.line == "" {
				require.Empty(t, refused())
				return
			}
			require.Eventually(t, func() bool { return len(refused()) > 0 }, hang, time.Millisecond)
			require.Len(t, refused(), 1)
			require.Contains(t, refused()[0], tc.line)
		})
	}
}

func TestServerRequiresTLS13(t *testing.T) {
	ca := certstest.New(t)
	server := certstest.Save(t, ca.Issue(t, "ip:127.0.0.1"))
	address, log := serve(t, transport.Flags{Cert: server.Cert, Key: server.Key})
	old := &tls.Config{MaxVersion: tls.VersionTLS12, InsecureSkipVerify: true}
	require.Equal(t, codes.Unavailable, status.Code(ask(t, dialWith(t, address, credentials.NewTLS(old)))))
	require.Eventually(t, func() bool { return len(log.with("client offered only unsupported versions")) > 0 }, hang, time.Millisecond)

	lis, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{MaxVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair(t, server)}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = lis.Close() })
	go func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).HandshakeContext(t.Context()) // the client gets the reason from it
			_ = conn.Close()
		}
	}()
	require.ErrorContains(t, ask(t, dial(t, lis.Addr().String(), transport.Flags{CA: ca.File})), "protocol version not supported")
}

func pair(t *testing.T, f certstest.Files) tls.Certificate {
	t.Helper()
	both, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	require.NoError(t, err)
	return both
}
