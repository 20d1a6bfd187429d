package receivebench

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/bench/internal/simfleet/simfleettest"
	"github.com/millrace/millrace/services/bench/internal/stats"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

func TestMain(m *testing.M) { simfleettest.Main(m) }

func TestEveryRequestIsCountedByItsEnd(t *testing.T) {
	rpctest.NoLeaks(t)
	path := simfleettest.Use(t, simfleettest.Ignorant)
	c := Config{Scheduler: path, Worker: path, Requests: 20, Bytes: 1 << 18, Connections: 3, Memory: 1 << 38,
		Measure: 10 * time.Millisecond, Timeout: 5 * time.Minute}
	report, err := Run(t.Context(), c, func(string, ...any) {})
	require.NoError(t, err)
	require.NoError(t, report.Err())
	require.Len(t, report.Rows, 4)
	for _, row := range report.Rows {
		require.Equal(t, map[string]int{"OK": 20}, row.Ends)
		require.Positive(t, row.Beside.Count)
		require.Positive(t, row.Peak[0])
	}
	var text bytes.Buffer
	report.Print(&text)
	require.Contains(t, text.String(), "      20  OK\n")
}

func TestRequestsHaveTheirLengths(t *testing.T) {
	for _, k := range []kind{text, ids} {
		for _, n := range []int{1 << 10, 1 << 14, 1<<14 + 1, 1 << 20, 16 << 20} {
			raw, err := k.request(n)
			require.NoError(t, err)
			require.InDelta(t, n, len(raw), 1, "lengths of lengths leave out some")
			require.LessOrEqual(t, len(raw), n)
			require.NoError(t, proto.Unmarshal(raw, &pb.GenerateRequest{}))
		}
	}
	_, err := text.request(3)
	require.Error(t, err)
}

func TestWhatWasBrokenIsTold(t *testing.T) {
	served := stats.Summary{Count: 1}
	require.NoError(t, (&Report{Rows: []Row{{Beside: served}}}).Err())
	for want, row := range map[string]Row{
		"2 requests had no status":    {Hung: 2, Beside: served},
		"3 small requests failed: no": {Failed: 3, Example: "no", Beside: served},
		"no small request was served": {},
	} {
		err := (&Report{Rows: []Row{row}}).Err()
		require.ErrorIs(t, err, ErrBroken)
		require.ErrorContains(t, err, want)
	}
}

func TestWhatCannotBeMeasuredIsRefused(t *testing.T) {
	valid := Config{Requests: 1, Bytes: 1 << 20, Connections: 1, Measure: time.Second, Timeout: time.Second}
	require.NoError(t, valid.Validate())
	for want, change := range map[string]func(*Config){
		"--requests 0": func(c *Config) { c.Requests = 0 }, "--bytes 100": func(c *Config) { c.Bytes = 100 },
		"--connections": func(c *Config) { c.Connections = 0 }, "--memory 5": func(c *Config) { c.Memory = 5 },
		"--measure": func(c *Config) { c.Measure = 0 }, "--timeout": func(c *Config) { c.Timeout = -1 },
	} {
		c := valid
		change(&c)
		require.ErrorContains(t, c.Validate(), want)
	}
}
