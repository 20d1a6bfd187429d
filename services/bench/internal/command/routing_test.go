package command_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/bench/internal/command"
	"github.com/millrace/millrace/services/bench/internal/floor"
	"github.com/millrace/millrace/services/bench/internal/idlebench"
	"github.com/millrace/millrace/services/bench/internal/relaybench"
	"github.com/millrace/millrace/services/bench/internal/replay"
	"github.com/millrace/millrace/services/bench/internal/restart"
)

func TestWrongFlagsOfTheFleetsCommandsAreUsage(t *testing.T) {
	for name, args := range map[string][]string{
		"a shrink that divides no block": {"replay", "--shrink", "3"},
		"a row that there is not":        {"replay", "--rows", "trace/luck"},
		"a negative limit":               {"replay", "--limit", "-1"},
		"one worker to restart over":     {"restart", "--workers", "1"},
		"no workers to follow":           {"fleet", "--sizes", "0"},
		"floors that are not there":      {"fleet", "--floors", "/nonexistent"},
		"an argument":                    {"restart", "now"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := run(t, args...)
			require.ErrorIs(t, err, command.ErrUsage)
		})
	}
	_, err := run(t, "replay", "--trace", "/nonexistent/trace")
	require.ErrorContains(t, err, "--trace: open /nonexistent/trace")
}

func TestEveryBarOfTheRepositoryIsAFigure(t *testing.T) {
	one := 1.0
	compared := replay.Comparison{Speedup: &one, HitOfOracle: &one, TwoOfOne: &one, UniqueLeast: &one}
	for of, figure := range map[string]floor.Figure{
		"replay":  (&replay.Report{Compared: compared}).Figure,
		"restart": (&restart.Report{}).Figure,
		"fleet":   (&idlebench.Report{Lines: []idlebench.Line{{Workers: 300}}}).Figure,

		"relay-streams": (&relaybench.OpenReport{Streams: 10000, States: []relaybench.OpenState{{State: "idle"}, {State: "stalled"}}}).Figure,
		"relay-prompts": (&relaybench.PromptsReport{Kinds: []relaybench.PromptKind{{Kind: "ids"}}}).Figure,
	} {
		set, err := floor.Read("../../../../bench/bars.txt", of)
		require.NoError(t, err)
		for _, f := range set.Floors {
			_, known := figure(f.Row, f.Metric)
			require.True(t, known, "%s names no figure of %s", f, of)
		}
	}
}
