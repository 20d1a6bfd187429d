package simfleet_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/simfleet"
	"github.com/millrace/millrace/services/bench/internal/simfleet/simfleettest"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

func TestMain(m *testing.M) { simfleettest.Main(m) }

func config(path string) simfleet.Config {
	return simfleet.Config{Scheduler: path, Worker: path, Workers: 10, Device: "sim", KVTokens: 4096, Context: 4096, Sequences: 4}
}

func TestProgramsAreStartedKilledAndStopped(t *testing.T) {
	rpctest.NoLeaks(t)
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	fleet, err := simfleet.Start(t.Context(), config(simfleettest.Use(t, simfleettest.Knowing)))
	require.NoError(t, err)
	defer func() { require.NoError(t, fleet.Stop()) }()
	first, err := fleet.Schedule(t.Context(), "", 3)
	require.NoError(t, err)
	ids := make([]uint32, 40)
	for cached := range 2 {
		out := load.Call(t.Context(), first.Conn, simfleet.Request(ids, 5), time.Now(), 0, load.Observer{}, nil)
		require.Equal(t, codes.OK, out.Code)
		require.Equal(t, 5, out.Tokens)
		require.Equal(t, 32*cached, out.Cached)
	}
	require.NoError(t, fleet.Kill())
	again, err := fleet.Schedule(t.Context(), first.Address, 10)
	require.NoError(t, err)
	require.Equal(t, first.Address, again.Address)
	used, err := simfleet.CPU(fleet.Workers...)
	require.NoError(t, err)
	require.GreaterOrEqual(t, used, time.Duration(0))
	require.NoError(t, fleet.Retire())
	require.NoError(t, fleet.Stop())
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.Empty(t, left, "the folder of the run is gone")
}

func TestAProgramThatIsNotThereOrEndsAtOnceIsTold(t *testing.T) {
	rpctest.NoLeaks(t)
	for path, want := range map[string]string{"/nonexistent/worker": "make build", "/bin/false": "ended too early"} {
		fleet, err := simfleet.Start(t.Context(), config(path))
		require.ErrorContains(t, err, want)
		require.NoError(t, fleet.Stop())
	}
}
