package command_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/bench/internal/command"
	"github.com/millrace/millrace/services/bench/internal/replay"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

func TestReplayFlagsAreValidated(t *testing.T) {
	for name, args := range map[string][]string{
		"a shrink that divides no block": {"replay", "--shrink", "3"},
		"a row that there is not":        {"replay", "--rows", "trace/luck"},
		"a negative limit":               {"replay", "--limit", "-1"},
		"floors that are not there":      {"replay", "--floors", "/nonexistent"},
		"an argument":                    {"replay", "now"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := run(t, args...)
			require.ErrorIs(t, err, command.ErrUsage)
		})
	}
	_, err := run(t, "replay", "--trace", "/nonexistent/trace")
	require.ErrorContains(t, err, "--trace: open /nonexistent/trace")
}

func TestBarsNameFigures(t *testing.T) {
	one := 1.0
	compared := replay.Comparison{Speedup: &one, HitOfOracle: &one, TwoOfOne: &one, UniqueLeast: &one}
	for of, figure := range map[string]stats.Figure{
		"replay": (&replay.Report{Compared: compared}).Figure,
	} {
		set, err := stats.ReadFloors("../../../../bench/bars.txt", of)
		require.NoError(t, err)
		for _, f := range set.List {
			_, known := figure(f.Row, f.Metric)
			require.True(t, known, "%s names no figure of %s", f, of)
		}
	}
}
