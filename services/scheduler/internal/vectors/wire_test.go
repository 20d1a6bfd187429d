package vectors

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// cut splits bytes into buffers of size bytes each, as a transport does.
func cut(raw []byte, size int) (out mem.BufferSlice) {
	for len(raw) > size {
		out = append(out, mem.SliceBuffer(raw[:size]))
		raw = raw[size:]
	}
	return append(out, mem.SliceBuffer(raw))
}

func TestAMessageIsReadWhereverItsBuffersEnd(t *testing.T) {
	in := &pb.EncodeRequest{Codebook: "a/codebook", ExpectCodebookDigest: proto.String("digest"), ElementType: 3, Rows: make([]byte, 300)}
	raw, err := proto.Marshal(in)
	require.NoError(t, err)
	for size := 1; size <= len(raw); size++ {
		got, err := targetOf(cut(raw, size))
		require.NoError(t, err, size)
		require.Equal(t, target{"a/codebook", "digest"}, got, size)
	}
	for end := range raw[:20] {
		_, _ = targetOf(cut(raw[:end], 3)) // any result is good for a part
	}
}

func TestACheckpointIsWholeWithItsLastPiece(t *testing.T) {
	for name, tc := range map[string]struct {
		m    *pb.TrainCodebookResponse
		want event
	}{
		"a first piece": {&pb.TrainCodebookResponse{Event: &pb.TrainCodebookResponse_Checkpoint{Checkpoint: &pb.TrainingCheckpoint{
			Iteration: 9, Total: 500, Chunk: make([]byte, 200)}}}, event{iteration: 9}},
		"the last one": {&pb.TrainCodebookResponse{WorkerId: "w", Event: &pb.TrainCodebookResponse_Checkpoint{Checkpoint: &pb.TrainingCheckpoint{
			Iteration: 9, Offset: 200, Total: 500, Chunk: make([]byte, 300)}}}, event{iteration: 9, whole: true}},
		"an empty one": {&pb.TrainCodebookResponse{Event: &pb.TrainCodebookResponse_Checkpoint{Checkpoint: &pb.TrainingCheckpoint{}}}, event{}},
		"the end":      {&pb.TrainCodebookResponse{Event: &pb.TrainCodebookResponse_Finished{Finished: &pb.TrainingFinished{Energy: 1}}}, event{finished: true}},
		"codewords":    {&pb.TrainCodebookResponse{Event: &pb.TrainCodebookResponse_Codebook{Codebook: make([]byte, 5000)}}, event{}},
	} {
		t.Run(name, func(t *testing.T) {
			raw, err := proto.Marshal(tc.m)
			require.NoError(t, err)
			for _, size := range []int{1, 7, len(raw) + 1} {
				require.Equal(t, tc.want, eventOf(cut(raw, size)))
			}
		})
	}
}

// The fields that are read equal those that a worker decodes.
func FuzzTarget(f *testing.F) {
	for _, m := range []*pb.EncodeRequest{{}, {Codebook: "k"}, {Codebook: "k", ExpectCodebookDigest: proto.String("d"), Rows: []byte{1, 2}}} {
		raw, err := proto.Marshal(m)
		require.NoError(f, err)
		f.Add(raw, 3)
	}
	f.Add([]byte{0x0a, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01}, 1)
	f.Fuzz(func(t *testing.T, raw []byte, size int) {
		buffers := cut(raw, max(size, 1))
		_ = eventOf(buffers) // of anything
		got, err := targetOf(buffers)
		var want pb.EncodeRequest
		if err == nil && proto.Unmarshal(raw, &want) == nil {
			require.Equal(t, target{want.GetCodebook(), want.GetExpectCodebookDigest()}, got)
		}
	})
}
