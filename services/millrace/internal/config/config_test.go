package config_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/transport"
	"github.com/millrace/millrace/services/millrace/internal/config"
)

func TestTheEnvironmentNamesTheTarget(t *testing.T) {
	t.Setenv("MILLRACE_TARGET", "")
	require.Equal(t, config.DefaultTarget, config.Load().Target)
	t.Setenv("MILLRACE_TARGET", "there:1")
	require.Equal(t, "there:1", config.Load().Target)
	t.Setenv("NO_COLOR", "1")
	require.True(t, config.Load().Plain)
	t.Setenv("NO_COLOR", "")
	t.Setenv("TERM", "xterm")
	require.False(t, config.Load().Plain)
	t.Setenv("MILLRACE_TLS_CA", "ca.pem")
	t.Setenv("MILLRACE_TLS_CERT", "client.pem")
	t.Setenv("MILLRACE_TLS_KEY", "client-key.pem")
	t.Setenv("MILLRACE_TLS_SERVER_NAME", "scheduler")
	require.Equal(t, transport.Flags{CA: "ca.pem", Cert: "client.pem", Key: "client-key.pem", ServerName: "scheduler"},
		config.Load().Transport)
}
