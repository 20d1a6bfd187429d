package rpc_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/rpc"
)

func TestConnectionErrorDropsGRPCsPrefix(t *testing.T) {
	for message, want := range map[string]string{
		`connection error: desc = "transport: some words: dial tcp 10.0.0.7:7071: connect: connection refused"`: "dial tcp 10.0.0.7:7071: connect: connection refused",
		`connection error: desc = "transport: authentication handshake failed: x509: \"a\" is not \"b\""`:       `authentication handshake failed: x509: "a" is not "b"`,
		`connection error: desc = "error reading server preface: EOF"`:                                          "error reading server preface: EOF",
		`connection error: desc = "transport: authentication handshake failed: a message that was cli`:          "authentication handshake failed: a message that was cli",
	} {
		got, is := rpc.ConnectionError(message)
		require.True(t, is, message)
		require.Equal(t, want, got)
	}
	_, is := rpc.ConnectionError("the worker stops")
	require.False(t, is)
}
