package loadreport_test

import (
	"testing"
	"testing/synctest"
	"time"

	orcapb "github.com/cncf/xds/go/xds/data/orca/v3"
	orcaservice "github.com/cncf/xds/go/xds/service/orca/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/loadreport"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// costly ends each generation with a cost of 3 and 4 tokens.
type costly struct {
	pb.UnimplementedInferenceServiceServer
	reports *loadreport.Reporter
}

func (c costly) Generate(_ *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	c.reports.End(stream.Context(), 3, 4, nil)
	return nil
}

// trailer returns the trailer of one generation on a server with a reporter.
func trailer(t *testing.T, r *loadreport.Reporter) (*grpc.ClientConn, metadata.MD) {
	t.Helper()
	server := rpc.NewServer(rpc.ServerConfig{Domain: rpc.WorkerDomain, Options: r.Options()}, rpctest.Logger(t))
	pb.RegisterInferenceServiceServer(server, costly{reports: r})
	require.NoError(t, r.Register(server))
	lis := rpctest.Listener(t)
	rpctest.Serve(t, server, lis)
	conn := rpctest.Dial(t, lis)
	stream, err := pb.NewInferenceServiceClient(conn).Generate(t.Context(), &pb.GenerateRequest{})
	require.NoError(t, err)
	for err == nil {
		_, err = stream.Recv()
	}
	return conn, stream.Trailer()
}

func TestReportsInTrailersAndByStream(t *testing.T) {
	conn, got := trailer(t, loadreport.New(func() loadreport.Load {
		return loadreport.Load{HeldBlocks: 1, KVBlocks: 4, Waiting: 3, Places: 4}
	}))
	raw := got.Get(rpc.LoadReportPrefix + "-bin")
	require.Len(t, raw, 1)
	report := &orcapb.OrcaLoadReport{}
	require.NoError(t, proto.Unmarshal([]byte(raw[0]), report))
	require.InDelta(t, 1, report.GetApplicationUtilization(), 1e-9)
	require.Equal(t, map[string]float64{"prompt_tokens": 3, "completion_tokens": 4}, report.GetRequestCost())
	require.InDelta(t, 3, report.GetNamedMetrics()["num_requests_waiting"], 0)

	reports, err := orcaservice.NewOpenRcaServiceClient(conn).StreamCoreMetrics(t.Context(), &orcaservice.OrcaLoadReportRequest{})
	require.NoError(t, err)
	report, err = reports.Recv()
	require.NoError(t, err)
	require.InDelta(t, .25, report.GetUtilization()["kv_cache_usage"], 1e-9)
	require.Empty(t, report.GetRequestCost())
}

func TestNilReporterReportsNothing(t *testing.T) {
	conn, got := trailer(t, nil)
	require.Empty(t, got.Get(rpc.LoadReportPrefix+"-bin"))
	reports, err := orcaservice.NewOpenRcaServiceClient(conn).StreamCoreMetrics(t.Context(), &orcaservice.OrcaLoadReportRequest{})
	if err == nil {
		_, err = reports.Recv()
	}
	require.Equal(t, codes.Unimplemented, status.Code(err), "%v", err)
}

func TestLoadIsReadAFewTimesASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		r := loadreport.New(func() loadreport.Load { asked++; return loadreport.Load{} })
		for range 50 {
			r.End(t.Context(), 0, 0, nil)
			r.ServerMetrics()
		}
		require.Equal(t, 1, asked)
		time.Sleep(time.Second)
		r.End(t.Context(), 0, 0, status.Error(codes.Internal, ""))
		r.End(t.Context(), 0, 0, status.Error(codes.InvalidArgument, ""))
		m := r.ServerMetrics()
		require.Equal(t, 2, asked)
		require.InDelta(t, 51, m.QPS, 1e-6, "those that ended in the second behind the first report")
		require.InDelta(t, 1, m.EPS, 1e-6, "a request that is wrong is no fault of the server")
		m.Utilization["mine"] = 1
		require.NotContains(t, r.ServerMetrics().Utilization, "mine", "what it gives is the caller's")
	})
}
