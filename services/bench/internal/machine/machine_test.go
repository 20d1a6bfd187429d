package machine

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheProcessorIsNamedAsTheKernelNamesIt(t *testing.T) {
	for name, tc := range map[string]struct{ cpuinfo, want string }{
		"amd64":   {"processor\t: 0\nmodel\t\t: 85\nmodel name\t: Xeon: 2.5 GHz\n", "Xeon: 2.5 GHz"},
		"arm64":   {"processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n", "0xd0c"},
		"nothing": {"", "unknown processor"},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, processor(tc.cpuinfo)) })
	}
}

func TestMemoryIsTheTotal(t *testing.T) {
	require.Equal(t, "24.0 GiB", memory("MemTotal:       25165824 kB\nMemFree: 1 kB\n"))
	require.Equal(t, "unknown memory", memory("MemFree: 1 kB\n"))
}

func TestCacheSizesAreReadWithTheirUnit(t *testing.T) {
	for text, want := range map[string]uint64{"36608K\n": 36608 << 10, "32M": 32 << 20, "1G": 1 << 30, "": 0, "many": 0, "7X": 0} {
		require.Equal(t, want, cacheSize(text), "%q", text)
	}
}

func TestEveryFactIsFilledIn(t *testing.T) {
	facts := Look()
	text, err := json.Marshal(facts)
	require.NoError(t, err)
	var fields map[string]any
	require.NoError(t, json.Unmarshal(text, &fields))
	for name, value := range fields {
		require.NotZero(t, value, name)
		require.NotEqual(t, "unknown", value, name)
	}
	require.Contains(t, facts.String(), facts.Processor)
}
