package config_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/bench/internal/config"
)

func TestBytesFlagHasUnits(t *testing.T) {
	for text, want := range map[string]struct {
		bytes uint64
		back  string
	}{
		"0": {0, "0"}, "1": {1, "1"}, "1500": {1500, "1500"}, "4096": {4096, "4KiB"}, "64MiB": {64 << 20, "64MiB"},
		"1024MiB": {1 << 30, "1GiB"}, "2TiB": {2 << 40, "2TiB"}, "18446744073709551615": {1<<64 - 1, "18446744073709551615"},
	} {
		var b config.Bytes
		require.NoError(t, b.Set(text), text)
		require.EqualValues(t, want.bytes, b)
		require.Equal(t, want.back, b.String())
	}
	for _, text := range []string{"", "GiB", "-1", "1.5GiB", "1GB", "1 GiB", "16777216TiB", "18446744073709551616"} {
		b := config.Bytes(7)
		require.ErrorContains(t, b.Set(text), "want a number of bytes", text)
		require.EqualValues(t, 7, b, "a refused value changes nothing")
	}
}
