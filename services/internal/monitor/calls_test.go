package monitor_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/millrace/millrace/services/internal/monitor"
	"github.com/millrace/millrace/services/internal/monitor/monitortest"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// patience is a hang guard: the tests wait for a far shorter time.
const patience = time.Minute

func TestDocumentListsServerMetrics(t *testing.T) {
	monitortest.Document(t, "Metrics of both", monitor.CallMetrics())
	monitortest.Names(t, "(millrace|grpc_server)_", monitor.CallMetrics())
}

// answers is a service whose one method returns what fail returns.
type answers struct{ fail func() error }

var answersService = grpc.ServiceDesc{ServiceName: "test.Answers", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
	MethodName: "Ask", Handler: func(impl any, ctx context.Context, read func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		if err := read(&emptypb.Empty{}); err != nil {
			return nil, err
		}
		return &emptypb.Empty{}, impl.(*answers).fail()
	},
}}}

// counted serves and counts, and returns a function that scrapes.
func counted(t *testing.T, a *answers) (conn *grpc.ClientConn, series func() map[string]float64) {
	t.Helper()
	calls := monitor.NewCalls()
	s := rpc.NewServer(rpc.ServerConfig{Domain: rpc.SchedulerDomain, Observer: calls}, rpctest.Logger(t))
	calls.Of(s)
	s.RegisterService(&answersService, a)
	lis := rpctest.Listener(t)
	rpctest.Serve(t, s, lis)
	conn = rpctest.Dial(t, lis)
	registry, err := monitor.Registry(calls)
	require.NoError(t, err)
	page := monitor.Page{Metrics: registry}
	return conn, func() map[string]float64 {
		recorder := httptest.NewRecorder()
		page.Handler(rpctest.Logger(t)).ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
		require.Equal(t, http.StatusOK, recorder.Code)
		return monitortest.Series(t, recorder.Body.String())
	}
}

func TestCallsAreCountedByStatus(t *testing.T) {
	a := &answers{}
	conn, series := counted(t, a)
	ask := func(fail func() error) codes.Code {
		a.fail = fail
		return status.Code(conn.Invoke(t.Context(), "/test.Answers/Ask", &emptypb.Empty{}, &emptypb.Empty{}))
	}
	refused := func(domain, why string) func() error {
		return func() error {
			return rpc.Error{Code: codes.ResourceExhausted, Domain: domain, Reason: why, Message: "no"}.Err()
		}
	}
	require.Equal(t, codes.OK, ask(func() error { return nil }))
	require.Equal(t, codes.ResourceExhausted, ask(refused(rpc.SchedulerDomain, reason.WorkersFull)))
	require.Equal(t, codes.ResourceExhausted, ask(refused(rpc.WorkerDomain, reason.WorkerFull)))
	require.Equal(t, codes.ResourceExhausted, ask(refused(rpc.WorkerDomain, "MADE_UP")))
	require.Equal(t, codes.ResourceExhausted, ask(refused(rpc.WorkerDomain, "MADE_UP_TOO")))
	require.Equal(t, codes.Internal, ask(func() error { panic("a handler that panics") }))
	_, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	const method = " grpc_method=Ask grpc_service=test.Answers grpc_type=unary"
	want := map[string]float64{
		"grpc_server_started_total" + method:                                                             6,
		"grpc_server_handling_seconds" + method + " count":                                               6,
		"grpc_server_handled_total grpc_code=OK" + method:                                                1,
		"grpc_server_handled_total grpc_code=ResourceExhausted" + method:                                 4,
		"grpc_server_handled_total grpc_code=Internal" + method:                                          1,
		"millrace_refused_calls_total origin=own reason=WORKERS_FULL":                                    1,
		"millrace_refused_calls_total origin=worker reason=WORKER_FULL":                                  1,
		"millrace_refused_calls_total origin=worker reason=(other)":                                      2,
		"millrace_refused_calls_total origin=own reason=PANIC":                                           1,
		"millrace_panics_total":                                                                          1,
		"millrace_refused_connections_total cause=handshake":                                             0,
		"millrace_refused_connections_total cause=headers":                                               0,
		"millrace_held_request_bytes":                                                                    0,
		"millrace_sending_response_bytes":                                                                0,
		"millrace_max_sending_response_bytes":                                                            rpc.DefaultMaxSendingBytes,
		"millrace_responses_waiting_to_be_sent":                                                          0,
		"millrace_stalled_calls_total":                                                                   0,
		"millrace_max_held_request_bytes":                                                                rpc.DefaultMaxWaitingBytes,
		"grpc_server_started_total grpc_method=Check grpc_service=grpc.health.v1.Health grpc_type=unary": 1,
	}
	require.Eventually(t, func() bool { // a call is counted after its end
		got := series()
		for id, value := range want {
			if is, there := got[id]; !there || is != value {
				return false
			}
		}
		return true
	}, patience, time.Millisecond, "%v", series())
}

func TestUnknownMethodsAreOneSeries(t *testing.T) {
	conn, series := counted(t, &answers{})
	const many = 1000
	for i := range many {
		err := conn.Invoke(t.Context(), fmt.Sprintf("/test.Strange%d/Method%d", i, i), &emptypb.Empty{}, &emptypb.Empty{})
		require.Equal(t, codes.Unimplemented, status.Code(err))
	}
	require.Eventually(t, func() bool {
		return series()["grpc_server_handled_total grpc_code=Unimplemented grpc_method=unknown grpc_service=unknown grpc_type=unary"] == many
	}, patience, time.Millisecond)
	for id := range series() {
		require.NotContains(t, id, "Strange")
	}
}

func TestLabelsAreClipped(t *testing.T) {
	for in, want := range map[string]string{
		"":                        "",
		"a\"b\n\\c":               "a\"b\n\\c",
		"a\xff\xfeb":              "a\ufffdb",
		strings.Repeat("x", 255):  strings.Repeat("x", 255),
		strings.Repeat("x", 256):  strings.Repeat("x", 252) + "…",
		strings.Repeat("é", 1000): strings.Repeat("é", 126) + "…",
	} {
		require.Equal(t, want, monitor.Text(in))
	}
}
