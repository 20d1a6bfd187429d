package command_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/internal/vectorfile"
	"github.com/millrace/millrace/services/bench/internal/command"
	"github.com/millrace/millrace/services/bench/internal/stats"
	"github.com/millrace/millrace/services/bench/internal/vectors"
)

// smallVectors are the flags of a run of a moment.
func smallVectors(more ...string) []string {
	return append([]string{
		"vectors", "--device", "sim", "--dimension", "6", "--codewords", "3", "--subspaces", "2", "--rows", "40", "--repeat", "2",
		"--roof-time", "1ms",
	}, more...)
}

func TestVectorsAreMeasuredAndSaved(t *testing.T) {
	saved := filepath.Join(t.TempDir(), "vectors.json")
	floors := floorsFile(t, "vectors encode/f32/6/3 vectors >= 1e-9\nvectors encode/f32/6/3 share >= 0.5\n")
	out, err := run(t, smallVectors("--parts", "encode,iteration", "--type", "f32", "--save", saved, "--floors", floors)...)
	require.ErrorIs(t, err, stats.ErrMissed)
	require.ErrorContains(t, err, "share >= 0.5: not measured")
	require.Contains(t, out, "iteration/f32/6/3")
	text, err := os.ReadFile(saved)
	require.NoError(t, err)
	var report vectors.Report
	require.NoError(t, json.Unmarshal(text, &report))
	require.Equal(t, 1, report.Floors.Held)
	require.Len(t, report.Lines, 2)
}

func TestVectorsFlagsAreValidated(t *testing.T) {
	for want, flags := range map[string][]string{
		`--type "u8"`: {"--type", "u8"}, "--codewords 1": {"--codewords", "1"}, `--parts "x"`: {"--parts", "x"},
		"no floor of the command vectors": {"--floors", floorsFile(t, "ops a b >= 1\n")}, "--clusters -1": {"--write-data", "x", "--clusters", "-1"},
	} {
		_, err := run(t, smallVectors(flags...)...)
		require.ErrorIs(t, err, command.ErrUsage)
		require.ErrorContains(t, err, want)
	}
}

func TestVectorsWriteRows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rows.fvecs")
	_, err := run(t, smallVectors("--write-data", path, "--seed", "7")...)
	require.NoError(t, err)
	file, err := vectorfile.OpenRows(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	require.EqualValues(t, 40, file.Rows())
	got := make([]byte, 40*file.RowBytes())
	_, err = file.ReadRows(got, 0)
	require.NoError(t, err)
	require.Equal(t, vectors.Data{Rows: 40, Dimension: 6, Seed: 7}.Bytes(engine.VectorF32), got)
	_, err = run(t, smallVectors("--write-data", filepath.Join(t.TempDir(), "none", "rows.fvecs"))...)
	require.ErrorIs(t, err, os.ErrNotExist)
}
