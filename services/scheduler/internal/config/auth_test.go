package config_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/app"
	"github.com/millrace/millrace/services/internal/auth"
)

func TestKeysAndTokensAreCheckedBeforeStart(t *testing.T) {
	dir := t.TempDir()
	keys, token, ca := filepath.Join(dir, "keys.yaml"), filepath.Join(dir, "token"), "system"
	write := func(path, text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	write(keys, "- {id: web, right: [generate]}\n")
	write(token, auth.NewToken())
	ok := []string{"--workers", "127.0.0.1:7071"}
	err := parse(t, append(ok, "--auth-keys", keys)...).Validate()
	require.ErrorIs(t, err, app.ErrUsage)
	require.ErrorContains(t, err, `line 1: "right": there is no such field`)
	require.NoError(t, parse(t, append(ok, "--worker-token-file", token)...).Validate())
	write(keys, "[]\n")
	require.NoError(t, parse(t, append(ok, "--auth-keys", keys)...).Validate())

	away := []string{"--workers", "10.0.0.7:7071", "--insecure", "--worker-token-file", token}
	err = parse(t, away...).Validate()
	require.ErrorIs(t, err, app.ErrUsage)
	require.ErrorContains(t, err, `--workers "10.0.0.7:7071": is another machine, to which no token is sent in plaintext`)
	require.NoError(t, parse(t, append(away, "--tls-ca", ca)...).Validate())

	// Tokens of callers must not cross a network in plaintext either.
	open := slices.Concat(ok, []string{"--auth-keys", keys, "--listen", "0.0.0.0:7070"})
	require.ErrorContains(t, parse(t, open...).Validate(), "would serve other machines in plaintext")
	require.NoError(t, parse(t, append(open, "--insecure")...).Validate())
}
