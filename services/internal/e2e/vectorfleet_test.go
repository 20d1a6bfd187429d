package e2e

import (
	"context"
	"encoding/binary"
	"math"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// vectorRows returns n rows of d 32-bit floats.
func vectorRows(n, d int) []byte {
	rows := make([]byte, 0, n*d*4)
	for x, i := uint32(1), 0; i < n*d; i++ {
		x = x*1664525 + 1013904223
		rows = binary.LittleEndian.AppendUint32(rows, math.Float32bits(float32(x>>16)/4096))
	}
	return rows
}

// putOn uploads the bytes of a codebook.
func putOn(ctx context.Context, t *testing.T, s *server, h *pb.PutCodebookHeader, body []byte) (*pb.PutCodebookResponse, error) {
	t.Helper()
	stream, err := pb.NewVectorServiceClient(s.conn).PutCodebook(ctx)
	if err != nil {
		return nil, err
	}
	_ = stream.Send(&pb.PutCodebookRequest{Event: &pb.PutCodebookRequest_Header{Header: h}})
	for len(body) > 0 {
		n := min(1000, len(body))
		_ = stream.Send(&pb.PutCodebookRequest{Event: &pb.PutCodebookRequest_Chunk{Chunk: body[:n]}})
		body = body[n:]
	}
	return stream.CloseAndRecv()
}

// Through a scheduler, a training loses its worker and continues from its checkpoint on another
// one. Its codebook is put on both, and every chunk gets the same codes while one of them is
// killed.
func TestFleetTrainsAndEncodesAsOneWorker(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	workers := map[string]*server{}
	var all []*server
	for _, id := range []string{"one", "two"} {
		workers[id] = startWorker(t, id, "--codebooks", filepath.Join(dir, id))
		all = append(all, workers[id])
	}
	fleet := startScheduler(t, all)
	client := pb.NewVectorServiceClient(fleet.conn)
	const n, d = 3000, 20
	rows := vectorRows(n, d)
	config := func(updates uint32) *pb.TrainingConfig {
		return &pb.TrainingConfig{
			Dimension: d, Rows: n, ElementType: pb.ElementType_ELEMENT_TYPE_F32, Kind: pb.CodebookKind_CODEBOOK_KIND_FLAT, Codewords: 32,
			CodewordType: pb.ElementType_ELEMENT_TYPE_F32, Seed: proto.Uint64(5), MaxIterations: &updates,
			StableIterations: proto.Uint32(endlessUpdates), CheckpointInterval: proto.Uint32(4),
		}
	}
	// The scheduler chooses which of the two trains.
	seen, lost := 0, ""
	cut := trainOn(within(t), t, fleet, config(endlessUpdates), nil, rows, func(worker string) {
		if seen++; seen == 2 {
			lost = worker
			workers[worker].kill()
		}
	})
	require.NotEmpty(t, lost)
	require.Equal(t, codes.Unavailable, status.Code(cut.err), "%v", cut.err)
	require.Equal(t, reason.WorkerLost, rpc.Reason(cut.err))
	require.Equal(t, lost, rpc.Info(cut.err).GetMetadata()["worker_id"])
	iteration, err := strconv.Atoi(rpc.Info(cut.err).GetMetadata()["checkpoint_iteration"])
	require.NoError(t, err)
	require.EqualValues(t, cut.iteration, iteration)
	updates := cut.iteration + 25
	resumed := config(updates)
	resumed.ResumeBytes = proto.Uint64(uint64(len(cut.checkpoint)))
	got := trainOn(within(t), t, fleet, resumed, cut.checkpoint, rows, without)
	require.NoError(t, got.err)
	var want trained
	for id, w := range workers { // undisturbed, after the scheduler's trainings have ended
		if id != lost {
			want = trainOn(within(t), t, w, config(updates), nil, rows, without)
		}
	}
	require.NoError(t, want.err)
	require.Equal(t, want.codebook, got.codebook)
	require.Equal(t, want.digest, got.digest)

	workers[lost] = workers[lost].again(t)
	header := &pb.PutCodebookHeader{Codebook: "kept/book", ExpectCodebookDigest: &got.digest, Replicas: proto.Uint32(2), Shape: &pb.CodebookShape{
		Kind: pb.CodebookKind_CODEBOOK_KIND_FLAT, Metric: pb.VectorMetric_VECTOR_METRIC_L2, Dimension: d, Codewords: 32, Subspaces: 1,
		CodewordType: pb.ElementType_ELEMENT_TYPE_F32,
	}}
	require.Eventually(t, func() bool {
		_, err := putOn(within(t), t, fleet, header, got.codebook)
		return err == nil
	}, hang, 10*time.Millisecond, "two workers are there again")
	again, err := putOn(within(t), t, fleet, header, got.codebook)
	require.NoError(t, err)
	require.Len(t, again.GetCopies(), 2)
	for _, c := range again.GetCopies() {
		require.True(t, c.GetAlreadyLoaded())
		require.Equal(t, got.digest, c.GetCodebookDigest())
	}

	in := func(rows []byte) *pb.EncodeRequest {
		return &pb.EncodeRequest{Codebook: "kept/book", ElementType: pb.ElementType_ELEMENT_TYPE_F32, Rows: rows, ExpectCodebookDigest: &got.digest}
	}
	whole, err := client.Encode(within(t), in(rows))
	require.NoError(t, err)
	var pieces []byte
	const chunk = 50 * d * 4
	for at := 0; at < len(rows); at += chunk {
		if at == len(rows)/chunk/2*chunk {
			workers[lost].kill()
		}
		out, err := client.Encode(within(t), in(rows[at:at+chunk]))
		require.NoError(t, err, "chunk at %d", at)
		pieces = append(pieces, out.GetCodes()...)
	}
	require.Equal(t, whole.GetCodes(), pieces)
	back, err := client.Decode(within(t), &pb.DecodeRequest{Codebook: "kept/book", Codes: pieces})
	require.NoError(t, err)
	require.Len(t, back.GetRows(), len(rows))

	fleet.until(t, "the worker that was killed is gone", func(now []*pb.FleetWorker) bool { return connected(now) == 1 })
	list, err := client.ListCodebooks(within(t), &pb.ListCodebooksRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetCodebooks(), 1)
	require.Equal(t, pb.CodebookState_CODEBOOK_STATE_READY, list.GetCodebooks()[0].GetState())
	_, err = client.UnloadCodebook(within(t), &pb.UnloadCodebookRequest{Codebook: "kept/book"})
	require.NoError(t, err)
	_, err = client.Encode(within(t), in(rows[:chunk]))
	require.Equal(t, reason.NoWorker, rpc.Reason(err), "the one that was killed may come back with it: %v", err)
	_, err = client.LoadCodebook(within(t), &pb.LoadCodebookRequest{Codebook: "kept/book"})
	require.NoError(t, err)
	_, err = client.Encode(within(t), in(rows[:chunk]))
	require.NoError(t, err)
}
