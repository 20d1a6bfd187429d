package rpc

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
)

// TestFootprintMatchesTheHeap compares footprints with the growth of the heap.
func TestFootprintMatchesTheHeap(t *testing.T) {
	ids := make([]uint32, 1<<20)
	bias := map[int32]float32{}
	stops := make([]string, 1<<15)
	messages := make([]*pb.ChatMessage, 1<<16)
	for i := range ids {
		ids[i] = uint32(i) & 127
	}
	for i := range int32(1 << 16) {
		bias[i] = 1
	}
	for i := range stops {
		stops[i] = "stop"
	}
	for i := range messages {
		messages[i] = &pb.ChatMessage{}
	}
	for name, in := range map[string]*pb.GenerateRequest{
		"a text":             {Input: &pb.GenerateRequest_Prompt{Prompt: strings.Repeat("x", 4<<20)}},
		"token ids":          {Input: &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: ids}}},
		"empty messages":     {Input: &pb.GenerateRequest_Chat{Chat: &pb.Chat{Messages: messages}}},
		"a map":              {Sampling: &pb.Sampling{LogitBias: bias}},
		"many small strings": {Stopping: &pb.Stopping{Stop: stops}},
	} {
		t.Run(name, func(t *testing.T) {
			raw, err := proto.Marshal(in)
			require.NoError(t, err)
			got := &pb.GenerateRequest{}
			before := heap()
			require.NoError(t, proto.Unmarshal(raw, got))
			grown := heap() - before
			is := footprint(got)
			runtime.KeepAlive(raw)
			require.GreaterOrEqual(t, 2*is, grown, "it is not far less than %d", grown)
			require.LessOrEqual(t, is, 3*grown, "nor far more")
			require.GreaterOrEqual(t, is, int64(len(raw))/2)
		})
	}
}

// heap returns the bytes in use. Two collections empty the pools.
func heap() int64 {
	for range 3 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestBudgetCountsDecodedSize(t *testing.T) {
	messages := make([]*pb.ChatMessage, 1<<14) // 32 KiB on the wire
	for i := range messages {
		messages[i] = &pb.ChatMessage{}
	}
	in := &pb.GenerateRequest{Input: &pb.GenerateRequest_Chat{Chat: &pb.Chat{Messages: messages}}}
	b := &requestBudget{max: 2 * footprint(in)}
	calls := []*call{{requests: b}, {requests: b}, {requests: b}}
	require.NoError(t, calls[0].holdRequest(in, WorkerDomain))
	require.NoError(t, calls[1].holdRequest(in, WorkerDomain))
	require.Equal(t, reason.TooManyBytesWaiting, Reason(calls[2].holdRequest(in, WorkerDomain)))
	calls[0].close()
	calls[1].close()

	b.max = footprint(in) / 2
	require.NoError(t, calls[2].holdRequest(in, WorkerDomain), "one alone is always taken")
	require.Equal(t, b.max, b.used.Load())
	calls[2].close()
	require.Zero(t, b.used.Load())
}
