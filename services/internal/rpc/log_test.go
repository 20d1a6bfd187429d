package rpc_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// loader answers ListModels at once, and LoadModel when its context ends.
type loader struct {
	pb.UnimplementedModelServiceServer
	began chan struct{}
}

func (loader) ListModels(context.Context, *pb.ListModelsRequest) (*pb.ListModelsResponse, error) {
	return &pb.ListModelsResponse{}, nil
}

func (l loader) LoadModel(_ *pb.LoadModelRequest, stream grpc.ServerStreamingServer[pb.LoadModelResponse]) error {
	l.began <- struct{}{}
	<-stream.Context().Done()
	return rpc.Error{Code: codes.Canceled, Domain: rpc.WorkerDomain, Reason: reason.Cancelled, Message: "the caller left"}.Err()
}

// logged makes calls of a loader, and returns the JSON lines of finished calls that a server at
// that level writes.
func logged(t *testing.T, level hclog.Level, calls func(pb.ModelServiceClient, loader)) []map[string]any {
	t.Helper()
	var log syncBuffer
	l := loader{began: make(chan struct{})}
	server := rpc.NewServer(rpc.ServerConfig{Domain: rpc.WorkerDomain}, hclog.New(&hclog.LoggerOptions{Output: &log, Level: level, JSONFormat: true}))
	pb.RegisterModelServiceServer(server, l)
	lis := rpctest.Listener(t)
	stop := rpctest.Serve(t, server, lis)
	calls(pb.NewModelServiceClient(rpctest.Dial(t, lis)), l)
	stop()
	var lines []map[string]any
	for line := range strings.Lines(log.String()) {
		var fields map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &fields))
		if fields["@message"] == "finished call" {
			lines = append(lines, fields)
		}
	}
	return lines
}

func TestRoutineCallsAreLoggedAtDebug(t *testing.T) {
	rpctest.NoLeaks(t)
	list := func(c pb.ModelServiceClient, _ loader) {
		_, err := c.ListModels(within(t), &pb.ListModelsRequest{})
		require.NoError(t, err)
	}
	require.Empty(t, logged(t, hclog.Info, list))
	lines := logged(t, hclog.Debug, list)
	require.Len(t, lines, 1)
	require.IsType(t, 0.0, lines[0]["grpc.time_ms"], "a number in JSON too")
	require.NotContains(t, lines[0], "grpc.start_time")
}

func TestDeadlineIsLoggedAsDeadline(t *testing.T) {
	// A caller whose deadline passes cancels its stream, and that message may overtake the server's
	// own timer.
	for name, tc := range map[string]struct {
		deadline time.Duration
		want     codes.Code
	}{
		"the caller's deadline":                 {time.Hour, codes.DeadlineExceeded},
		"a cancellation long before a deadline": {2 * time.Hour, codes.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lines := logged(t, hclog.Info, func(c pb.ModelServiceClient, l loader) {
					ctx, cancel := context.WithTimeout(context.Background(), tc.deadline)
					defer cancel()
					stream, err := c.LoadModel(ctx, &pb.LoadModelRequest{Model: "m"})
					require.NoError(t, err)
					<-l.began
					time.Sleep(time.Hour - time.Millisecond) // 1 ms before the earlier deadline
					cancel()
					_, err = stream.Recv()
					require.Error(t, err)
					synctest.Wait()
				})
				require.Len(t, lines, 1)
				require.Equal(t, tc.want.String(), lines[0]["grpc.code"])
				require.NotContains(t, lines[0]["grpc.error"], "rpc error", "the line has the code once")
			})
		})
	}
}
