package stats_test

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/bench/internal/stats"
)

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gpu.txt")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestReadFloorsOfOneCommand(t *testing.T) {
	set, err := stats.ReadFloors(file(t, "# a GPU\n\nops add/64 share >= 0.5  # half\nmemory d2d/1KiB gbps >= 3\n\tops add/64\tms <= 1e-3\n"), "ops")
	require.NoError(t, err)
	require.Equal(t, []stats.Floor{
		{Row: "add/64", Metric: "share", Value: 0.5}, {Row: "add/64", Metric: "ms", Ceiling: true, Value: 1e-3},
	}, set.List)
	require.Equal(t, "add/64 ms <= 0.001", set.List[1].String())
}

func TestReadFloorsRefusesWrongFiles(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"a word too few":      {"ops add/64 share 0.5", "line 1"},
		"another sign":        {"\nops add/64 share > 0.5", "line 2"},
		"a text for a number": {"ops add/64 share >= half", `"half" is not a number`},
		"no finite number":    {"ops add/64 share >= NaN", "not a number"},
		"a floor twice":       {"ops a b >= 1\nops a b >= 2", "line 2: ops a b >= is in line 1 too"},
		"none of the command": {"memory a b >= 1", "no floor of the command ops"},
		"nothing":             {"# later", "no floor of the command ops"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := stats.ReadFloors(file(t, tc.text), "ops")
			require.ErrorContains(t, err, tc.want)
			require.ErrorContains(t, err, "gpu.txt")
		})
	}
	_, err := stats.ReadFloors(filepath.Join(t.TempDir(), "absent"), "ops")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestJudgeComparesFiguresWithFloors(t *testing.T) {
	set := stats.Floors{File: "gpu.txt", List: []stats.Floor{
		{Row: "a", Metric: "x", Value: 2}, {Row: "b", Metric: "x", Value: 2}, {Row: "c", Metric: "x", Ceiling: true, Value: 2},
		{Row: "d", Metric: "x", Ceiling: true, Value: 2}, {Row: "nan", Metric: "x", Value: 2}, {Row: "absent", Metric: "x", Value: 0},
	}}
	figures := map[string]float64{"a": 2, "b": 1.99, "c": 2, "d": 2.01, "nan": math.NaN()}
	verdict := set.Judge(func(row, metric string) (float64, bool) {
		require.Equal(t, "x", metric)
		v, ok := figures[row]
		return v, ok
	})
	require.Equal(t, 2, verdict.Held)
	require.Equal(t, []string{
		"b x >= 2: measured 1.99", "d x <= 2: measured 2.01", "nan x >= 2: measured NaN", "absent x >= 0: not measured",
	}, verdict.Missed)
	err := verdict.Err()
	require.ErrorIs(t, err, stats.ErrMissed)
	require.ErrorContains(t, err, "4 of 6 in gpu.txt")
	require.ErrorContains(t, err, "absent x >= 0: not measured")
	var text bytes.Buffer
	verdict.Print(&text)
	require.Equal(t, "\nfloors   2 of 6 in gpu.txt hold\n", text.String())
}

func TestNilVerdictMissesNothing(t *testing.T) {
	var none *stats.Verdict
	require.NoError(t, none.Err())
	var text bytes.Buffer
	none.Print(&text)
	require.Empty(t, text.String())
	require.NoError(t, stats.Floors{List: []stats.Floor{{Row: "a", Metric: "x"}}}.Judge(func(string, string) (float64, bool) { return 0, true }).Err())
}

func TestUnderSelectsFloorsByPrefix(t *testing.T) {
	set, err := stats.ReadFloors(file(t, "engine m/128/load x >= 1\nengine m/128/decode/1 x >= 2\nengine m/1280/load x >= 3\n"), "engine")
	require.NoError(t, err)
	under, err := set.Under("m/128/")
	require.NoError(t, err)
	require.Equal(t, set.List[:2], under.List)
	require.Equal(t, set.File, under.File)
	_, err = set.Under("n/128/")
	require.ErrorContains(t, err, "no floor of rows below n/128/")
}
