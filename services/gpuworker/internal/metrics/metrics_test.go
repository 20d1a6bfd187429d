package metrics

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/health"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/vectors"
	"github.com/millrace/millrace/services/internal/monitor/monitortest"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// rig has the metrics of a worker whose state a test sets.
type rig struct {
	*Metrics
	models     []model.Status
	counts     Counts
	assessment *health.Look
	vectors    vectors.Stats
}

func newRig() *rig { return &rig{Metrics: New()} }

func (r *rig) source() Source {
	return Source{
		Models: func() []model.Status { return r.models }, Counts: func() Counts { return r.counts },
		Vectors: func() vectors.Stats { return r.vectors }, Assessment: func() *health.Look { return r.assessment }, WorkerID: "w", Version: "v",
	}
}

func (r *rig) get(t *testing.T, method, path string) (code int, body string) {
	t.Helper()
	page, err := r.Page(r.source())
	require.NoError(t, err)
	handler := page.Handler(rpctest.Logger(t))
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), method, path, nil))
	raw, err := io.ReadAll(recorder.Result().Body)
	require.NoError(t, err)
	return recorder.Code, string(raw)
}

// series returns the values of a scrape by name and labels, and for a histogram its count and sum.
func (r *rig) series(t *testing.T) map[string]float64 {
	t.Helper()
	code, body := r.get(t, http.MethodGet, "/metrics")
	require.Equal(t, http.StatusOK, code)
	return monitortest.Series(t, body)
}

// serving returns the status of a model with a loop.
func serving(name string) model.Status {
	return model.Status{Name: name, State: model.Ready, Steps: batch.Stats{StepBound: time.Second}}
}

func TestLoopObserverCountsForItsModel(t *testing.T) {
	r := newRig()
	r.models = []model.Status{serving("a"), serving("b")}
	a := r.loopObserver("a")
	r.loopObserver("b").Preempted(batch.Swap)
	a.Admitted(20*time.Millisecond, 100, 0)
	a.Admitted(30*time.Millisecond, 100, 48)
	a.Stepped(3, 64, 2, 5*time.Millisecond)
	a.FirstToken(time.Second)
	a.NextToken(time.Millisecond)
	a.NextToken(2 * time.Millisecond)
	a.Preempted(batch.Recompute)
	a.Preempted(batch.Recompute)
	a.Preempted(batch.Preemption(99)) // an unknown kind is ignored
	a.Freed(time.Minute, 2)
	r.Finished("a", batch.Stop)
	r.Finished("a", batch.Reason(99))
	r.Ended("a", codes.OK, 2*time.Second, false)
	r.Ended("a", codes.Canceled, time.Hour, true)
	r.Ended("a", codes.Code(99), time.Hour, false)
	r.Ended("gone", codes.OK, time.Hour, false)
	got := r.series(t)
	for id, want := range map[string]float64{
		"millrace_queue_wait_seconds model=a count":     2,
		"millrace_admitted_prompt_tokens_total model=a": 200,

		"millrace_finished_sequences_total model=a reason=stop":   1,
		"millrace_finished_sequences_total model=a reason=length": 0,
		"millrace_request_seconds model=a count":                  1,
		"millrace_request_seconds model=a sum":                    2,
		"millrace_requests_total code=OK model=a":                 1,
		"millrace_requests_total code=Canceled model=a":           1,
		"millrace_requests_total code=Unknown model=a":            1,
		"millrace_resumed_requests_total model=a":                 1,

		"millrace_queue_wait_seconds model=a sum":           .05,
		"millrace_step_seconds model=a count":               1,
		"millrace_step_sequences model=a sum":               3,
		"millrace_step_tokens model=a sum":                  66,
		"millrace_first_token_seconds model=a sum":          1,
		"millrace_inter_token_seconds model=a count":        2,
		"millrace_inter_token_seconds model=a sum":          .003,
		"millrace_preemptions_total kind=recompute model=a": 2,
		"millrace_preemptions_total kind=swap model=a":      0,
		"millrace_preemptions_total kind=swap model=b":      1,
		"millrace_cancel_to_free_seconds model=a sum":       60,
		"millrace_cancel_to_free_steps model=a sum":         2,
		"millrace_cancel_to_free_steps model=b count":       0,
		"millrace_step_bound_seconds model=a":               1,
		"millrace_model_loads_total result=loaded":          0,
	} {
		require.Contains(t, got, id)
		require.InDelta(t, want, got[id], 1e-9, id)
	}
	require.NotContains(t, got, "millrace_requests_total code=OK model=gone")
	require.NotContains(t, got, "millrace_worker_ready", "the worker has not assessed itself yet")
}

func TestSeriesEndWithTheirModel(t *testing.T) {
	r := newRig()
	r.models = []model.Status{serving("a"), serving("b")}
	r.loopObserver("a").FirstToken(time.Second)
	r.loopObserver("b").FirstToken(time.Second)
	ofA := func(got map[string]float64) (ids []string) {
		for id := range got {
			if strings.Contains(id, "model=a") {
				ids = append(ids, id)
			}
		}
		return ids
	}
	first := r.series(t)
	require.NotEmpty(t, ofA(first))
	r.models = r.models[1:]
	got := r.series(t)
	require.Empty(t, ofA(got))
	require.Equal(t, first["millrace_first_token_seconds model=b count"], got["millrace_first_token_seconds model=b count"])

	// A model that is being loaded has the series of its loop, from 0, but no readings.
	r.models = append(r.models, model.Status{Name: "a", State: model.Loading})
	r.loopObserver("a")
	got = r.series(t)
	require.Zero(t, got["millrace_first_token_seconds model=a count"])
	require.Contains(t, got, "millrace_first_token_seconds model=a count")
	require.NotContains(t, got, "millrace_running_sequences model=a")

	// After a reload its series start at 0 again, and updates of the last loop are lost.
	old := r.loopObserver("b")
	old.FirstToken(time.Second)
	r.loopObserver("b")
	old.FirstToken(time.Second)
	require.Zero(t, r.series(t)["millrace_first_token_seconds model=b count"])
}

func TestReadings(t *testing.T) {
	r := newRig()
	m := serving("m")
	m.Runner = engine.RunnerConfig{MaxSequences: 256, BlockSize: 16}
	m.DeviceBytes, m.VerifiedAge, m.IdleAge, m.Pinned = 7, 3*time.Second, 5*time.Second, true
	m.Steps = batch.Stats{
		Steps: 11, RunningStepAge: time.Millisecond, StepBound: 2 * time.Second, Running: 3, Waiting: 4, WaitingPrefillTokens: 5,
		FreeBlocks: 60, CachedBlocks: 20, TotalBlocks: 100, FreeHostBlocks: 3, TotalHostBlocks: 10, TierBlocks: 6, TotalTierBlocks: 8,
		TierBytes: 600, TotalTierBytes: 800, TierOutBytes: 900, TierInBytes: 300, TierRecalls: 21, TierTokens: 2100, TierEvictions: 22, TierDropped: 23, Paused: 2,
		FreeStates: 7, CachedStates: 5, TotalStates: 8, FreeWindowBlocks: 9, CachedWindowBlocks: 4, TotalWindowBlocks: 12,
		QueueAge: 7 * time.Second, PrefixLookups: 21, PrefixHits: 22, CachedTokens: 23, GeneratedTokens: 8, ForcedTokens: 3, PrefilledTokens: 9,
		Cancelled: 10, RefusedSteps: 12, StepsAfterCancel: 13, HeldBack: 14, HeldBackTime: 1500 * time.Millisecond,
	}
	gone := serving("gone")
	gone.State = model.Failed
	r.models = []model.Status{m, gone, {Name: "coming", State: model.Loading}}
	r.counts = Counts{Loaded: 5, Failed: 2, Unloaded: 3, Subscribers: 4, Resyncs: 6}
	temperature, power, physical, free, errs, corrected := 40, 350_500, uint64(1000), uint64(900), uint64(1), uint64(2)
	r.assessment = &health.Look{State: health.Degraded, At: time.Now(), Checks: []health.Check{{Name: "leaks"}, {Name: "device", OK: true}}}
	r.assessment.Leaked = 1
	r.assessment.Device = engine.DeviceInfo{
		Kind: "cuda", Name: "H", BytesTotal: 800, BytesFree: 300, BytesUsed: [engine.PurposeCount]uint64{1, 2, 3, 4}, BytesPooled: 5,
		PoolHits: 6, PoolMisses: 7, LiveBuffers: 8, FailedFrees: 9, TemperatureC: &temperature, PowerMW: &power, Errors: &errs,
		CorrectedErrors: &corrected, PhysicalTotal: &physical, PhysicalFree: &free,
	}
	r.vectors = vectors.Stats{
		Supported: true, Trainings: 1, MaxTrainings: 2, TrainingBytes: 3, SpoolBytes: 4, FreeSpool: 5, PutBytes: 310, FreePut: 311, Finished: 6, Cancelled: 7, Failed: 8,
		Rounds: 9, Rows: 10, Computed: 31, Recomputed: 11, DeviceTime: 12 * time.Second, EncodedRows: 13, DecodedRows: 14,
		EncodedRecomputed: 15, ReadyCodebooks: 16, FailedCodebooks: 17, CodebookBytes: 18, DamagedCodebooks: 19, RefusedFrees: 21,
	}
	got := r.series(t)
	want := map[string]float64{
		"millrace_vectors_trainings": 1, "millrace_vectors_max_trainings": 2, "millrace_vectors_training_device_bytes": 3,
		"millrace_vectors_training_spool_bytes state=held": 4, "millrace_vectors_training_spool_bytes state=free": 5,
		"millrace_vectors_put_bytes state=held": 310, "millrace_vectors_put_bytes state=free": 311,
		"millrace_vectors_trainings_total result=finished": 6, "millrace_vectors_trainings_total result=cancelled": 7,
		"millrace_vectors_trainings_total result=failed": 8, "millrace_vectors_training_rounds_total": 9,
		"millrace_vectors_training_rows_total": 10, "millrace_vectors_training_ids_total by=bound": 20,
		"millrace_vectors_training_ids_total by=recomputed": 11, "millrace_vectors_training_device_seconds_total": 12,
		"millrace_vectors_encoded_rows_total": 13, "millrace_vectors_decoded_rows_total": 14,
		"millrace_vectors_encoded_recomputed_total": 15, "millrace_vectors_codebooks state=ready": 16,
		"millrace_vectors_codebooks state=failed": 17, "millrace_vectors_codebook_device_bytes": 18,
		"millrace_vectors_damaged_codebooks_total": 19, "millrace_vectors_refused_frees": 21,
		"millrace_running_sequences model=m": 3, "millrace_waiting_sequences model=m": 4, "millrace_waiting_prompt_tokens model=m": 5,
		"millrace_max_sequences model=m": 256, "millrace_prompt_tokens_total model=m": 9, "millrace_generated_tokens_total model=m": 8, "millrace_forced_tokens_total model=m": 3,
		"millrace_cancelled_sequences_total model=m": 10, "millrace_steps_after_cancel_total model=m": 13,
		"millrace_steps_total model=m": 11, "millrace_refused_steps_total model=m": 12,
		"millrace_running_step_age_seconds model=m": .001, "millrace_step_bound_seconds model=m": 2,
		"millrace_kv_blocks model=m state=free": 40, "millrace_kv_blocks model=m state=cached": 20,
		"millrace_window_blocks model=m state=free": 5, "millrace_window_blocks model=m state=cached": 4, "millrace_window_blocks model=m state=held": 3,
		"millrace_saved_states model=m state=free": 2, "millrace_saved_states model=m state=cached": 5, "millrace_saved_states model=m state=held": 1,
		"millrace_host_cache_blocks model=m state=free": 2, "millrace_host_cache_blocks model=m state=used": 6,
		"millrace_host_cache_bytes model=m state=free": 200, "millrace_host_cache_bytes model=m state=used": 600,
		"millrace_host_cache_copied_bytes_total direction=out model=m": 900, "millrace_host_cache_copied_bytes_total direction=in model=m": 300,
		"millrace_host_cache_dropped_total model=m":   23,
		"millrace_host_cache_evictions_total model=m": 22, "millrace_host_cache_hits_total model=m": 21, "millrace_host_cache_tokens_total model=m": 2100,
		"millrace_swap_blocks model=m state=free": 3, "millrace_swap_blocks model=m state=held": 7,
		"millrace_held_back_sequences model=m": 14, "millrace_held_back_seconds_total model=m": 1.5,
		"millrace_paused_sequences model=m": 2, "millrace_queue_age_seconds model=m": 7, "millrace_prefix_lookups_total model=m": 21,
		"millrace_prefix_hits_total model=m": 22, "millrace_prefix_tokens_total model=m": 23, "millrace_kv_blocks model=m state=held": 40,
		"millrace_kv_block_tokens model=m": 16, "millrace_model_ready model=m": 1, "millrace_model_ready model=gone": 0,
		"millrace_model_device_bytes model=m": 7, "millrace_model_verified_age_seconds model=m": 3,
		"millrace_model_idle_seconds model=m": 5, "millrace_model_pinned model=m": 1, "millrace_model_pinned model=gone": 0,
		"millrace_worker_ready": 1, "millrace_failed_checks": 1,
		"millrace_device_memory_bytes purpose=staging": 1, "millrace_device_memory_bytes purpose=weights": 2,
		"millrace_device_memory_bytes purpose=kv": 3, "millrace_device_memory_bytes purpose=workspace": 4,
		"millrace_device_memory_bytes purpose=pooled": 5, "millrace_device_memory_limit_bytes": 800,
		"millrace_device_memory_free_bytes": 300, "millrace_device_physical_bytes": 1000, "millrace_device_physical_free_bytes": 900,
		"millrace_device_pool_total result=hit": 6, "millrace_device_pool_total result=miss": 7, "millrace_device_buffers": 8,
		"millrace_device_leaked_buffers": 1, "millrace_device_failed_frees_total": 9,
		"millrace_device_memory_errors_total kind=uncorrected": 1, "millrace_device_memory_errors_total kind=corrected": 2,
		"millrace_device_temperature_celsius": 40, "millrace_device_power_watts": 350.5,
		"millrace_model_unloads_total": 3, "millrace_health_followers": 4, "millrace_health_resyncs_total": 6,
		"millrace_models state=loading": 1, "millrace_models state=ready": 1, "millrace_models state=draining": 0,
		"millrace_models state=failed":             1,
		"millrace_model_loads_total result=loaded": 5, "millrace_model_loads_total result=failed": 2,
		"millrace_worker_info device=cuda device_name=H version=v worker_id=w": 1,
	}
	named := map[string]bool{}
	for id, value := range want {
		require.Contains(t, got, id)
		require.InDelta(t, value, got[id], 1e-9, id)
		named[strings.Fields(id)[0]] = true
	}
	for _, a := range readings() {
		require.True(t, named[a.Name], "%s has no value in this test", a.Name)
	}
	for id := range got {
		require.NotContains(t, id, "model=coming")
	}

	// An unknown reading is left out, and is not 0.
	r.assessment = &health.Look{State: health.Ready, At: time.Now()}
	r.vectors.Supported = false
	r.models[0].VerifiedAge = 0
	got = r.series(t)
	for _, id := range []string{
		"millrace_device_temperature_celsius", "millrace_device_power_watts", "millrace_device_physical_bytes",
		"millrace_device_physical_free_bytes", "millrace_device_memory_errors_total kind=corrected",
		"millrace_model_verified_age_seconds model=m", "millrace_vectors_trainings",
	} {
		require.NotContains(t, got, id)
	}
	require.Contains(t, got, "go_goroutines")
	process := func(id string) bool { return strings.HasPrefix(id, "process_") }
	require.True(t, slices.ContainsFunc(slices.Collect(maps.Keys(got)), process))
}

func TestProbes(t *testing.T) {
	now := func(s health.State, checks ...health.Check) *health.Look { // it is never old, however long the test takes
		return &health.Look{State: s, At: time.Now().Add(time.Hour), Checks: checks}
	}
	old := now(health.Ready)
	old.At = time.Now().Add(-time.Minute)
	for name, tc := range map[string]struct {
		assessment  *health.Look
		alive, able int
		says        string
	}{
		"before the first look":      {nil, 200, 503, "starting\n"},
		"loading its first models":   {now(health.Starting), 200, 503, "starting\n"},
		"ready":                      {now(health.Ready), 200, 200, "ready\n"},
		"degraded":                   {now(health.Degraded), 200, 200, "degraded\n"},
		"draining":                   {now(health.Draining), 200, 503, "draining\n"},
		"a hung step, or no device":  {now(health.NotReady), 503, 503, "not ready\n"},
		"its assessment hangs":       {old, 503, 503, "has not assessed itself"},
		"an unknown state":           {now(99), 200, 503, "state 99"},
		"failed checks are named":    {now(health.Degraded, health.Check{Name: "leaks", Message: "3 buffers"}), 200, 200, "degraded\nleaks: 3 buffers\n"},
		"those that hold are silent": {now(health.Ready, health.Check{Name: "leaks", OK: true}), 200, 200, "ready\n"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig()
			r.assessment = tc.assessment
			for path, want := range map[string]int{"/healthz": tc.alive, "/readyz": tc.able} {
				code, body := r.get(t, http.MethodGet, path)
				require.Equal(t, want, code, path)
				require.Contains(t, body, tc.says, path)
			}
		})
	}
}

func TestOnlyGetAndHeadAreAnswered(t *testing.T) {
	r := newRig()
	for _, path := range []string{"/metrics", "/healthz", "/readyz"} {
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodOptions} {
			code, _ := r.get(t, method, path)
			require.Equal(t, http.StatusMethodNotAllowed, code, "%s %s", method, path)
		}
		code, _ := r.get(t, http.MethodHead, path)
		require.NotEqual(t, http.StatusMethodNotAllowed, code)
	}
	for _, path := range []string{"/", "/metrics/", "/debug/pprof/"} {
		code, _ := r.get(t, http.MethodGet, path)
		require.Equal(t, http.StatusNotFound, code, path)
	}
}

// BenchmarkAToken measures the updates for one token.
func BenchmarkAToken(b *testing.B) {
	o := New().loopObserver("m")
	for b.Loop() {
		o.NextToken(17 * time.Millisecond)
	}
}
