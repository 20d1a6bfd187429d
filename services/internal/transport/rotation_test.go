package transport_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"

	"github.com/millrace/millrace/services/internal/certs/certstest"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/internal/transport"
)

// shown returns the certificate that a server presents on a connection.
func shown(t *testing.T, conn *grpc.ClientConn) (*x509.Certificate, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	var p peer.Peer
	if _, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Peer(&p)); err != nil {
		return nil, err
	}
	return p.AuthInfo.(credentials.TLSInfo).State.PeerCertificates[0], nil
}

func TestRotationAppliesToNewConnections(t *testing.T) {
	// Existing streams continue.
	old, next := certstest.New(t), certstest.New(t)
	server := certstest.Save(t, old.Issue(t, "ip:127.0.0.1", "dns:first"))
	client := certstest.Save(t, old.Issue(t, "dns:scheduler"))
	address, log := serve(t, transport.Flags{Cert: server.Cert, Key: server.Key, ClientCA: old.File, ClientSANs: []string{"dns:scheduler"}})
	flags := transport.Flags{CA: old.File, Cert: client.Cert, Key: client.Key}
	creds, err := flags.Dialer(rpctest.Logger(t))
	require.NoError(t, err)
	fresh := func() *grpc.ClientConn { return dialWith(t, address, creds) }
	standing := fresh()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := healthpb.NewHealthClient(standing).Watch(ctx, &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := stream.Recv()
		ended <- err
	}()

	// Each step separately, as docs/security.md describes: both authorities, the certificates, one
	// authority.
	both := append(bytes.Clone(old.Cert), next.Cert...)
	certstest.Write(t, old.File, both)
	server.Replace(t, next.Issue(t, "ip:127.0.0.1", "dns:second"))
	require.Eventually(t, func() bool {
		seen, err := shown(t, fresh())
		return err == nil && seen.DNSNames[0] == "second"
	}, hang, 50*time.Millisecond)
	lost := certstest.Save(t, old.Issue(t, "dns:scheduler")) // a copied certificate
	client.Replace(t, next.Issue(t, "dns:scheduler"))
	time.Sleep(1100 * time.Millisecond) // the files are read once a second
	require.NoError(t, ask(t, fresh()))
	certstest.Write(t, old.File, next.Cert)
	thief := transport.Flags{CA: old.File, Cert: lost.Cert, Key: lost.Key}
	require.Eventually(t, func() bool { return ask(t, dial(t, address, thief)) != nil }, hang, 50*time.Millisecond)
	require.Eventually(t, func() bool { return len(log.with("certificate signed by unknown authority")) > 0 }, hang, time.Millisecond,
		"its line is written behind the client's error")
	require.NoError(t, ask(t, fresh()))

	// An existing connection is not verified again by either side.
	seen, err := shown(t, standing)
	require.NoError(t, err)
	require.Equal(t, "first", seen.DNSNames[0])
	select {
	case err := <-ended:
		require.NoError(t, err, "the stream has ended")
	default:
	}
	require.NotEmpty(t, log.with("certificate files read again"))
	require.Empty(t, log.with("cannot be used"))
}

func TestUnusableFilesKeepTheOldOnes(t *testing.T) {
	ca := certstest.New(t)
	first := ca.Issue(t, "ip:127.0.0.1", "dns:first")
	server := certstest.Save(t, first)
	address, log := serve(t, transport.Flags{Cert: server.Cert, Key: server.Key})
	creds, err := (&transport.Flags{CA: ca.File}).Dialer(rpctest.Logger(t))
	require.NoError(t, err)
	name := func() string {
		conn := dialWith(t, address, creds)
		seen, err := shown(t, conn)
		require.NoError(t, err, "no connection fails, whatever is in the files")
		require.NoError(t, conn.Close())
		return seen.DNSNames[0]
	}
	// fails waits until the server has read the files and could not use them.
	failures := 0
	fails := func(why string) {
		failures++
		require.Eventually(t, func() bool {
			require.Equal(t, "first", name())
			return len(log.with("certificate files cannot be used")) == failures
		}, hang, 50*time.Millisecond)
		require.Contains(t, log.with("certificate files cannot be used")[failures-1], why)
	}
	second := ca.Issue(t, "ip:127.0.0.1", "dns:second")
	certstest.Write(t, server.Cert, second.Cert)
	fails("private key does not match public key")
	certstest.Write(t, server.Cert, second.Cert[:len(second.Cert)/2])
	fails("failed to find any PEM data")
	require.NoError(t, os.Remove(server.Cert))
	fails("no such file")
	for range 30 {
		require.Equal(t, "first", name())
		time.Sleep(50 * time.Millisecond)
	}
	require.Len(t, log.with("certificate files cannot be used"), failures, "what stays wrong is told once")
	server.Replace(t, second)
	require.Eventually(t, func() bool { return name() == "second" }, hang, 50*time.Millisecond)
	require.Empty(t, log.with("connection refused"))

	server.Replace(t, ca.IssueUntil(t, time.Now().Add(-time.Hour), "ip:127.0.0.1"))
	require.Eventually(t, func() bool {
		_ = ask(t, dialWith(t, address, creds)) // refused from then on
		return len(log.with("certificate is not valid at this time")) == 1
	}, hang, 50*time.Millisecond)
}
