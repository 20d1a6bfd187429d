package auth

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/monitor"
	"github.com/millrace/millrace/services/internal/monitor/monitortest"
	"github.com/millrace/millrace/services/internal/rpc"
)

func TestDocumentListsKeyMetrics(t *testing.T) {
	monitortest.Document(t, "Metrics of keys", Metrics())
	monitortest.Names(t, "millrace_key_", Metrics())
}

func TestKeysBeyondTheBoundAreSummed(t *testing.T) {
	var all []*Key
	for i := range maxKeys + 3 {
		all = append(all, &Key{ID: fmt.Sprint("k", i)})
	}
	keys := newKeys(all)
	g := newGuard(rpc.WorkerDomain, func() *Keys { return keys }, time.Now, func(time.Duration, func()) {})
	for i, k := range all {
		g.registry.account(k).addTokens(int64(i + 1))
	}
	g.registry.account(all[7]).countRefusal()
	calls := monitor.NewCalls()
	calls.With(g)
	registry, err := monitor.Registry(calls)
	require.NoError(t, err)
	recorder := httptest.NewRecorder()
	(monitor.Page{Metrics: registry}).Handler(hclog.NewNullLogger()).ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
	require.Equal(t, http.StatusOK, recorder.Code)
	series := monitortest.Series(t, recorder.Body.String())
	require.InDelta(t, 8, series["millrace_key_tokens_total key=k7"], 0)
	require.InDelta(t, 1, series["millrace_key_refused_calls_total key=k7"], 0)
	require.InDelta(t, maxKeys, series[fmt.Sprint("millrace_key_tokens_total key=k", maxKeys-1)], 0)
	require.NotContains(t, series, fmt.Sprint("millrace_key_tokens_total key=k", maxKeys))
	require.InDelta(t, 3*maxKeys+6, series["millrace_key_tokens_total key="+monitor.Rest], 0)
}
