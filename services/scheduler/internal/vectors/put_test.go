package vectors_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/vectors"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

// header is for a codebook on n workers; 0 leaves replicas unset.
func header(name string, n uint32) *pb.PutCodebookHeader {
	h := &pb.PutCodebookHeader{Codebook: name, Shape: workertest.Shape()}
	if n > 0 {
		h.Replicas = &n
	}
	return h
}

// put puts bytes in pieces.
func (r *rig) put(ctx context.Context, h *pb.PutCodebookHeader, pieces ...[]byte) (*pb.PutCodebookResponse, error) {
	r.Helper()
	stream, err := r.PutCodebook(ctx)
	require.NoError(r, err)
	if h != nil {
		_ = stream.Send(&pb.PutCodebookRequest{Event: &pb.PutCodebookRequest_Header{Header: h}})
	}
	for _, p := range pieces {
		if stream.Send(&pb.PutCodebookRequest{Event: &pb.PutCodebookRequest_Chunk{Chunk: p}}) != nil {
			break // the status comes below
		}
	}
	return stream.CloseAndRecv()
}

func digest(b ...[]byte) string {
	sum := sha256.New()
	for _, p := range b {
		sum.Write(p)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

func holders(r *rig, name string) (ids []string) {
	for _, id := range []string{"w1", "w2", "w3"} {
		if r.workers[id] != nil && r.workers[id].Put(name) != nil {
			ids = append(ids, id)
		}
	}
	return ids
}

func TestPutReachesReplicasAndServesAtOnce(t *testing.T) {
	// A codebook is put on as many workers as wanted and serves at once.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vectors.Config{}, []string{"w1", "w2", "w3"}, nil)
		pieces := [][]byte{rows(3<<20, 1), {}, rows(1, 2), rows(2<<20, 3)}
		for n := uint32(0); n <= 3; n++ {
			name := fmt.Sprint("k", n)
			out, err := r.put(r.within(), header(name, n), pieces...)
			require.NoError(t, err)
			require.Len(t, out.GetCopies(), max(int(n), 1))
			require.Len(t, holders(r, name), max(int(n), 1))
			for _, c := range out.GetCopies() {
				require.Equal(t, digest(pieces...), c.GetCodebookDigest())
				require.False(t, c.GetAlreadyLoaded())
			}
			_, err = r.Encode(r.within(), &pb.EncodeRequest{Codebook: name, Rows: []byte{1}})
			require.NoError(t, err)
		}
		again, err := r.put(r.within(), header("k2", 2), pieces...)
		require.NoError(t, err)
		require.Len(t, again.GetCopies(), 2)
		for _, c := range again.GetCopies() {
			require.True(t, c.GetAlreadyLoaded(), "it goes where it is")
		}
		r.idle()
	})
}

func TestReplaceReachesEveryWorkerWithTheName(t *testing.T) {
	// Other bytes need replace, and then reach every worker that has the name.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vectors.Config{}, []string{"w1", "w2", "w3"}, nil)
		first, second := rows(1000, 1), rows(1000, 2)
		_, err := r.put(r.within(), header("k", 2), first)
		require.NoError(t, err)
		was := holders(r, "k")
		_, err = r.put(r.within(), header("k", 3), second)
		refused(t, err, rpc.WorkerDomain, codes.AlreadyExists, reason.CodebookExists)
		require.Equal(t, was, holders(r, "k"), "who has not the name was not written to")

		h := header("k", 3)
		h.ExpectCodebookDigest = proto.String(digest(second))
		_, err = r.put(r.within(), h, second)
		refused(t, err, rpc.SchedulerDomain, codes.AlreadyExists, reason.CodebookExists)

		h = header("k", 1)
		h.Replace = proto.Bool(true)
		out, err := r.put(r.within(), h, second)
		require.NoError(t, err)
		require.Len(t, out.GetCopies(), 2, "nobody stays behind")
		answer, err := r.Encode(r.within(), &pb.EncodeRequest{Codebook: "k"})
		require.NoError(t, err)
		require.Equal(t, digest(second), answer.GetCodebookDigest())
		r.idle()
	})
}

// A worker that drains gets no copy, and must not keep other bytes under the name: it may be
// undrained.
func TestPutReplacesOnDrainingWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vectors.Config{}, []string{"w1", "w2", "w3"}, nil)
		first, second := rows(1000, 1), rows(1000, 2)
		_, err := r.put(r.within(), header("k", 1), first)
		require.NoError(t, err)
		drained := holders(r, "k")[0]
		state := func(s pb.WorkerState) {
			r.workers[drained].Change(func(report *pb.WorkerReport) { report.State = s })
			require.Eventually(t, func() bool {
				for _, m := range r.fleet.Snapshot().Members {
					if m.Report.GetWorkerId() == drained {
						return m.Report.GetState() == s
					}
				}
				return false
			}, hang, time.Millisecond)
		}
		state(pb.WorkerState_WORKER_STATE_DRAINING)
		h := header("k", 2)
		h.ExpectCodebookDigest = proto.String(digest(second))
		_, err = r.put(r.within(), h, second)
		refused(t, err, rpc.SchedulerDomain, codes.AlreadyExists, reason.CodebookExists)
		h.ExpectCodebookDigest = nil
		_, err = r.put(r.within(), h, second)
		refused(t, err, rpc.WorkerDomain, codes.AlreadyExists, reason.CodebookExists)
		require.Equal(t, []string{drained}, holders(r, "k"), "nobody else has written anything")

		h.Replace = proto.Bool(true)
		out, err := r.put(r.within(), h, second)
		require.NoError(t, err)
		require.Len(t, out.GetCopies(), 3, "two where calls go, and the one that drains")
		require.Equal(t, second, r.workers[drained].Put("k"))
		puts := r.workers[drained].Puts.Load()
		h.ExpectCodebookDigest = proto.String(digest(second))
		out, err = r.put(r.within(), h, second)
		require.NoError(t, err)
		require.Len(t, out.GetCopies(), 2)
		require.Equal(t, puts, r.workers[drained].Puts.Load(), "it has these bytes already")
		state(pb.WorkerState_WORKER_STATE_READY)
		_, err = r.Encode(r.within(), &pb.EncodeRequest{Codebook: "k"})
		require.NoError(t, err, "one digest")
		r.idle()
	})
}

func TestACopyThatFailsIsNamedAndTheOtherStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := func(_ string, w *workertest.Worker) {
			w.OnPut = func(*pb.PutCodebookHeader) error {
				return workertest.Refusal(codes.ResourceExhausted, reason.DoesNotFit, "no room")
			}
		}
		r := newRig(t, vectors.Config{}, []string{"w1", "w2"}, func(id string, w *workertest.Worker) {
			if id == "w2" {
				fails(id, w)
			}
		})
		body := rows(3<<20, 1)
		_, err := r.put(r.within(), header("k", 2), body, body, body)
		refused(t, err, rpc.SchedulerDomain, codes.ResourceExhausted, reason.LoadIncomplete)
		require.Equal(t, map[string]string{"codebook": "k", "loaded": "1", "wanted": "2", "first_reason": reason.DoesNotFit, "workers": "w1",
			"failed_workers": "w2"}, rpc.Info(err).GetMetadata())
		require.Contains(t, status.Convert(err).Message(), "w2: no room")
		require.Equal(t, []string{"w1"}, holders(r, "k"))
		_, err = r.Encode(r.within(), &pb.EncodeRequest{Codebook: "k"})
		require.NoError(t, err)
		r.idle()
	})
}

func TestAWorkerThatIsKilledUnderAPutIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vectors.Config{}, []string{"w1", "w2", "w3"}, nil)
		stream, err := r.PutCodebook(r.within())
		require.NoError(t, err)
		require.NoError(t, stream.Send(&pb.PutCodebookRequest{Event: &pb.PutCodebookRequest_Header{Header: header("k", 3)}}))
		chunk := &pb.PutCodebookRequest{Event: &pb.PutCodebookRequest_Chunk{Chunk: rows(2<<20, 1)}}
		require.NoError(t, stream.Send(chunk))
		require.Eventually(t, func() bool { return r.workers["w2"].Puts.Load() == 1 }, hang, time.Millisecond)
		r.processes["w2"].Kill()
		require.NoError(t, stream.Send(chunk))
		_, err = stream.CloseAndRecv()
		refused(t, err, rpc.SchedulerDomain, codes.Unavailable, reason.LoadIncomplete)
		require.Equal(t, "w1,w3", rpc.Info(err).GetMetadata()["workers"])
		require.Equal(t, reason.WorkerLost, rpc.Info(err).GetMetadata()["first_reason"])
		require.Len(t, r.workers["w1"].Put("k"), 4<<20)
		require.Len(t, r.workers["w3"].Put("k"), 4<<20)
		r.idle()
	})
}

func TestPutEndsWhenEveryWorkerRefuses(t *testing.T) {
	// A put that every worker refuses ends although its caller sends nothing more.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vectors.Config{}, []string{"w1"}, func(_ string, w *workertest.Worker) {
			w.OnPut = func(*pb.PutCodebookHeader) error {
				return workertest.Refusal(codes.DeadlineExceeded, reason.SilentSender, "silent")
			}
		})
		stream, err := r.PutCodebook(r.within())
		require.NoError(t, err)
		require.NoError(t, stream.Send(&pb.PutCodebookRequest{Event: &pb.PutCodebookRequest_Header{Header: header("k", 1)}}))
		err = stream.RecvMsg(&pb.PutCodebookResponse{})
		refused(t, err, rpc.WorkerDomain, codes.DeadlineExceeded, reason.SilentSender)
		r.idle()
	})
}

func TestAPutThatIsCancelledWritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vectors.Config{}, []string{"w1", "w2"}, nil)
		ctx, cancel := context.WithCancel(r.within())
		stream, err := r.PutCodebook(ctx)
		require.NoError(t, err)
		require.NoError(t, stream.Send(&pb.PutCodebookRequest{Event: &pb.PutCodebookRequest_Header{Header: header("k", 2)}}))
		require.NoError(t, stream.Send(&pb.PutCodebookRequest{Event: &pb.PutCodebookRequest_Chunk{Chunk: rows(1000, 1)}}))
		require.Eventually(t, func() bool { return r.workers["w1"].Puts.Load()+r.workers["w2"].Puts.Load() == 2 }, hang, time.Millisecond)
		cancel()
		r.idle()
		require.Empty(t, holders(r, "k"))
	})
}

func TestWhatIsNoPutIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vectors.Config{}, []string{"w1", "w2"}, func(id string, w *workertest.Worker) {
			if id == "w2" {
				w.Change(func(report *pb.WorkerReport) { report.Vectors = nil })
			}
		})
		large := header("k", 1)
		large.Shape.Codewords, large.Shape.Dimension = 1<<16, 1<<31
		for name, tc := range map[string]struct {
			header *pb.PutCodebookHeader
			piece  []byte
			code   codes.Code
			reason string
		}{
			"no header":                 {nil, nil, codes.InvalidArgument, reason.InvalidArgument},
			"a chunk first":             {nil, []byte{1}, codes.InvalidArgument, reason.InvalidArgument},
			"no name":                   {header("", 1), nil, codes.InvalidArgument, reason.InvalidArgument},
			"a path for a name":         {header("../k", 1), nil, codes.InvalidArgument, reason.InvalidArgument},
			"no copies":                 {&pb.PutCodebookHeader{Codebook: "k", Replicas: proto.Uint32(0)}, nil, codes.InvalidArgument, reason.InvalidArgument},
			"too many copies":           {header("k", 1025), nil, codes.InvalidArgument, reason.InvalidArgument},
			"more copies than workers":  {header("k", 2), nil, codes.ResourceExhausted, reason.TooFewWorkers},
			"a chunk that is too large": {header("k", 1), make([]byte, 5<<20), codes.ResourceExhausted, reason.MessageTooLarge},
		} {
			t.Log(name) // a bubble has no subtests
			var pieces [][]byte
			if tc.piece != nil {
				pieces = append(pieces, tc.piece)
			}
			_, err := r.put(r.within(), tc.header, pieces...)
			refused(t, err, rpc.SchedulerDomain, tc.code, tc.reason)
			r.idle()
		}
		require.Empty(t, holders(r, "k"))
		_, err := r.put(r.within(), large, []byte{1})
		require.NoError(t, err, "who knows whether it fits is the worker")
	})
}
