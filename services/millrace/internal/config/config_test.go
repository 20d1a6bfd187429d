package config_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/millrace/internal/config"
)

func TestTheEnvironmentNamesTheTarget(t *testing.T) {
	t.Setenv("MILLRACE_TARGET", "")
	require.Equal(t, config.DefaultTarget, config.Load().Target)
	t.Setenv("MILLRACE_TARGET", "there:1")
	require.Equal(t, "there:1", config.Load().Target)
}
