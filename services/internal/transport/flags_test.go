package transport_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/certs/certstest"
	"github.com/millrace/millrace/services/internal/transport"
)

func TestPlaintextNeedsInsecureOrALocalAddress(t *testing.T) {
	for address, local := range map[string]bool{
		"127.0.0.1:7070": true, "127.9.9.9:1": true, "[::1]:7070": true, "localhost:7070": true, "LOCALHOST:1": true,
		"unix:/tmp/s": true, "unix:///tmp/s": true, "unix-abstract:s": true, "dns:///localhost:7070": true, "dns:127.0.0.1:1": true,
		"::1": true, "localhost": true,
		"0.0.0.0:7070": false, ":7070": false, "[::]:7070": false, "10.0.0.1:7070": false, "localhost.example:1": false,
		"dns:///workers:7071": false, "passthrough:///there:1": false, "": false, "127.0.0.1.example:1": false,
		"ipv4:10.0.0.1:1": false,
	} {
		plain, told := transport.Flags{}, transport.Flags{Insecure: true}
		require.NoError(t, told.CheckListen(address), address)
		require.NoError(t, told.CheckDial("--target", address), address)
		if local {
			require.NoError(t, plain.CheckListen(address), address)
			require.NoError(t, plain.CheckDial("--target", address), address)
			continue
		}
		require.ErrorContains(t, plain.CheckListen(address), "--insecure", address)
		require.ErrorContains(t, plain.CheckDial("--target", address), "--tls-ca", address)
		require.NoError(t, (&transport.Flags{Cert: "c", Key: "k"}).CheckListen(address))
		require.NoError(t, (&transport.Flags{CA: "c"}).CheckDial("--target", address))
		require.Error(t, (&transport.Flags{CA: "c"}).CheckListen(address), "who dials over TLS may still serve in plaintext")
	}
}

func TestCheckNamesTheMissingFlag(t *testing.T) {
	ca := certstest.New(t)
	own := certstest.Save(t, ca.Issue(t, "dns:a"))
	other := certstest.Save(t, ca.Issue(t, "dns:a"))
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for name, tc := range map[string]struct {
		args []string
		want string // "": valid
	}{
		"nothing":                   {nil, ""},
		"a server":                  {[]string{"--tls-cert", own.Cert, "--tls-key", own.Key}, ""},
		"a client":                  {[]string{"--tls-ca", ca.File}, ""},
		"this machine's":            {[]string{"--tls-ca", "system"}, ""},
		"all":                       {[]string{"--tls-cert", own.Cert, "--tls-key", own.Key, "--tls-client-ca", ca.File, "--tls-client-san", "dns:a,uri:spiffe://b/c", "--tls-ca", ca.File, "--tls-server-name", "a", "--tls-server-san", "ip:::1"}, ""},
		"no key":                    {[]string{"--tls-cert", own.Cert}, "--tls-cert: needs --tls-key"},
		"no certificate":            {[]string{"--tls-key", own.Key}, "--tls-key: needs --tls-cert"},
		"callers without TLS":       {[]string{"--tls-client-ca", ca.File}, "--tls-client-ca: needs --tls-cert"},
		"names of anybody":          {[]string{"--tls-client-san", "dns:a"}, "--tls-client-san: needs --tls-client-ca"},
		"a name of anybody":         {[]string{"--tls-server-name", "a"}, "--tls-server-name: needs --tls-ca"},
		"names of any server":       {[]string{"--tls-server-san", "dns:a"}, "--tls-server-san: needs --tls-ca"},
		"a name of no kind":         {[]string{"--tls-ca", ca.File, "--tls-server-san", "a"}, `--tls-server-san: "a": want dns:NAME, uri:URI or ip:ADDRESS`},
		"a file that is not there":  {[]string{"--tls-ca", "/nowhere"}, "--tls-ca: open /nowhere"},
		"an empty file":             {[]string{"--tls-ca", empty}, "it has no certificate"},
		"a key among certificates":  {[]string{"--tls-ca", own.Key}, "it has a PRIVATE KEY"},
		"a key of another":          {[]string{"--tls-cert", own.Cert, "--tls-key", other.Key}, "private key does not match public key"},
		"callers' file not there":   {[]string{"--tls-cert", own.Cert, "--tls-key", own.Key, "--tls-client-ca", "/nowhere"}, "--tls-client-ca: open /nowhere"},
		"a certificate is no file":  {[]string{"--tls-cert", t.TempDir(), "--tls-key", own.Key}, "is no regular file"},
		"system is not for callers": {[]string{"--tls-cert", own.Cert, "--tls-key", own.Key, "--tls-client-ca", "system"}, "--tls-client-ca: want a file"},
	} {
		t.Run(name, func(t *testing.T) {
			f, fs := transport.Flags{}, pflag.NewFlagSet("test", pflag.ContinueOnError)
			f.AddServerFlags(fs)
			f.AddClientFlags(fs)
			require.NoError(t, fs.Parse(tc.args))
			if tc.want == "" {
				require.NoError(t, f.Check())
				return
			}
			require.ErrorContains(t, f.Check(), tc.want)
		})
	}
	require.ErrorContains(t, (&transport.Flags{Cert: own.Cert, Key: own.Key}).CheckClient("--target", "localhost:1"), "needs --tls-ca")
}

func TestParseSANIsStrict(t *testing.T) {
	for text, want := range map[string]string{
		"dns:Scheduler.Example": "dns:scheduler.example", "uri:spiffe://example.org/ns/x": "uri:spiffe://example.org/ns/x",
		"ip:127.0.0.1": "ip:127.0.0.1", "ip:0:0:0:0:0:0:0:1": "ip:::1", "dns:*.example": "dns:*.example",
	} {
		san, err := transport.ParseSAN(text)
		require.NoError(t, err, text)
		require.Equal(t, want, san.String())
	}
	for _, bad := range []string{"", "dns", "dns:", "dns:a b", "dns:a:1", "uri:", "uri:a", "uri:spiffe://", "uri:://", "ip:", "ip:a", "ip:1.2.3",
		"email:a@b", "scheduler", "DNS:a"} {
		_, err := transport.ParseSAN(bad)
		require.ErrorContains(t, err, "want dns:NAME, uri:URI or ip:ADDRESS", bad)
	}
}
