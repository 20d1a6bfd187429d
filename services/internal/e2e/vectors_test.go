package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// trained is the result of a training call.
type trained struct {
	codebook   []byte
	checkpoint []byte // the last complete one
	iteration  uint32 // of the checkpoint
	digest     string
	err        error
}

// without is for a training without a fault.
func without(string) {}

// trainOn runs a training; each is called with the worker after every complete checkpoint.
func trainOn(ctx context.Context, t *testing.T, s *server, c *pb.TrainingConfig, prologue, rows []byte, each func(worker string)) (out trained) {
	t.Helper()
	stream, err := pb.NewVectorServiceClient(s.conn).TrainCodebook(ctx)
	require.NoError(t, err)
	send := func(m *pb.TrainCodebookRequest) { _ = stream.Send(m) } // errors come with the end of the stream
	send(&pb.TrainCodebookRequest{Event: &pb.TrainCodebookRequest_Config{Config: c}})
	if len(prologue) > 0 {
		send(&pb.TrainCodebookRequest{Event: &pb.TrainCodebookRequest_Prologue{Prologue: prologue}})
	}
	for size := int(c.GetDimension()) * 4 * 100; len(rows) > 0; {
		n := min(size, len(rows))
		send(&pb.TrainCodebookRequest{Event: &pb.TrainCodebookRequest_Rows{Rows: rows[:n]}})
		rows = rows[n:]
	}
	_ = stream.CloseSend()
	var pieces []byte
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			out.err = err
			return out
		}
		out.codebook = append(out.codebook, m.GetCodebook()...)
		if piece := m.GetCheckpoint(); piece != nil {
			pieces = append(pieces, piece.GetChunk()...)
			if uint64(len(pieces)) == piece.GetTotal() {
				out.checkpoint, out.iteration, pieces = pieces, uint32(piece.GetIteration()), nil
				each(m.GetWorkerId())
			}
		}
		if f := m.GetFinished(); f != nil {
			out.digest = f.GetCodebookDigest()
		}
	}
}

// endlessUpdates is more than any test waits for, so that the training runs when its worker has a
// fault.
const endlessUpdates = 1_000_000

// A worker is killed during a training; another one continues from the last checkpoint to the same
// bits, saves the codebook, and has it after a restart.
func TestATrainingOutlivesItsWorker(t *testing.T) {
	t.Parallel()
	books := filepath.Join(t.TempDir(), "codebooks")
	one, two := startWorker(t, "one", "--codebooks", books), startWorker(t, "two", "--codebooks", books)
	const n, d = 5000, 24
	rows := make([]byte, 0, n*d*4)
	for x, i := uint32(1), 0; i < n*d; i++ {
		x = x*1664525 + 1013904223
		rows = binary.LittleEndian.AppendUint32(rows, math.Float32bits(float32(x>>16)/4096))
	}
	config := func(updates uint32) *pb.TrainingConfig {
		return &pb.TrainingConfig{
			Dimension: d, Rows: n, ElementType: pb.ElementType_ELEMENT_TYPE_F32, Kind: pb.CodebookKind_CODEBOOK_KIND_FLAT, Codewords: 64,
			Seed: ptr(uint64(3)), MaxIterations: &updates, StableIterations: ptr(uint32(endlessUpdates)), CheckpointInterval: ptr(uint32(4)),
		}
	}
	seen := 0
	cut := trainOn(within(t), t, one, config(endlessUpdates), nil, rows, func(string) {
		if seen++; seen == 3 {
			one.kill()
		}
	})
	require.Equal(t, codes.Unavailable, status.Code(cut.err), "%v", cut.err)
	require.Empty(t, cut.codebook)
	updates := cut.iteration + 25
	want := trainOn(within(t), t, two, config(updates), nil, rows, without)
	require.NoError(t, want.err)
	name, rest := "kept/one", config(updates)
	rest.ResumeBytes, rest.SaveAs = ptr(uint64(len(cut.checkpoint))), &name
	got := trainOn(within(t), t, two, rest, cut.checkpoint, rows, without)
	require.NoError(t, got.err)
	require.Equal(t, want.codebook, got.codebook)
	require.Equal(t, want.digest, got.digest)

	two.terminate()
	require.Zero(t, two.exit(t))
	two = two.again(t)
	client := pb.NewVectorServiceClient(two.conn)
	in := &pb.EncodeRequest{Codebook: name, ElementType: pb.ElementType_ELEMENT_TYPE_F32, Rows: rows, ExpectCodebookDigest: &got.digest}
	_, err := client.Encode(within(t), in)
	require.Equal(t, reason.CodebookNotLoaded, rpc.Reason(err), "%v", err)
	_, err = client.LoadCodebook(within(t), &pb.LoadCodebookRequest{Codebook: name, ExpectCodebookDigest: &got.digest})
	require.NoError(t, err)
	encoded, err := client.Encode(within(t), in)
	require.NoError(t, err)
	require.Len(t, encoded.GetCodes(), n)
	require.Equal(t, got.digest, encoded.GetCodebookDigest())
}

func TestWorkerCanRefuseTrainings(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "none", "--max-trainings", "0", "--codebooks", filepath.Join(t.TempDir(), "x"))
	got := trainOn(within(t), t, w, &pb.TrainingConfig{
		Dimension: 1, Rows: 2, ElementType: pb.ElementType_ELEMENT_TYPE_U8, Kind: pb.CodebookKind_CODEBOOK_KIND_FLAT, Codewords: 2,
	}, nil, nil, nil)
	require.Equal(t, codes.Unavailable, status.Code(got.err))
	require.Equal(t, reason.NoTrainings, rpc.Reason(got.err))
	r := w.report(t)
	require.NotNil(t, r.GetVectors())
	require.Zero(t, r.GetVectors().GetMaxTrainings())
	require.NotContains(t, w.log.String(), "panic")
}
