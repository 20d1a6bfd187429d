package server

import (
	"testing"

	orcapb "github.com/cncf/xds/go/xds/data/orca/v3"
	orcaservice "github.com/cncf/xds/go/xds/service/orca/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/services/internal/rpc"
)

func TestLoadReportsInTrailersAndByStream(t *testing.T) {
	w := start(t, simDevice(t, sim.Options{}), "stories")
	stream, err := w.infer.Generate(t.Context(), prompted("Once upon a time", 100))
	for err == nil {
		_, err = stream.Recv()
	}
	raw := stream.Trailer().Get(rpc.LoadReportPrefix + "-bin")
	require.Len(t, raw, 1)
	report := &orcapb.OrcaLoadReport{}
	require.NoError(t, proto.Unmarshal([]byte(raw[0]), report))
	require.Contains(t, report.GetUtilization(), "kv_cache_usage")
	require.InDelta(t, 100, report.GetRequestCost()["completion_tokens"], 0)

	reports, err := orcaservice.NewOpenRcaServiceClient(w.conn).StreamCoreMetrics(t.Context(), &orcaservice.OrcaLoadReportRequest{})
	require.NoError(t, err)
	report, err = reports.Recv()
	require.NoError(t, err)
	require.Contains(t, report.GetUtilization(), "kv_cache_usage")

	w.stop()
	_, err = reports.Recv()
	require.Equal(t, codes.Canceled, status.Code(err), "a stopping worker ends the stream, and is not held up by it: %v", err)
}
