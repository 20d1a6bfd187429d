package certs_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/certs"
	"github.com/millrace/millrace/services/internal/transport"
)

var from = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func TestIssuedCertificateVerifies(t *testing.T) {
	// It verifies under each of its names.
	a, err := certs.New("test authority", from, from.Add(48*time.Hour))
	require.NoError(t, err)
	names := []string{"dns:worker", "ip:127.0.0.1", "ip:::1", "uri:spiffe://example.org/worker"}
	sans, err := transport.ParseSANs(names)
	require.NoError(t, err)
	pair, err := a.Issue("worker", sans, from, from.Add(24*time.Hour))
	require.NoError(t, err)

	both, err := tls.X509KeyPair(pair.Cert, pair.Key)
	require.NoError(t, err)
	require.Equal(t, elliptic.P256(), both.PrivateKey.(*ecdsa.PrivateKey).Curve)
	require.Equal(t, "spiffe://example.org/worker", both.Leaf.URIs[0].String())
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(a.Cert))
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		for _, name := range []string{"worker", "127.0.0.1", "::1"} {
			_, err = both.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: from.Add(time.Hour),
				KeyUsages: []x509.ExtKeyUsage{usage}})
			require.NoError(t, err, name)
		}
	}
	_, err = both.Leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: from.Add(25 * time.Hour)})
	require.Error(t, err, "a day is over")

	again, err := certs.Load(a.Pair)
	require.NoError(t, err)
	_, err = again.Issue("late", nil, from, from.Add(49*time.Hour))
	require.ErrorContains(t, err, "the authority ends at 2030-01-03T00:00:00Z")
	_, err = certs.Load(pair)
	require.ErrorContains(t, err, "not the certificate of an authority")
	_, err = certs.Load(certs.Pair{Cert: a.Cert, Key: pair.Key})
	require.Error(t, err, "a key of another certificate")
	other, err := a.Issue("worker", sans, from, from.Add(time.Hour))
	require.NoError(t, err)
	require.NotEqual(t, pair, other, "each has a key and a number of its own")
}
