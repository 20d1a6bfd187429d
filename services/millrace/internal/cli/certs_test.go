package cli_test

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// leaf reads a pair of a folder.
func leaf(t *testing.T, dir, name string) *x509.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".pem"), filepath.Join(dir, name+"-key.pem"))
	require.NoError(t, err)
	return pair.Leaf
}

func TestCertsMakesAuthorityAndLeaves(t *testing.T) {
	// Certificates are signed by a new authority, and existing files are never replaced.
	dir := filepath.Join(t.TempDir(), "deep", "certs")
	r := &rig{target: "127.0.0.1:1"} // no server is asked
	require.Equal(t, 0, r.run(t, "certs", "scheduler", "worker", "--dir", dir), r.err.String())
	var want []string
	for _, file := range []string{"ca.pem", "ca-key.pem", "scheduler.pem", "scheduler-key.pem", "worker.pem", "worker-key.pem"} {
		want = append(want, filepath.Join(dir, file))
	}
	require.Equal(t, strings.Join(want, "\n")+"\n", r.out.String())
	for _, path := range want {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), path)
	}
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())

	r.out = buffer{}
	require.Equal(t, 0, r.run(t, "certs", "worker-7.example", "--dir", dir, "--valid", "2h", "--san", "ip:10.0.0.7,uri:spiffe://example.org/w"), r.err.String())
	require.Equal(t, 2, strings.Count(r.out.String(), "\n"), "the authority is the one that was there")
	roots := x509.NewCertPool()
	text, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	require.NoError(t, err)
	require.True(t, roots.AppendCertsFromPEM(text))
	for name, hosts := range map[string][]string{
		"scheduler": {"scheduler", "localhost", "127.0.0.1", "::1"}, "worker-7.example": {"worker-7.example", "10.0.0.7"},
	} {
		cert := leaf(t, dir, name)
		for _, host := range hosts {
			_, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: host, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
			require.NoError(t, err, host)
		}
	}
	special := leaf(t, dir, "worker-7.example")
	require.Equal(t, "spiffe://example.org/w", special.URIs[0].String())
	require.WithinDuration(t, time.Now().Add(2*time.Hour), special.NotAfter, time.Hour)
	require.True(t, leaf(t, dir, "ca").IsCA)

	// What is there stays, and nothing is left of a command that could not do all.
	before, err := os.ReadFile(filepath.Join(dir, "worker.pem"))
	require.NoError(t, err)
	require.Equal(t, 1, r.run(t, "certs", "third", "worker", "--dir", dir))
	require.Contains(t, r.err.String(), "worker.pem is there already")
	after, err := os.ReadFile(filepath.Join(dir, "worker.pem"))
	require.NoError(t, err)
	require.Equal(t, before, after)
	require.NoFileExists(t, filepath.Join(dir, "third.pem"))
	require.NoFileExists(t, filepath.Join(dir, "third-key.pem"))
}

func TestCertsRefusesWhatItCannotMake(t *testing.T) {
	broken := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(broken, "ca.pem"), nil, 0o600))
	empty := t.TempDir()
	for _, file := range []string{"ca.pem", "ca-key.pem"} {
		require.NoError(t, os.WriteFile(filepath.Join(empty, file), nil, 0o600))
	}
	for name, tc := range map[string]struct {
		args []string
		code int
		says string
	}{
		"nothing":              {nil, 2, "at least 1 arg"},
		"the authority's name": {[]string{"ca"}, 2, `"ca": want names`},
		"a key's name":         {[]string{"a-key"}, 2, `"a-key": want names`},
		"a path":               {[]string{"../a"}, 2, `"../a": want names`},
		"a name twice":         {[]string{"a", "a"}, 2, `"a": want names`},
		"an empty name":        {[]string{""}, 2, `"": want names`},
		"a capital":            {[]string{"A"}, 2, `"A": want names`},
		"a name of no kind":    {[]string{"a", "--san", "b"}, 2, `--san: "b": want dns:NAME`},
		"no time":              {[]string{"a", "--valid", "0"}, 2, "--valid is 0s"},
		"more than all time":   {[]string{"a", "--valid", "87601h"}, 2, "--valid is 87601h"},
		"half an authority":    {[]string{"a", "--dir", broken}, 1, "one is missing"},
		"no authority":         {[]string{"a", "--dir", empty}, 1, "ca.pem with"},
		"a file as folder":     {[]string{"a", "--dir", filepath.Join(broken, "ca.pem")}, 1, "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &rig{target: "127.0.0.1:1"}
			args := append([]string{"certs", "--dir", filepath.Join(t.TempDir(), "certs")}, tc.args...)
			require.Equal(t, tc.code, r.run(t, args...), r.err.String())
			require.Contains(t, r.err.String(), tc.says)
			require.Empty(t, r.out.String())
		})
	}
}
