package server

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/gpuworker/engine/sim"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// loadAs loads the shipped model with a type of KV cache and returns the result of the load.
func loadAs(t *testing.T, w *worker, kv pb.KvType) (result *pb.LoadResult, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	stream, err := w.models.LoadModel(ctx, &pb.LoadModelRequest{Model: "stories", KvType: &kv})
	require.NoError(t, err)
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return result, nil
		}
		if err != nil {
			return nil, err
		}
		if in.GetResult() != nil {
			result = in.GetResult()
		}
	}
}

func TestEightBitCacheHasItsOwnClass(t *testing.T) {
	cpu := start(t, cpuDevice(t))
	_, err := loadAs(t, cpu, pb.KvType_KV_TYPE_F8)
	require.Equal(t, codes.Unimplemented, status.Code(err), "%v", err)
	_, err = loadAs(t, cpu, pb.KvType_KV_TYPE_F16)
	require.NoError(t, err)

	w := start(t, simDevice(t, sim.Options{}))
	classes := map[string]bool{}
	for _, kv := range []pb.KvType{pb.KvType_KV_TYPE_F8, pb.KvType_KV_TYPE_BF16} {
		_, err := loadAs(t, w, kv)
		require.NoError(t, err)
		inst, release, err := w.manager.Acquire("stories")
		require.NoError(t, err)
		classes[inst.ClassID] = true
		release()
		_, err = w.manager.Unload(t.Context(), "stories", false)
		require.NoError(t, err)
	}
	require.Len(t, classes, 2)
}
