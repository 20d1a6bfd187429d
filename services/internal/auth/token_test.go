package auth_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/auth"
)

func TestTokensAndHashes(t *testing.T) {
	a, b := auth.NewToken(), auth.NewToken()
	require.NotEqual(t, a, b)
	require.Regexp(t, `^millrace_[A-Za-z0-9_-]{43}$`, a)
	// printf %s abc | sha256sum
	require.Equal(t, "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", auth.HashOf("abc").String())
}
