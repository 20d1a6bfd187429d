package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/auth"
)

func TestKeysMakesATokenAndTheLineThatKnowsIt(t *testing.T) {
	r := &rig{target: "127.0.0.1:1"} // no server is asked
	require.Equal(t, 0, r.run(t, "keys", "new", "--id", "web"), r.err.String())
	keys, err := auth.Parse(r.out.String())
	require.NoError(t, err)
	_, token, told := strings.Cut(strings.TrimSpace(r.err.String()), "\n")
	require.True(t, told)
	zero := int32(0)
	require.Equal(t, &auth.Key{
		ID: "web", Hashes: []auth.Hash{auth.HashOf(token)}, Tenant: "web", Rights: []auth.Right{auth.Generate}, Limits: auth.Limits{Priority: &zero},
	}, keys.All()[0])
	require.NotContains(t, r.out.String(), token)

	r.out, r.err = buffer{}, buffer{}
	file := filepath.Join(t.TempDir(), "web.token")
	all := []string{"keys", "new", "--id", "batch", "--tenant", "a team", "--rights", "load,admin", "--valid", "1h", "--requests-per-minute", "1",
		"--tokens-per-minute", "2", "--streams", "3", "--priority", "4", "--share-prefixes", "--save", file}
	require.Equal(t, 0, r.run(t, all...), r.err.String())
	require.Empty(t, r.err.String(), "the token is in the file")
	saved, err := os.ReadFile(file)
	require.NoError(t, err)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	keys, err = auth.Parse(r.out.String())
	require.NoError(t, err)
	key, four := keys.All()[0], int32(4)
	require.WithinDuration(t, time.Now().Add(time.Hour), key.Expires, hang)
	key.Expires = time.Time{}
	require.Equal(t, &auth.Key{
		ID: "batch", Hashes: []auth.Hash{auth.HashOf(strings.TrimSuffix(string(saved), "\n"))}, Tenant: "a team", Rights: []auth.Right{auth.Load, auth.Admin},
		SharesPrefixes: true,
		Limits:         auth.Limits{RequestsPerMinute: 1, TokensPerMinute: 2, Streams: 3, Priority: &four},
	}, key)
	r.out = buffer{}
	require.NotEqual(t, 0, r.run(t, all...), "no token is replaced")
	require.Empty(t, r.out.String(), "and there is no line without its token")
	require.Contains(t, r.err.String(), "web.token is there already: remove it, or choose another name for --save")
}

func TestKeysRefusesWhatAServerWould(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no id":            {[]string{"keys", "new"}, "--id is missing"},
		"a bad id":         {[]string{"keys", "new", "--id", "a b"}, "id: want 1 to 64 letters"},
		"an unknown right": {[]string{"keys", "new", "--id", "a", "--rights", "root"}, `"root" is none`},
		"no time":          {[]string{"keys", "new", "--id", "a", "--valid", "-1h"}, "--valid is -1h"},
		"a negative limit": {[]string{"keys", "new", "--id", "a", "--streams", "-1"}, "limits.streams: want a number of 1"},
		"no file":          {[]string{"keys", "check", "/nowhere/keys.yaml"}, "/nowhere/keys.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &rig{target: "127.0.0.1:1"}
			require.Equal(t, 2, r.run(t, tc.args...), r.err.String())
			require.Contains(t, r.err.String(), tc.want)
			require.Empty(t, r.out.String())
		})
	}
}

func TestKeysCheckSaysWhatAFileAllows(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys.yaml")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	a, b, c := auth.HashOf("a").String(), auth.HashOf("b").String(), auth.HashOf("c").String()
	write("- {id: web, tenant: shop, hash: '" + a + "', rights: [generate, health]}\n- {id: old, hash: '" + b + "', rights: [load], expires: 2020-01-01T00:00:00Z}\n" +
		"- {id: new, hash: '" + c + "', rights: [load], expires: 2199-01-01T00:00:00Z}\n")
	r := &rig{target: "127.0.0.1:1"}
	require.Equal(t, 0, r.run(t, "keys", "check", file), r.err.String())
	require.Equal(t, "web of tenant shop may generate, health; no limits; priority up to 0; for good\n"+
		"old of tenant old may load; no limits; priority up to 0; ended 2020-01-01T00:00:00Z\n"+
		"new of tenant new may load; no limits; priority up to 0; until 2199-01-01T00:00:00Z\n", r.out.String())
	write("- {id: web, hash: '" + a + "', rights: [generate], limits: {streams: 2, requests_per_minute: 1, tokens_per_minute: 200, priority: 3}}\n" +
		"- {id: all, tenant: '*', hash: '" + b + "', rights: [generate]}\n")
	r = &rig{target: "127.0.0.1:1"}
	require.Equal(t, 0, r.run(t, "keys", "check", file), r.err.String())
	require.Equal(t, "web of tenant web may generate; 2 streams, 1 request a minute, 200 tokens a minute; priority up to 3; for good\n"+
		"all of tenant * may generate; no limits; any priority; for good\n", r.out.String())
	write("[]\n")
	r = &rig{target: "127.0.0.1:1"}
	require.Equal(t, 0, r.run(t, "keys", "check", file), r.err.String())
	require.Equal(t, "no keys: every call is refused\n", r.out.String())
	write("- {id: web}\n")
	require.Equal(t, 2, r.run(t, "keys", "check", file))
	require.Contains(t, r.err.String(), file+": line 1: hash: is missing")
}

func TestTokenIsNotSentInPlaintext(t *testing.T) {
	// The client refuses to send a token to another machine without TLS.
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(auth.NewToken()), 0o600))
	r := &rig{target: "10.0.0.1:7070"}
	require.Equal(t, 2, r.run(t, "models", "--insecure", "--token-file", file))
	require.Contains(t, r.err.String(), "no token is sent in plaintext: give --tls-ca, or leave --token-file out")
}
