package metrics

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/monitor"
	"github.com/millrace/millrace/services/internal/monitor/monitortest"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// rig has the metrics of a fake scheduler.
type rig struct {
	*Metrics
	members        []fleet.Member
	known          bool
	stopping       bool
	events         fleet.Events
	queues         []admission.Stats
	loads, vectors [2]int64
}

func newRig() *rig { return &rig{Metrics: New(), known: true} }

func (r *rig) page(t *testing.T) monitor.Page {
	t.Helper()
	page, err := r.Page(Source{
		Snapshot: func() *fleet.Snapshot {
			return &fleet.Snapshot{Route: route.Snapshot{Known: r.known}, Members: r.members}
		},
		Events: func() fleet.Events { return r.events }, Queues: func() []admission.Stats { return append([]admission.Stats(nil), r.queues...) },
		Loads:   func() (uint64, uint64) { return uint64(r.loads[0]), uint64(r.loads[1]) },
		Vectors: func() (int64, int64) { return r.vectors[0], r.vectors[1] }, Stopping: func() bool { return r.stopping }, Version: "v",
		Calls: monitor.NewCalls(),
	})
	require.NoError(t, err)
	return page
}

func (r *rig) get(t *testing.T, path string) (int, string) {
	t.Helper()
	recorder := httptest.NewRecorder()
	r.page(t).Handler(rpctest.Logger(t)).ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return recorder.Code, recorder.Body.String()
}

// series returns the series of a scrape without the runtime's.
func (r *rig) series(t *testing.T) map[string]float64 {
	t.Helper()
	code, body := r.get(t, "/metrics")
	require.Equal(t, http.StatusOK, code)
	return monitortest.Series(t, body)
}

// member returns a worker that has reported, with models.
func member(id string, models ...string) fleet.Member {
	m := fleet.Member{
		Address: id + ":1", Connected: true, LastMessage: time.Now().Add(-time.Second), RoundTrip: time.Millisecond, Load: &route.Load{},
		Report: &pb.WorkerReport{WorkerId: id, State: pb.WorkerState_WORKER_STATE_READY},
	}
	for _, name := range models {
		m.Report.Models = append(m.Report.Models, &pb.ModelStatus{Name: name})
	}
	return m
}

func TestReadings(t *testing.T) {
	r := newRig()
	w := member("w", "m", "n")
	w.Report.Load = &pb.LoadStatus{Running: 1, Waiting: 2, WaitingPrefillTokens: 3, FreeBlocks: 4, TotalBlocks: 9}
	w.Report.Device = &pb.DeviceStatus{BytesTotal: 100, BytesFree: 40}
	w.Load.Begin(1, 0)
	w.Load.Begin(1, 0)
	lost := member("lost")
	lost.Connected, lost.RoundTrip = false, 0
	// must not become a huge number
	lost.Report.Load = &pb.LoadStatus{FreeBlocks: 7, TotalBlocks: 3}
	silent := fleet.Member{Address: "silent:1", Load: &route.Load{}, Duplicate: true}
	r.members = []fleet.Member{lost, silent, w}
	r.events = fleet.Events{Resyncs: 1, Unreached: 2, Silent: 3, Stalled: 4, Disbelieved: 5, Closed: 6}
	r.queues = []admission.Stats{{
		Model: "m", Waiting: 1, Resuming: 2, Oldest: 3 * time.Second, Placed: 4, Queued: 5, Shed: 6, Displaced: 7, Late: 8, Left: 9, Expired: 10,
	}, {Model: "of nobody", Waiting: 99}}
	r.loads, r.vectors = [2]int64{1, 2}, [2]int64{3, 4}
	got := r.series(t)
	const ofW = " address=w:1 worker_id=w"
	want := map[string]float64{
		"millrace_scheduler_worker_up" + ofW: 1, "millrace_scheduler_worker_up address=lost:1 worker_id=lost": 0,
		"millrace_scheduler_worker_serves" + ofW: 1, "millrace_scheduler_worker_serves address=lost:1 worker_id=lost": 0,
		"millrace_scheduler_worker_round_trip_seconds" + ofW: .001, "millrace_scheduler_worker_requests" + ofW: 2,
		"millrace_scheduler_worker_running_sequences" + ofW: 1, "millrace_scheduler_worker_waiting_sequences" + ofW: 2,
		"millrace_scheduler_worker_waiting_prompt_tokens" + ofW:                           3,
		"millrace_scheduler_worker_kv_blocks address=w:1 state=free worker_id=w":          4,
		"millrace_scheduler_worker_kv_blocks address=w:1 state=held worker_id=w":          5,
		"millrace_scheduler_worker_kv_blocks address=lost:1 state=held worker_id=lost":    0,
		"millrace_scheduler_worker_device_memory_limit_bytes" + ofW:                       100,
		"millrace_scheduler_worker_device_memory_free_bytes" + ofW:                        40,
		"millrace_scheduler_worker_models" + ofW:                                          2,
		"millrace_scheduler_ready":                                                        1,
		"millrace_scheduler_info version=v":                                               1,
		"millrace_scheduler_workers state=lost":                                           2,
		"millrace_scheduler_workers state=ready":                                          1,
		"millrace_scheduler_workers state=draining":                                       0,
		"millrace_scheduler_duplicate_workers":                                            1,
		"millrace_scheduler_health_resyncs_total":                                         1,
		"millrace_scheduler_health_streams_ended_total cause=unreached":                   2,
		"millrace_scheduler_health_streams_ended_total cause=silent":                      3,
		"millrace_scheduler_health_streams_ended_total cause=stalled":                     4,
		"millrace_scheduler_health_streams_ended_total cause=disbelieved":                 5,
		"millrace_scheduler_health_streams_ended_total cause=closed":                      6,
		"millrace_scheduler_model_loads_total result=loaded":                              1,
		"millrace_scheduler_model_loads_total result=failed":                              2,
		"millrace_scheduler_vector_calls":                                                 3,
		"millrace_scheduler_vector_bytes":                                                 4,
		"millrace_scheduler_waiting_requests model=m":                                     1,
		"millrace_scheduler_resuming_requests model=m":                                    2,
		"millrace_scheduler_queue_age_seconds model=m":                                    3,
		"millrace_scheduler_placed_attempts_total model=m":                                4,
		"millrace_scheduler_queued_attempts_total model=m":                                5,
		"millrace_scheduler_shed_requests_total cause=full model=m":                       6,
		"millrace_scheduler_shed_requests_total cause=displaced model=m":                  7,
		"millrace_scheduler_shed_requests_total cause=late model=m":                       8,
		"millrace_scheduler_shed_requests_total cause=timeout model=m":                    10,
		"millrace_scheduler_left_requests_total model=m":                                  9,
		"millrace_scheduler_worker_message_age_seconds address=w:1 worker_id=w (a clock)": 1,
	}
	named := map[string]bool{}
	for id, value := range want {
		id, clock := strings.CutSuffix(id, " (a clock)")
		require.Contains(t, got, id)
		if named[strings.Fields(id)[0]] = true; !clock {
			require.InDelta(t, value, got[id], 1e-9, id)
		} else {
			require.GreaterOrEqual(t, got[id], value, id)
		}
	}
	for _, a := range readings() {
		require.True(t, named[a.Name], "%s has no value in this test", a.Name)
	}
	for id := range got {
		require.NotContains(t, id, "silent:1", "who has never reported has no worker_id")
		require.NotContains(t, id, "of nobody")
	}
	require.NotContains(t, got, "millrace_scheduler_worker_round_trip_seconds address=lost:1 worker_id=lost")
	require.Contains(t, got, "go_goroutines")
}

func TestCallsAreCountedByModel(t *testing.T) {
	r := newRig()
	r.members = []fleet.Member{member("w", "m")}
	o := r.Observer()
	c := o.Placed("m", 20*time.Millisecond)
	c.FirstToken(time.Second)
	c.Tokens(3)
	c.Tokens(0)
	c.Tokens(-1) // a mistake of a caller must not make a counter panic
	for _, a := range []relay.Continuation{relay.Retried, relay.Resumed, relay.Inexact, relay.Moved, relay.Lost, relay.Continuation(99)} {
		c.Continued(a)
	}
	failed := o.Placed("m", 30*time.Millisecond)
	got := r.series(t)
	require.InDelta(t, 2, got["millrace_scheduler_running_requests model=m"], 0)
	c.Ended(codes.OK, 4*time.Second)
	failed.Ended(codes.Code(99), time.Hour)
	got = r.series(t)
	for id, want := range map[string]float64{
		"millrace_scheduler_running_requests model=m":             0,
		"millrace_scheduler_tokens_total model=m":                 3,
		"millrace_scheduler_queue_wait_seconds model=m count":     2,
		"millrace_scheduler_queue_wait_seconds model=m sum":       .05,
		"millrace_scheduler_first_token_seconds model=m sum":      1,
		"millrace_scheduler_request_seconds model=m count":        1,
		"millrace_scheduler_request_seconds model=m sum":          4,
		"millrace_scheduler_requests_total code=OK model=m":       1,
		"millrace_scheduler_requests_total code=Unknown model=m":  1,
		"millrace_scheduler_failovers_total kind=retried model=m": 1,
		"millrace_scheduler_failovers_total kind=resumed model=m": 1,
		"millrace_scheduler_failovers_total kind=inexact model=m": 1,
		"millrace_scheduler_failovers_total kind=moved model=m":   1,
		"millrace_scheduler_failovers_total kind=lost model=m":    1,
	} {
		require.Contains(t, got, id)
		require.InDelta(t, want, got[id], 1e-9, id)
	}
}

func TestGoneModelsLoseTheirSeries(t *testing.T) {
	r := newRig()
	r.members = []fleet.Member{member("v", "m"), member("w", "m", "n")}
	r.queues = []admission.Stats{{Model: "m"}, {Model: "n"}}
	late := r.Observer().Placed("n", 0)
	r.Observer().Placed("m", 0).Ended(codes.OK, time.Second)
	has := func(part string) bool {
		for id := range r.series(t) {
			if strings.Contains(id, part) {
				return true
			}
		}
		return false
	}
	require.True(t, has("worker_id=w"))
	require.True(t, has("model=n"))
	r.members = r.members[:1]
	require.False(t, has("worker_id=w"))
	require.False(t, has("model=n"))
	require.True(t, has("worker_id=v"))
	require.True(t, has("model=m"))
	late.Tokens(1)
	late.Ended(codes.Unavailable, time.Second)
	require.False(t, has("model=n"), "a call that ends behind its model brings no series back")

	r.members = append(r.members, member("w", "n"))
	r.Observer().Placed("n", 0).Ended(codes.OK, time.Second)
	require.InDelta(t, 1, r.series(t)["millrace_scheduler_requests_total code=OK model=n"], 0, "it begins anew")
}

func TestPageIsBounded(t *testing.T) {
	r := newRig()
	const many = 10_000
	var models []string
	for i := range many {
		name := fmt.Sprintf("m%05d\n\"%d", i, i)
		models = append(models, name)
		r.queues = append(r.queues, admission.Stats{Model: name, Waiting: 1})
		c := r.Observer().Placed(name, time.Millisecond)
		c.Tokens(1)
		c.Ended(codes.OK, time.Second)
	}
	r.members = []fleet.Member{member("w\"\n\xff", models...)}
	for i := range many {
		r.members = append(r.members, member(fmt.Sprintf("x%05d", i)))
	}
	got := r.series(t)
	count := func(name string) (n int, sum float64) {
		for id, value := range got {
			if strings.HasPrefix(id, name+" ") {
				n, sum = n+1, sum+value
			}
		}
		return n, sum
	}
	n, sum := count("millrace_scheduler_tokens_total")
	require.Equal(t, maxModels+1, n)
	require.InDelta(t, many, sum, 0, "and none is lost")
	n, sum = count("millrace_scheduler_waiting_requests")
	require.Equal(t, maxModels+1, n)
	require.InDelta(t, many, sum, 0)
	require.InDelta(t, many-maxModels, got["millrace_scheduler_waiting_requests model="+monitor.Rest], 0)
	n, _ = count("millrace_scheduler_worker_up")
	require.Equal(t, maxWorkers, n)
	require.InDelta(t, many+1, got["millrace_scheduler_workers state=ready"], 0)
	require.Contains(t, got, "millrace_scheduler_worker_up address=w\"\n\ufffd:1 worker_id=w\"\n\ufffd")

	r.members, r.queues = nil, nil
	for id := range r.series(t) {
		require.False(t, strings.Contains(id, "model=m") || strings.Contains(id, "worker_id"), id)
	}
}

func TestEqualClippedAddressesAreOneSeries(t *testing.T) {
	r := newRig()
	long := strings.Repeat("a", 1000)
	a, b := member(long), member(long)
	a.Address, b.Address = long+"1", long+"2"
	r.members = []fleet.Member{a, b}
	n := 0
	for id := range r.series(t) {
		if strings.HasPrefix(id, "millrace_scheduler_worker_up ") {
			n++
		}
	}
	require.Equal(t, 1, n)
}

func TestProbes(t *testing.T) {
	for name, tc := range map[string]struct {
		known, stopping bool
		able            int
		says            string
	}{
		"the fleet is not known": {false, false, http.StatusServiceUnavailable, "starting"},
		"the fleet is known":     {true, false, http.StatusOK, "ready\n"},
		"it stops":               {true, true, http.StatusServiceUnavailable, "stopping\n"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig()
			r.known, r.stopping = tc.known, tc.stopping
			code, body := r.get(t, "/readyz")
			require.Equal(t, tc.able, code)
			require.Contains(t, body, tc.says)
			code, body = r.get(t, "/healthz")
			require.Equal(t, http.StatusOK, code)
			require.Contains(t, body, tc.says)
		})
	}
}

func TestScrapesAndCallsAreConcurrent(t *testing.T) {
	r := newRig()
	r.members = []fleet.Member{member("w", "m0", "m1")}
	page := r.page(t)
	var work sync.WaitGroup
	for i := range 8 {
		work.Go(func() {
			for n := range 200 {
				// no worker reports half of them
				c := r.Observer().Placed(fmt.Sprintf("m%d", (i+n)%4), 0)
				c.Tokens(1)
				c.Ended(codes.OK, 0)
			}
		})
	}
	for range 20 {
		_, err := page.Metrics.Gather()
		require.NoError(t, err)
	}
	work.Wait()
	got := r.series(t)
	require.InDelta(t, 400, got["millrace_scheduler_tokens_total model=m0"], 0)
	require.InDelta(t, 400, got["millrace_scheduler_tokens_total model=m1"], 0)
	require.NotContains(t, got, "millrace_scheduler_tokens_total model=m2")
}

// BenchmarkToken measures the cost of a frame with a token: compare with an observer that does
// nothing.
func BenchmarkToken(b *testing.B) {
	c := New().Observer().Placed("m", 0)
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			c.Tokens(1)
		}
	})
}
