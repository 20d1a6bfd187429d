package vectorserver

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"lukechampine.com/blake3"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/vectors"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// square is a codebook of four codewords at the corners of a square, float32: row i of it has code i.
func square() (*pb.CodebookShape, []byte) {
	shape := &pb.CodebookShape{
		Kind: pb.CodebookKind_CODEBOOK_KIND_FLAT, Metric: pb.VectorMetric_VECTOR_METRIC_L2, Dimension: 2, Codewords: 4, Subspaces: 1,
		CodewordType: pb.ElementType_ELEMENT_TYPE_F32,
	}
	return shape, floats(0, 0, 0, 1, 1, 0, 1, 1)
}

func floats(values ...float32) (out []byte) {
	for _, v := range values {
		bits := math.Float32bits(v)
		out = append(out, byte(bits), byte(bits>>8), byte(bits>>16), byte(bits>>24))
	}
	return out
}

// put puts a codebook in pieces.
func (w *worker) put(t *testing.T, header *pb.PutCodebookHeader, chunks ...[]byte) (*pb.PutCodebookResponse, error) {
	t.Helper()
	stream, err := w.vectors.PutCodebook(t.Context())
	require.NoError(t, err)
	_ = stream.Send(&pb.PutCodebookRequest{Event: &pb.PutCodebookRequest_Header{Header: header}}) // CloseAndRecv returns the error
	for _, c := range chunks {
		_ = stream.Send(&pb.PutCodebookRequest{Event: &pb.PutCodebookRequest_Chunk{Chunk: c}})
	}
	return stream.CloseAndRecv()
}

// withSquare is a worker that has the square.
func withSquare(t *testing.T) *worker {
	t.Helper()
	w := simWorker(t)
	shape, codewords := square()
	_, err := w.put(t, &pb.PutCodebookHeader{Codebook: "square", Shape: shape}, codewords)
	require.NoError(t, err)
	return w
}

func TestPutCodebookEncodesAndDecodes(t *testing.T) {
	// A codebook that was put encodes and decodes, and its digest is the one that decision 029
	// defines.
	rpctest.NoLeaks(t)
	w := simWorker(t)
	shape, codewords := square()
	first, err := w.put(t, &pb.PutCodebookHeader{Codebook: "a/square", Shape: shape}, codewords[:5], nil, codewords[5:])
	require.NoError(t, err)
	copied := first.GetCopies()[0]
	require.False(t, copied.GetAlreadyLoaded())
	require.EqualValues(t, 32, copied.GetDeviceBytes())
	raw := blake3.Sum256(codewords)
	text := append([]byte("millrace codebook digest v1\x00"), 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0)
	want := blake3.Sum256(append(text, raw[:]...))
	require.Equal(t, hex.EncodeToString(want[:]), copied.GetCodebookDigest())
	again, err := w.put(t, &pb.PutCodebookHeader{Codebook: "a/square", Shape: shape, ExpectCodebookDigest: ptr(copied.GetCodebookDigest())}, codewords)
	require.NoError(t, err)
	require.True(t, again.GetCopies()[0].GetAlreadyLoaded())

	encoded, err := w.vectors.Encode(t.Context(), &pb.EncodeRequest{
		Codebook: "a/square", ElementType: pb.ElementType_ELEMENT_TYPE_F32, Rows: floats(0.9, 0.2, 0, 0, 0.5, 0.5), ReturnDistances: ptr(true),
		Neighbours: ptr(uint32(2)), ExpectCodebookDigest: ptr(copied.GetCodebookDigest()),
	})
	require.NoError(t, err)
	require.Equal(t, []byte{2, 3, 0, 1, 0, 1}, encoded.GetCodes(), "ties go to the lowest id")
	require.EqualValues(t, 1, encoded.GetCodeBytes())
	require.Len(t, encoded.GetDistances(), 4*6)
	require.Equal(t, floats(0, 1, 0.5, 0.5), encoded.GetDistances()[8:])
	require.Equal(t, copied.GetCodebookDigest(), encoded.GetCodebookDigest())
	decoded, err := w.vectors.Decode(t.Context(), &pb.DecodeRequest{Codebook: "a/square", Codes: []byte{3, 0}})
	require.NoError(t, err)
	require.Equal(t, floats(1, 1, 0, 0), decoded.GetRows())
	require.Equal(t, pb.ElementType_ELEMENT_TYPE_F32, decoded.GetElementType())
	none, err := w.vectors.Encode(t.Context(), &pb.EncodeRequest{Codebook: "a/square", ElementType: pb.ElementType_ELEMENT_TYPE_U8})
	require.NoError(t, err)
	require.Empty(t, none.GetCodes())

	list, err := w.vectors.ListCodebooks(t.Context(), &pb.ListCodebooksRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetCodebooks(), 1)
	info := list.GetCodebooks()[0]
	require.Equal(t, pb.CodebookState_CODEBOOK_STATE_READY, info.GetState())
	require.True(t, proto.Equal(shape, info.GetShape()), "%v", info.GetShape())
	require.NotNil(t, info.GetVerifiedAge())
	require.Equal(t, []string{"w1"}, info.GetWorkerIds())
}

func TestRowsThatLieWhereTheyCameAreEachCallsOwn(t *testing.T) {
	rpctest.NoLeaks(t)
	w := withSquare(t)
	corners := floats(0, 0, 0, 1, 1, 0, 1, 1)
	var calls errgroup.Group
	for corner := range byte(4) {
		calls.Go(func() error {
			for n := range 8 {
				rows := bytes.Repeat(corners[8*corner:8*corner+8], 5000<<(n%4))
				in := &pb.EncodeRequest{Codebook: "square", ElementType: pb.ElementType_ELEMENT_TYPE_F32, Rows: rows}
				encoded, err := w.vectors.Encode(t.Context(), in, rpc.WithZeroCopyRequest())
				if err != nil {
					return err
				}
				if want := bytes.Repeat([]byte{corner}, len(rows)/8); !bytes.Equal(want, encoded.GetCodes()) {
					return fmt.Errorf("%d rows of corner %d have other codes", len(rows)/8, corner)
				}
				decoded, err := w.vectors.Decode(t.Context(), &pb.DecodeRequest{Codebook: "square", Codes: encoded.GetCodes()})
				if err != nil {
					return err
				}
				if !bytes.Equal(rows, decoded.GetRows()) {
					return fmt.Errorf("%d codes of corner %d have other rows", len(rows)/8, corner)
				}
			}
			return nil
		})
	}
	require.NoError(t, calls.Wait())
}

func TestACodebookIsUnloadedAndLoadedFromItsFile(t *testing.T) {
	rpctest.NoLeaks(t)
	w := withSquare(t)
	freed, err := w.vectors.UnloadCodebook(t.Context(), &pb.UnloadCodebookRequest{Codebook: "square"})
	require.NoError(t, err)
	require.EqualValues(t, 32, freed.GetFreedBytes())
	_, err = w.vectors.UnloadCodebook(t.Context(), &pb.UnloadCodebookRequest{Codebook: "square"})
	require.Equal(t, reason.CodebookNotLoaded, rpc.Reason(err))
	require.Equal(t, codes.NotFound, status.Code(err))
	_, err = w.vectors.Decode(t.Context(), &pb.DecodeRequest{Codebook: "square"})
	require.Equal(t, codes.NotFound, status.Code(err))
	require.Equal(t, reason.CodebookNotLoaded, rpc.Reason(err))
	list, err := w.vectors.ListCodebooks(t.Context(), &pb.ListCodebooksRequest{})
	require.NoError(t, err)
	require.Equal(t, pb.CodebookState_CODEBOOK_STATE_ON_DISK, list.GetCodebooks()[0].GetState())
	digest := list.GetCodebooks()[0].GetCodebookDigest()
	require.Len(t, digest, 64)
	_, err = w.vectors.LoadCodebook(t.Context(), &pb.LoadCodebookRequest{Codebook: "square", ExpectCodebookDigest: ptr(strings.Repeat("0", 64))})
	require.Equal(t, reason.CodebookDigestMismatch, rpc.Reason(err))
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	for _, already := range []bool{false, true} {
		loaded, err := w.vectors.LoadCodebook(t.Context(), &pb.LoadCodebookRequest{Codebook: "square", ExpectCodebookDigest: &digest})
		require.NoError(t, err)
		require.Equal(t, already, loaded.GetCopies()[0].GetAlreadyLoaded())
	}
	_, err = w.vectors.Encode(t.Context(), &pb.EncodeRequest{
		Codebook: "square", ElementType: pb.ElementType_ELEMENT_TYPE_F32, ExpectCodebookDigest: ptr(strings.Repeat("0", 64)),
	})
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
}

func TestBadNamesAreRefusedWhereverTheyCome(t *testing.T) {
	w := simWorker(t)
	shape, codewords := square()
	for _, name := range []string{
		"", "../x", "/x", "x/../y", "a//b", "a/", ".hidden", "a/.b", "-x", "a b", "a\x00b", "nul", "CON", "a/com1", "lpt9.tar", "x.", "ä", "a\u2215b",
		"\uff0e\uff0e/x", "a\u202eb", strings.Repeat("x", 201), `a\b`, "~x",
	} {
		_, err := w.put(t, &pb.PutCodebookHeader{Codebook: name, Shape: shape}, codewords)
		require.Equal(t, codes.InvalidArgument, status.Code(err), "%q: %v", name, err)
		require.Equal(t, []string{"header.codebook"}, violated(err), "%q", name)
		got := w.train(t.Context(), t, training(func(c *pb.TrainingConfig) { c.SaveAs = &name }))
		require.Equal(t, []string{"config.save_as"}, violated(got.err), "%q: %v", name, got.err)
		for _, err := range []error{
			second(w.vectors.LoadCodebook(t.Context(), &pb.LoadCodebookRequest{Codebook: name})),
			second(w.vectors.UnloadCodebook(t.Context(), &pb.UnloadCodebookRequest{Codebook: name})),
			second(w.vectors.Decode(t.Context(), &pb.DecodeRequest{Codebook: name})),
		} {
			require.Equal(t, codes.InvalidArgument, status.Code(err), "%q: %v", name, err)
		}
	}
	require.NoDirExists(t, w.codebooks)
}

func second[T any](_ T, err error) error { return err }

func TestATrainedCodebookIsSavedAndServesAtOnce(t *testing.T) {
	rpctest.NoLeaks(t)
	w := simWorker(t)
	rows := vectorRows(64, 2)
	config := training(func(c *pb.TrainingConfig) { c.SaveAs = ptr("mine/first") })
	got := w.train(t.Context(), t, config, rowsOf(rows))
	require.NoError(t, got.err)
	encoded, err := w.vectors.Encode(t.Context(), &pb.EncodeRequest{
		Codebook: "mine/first", ElementType: pb.ElementType_ELEMENT_TYPE_F32, Rows: rows, ExpectCodebookDigest: ptr(got.finished.GetCodebookDigest()),
	})
	require.NoError(t, err)
	require.Len(t, encoded.GetCodes(), 64)
	file := filepath.Join(w.codebooks, "mine", "first.safetensors")
	before, err := os.ReadFile(file)
	require.NoError(t, err)
	require.True(t, bytes.HasSuffix(before, got.codebook))
	entries, err := os.ReadDir(w.codebooks)
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing half written is left")

	again := w.train(t.Context(), t, config, rowsOf(rows))
	require.NoError(t, again.err, "the same codebook may be saved under its name again")
	other := training(func(c *pb.TrainingConfig) {
		c.SaveAs, c.Seed, c.MaxIterations = ptr("mine/first"), ptr(uint64(8)), ptr(uint32(0))
	})
	refused := w.train(t.Context(), t, other, rowsOf(rows))
	require.Equal(t, codes.AlreadyExists, status.Code(refused.err))
	require.Equal(t, reason.CodebookExists, rpc.Reason(refused.err))
	require.Len(t, refused.codebook, 16, "what was trained is not lost")
	other.SaveAs = nil
	unsaved := w.train(t.Context(), t, other, rowsOf(rows))
	require.NoError(t, unsaved.err)
	require.Equal(t, unsaved.codebook, refused.codebook)
	require.Equal(t, unsaved.finished.GetCodebookDigest(), refused.finished.GetCodebookDigest(), "it has finished, all told")
	other.SaveAs = ptr("mine/first")
	other.Codewords = 5
	early := w.train(t.Context(), t, other, rowsOf(rows))
	require.Equal(t, codes.AlreadyExists, status.Code(early.err), "another shape is refused before rows are sent")
	require.Nil(t, early.accepted)
	after, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, before, after)
}

func TestAReplacedCodebookServesInPlaceOfTheOldOne(t *testing.T) {
	w := withSquare(t)
	shape, codewords := square()
	moved := append(floats(5, 5), codewords[8:]...)
	_, err := w.put(t, &pb.PutCodebookHeader{Codebook: "square", Shape: shape}, moved)
	require.Equal(t, codes.AlreadyExists, status.Code(err))
	before, err := w.vectors.Decode(t.Context(), &pb.DecodeRequest{Codebook: "square", Codes: []byte{0}})
	require.NoError(t, err)
	require.Equal(t, floats(0, 0), before.GetRows())
	_, err = w.put(t, &pb.PutCodebookHeader{Codebook: "square", Shape: shape, Replace: ptr(true)}, moved)
	require.NoError(t, err)
	after, err := w.vectors.Decode(t.Context(), &pb.DecodeRequest{Codebook: "square", Codes: []byte{0}})
	require.NoError(t, err)
	require.Equal(t, floats(5, 5), after.GetRows())
	_, err = w.vectors.UnloadCodebook(t.Context(), &pb.UnloadCodebookRequest{Codebook: "square"})
	require.NoError(t, err)
	_, err = w.vectors.LoadCodebook(t.Context(), &pb.LoadCodebookRequest{Codebook: "square", ExpectCodebookDigest: ptr(after.GetCodebookDigest())})
	require.NoError(t, err, "the file was replaced too")
}

func TestDrainingWorkerOnlyReplacesCodebooks(t *testing.T) {
	// A worker that drains accepts no new codebook, but replaces one that it has.
	w := withSquare(t)
	_, err := pb.NewWorkerServiceClient(w.conn).Drain(t.Context(), &pb.DrainRequest{})
	require.NoError(t, err)
	shape, codewords := square()
	_, err = w.put(t, &pb.PutCodebookHeader{Codebook: "other", Shape: shape}, codewords)
	require.Equal(t, reason.WorkerDraining, rpc.Reason(err), "%v", err)
	moved := append(floats(5, 5), codewords[8:]...)
	_, err = w.put(t, &pb.PutCodebookHeader{Codebook: "square", Shape: shape}, moved)
	require.Equal(t, reason.CodebookExists, rpc.Reason(err), "%v", err)
	_, err = w.put(t, &pb.PutCodebookHeader{Codebook: "square", Shape: shape, Replace: ptr(true)}, moved)
	require.NoError(t, err)
	_, err = pb.NewWorkerServiceClient(w.conn).Undrain(t.Context(), &pb.UndrainRequest{})
	require.NoError(t, err)
	got, err := w.vectors.Decode(t.Context(), &pb.DecodeRequest{Codebook: "square", Codes: []byte{0}})
	require.NoError(t, err)
	require.Equal(t, floats(5, 5), got.GetRows())
}

func TestBadCodebooksAreRefusedAndNothingIsLeft(t *testing.T) {
	w := simWorker(t)
	_, codewords := square()
	for name, tc := range map[string]struct {
		change func(*pb.PutCodebookHeader)
		chunks [][]byte
		field  string
	}{
		"no shape":            {change: func(h *pb.PutCodebookHeader) { h.Shape = nil }, field: "header.shape.dimension"},
		"no codewords":        {change: func(h *pb.PutCodebookHeader) { h.Shape.Codewords = 0 }, field: "header.shape.codewords"},
		"two subspaces":       {change: func(h *pb.PutCodebookHeader) { h.Shape.Subspaces = 2 }, field: "header.shape.subspaces"},
		"bytes":               {change: func(h *pb.PutCodebookHeader) { h.Shape.CodewordType = pb.ElementType_ELEMENT_TYPE_I8 }, field: "header.shape.codeword_type"},
		"a digest of nothing": {change: func(h *pb.PutCodebookHeader) { h.ExpectCodebookDigest = ptr("x") }, field: "header.expect_codebook_digest"},
		"two copies":          {change: func(h *pb.PutCodebookHeader) { h.Replicas = ptr(uint32(2)) }, field: "header.replicas"},
		"a byte too few":      {chunks: [][]byte{codewords[1:]}, field: "chunk"},
		"a byte too many":     {chunks: [][]byte{codewords, {0}}, field: "chunk"},
		"a NaN":               {chunks: [][]byte{append(floats(float32(math.NaN())), codewords[4:]...)}, field: "chunk"},
	} {
		t.Run(name, func(t *testing.T) {
			shape, _ := square()
			h := &pb.PutCodebookHeader{Codebook: "x", Shape: shape}
			if tc.change != nil {
				tc.change(h)
			}
			_, err := w.put(t, h, tc.chunks...)
			require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
			require.Contains(t, violated(err), tc.field)
		})
	}
	shape, _ := square()
	_, err := w.put(t, &pb.PutCodebookHeader{Codebook: "x", Shape: shape, ExpectCodebookDigest: ptr(strings.Repeat("0", 64))}, codewords)
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	stream, err := w.vectors.PutCodebook(t.Context())
	require.NoError(t, err)
	_, err = stream.CloseAndRecv()
	require.Equal(t, []string{"header"}, violated(err))
	w.server.patience = 200 * time.Millisecond
	stream, err = w.vectors.PutCodebook(t.Context())
	require.NoError(t, err)
	_ = stream.Send(&pb.PutCodebookRequest{Event: &pb.PutCodebookRequest_Header{Header: &pb.PutCodebookHeader{Codebook: "x", Shape: shape}}}) // the end of the stream returns the error
	err = stream.RecvMsg(&pb.PutCodebookResponse{})
	require.Equal(t, reason.SilentSender, rpc.Reason(err), "%v", err)
	require.NoDirExists(t, w.codebooks)
	require.Empty(t, w.books.List())
}

func TestBadEncodingsAndCodesAreRefused(t *testing.T) {
	w := withSquare(t)
	f32 := pb.ElementType_ELEMENT_TYPE_F32
	for name, tc := range map[string]struct {
		in    *pb.EncodeRequest
		code  codes.Code
		field string
	}{
		"no codebook":         {in: &pb.EncodeRequest{ElementType: f32}, field: "codebook"},
		"no element type":     {in: &pb.EncodeRequest{Codebook: "square"}, field: "element_type"},
		"half a row":          {in: &pb.EncodeRequest{Codebook: "square", ElementType: f32, Rows: make([]byte, 12)}, field: "rows"},
		"a NaN":               {in: &pb.EncodeRequest{Codebook: "square", ElementType: f32, Rows: floats(0, 0, 0, float32(math.NaN()))}, field: "rows"},
		"no neighbours":       {in: &pb.EncodeRequest{Codebook: "square", ElementType: f32, Neighbours: ptr(uint32(0))}, field: "neighbours"},
		"65 neighbours":       {in: &pb.EncodeRequest{Codebook: "square", ElementType: f32, Neighbours: ptr(uint32(65))}, field: "neighbours"},
		"more than codewords": {in: &pb.EncodeRequest{Codebook: "square", ElementType: f32, Neighbours: ptr(uint32(5))}, field: "neighbours"},
		"an answer too large": {in: &pb.EncodeRequest{Codebook: "square", ElementType: pb.ElementType_ELEMENT_TYPE_U8, Rows: make([]byte, 2<<20), ReturnDistances: ptr(true)}, field: "rows"},
		"a digest of nothing": {in: &pb.EncodeRequest{Codebook: "square", ElementType: f32, ExpectCodebookDigest: ptr("0")}, field: "expect_codebook_digest"},
		"nobody's codebook":   {in: &pb.EncodeRequest{Codebook: "nobody", ElementType: f32}, code: codes.NotFound},
		"more than a message": {in: &pb.EncodeRequest{Codebook: "square", ElementType: f32, Rows: make([]byte, 4<<20)}, code: codes.ResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.vectors.Encode(t.Context(), tc.in)
			if tc.field == "" {
				require.Equal(t, tc.code, status.Code(err), "%v", err)
				return
			}
			require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
			require.Equal(t, []string{tc.field}, violated(err))
		})
	}
	for name, raw := range map[string][]byte{"a code that is none": {0, 4}, "an answer too large": make([]byte, 1<<20)} {
		_, err := w.vectors.Decode(t.Context(), &pb.DecodeRequest{Codebook: "square", Codes: raw})
		require.Equal(t, codes.InvalidArgument, status.Code(err), name)
		require.Equal(t, []string{"codes"}, violated(err), name)
	}
	_, err := w.vectors.Decode(t.Context(), &pb.DecodeRequest{Codebook: "square", Codes: []byte{3}})
	require.NoError(t, err)
}

func TestDamagedCodebookIsOutOfServiceUntilLoaded(t *testing.T) {
	// A codebook whose resident bytes were damaged is out of service until it is loaded again.
	w := withSquare(t)
	book, release, err := w.books.Acquire("square", nil)
	require.NoError(t, err)
	require.NoError(t, book.FlipBit(9))
	release()
	require.ErrorIs(t, w.books.Verify("square"), vectors.ErrCorrupt)
	_, err = w.vectors.Decode(t.Context(), &pb.DecodeRequest{Codebook: "square", Codes: []byte{0}})
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.Equal(t, reason.CodebookOutOfService, rpc.Reason(err))
	require.Eventually(t, func() bool {
		r := w.report(t)
		return r.GetState() == pb.WorkerState_WORKER_STATE_DEGRADED && r.GetVectors().GetCodebooks()[0].GetState() == pb.CodebookState_CODEBOOK_STATE_FAILED
	}, hang, time.Millisecond)
	loaded, err := w.vectors.LoadCodebook(t.Context(), &pb.LoadCodebookRequest{Codebook: "square"})
	require.NoError(t, err)
	require.False(t, loaded.GetCopies()[0].GetAlreadyLoaded())
	decoded, err := w.vectors.Decode(t.Context(), &pb.DecodeRequest{Codebook: "square", Codes: []byte{3}})
	require.NoError(t, err)
	require.Equal(t, floats(1, 1), decoded.GetRows())
	require.EqualValues(t, 1, w.books.Stats().DamagedCodebooks)
}

func TestADamagedFileIsRefusedAndListedWithWhy(t *testing.T) {
	w := withSquare(t)
	_, err := w.vectors.UnloadCodebook(t.Context(), &pb.UnloadCodebookRequest{Codebook: "square"})
	require.NoError(t, err)
	path := filepath.Join(w.codebooks, "square.safetensors")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	data[len(data)-1] ^= 1
	require.NoError(t, os.WriteFile(path, data, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(w.codebooks, "no.safetensors"), []byte("no"), 0o600))
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(w.codebooks, "out.safetensors")))
	for name, want := range map[string]string{"square": reason.InvalidCodebookFile, "no": reason.InvalidCodebookFile, "out": reason.UnknownCodebook, "none": reason.UnknownCodebook} {
		_, err := w.vectors.LoadCodebook(t.Context(), &pb.LoadCodebookRequest{Codebook: name})
		require.Equal(t, want, rpc.Reason(err), "%s: %v", name, err)
		require.NotContains(t, err.Error(), w.codebooks)
	}
	list, err := w.vectors.ListCodebooks(t.Context(), &pb.ListCodebooksRequest{})
	require.NoError(t, err)
	for _, c := range list.GetCodebooks() {
		require.Equal(t, c.GetName() != "square", c.GetProblem() != "", "%v", c)
	}
}

func TestHealthReportsCodebooksAndTrainings(t *testing.T) {
	w := withSquare(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := w.health.Health(ctx)
	require.NoError(t, err)
	require.NoError(t, stream.Send(&pb.HealthRequest{}))
	m, err := stream.Recv()
	require.NoError(t, err)
	v := m.GetFull().GetVectors()
	require.EqualValues(t, 2, v.GetMaxTrainings())
	trainings := w.begin(ctx, t, training(nil))
	for v.GetTrainings() != 1 || len(v.GetCodebooks()) != 1 {
		m, err := stream.Recv()
		require.NoError(t, err)
		if d := m.GetDelta(); d.GetVectors() != nil {
			v = d.GetVectors()
		}
	}
	require.Positive(t, v.GetTrainingDeviceBytes())
	require.Equal(t, "square", v.GetCodebooks()[0].GetName())
	require.NoError(t, trainings.Send(rowsOf(vectorRows(64, 2))))
	for v.GetTrainings() != 0 {
		m, err := stream.Recv()
		require.NoError(t, err)
		if d := m.GetDelta(); d.GetVectors() != nil {
			v = d.GetVectors()
		}
	}
}

func TestContractEnumsMatchTheEngine(t *testing.T) {
	// Every element type and metric of the contract is one of the engine.
	require.Len(t, elementOf, int(engine.ElementCount))
	for name := range pb.ElementType_name {
		_, known := elementOf[pb.ElementType(name)]
		require.Equal(t, name != 0, known)
	}
	for e := range engine.ElementCount {
		require.Equal(t, e, elementOf[key(elementOf, e)])
	}
	require.Equal(t, pb.VectorMetric_VECTOR_METRIC_L2, metricNamed(engine.L2))
	require.Equal(t, pb.VectorMetric_VECTOR_METRIC_COSINE, metricNamed(engine.Cosine))
}
