package metrics

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/services/internal/monitor"
	"github.com/millrace/millrace/services/internal/monitor/monitortest"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// aliasesOf returns a scrape with aliases.
func aliasesOf(t *testing.T, r *rig) map[string]float64 {
	t.Helper()
	from := r.source()
	from.VLLM = true
	page, err := r.Page(from)
	require.NoError(t, err)
	recorder := httptest.NewRecorder()
	page.Handler(rpctest.Logger(t)).ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	require.Equal(t, http.StatusOK, recorder.Code)
	return monitortest.Series(t, recorder.Body.String())
}

func TestAliasesSayTheSame(t *testing.T) {
	r := newRig()
	a, empty, full := serving("a"), serving("b"), serving("c")
	a.Runner = engine.RunnerConfig{BlockSize: 16}
	a.Steps.Running, a.Steps.Waiting, a.Steps.FreeBlocks, a.Steps.CachedBlocks, a.Steps.TotalBlocks = 3, 4, 60, 20, 80
	a.Steps.GeneratedTokens, a.Steps.CachedTokens = 5, 6
	full.Steps.FreeBlocks, full.Steps.TotalBlocks, full.Steps.FreeWindowBlocks, full.Steps.TotalWindowBlocks = 60, 80, 2, 8
	r.models = []model.Status{a, empty, full}
	o := r.loopObserver("a")
	r.loopObserver("b")
	o.Admitted(time.Second, 100, 48)
	o.FirstToken(2 * time.Second)
	o.NextToken(3 * time.Second)
	o.Stepped(1, 2, 3, time.Second)
	o.Preempted(batch.Swap)
	o.Preempted(batch.Recompute)
	r.Finished("a", batch.Length)
	got := aliasesOf(t, r)
	const of = " engine=0 model_name=a"
	want := map[string]float64{
		"vllm:num_requests_running" + of: 3, "vllm:num_requests_waiting" + of: 4, "vllm:kv_cache_usage_perc" + of: .25,
		"vllm:kv_cache_usage_perc engine=0 model_name=b": 0, "vllm:kv_cache_usage_perc engine=0 model_name=c": .75,
		"vllm:prompt_tokens_total" + of: 100, "vllm:generation_tokens_total" + of: 5,
		"vllm:prefix_cache_queries_total" + of: 100, "vllm:prefix_cache_hits_total" + of: 6, "vllm:num_preemptions_total" + of: 2,
		"vllm:request_success_total engine=0 finished_reason=length model_name=a": 1,
		"vllm:request_success_total engine=0 finished_reason=stop model_name=a":   0,
		"vllm:time_to_first_token_seconds" + of + " sum":                          2, "vllm:inter_token_latency_seconds" + of + " sum": 3,
		"vllm:time_per_output_token_seconds" + of + " sum": 3, "vllm:e2e_request_latency_seconds" + of + " count": 0,
		"vllm:request_queue_time_seconds" + of + " sum": 1, "vllm:iteration_tokens_total" + of + " sum": 5,
		"vllm:cache_config_info block_size=16 engine=0 model_name=a num_gpu_blocks=80": 1,
	}
	named := map[string]bool{}
	for id, value := range want {
		require.Contains(t, got, id)
		require.InDelta(t, value, got[id], 1e-9, id)
		named[strings.Fields(id)[0]] = true
	}
	for _, is := range VLLM() {
		require.True(t, named[is.Name], "%s has no value in this test", is.Name)
	}
}

func TestAliasesAreOptional(t *testing.T) {
	r := newRig()
	r.models = []model.Status{serving("a")}
	r.loopObserver("a")
	for id := range r.series(t) {
		require.False(t, strings.HasPrefix(id, "vllm:"), id)
	}
	r.models = nil
	for id := range aliasesOf(t, r) {
		require.False(t, strings.HasPrefix(id, "vllm:"), "no model, no series: %s", id)
	}
}

func TestHostileModelNamesAreValidLabels(t *testing.T) {
	r := newRig()
	names := []string{"a\"b", "a\nb 7\nmillrace_worker_ready 42", `a\b`, "a\xffb", "{model=\"x\"}", strings.Repeat("n", 10_000), ""}
	for _, name := range names {
		r.models = append(r.models, serving(name))
		r.loopObserver(name).FirstToken(time.Second)
	}
	got := aliasesOf(t, r)
	for _, name := range names {
		require.InDelta(t, 1, got["millrace_first_token_seconds model="+monitor.Text(name)+" count"], 0, "%.20q", name)
		require.InDelta(t, 1, got["vllm:time_to_first_token_seconds engine=0 model_name="+monitor.Text(name)+" count"], 0, "%.20q", name)
		require.Contains(t, got, "millrace_running_sequences model="+monitor.Text(name))
	}
	require.NotContains(t, got, "millrace_worker_ready", "there is no assessment")
	r.models = nil
	for id := range aliasesOf(t, r) {
		require.NotContains(t, id, "model=")
	}
}
