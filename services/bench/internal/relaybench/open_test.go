package relaybench

import (
	"bytes"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func openConfig() OpenConfig {
	return OpenConfig{
		Programs: Programs{Connections: 1}, Streams: 10000, States: []string{stateIdle, stateStalled}, Pause: 10 * time.Second,
		Rate: 40000, Within: time.Hour, Tokens: 32768, Prompt: 16, Settle: 5 * time.Second,
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
		"streams that stall before anybody sees them move": {func(c *OpenConfig) { c.Rate = 3999 }, "--rate 3999"},
		"no rate":                {func(c *OpenConfig) { c.Rate = math.NaN() }, "--rate NaN"},
		"no time to be still in": {func(c *OpenConfig) { c.Within = c.Settle }, "--within 5s"},
		"no tokens":              {func(c *OpenConfig) { c.Tokens = 0 }, "--tokens 0"},
	} {
		t.Run(name, func(t *testing.T) {
			c := openConfig()
			tc.change(&c)
			require.ErrorContains(t, c.Validate(), tc.want)
		})
	}
}

func TestStalledStreamsHaveTheirTokensAtTheRate(t *testing.T) {
	c := openConfig()
	require.Equal(t, 250*time.Millisecond, c.step(stateStalled))
	require.Equal(t, c.Pause, c.step(stateIdle))
	require.Equal(t, 12, c.rig(stateStalled).workers)
	require.LessOrEqual(t, c.rig(stateStalled).sequences, uint32(maxStreams))
}

func TestStreamsAreStillWhenNothingMovesAndFlowControlHoldsThem(t *testing.T) {
	fine := look{begun: 3, running: 3, paused: 3, tokens: 60}
	change := func(f func(*look)) look {
		l := fine
		f(&l)
		return l
	}
	further := change(func(l *look) { l.tokens++ })
	for name, tc := range map[string]struct {
		idle  bool
		looks []look // one a second
		done  int    // the first that is enough; 0: none
		want  string // of the last one's error
	}{
		"held and still":        {looks: []look{fine, fine, fine, fine}, done: 3},
		"not all there":         {looks: []look{change(func(l *look) { l.begun, l.running, l.paused = 2, 2, 2 }), fine, fine, fine, fine}, done: 3},
		"the scheduler is busy": {looks: []look{fine, fine, change(func(l *look) { l.share = 0.5 }), fine, fine}, done: 5},
		"a worker computes":     {looks: []look{fine, fine, further, further, further}, done: 5},
		"one of them ended":     {looks: []look{fine, change(func(l *look) { l.running = 2 })}, want: "have 2 of 3"},
		"an idle one ended": {idle: true, looks: []look{
			change(func(l *look) { l.running = 2 }), change(func(l *look) { l.running = 2 }),
		}, want: "have 2 of 3"},
		"one is on its way to a worker": {idle: true, looks: []look{
			change(func(l *look) { l.running, l.paused, l.share = 2, 0, 0.5 }), fine, fine,
		}, done: 3},
		"one of them is not held": {looks: []look{
			change(func(l *look) { l.paused = 2 }), change(func(l *look) { l.paused = 2 }), change(func(l *look) { l.paused = 2 }),
		}, want: "does not hold 1 of 3"},
		"one that lost its place is held": {looks: []look{
			fine, change(func(l *look) { l.running, l.paused, l.waiting = 2, 2, 1 }), fine,
		}, done: 3},
		"idle ones are held by nobody": {idle: true, looks: []look{
			change(func(l *look) { l.paused = 0 }), change(func(l *look) { l.paused = 0; l.tokens++ }),
		}, done: 2},
	} {
		t.Run(name, func(t *testing.T) {
			c := calm{streams: 3, stalled: !tc.idle, settle: 2 * time.Second}
			for i, l := range tc.looks {
				done, err := c.see(l, time.Second)
				if tc.want != "" && i == len(tc.looks)-1 {
					require.ErrorIs(t, err, ErrFailed)
					require.ErrorContains(t, err, tc.want)
					return
				}
				require.NoError(t, err, "look %d", i+1)
				require.Equal(t, i+1 == tc.done, done, "look %d", i+1)
				if done {
					return
				}
			}
		})
	}
}

func TestMemoryIsHeldAgainstTenThousandStreams(t *testing.T) {
	full := &OpenReport{Streams: 10000, States: []OpenState{
		{State: stateIdle, Empty: 15e6, RSS: 330e6, Workers: 700e6, Client: 80e6, Tokens: 1},
		{State: stateStalled, Empty: 15e6, RSS: 2100e6, Workers: 900e6, Client: 81e6, Tokens: 2900},
	}}
	var text bytes.Buffer
	full.Print(&text)
	require.Contains(t, text.String(), "330 MB")
	require.Contains(t, text.String(), "31.5 kB")
	require.Contains(t, text.String(), "<= 400 MB: held")
	require.Contains(t, text.String(), "<= 2000 MB: MISSED")
	require.Contains(t, text.String(), "2900")
	got, ok := full.Figure("streams", "stalled_mb")
	require.True(t, ok)
	require.InDelta(t, 2100, got, 1e-9)

	part := &OpenReport{Streams: 1000, States: []OpenState{{State: stateIdle, Empty: 15e6, RSS: 45e6}}}
	text.Reset()
	part.Print(&text)
	require.Contains(t, text.String(), "held if each takes as much at 10000")
	require.NotContains(t, text.String(), "stalled", "what was not measured is not told")
	for _, metric := range []string{"stalled_mb", "idle_mb"} {
		_, ok = part.Figure("streams", metric)
		require.False(t, ok, "%s of fewer streams are held against no bar", metric)
	}
}
