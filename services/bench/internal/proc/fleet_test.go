package proc_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/proc"
	"github.com/millrace/millrace/services/bench/internal/proc/proctest"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

func TestMain(m *testing.M) { proctest.Main(m) }

func config(path string) proc.FleetConfig {
	return proc.FleetConfig{Scheduler: path, Worker: path, Workers: 10, Device: "sim", KVTokens: 4096, Context: 4096, Sequences: 4}
}

func TestFleetStartsServesAndStops(t *testing.T) {
	rpctest.NoLeaks(t)
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	fleet, err := proc.StartFleet(t.Context(), config(proctest.Use(t, proctest.Knowing)))
	require.NoError(t, err)
	defer func() { require.NoError(t, fleet.Stop()) }()
	scheduler, err := fleet.Schedule(t.Context())
	require.NoError(t, err)
	ids := make([]uint32, 40)
	for cached := range 2 {
		out := load.Call(t.Context(), scheduler.Conn, proc.FleetRequest(ids, 5), time.Now(), 0, load.Observer{}, nil)
		require.Equal(t, codes.OK, out.Code)
		require.Equal(t, 5, out.Tokens)
		require.Equal(t, 32*cached, out.Cached)
	}
	used, err := proc.CPUOf(fleet.Workers...)
	require.NoError(t, err)
	require.GreaterOrEqual(t, used, time.Duration(0))
	require.NoError(t, fleet.Stop())
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.Empty(t, left, "the folder of the run is gone")
}

func TestFleetReportsProgramsThatDoNotStart(t *testing.T) {
	rpctest.NoLeaks(t)
	for path, want := range map[string]string{"/nonexistent/worker": "make build", "/bin/false": "ended too early"} {
		fleet, err := proc.StartFleet(t.Context(), config(path))
		require.ErrorContains(t, err, want)
		require.NoError(t, fleet.Stop())
	}
}
