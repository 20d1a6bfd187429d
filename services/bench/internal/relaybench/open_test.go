package relaybench

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func openConfig() OpenConfig {
	return OpenConfig{
		Programs: Programs{Connections: 1}, Streams: 10000, States: []string{stateIdle, stateStalled}, Pause: 10 * time.Second,
		Tokens: 32768, Prompt: 16, Settle: 5 * time.Second,
	}
}

func TestOpenStreamsThatCannotBeMeasuredAreRefused(t *testing.T) {
	ok := openConfig()
	require.NoError(t, ok.Validate())
	for name, tc := range map[string]struct {
		change func(*OpenConfig)
		want   string
	}{
		"no streams":        {func(c *OpenConfig) { c.Streams = 0 }, "--streams 0"},
		"an unknown state":  {func(c *OpenConfig) { c.States = []string{"asleep"} }, `--states "asleep"`},
		"no pause":          {func(c *OpenConfig) { c.Pause = 0 }, "--pause 0s"},
		"no time to settle": {func(c *OpenConfig) { c.Settle = 0 }, "--settle 0s"},
		"no tokens":         {func(c *OpenConfig) { c.Tokens = 0 }, "--tokens 0"},
	} {
		t.Run(name, func(t *testing.T) {
			c := openConfig()
			tc.change(&c)
			require.ErrorContains(t, c.Validate(), tc.want)
		})
	}
}

func TestMemoryIsHeldAgainstTenThousandStreams(t *testing.T) {
	full := &OpenReport{Streams: 10000, Empty: 15e6, Idle: 330e6, Stalled: 2100e6}
	var text bytes.Buffer
	full.Print(&text)
	require.Contains(t, text.String(), "330 MB")
	require.Contains(t, text.String(), "31.5 kB")
	require.Contains(t, text.String(), "<= 400 MB: held")
	require.Contains(t, text.String(), "<= 2000 MB: MISSED")
	got, ok := full.Figure("streams", "stalled_mb")
	require.True(t, ok)
	require.InDelta(t, 2100, got, 1e-9)

	part := &OpenReport{Streams: 1000, Empty: 15e6, Idle: 45e6}
	text.Reset()
	part.Print(&text)
	require.Contains(t, text.String(), "held if each takes as much at 10000")
	require.NotContains(t, text.String(), "stalled", "what was not measured is not told")
	_, ok = part.Figure("streams", "stalled_mb")
	require.False(t, ok)
}
