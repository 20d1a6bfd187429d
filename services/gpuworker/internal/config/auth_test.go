package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKeysFileIsCheckedBeforeStart(t *testing.T) {
	keys := filepath.Join(t.TempDir(), "keys.yaml")
	_, err := parse(t, "--auth-keys", keys)
	require.ErrorContains(t, err, "--auth-keys")
	require.NoError(t, os.WriteFile(keys, []byte("- {id: web}\n"), 0o600))
	_, err = parse(t, "--auth-keys", keys)
	require.ErrorContains(t, err, "line 1: hash: is missing")
	require.NoError(t, os.WriteFile(keys, []byte("[]\n"), 0o600))
	_, err = parse(t, "--auth-keys", keys)
	require.NoError(t, err)
	_, err = parse(t, "--auth-keys", keys, "--listen", "0.0.0.0:7071")
	require.ErrorContains(t, err, "would serve other machines in plaintext")
}
