package server_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

// The scheduler gives the reason itself, because the worker's stream moves until the scheduler
// stops reading it.
func TestSlowCallerGetsTheSchedulersReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := workertest.New("w1", "i1", "m")
		r, _ := one(t, w)
		stream, err := r.inference().Generate(t.Context(), ask("m", 1<<20))
		require.NoError(t, err)
		time.Sleep(rpc.DefaultSendStall + time.Second)
		synctest.Wait()
		require.Zero(t, w.Running.Load(), "the worker has its place back")
		for err == nil {
			_, err = stream.Recv()
		}
		require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
		require.Equal(t, reason.SlowReader, rpc.Reason(err))
		require.Equal(t, rpc.SchedulerDomain, rpc.Domain(err))
		require.NotContains(t, status.Convert(err).Message(), "rpc error", "it is passed on as it is")
		require.EqualValues(t, 1, w.Generations.Load(), "and not tried again")
	})
}

// A unary answer that its caller does not read keeps its slot on the worker, and its log line open.
func TestUnreadUnaryAnswerIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := one(t, workertest.New("w1", "i1", "m"))
		stream, err := r.conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, pb.InferenceService_Tokenize_FullMethodName)
		require.NoError(t, err)
		in := &pb.TokenizeRequest{Model: "m", Input: &pb.TokenizeRequest_Text{Text: string(make([]byte, 300<<10))}}
		require.NoError(t, stream.SendMsg(in))
		require.NoError(t, stream.CloseSend())
		time.Sleep(10 * time.Second)
		load := r.fleet.Snapshot().Members[0].Load
		require.EqualValues(t, 1, load.InFlight())
		require.NoError(t, stream.RecvMsg(&pb.TokenizeResponse{}))
		synctest.Wait()
		require.Zero(t, load.InFlight())
	})
}
