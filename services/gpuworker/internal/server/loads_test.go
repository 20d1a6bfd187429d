package server

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/enginetest"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// loaded returns the error of a load.
func loaded(stream grpc.ServerStreamingClient[pb.LoadModelResponse]) error {
	for {
		if _, err := stream.Recv(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// LoadModel of a loaded model names both values of each option that differs, and takes options that
// are unset or equal.
func TestLoadModelRefusesOtherOptions(t *testing.T) {
	w := start(t, simDevice(t, sim.Options{}))
	f16 := pb.KvType_KV_TYPE_F16
	load := func(in *pb.LoadModelRequest) error {
		t.Helper()
		in.Model = "stories"
		stream, err := w.models.LoadModel(t.Context(), in)
		require.NoError(t, err)
		return loaded(stream)
	}
	made := &pb.LoadModelRequest{ContextLength: ptr(uint32(128)), MaxSequences: ptr(uint32(4)), KvType: &f16, KvTokens: ptr(uint64(1024))}
	require.NoError(t, load(made))
	require.NoError(t, load(made), "the same options")
	require.NoError(t, load(&pb.LoadModelRequest{Pin: ptr(true)}), "options that are unset match all values, and a pin is honoured")
	err := load(&pb.LoadModelRequest{ContextLength: ptr(uint32(100_000)), MaxSequences: ptr(uint32(4))})
	require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
	require.Equal(t, reason.LoadOptionsDiffer, rpc.Reason(err))
	require.Equal(t, map[string]string{"loaded_context_length": "128", "wanted_context_length": "100000"}, rpc.Info(err).GetMetadata())
	require.ErrorContains(t, err, `"stories" is loaded with context_length 128, and the request has context_length 100000`)
}

// UnloadModel ends a running load, reports it, and leaves no model.
func TestUnloadModelEndsLoad(t *testing.T) {
	reached, proceed := make(chan struct{}, 1000), make(chan struct{})
	w := start(t, enginetest.Intercept(simDevice(t, sim.Options{}), enginetest.Hooks{Bind: func(engine.TensorDesc) error {
		reached <- struct{}{}
		<-proceed
		return nil
	}}))
	stream, err := w.models.LoadModel(t.Context(), &pb.LoadModelRequest{Model: "stories"})
	require.NoError(t, err)
	<-reached
	gone, leave := context.WithCancel(t.Context())
	leave()
	_, err = w.server.UnloadModel(gone, &pb.UnloadModelRequest{Model: "stories"})
	require.Equal(t, codes.Canceled, status.Code(err), "its caller has left, and the load ends all the same: %v", err)
	type answer struct {
		out *pb.UnloadModelResponse
		err error
	}
	unloaded := make(chan answer, 1)
	go func() {
		out, err := w.server.UnloadModel(t.Context(), &pb.UnloadModelRequest{Model: "stories"})
		unloaded <- answer{out, err}
	}()
	require.Never(t, func() bool { return len(unloaded) > 0 }, 100*time.Millisecond, time.Millisecond, "not before the load has ended")
	close(proceed)
	err = loaded(stream)
	require.Equal(t, codes.Aborted, status.Code(err), "%v", err)
	require.Equal(t, reason.LoadEnded, rpc.Reason(err))
	got := <-unloaded
	require.NoError(t, got.err)
	require.Equal(t, []string{w.server.cfg.WorkerID}, got.out.GetLoadEndedWorkerIds())
	require.Equal(t, got.out.GetLoadEndedWorkerIds(), got.out.GetWorkerIds())
	require.Empty(t, w.manager.Loaded())
	_, err = w.models.UnloadModel(t.Context(), &pb.UnloadModelRequest{Model: "stories"})
	require.Equal(t, codes.NotFound, status.Code(err))
}
