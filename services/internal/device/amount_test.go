package device_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/device"
)

func TestParseAmount(t *testing.T) {
	for text, want := range map[string]struct {
		bytes    uint64 // of a total of 1000
		fraction bool
	}{
		"": {0, false}, "0.5": {500, true}, "1": {1000, true}, "1e-12": {1, true}, "2": {2, false}, "4096": {4096, false},
		"8GiB": {8 << 30, false}, "8 GiB": {8 << 30, false}, "1.5MiB": {3 << 19, false}, "0.5KiB": {512, false}, "1TiB": {1 << 40, false},
		"4194304TiB": {1 << 62, false},
	} {
		a, err := device.ParseAmount(text)
		require.NoError(t, err, text)
		require.Equal(t, want.bytes, a.Of(1000), text)
		require.Equal(t, want.fraction, a.Fraction(), text)
	}
	for _, bad := range []string{"-1", "NaN", "0", "0GiB", "inf", "8GB", "GiB", "much", "1e30", "4194305TiB", "0.0000001KiB"} {
		_, err := device.ParseAmount(bad)
		require.Error(t, err, bad)
	}
}
