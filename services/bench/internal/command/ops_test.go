package command_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/cputest"
	"github.com/millrace/millrace/services/bench/internal/command"
	"github.com/millrace/millrace/services/bench/internal/device"
	"github.com/millrace/millrace/services/bench/internal/stats"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// selfKey is set while this test binary acts as the millrace-bench that memory starts.
const selfKey = "MILLRACE_BENCH_TEST_SELF"

func TestMain(m *testing.M) {
	if _, self := os.LookupEnv(selfKey); !self {
		os.Exit(m.Run())
	}
	if err := command.Run(context.Background(), os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func floorsFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "floors.txt")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// smallOps are the flags of a run of a second or so.
func smallOps(more ...string) []string {
	args := append([]string{
		"ops", "--device", "cpu", "--threads", "1", "--squares", "16", "--width", "128", "--keys", "4", "--repeat", "2",
		"--budget", "5ms", "--roof-time", "1ms",
	}, cputest.Flags()...)
	return append(args, more...)
}

func TestOpsAreMeasuredAndSaved(t *testing.T) {
	saved := filepath.Join(t.TempDir(), "ops.json")
	out, err := run(t, smallOps("--save", saved, "--floors", floorsFile(t, "ops add/128x128 gbps >= 1e-9\n"))...)
	require.NoError(t, err)
	require.Contains(t, out, "matvec/128")
	require.Contains(t, out, "1 of 1 in")
	text, err := os.ReadFile(saved)
	require.NoError(t, err)
	var report device.OpsReport
	require.NoError(t, json.Unmarshal(text, &report))
	require.Equal(t, 1, report.Floors.Held)
	require.Nil(t, report.Device)
}

func TestMissedFloorFailsAfterTheReport(t *testing.T) {
	out, err := run(t, smallOps("--floors", floorsFile(t, "ops add/128x128 gbps >= 1e9\nops add/1x1 us <= 1\n"))...)
	require.ErrorIs(t, err, stats.ErrMissed)
	require.NotErrorIs(t, err, command.ErrUsage)
	require.ErrorContains(t, err, "add/128x128 gbps >= 1e+09: measured")
	require.ErrorContains(t, err, "add/1x1 us <= 1: not measured")
	require.Contains(t, out, "0 of 2 in")
}

func TestMemoryRunsPeerProcesses(t *testing.T) {
	rpctest.NoLeaks(t)
	t.Setenv(selfKey, "1")
	args := append([]string{
		"memory", "--json", "--device", "cpu", "--threads", "1", "--largest", "64KiB", "--piece", "2MiB", "--memory-limit", "16MiB",
		"--contexts", "2", "--repeat", "2", "--budget", "1ms", "--floors", floorsFile(t, "memory all share >= 0.99\n"),
	}, cputest.Flags()...)
	out, err := run(t, args...)
	require.NoError(t, err)
	var report device.MemoryReport
	require.NoError(t, json.Unmarshal([]byte(out), &report))
	require.Equal(t, 1, report.Floors.Held)
	last := report.Checks[len(report.Checks)-1]
	require.Equal(t, "processes", last.Name)
	require.Equal(t, "ok", last.Result)
	require.Contains(t, last.Text, "8 + 8 pieces of 2MiB")
}

func TestDriverProgramIsFoundNextToTheEngine(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "cuda_bench_memory")
	require.Empty(t, command.NextTo(dir, "cuda_bench_memory"))
	require.NoError(t, os.WriteFile(program, nil, 0o600))
	require.Equal(t, program, command.NextTo(dir, "cuda_bench_memory"))
	require.Equal(t, program, command.NextTo("/nowhere::"+filepath.Join(dir, "libmillrace_cuda.so"), "cuda_bench_memory"))
	require.Empty(t, command.NextTo("", "cuda_bench_memory"))
}

func TestFloorFilesAreReadable(t *testing.T) {
	files, err := filepath.Glob("../../../../bench/floors/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, path := range files {
		for _, of := range []string{"ops", "memory", "engine"} {
			set, err := stats.ReadFloors(path, of)
			require.NoError(t, err)
			require.NotEmpty(t, set.List)
		}
	}
}
