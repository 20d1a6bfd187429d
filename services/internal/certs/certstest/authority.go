package certstest

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/certs"
	"github.com/millrace/millrace/services/internal/transport"
)

// Authority is an authority for a test. File is its certificate.
type Authority struct {
	*certs.Authority
	File string
}

// New returns an authority that is valid for a day around now.
func New(t testing.TB) *Authority {
	t.Helper()
	a, err := certs.New("authority of "+t.Name(), time.Now().Add(-12*time.Hour), time.Now().Add(12*time.Hour))
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "ca.pem")
	Write(t, file, a.Cert)
	return &Authority{a, file}
}

// Issue returns a certificate with these names that is valid now.
func (a *Authority) Issue(t testing.TB, names ...string) certs.Pair {
	t.Helper()
	return a.IssueUntil(t, time.Now().Add(time.Hour), names...)
}

// IssueUntil is Issue with an end, which may be in the past.
func (a *Authority) IssueUntil(t testing.TB, to time.Time, names ...string) certs.Pair {
	t.Helper()
	sans, err := transport.ParseSANs(names)
	require.NoError(t, err)
	pair, err := a.Authority.Issue("leaf", sans, time.Now().Add(-6*time.Hour), to)
	require.NoError(t, err)
	return pair
}

// Files are the files of a pair.
type Files struct{ Cert, Key string }

// Save writes a pair into a new folder.
func Save(t testing.TB, pair certs.Pair) Files {
	t.Helper()
	dir := t.TempDir()
	f := Files{filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	f.Replace(t, pair)
	return f
}

// Replace writes another pair into the files, the certificate first, as scripts do.
func (f Files) Replace(t testing.TB, pair certs.Pair) {
	t.Helper()
	Write(t, f.Cert, pair.Cert)
	Write(t, f.Key, pair.Key)
}

// Write replaces a file atomically: no reader sees half of it.
func Write(t testing.TB, path string, text []byte) {
	t.Helper()
	next := path + ".next"
	require.NoError(t, os.WriteFile(next, text, 0o600))
	require.NoError(t, os.Rename(next, path))
}
