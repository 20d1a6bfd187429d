package metrics_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/metrics"
	"github.com/millrace/millrace/services/internal/monitor/monitortest"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

func TestDocumentHasEveryMetric(t *testing.T) {
	monitortest.Document(t, "Metrics of a gateway", metrics.All())
}

func TestNamesFollowTheRules(t *testing.T) {
	monitortest.Names(t, "millrace_gateway_", metrics.All())
}

func TestPageCountsRequests(t *testing.T) {
	m := metrics.New()
	m.Began("/v1/models")
	m.Began("/v1/models")
	refused := httpapi.Refuse(codes.InvalidArgument, "n", "n is 0")
	m.Ended("/v1/models", http.StatusBadRequest, refused, time.Second)
	foreign := *refused
	foreign.Reason = "OF_A_LATER_RELEASE"
	m.Began("/v1/models")
	m.Ended("/v1/models", http.StatusBadRequest, &foreign, time.Second)
	page, err := m.Page(metrics.Source{Server: httpapi.New(httpapi.Config{}, rpctest.Logger(t)), MaxHeldBytes: 7, Version: "v1"})
	require.NoError(t, err)
	out := httptest.NewRecorder()
	page.Handler(rpctest.Logger(t)).ServeHTTP(out, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	series := monitortest.Series(t, out.Body.String())
	for name, want := range map[string]float64{
		"millrace_gateway_requests_total route=/v1/models status=400":                     2,
		"millrace_gateway_failed_requests_total reason=INVALID_ARGUMENT route=/v1/models": 2,
		"millrace_gateway_running_requests route=/v1/models":                              1,
		"millrace_gateway_held_request_bytes":                                             0,
		"millrace_gateway_max_held_request_bytes":                                         7,
		"millrace_gateway_info version=v1":                                                1,
	} {
		got, ok := series[name]
		require.True(t, ok, "%s in %v", name, series)
		require.InDelta(t, want, got, 0, name)
	}
}
