package vectorserver

import (
	"context"
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/gpuworker/vectors"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

func configOf(c *pb.TrainingConfig) *pb.TrainCodebookRequest {
	return &pb.TrainCodebookRequest{Event: &pb.TrainCodebookRequest_Config{Config: c}}
}

// endless is a training that ends only when it is cancelled.
func endless() *pb.TrainingConfig {
	return training(func(c *pb.TrainingConfig) {
		c.MaxIterations, c.StableIterations = ptr(uint32(1000000)), ptr(uint32(1000000))
	})
}

// An error about a row that is not finite names the row's number among all rows, for every element
// type, and also for rows that the sample leaves out.
func TestNonFiniteRowsAreReportedByNumber(t *testing.T) {
	rpctest.NoLeaks(t)
	w := simWorker(t)
	f32 := func(v float32) []byte { return binary.LittleEndian.AppendUint32(nil, math.Float32bits(v)) }
	f16 := func(bits uint16) []byte { return binary.LittleEndian.AppendUint16(nil, bits) }
	for name, tc := range map[string]struct {
		element pb.ElementType
		bad     []byte
	}{
		"NaN":                      {pb.ElementType_ELEMENT_TYPE_F32, f32(float32(math.NaN()))},
		"a NaN of any bits":        {pb.ElementType_ELEMENT_TYPE_F32, []byte{1, 0, 0x80, 0xff}},
		"infinity":                 {pb.ElementType_ELEMENT_TYPE_F32, f32(float32(math.Inf(1)))},
		"minus infinity":           {pb.ElementType_ELEMENT_TYPE_F32, f32(float32(math.Inf(-1)))},
		"a NaN of 16 bits":         {pb.ElementType_ELEMENT_TYPE_F16, f16(0x7c01)},
		"an infinity of 16 bits":   {pb.ElementType_ELEMENT_TYPE_F16, f16(0xfc00)},
		"a NaN of bfloat16":        {pb.ElementType_ELEMENT_TYPE_BF16, f16(0xffff)},
		"an infinity of bfloat16s": {pb.ElementType_ELEMENT_TYPE_BF16, f16(0x7f80)},
	} {
		size := len(tc.bad)
		for _, sampled := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				rows := make([]byte, 64*2*size)
				copy(rows[(2*41+1)*size:], tc.bad)
				got := w.train(t.Context(), t, training(func(c *pb.TrainingConfig) {
					c.ElementType = tc.element
					if sampled {
						c.MaxRowsPerCodeword = ptr(uint64(1))
					}
				}), rowsOf(rows[:20*2*size]), rowsOf(rows[20*2*size:]))
				require.Equal(t, codes.InvalidArgument, status.Code(got.err), "%v", got.err)
				require.Equal(t, []string{"rows"}, violated(got.err))
				if sampled {
					require.ErrorContains(t, got.err, "row 41")
				}
			})
		}
	}
	require.Zero(t, w.books.Stats().TrainingBytes)
	require.NoError(t, w.train(t.Context(), t, training(nil), rowsOf(vectorRows(64, 2))).err)
}

// Messages in an order that makes no sense end the call, before and while the device computes.
func TestMessagesOfATrainingInAnyOtherOrderEndIt(t *testing.T) {
	rpctest.NoLeaks(t)
	w := simWorker(t)
	rows := vectorRows(64, 2)
	for name, tc := range map[string]struct {
		config   *pb.TrainingConfig
		messages []*pb.TrainCodebookRequest
		field    string
	}{
		"a config between rows":            {endless(), []*pb.TrainCodebookRequest{rowsOf(rows[:80]), configOf(endless())}, "config"},
		"a config behind the rows":         {endless(), []*pb.TrainCodebookRequest{rowsOf(rows), configOf(endless())}, "rows"},
		"rows behind the rows":             {endless(), []*pb.TrainCodebookRequest{rowsOf(rows), rowsOf(rows[:8])}, "rows"},
		"nothing behind the rows":          {endless(), []*pb.TrainCodebookRequest{rowsOf(rows), {}}, "rows"},
		"a prologue behind rows":           {endless(), []*pb.TrainCodebookRequest{rowsOf(rows[:80]), prologueOf(rows[:1])}, "prologue"},
		"a prologue that is too long":      {training(func(c *pb.TrainingConfig) { c.Init = pb.CodebookInit_CODEBOOK_INIT_GIVEN }), []*pb.TrainCodebookRequest{prologueOf(rows[:17])}, "prologue"},
		"given codewords that are NaN":     {training(func(c *pb.TrainingConfig) { c.Init = pb.CodebookInit_CODEBOOK_INIT_GIVEN }), []*pb.TrainCodebookRequest{prologueOf([]byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")), rowsOf(rows)}, "prologue"},
		"an end in the middle of a row":    {endless(), []*pb.TrainCodebookRequest{rowsOf(rows[:80]), rowsOf(rows[80:83])}, "rows"},
		"an end before the prologue's end": {training(func(c *pb.TrainingConfig) { c.Init = pb.CodebookInit_CODEBOOK_INIT_GIVEN }), []*pb.TrainCodebookRequest{prologueOf(rows[:3])}, "rows"},
	} {
		t.Run(name, func(t *testing.T) {
			got := w.train(t.Context(), t, tc.config, tc.messages...)
			require.Equal(t, codes.InvalidArgument, status.Code(got.err), "%v", got.err)
			require.Equal(t, reason.BadTrainingInput, rpc.Reason(got.err), "%v", got.err)
			require.Equal(t, []string{tc.field}, violated(got.err), "%v", got.err)
			require.Nil(t, got.finished)
			require.Zero(t, w.books.Stats().TrainingBytes, "nothing is held when the caller knows of the end")
		})
	}
	large := w.train(t.Context(), t, training(func(c *pb.TrainingConfig) { c.Rows = 1 << 20 }), rowsOf(make([]byte, 4<<20)))
	require.Equal(t, codes.ResourceExhausted, status.Code(large.err), "%v", large.err)
	require.Equal(t, reason.MessageTooLarge, rpc.Reason(large.err))
	resumed := training(func(c *pb.TrainingConfig) { c.ResumeBytes = ptr(uint64(56)) })
	got := w.train(t.Context(), t, resumed, prologueOf(make([]byte, 56)), rowsOf(rows))
	require.Equal(t, codes.FailedPrecondition, status.Code(got.err), "%v", got.err)
	require.Equal(t, reason.CheckpointMismatch, rpc.Reason(got.err))
	require.NoError(t, w.train(t.Context(), t, training(nil), rowsOf(rows)).err)
	require.Zero(t, w.books.Stats().Trainings)
}

func TestEmptyMessagesCountAsSilence(t *testing.T) {
	rpctest.NoLeaks(t)
	w := simWorker(t)
	w.server.patience = 200 * time.Millisecond
	stream, err := w.vectors.TrainCodebook(t.Context())
	require.NoError(t, err)
	_ = stream.Send(configOf(training(nil))) // hear returns the error
	go func() {
		for stream.Send(rowsOf(nil)) == nil {
			time.Sleep(time.Millisecond)
		}
	}()
	got := hear(t, stream)
	require.Equal(t, codes.DeadlineExceeded, status.Code(got.err))
	require.Equal(t, reason.SilentSender, rpc.Reason(got.err), "%v", got.err)
	require.Zero(t, w.books.Stats().Trainings)
}

func TestADeadlineEndsATrainingWhereverItIs(t *testing.T) {
	rpctest.NoLeaks(t)
	w := simWorker(t)
	for _, n := range []int{0, 10, 64} {
		// until reports whether the training came far enough before its deadline; a slow machine
		// needs a longer one.
		until := func(deadline time.Duration) (there bool) {
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			stream, err := w.vectors.TrainCodebook(ctx)
			if err == nil {
				_ = stream.Send(configOf(endless())) // the loop below returns the error
				_ = stream.Send(rowsOf(vectorRows(n, 2)))
			}
			for err == nil {
				var m *pb.TrainCodebookResponse
				if m, err = stream.Recv(); err == nil {
					there = there || n < 64 || m.GetProgress() != nil && m.GetProgress().Iteration != nil
				}
			}
			require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
			var now vectors.Stats // read once: a training whose caller has left may still begin
			requireSoon(t, func() bool { now = w.books.Stats(); return now.Trainings == 0 })
			require.Zero(t, now.TrainingBytes)
			return there
		}
		for deadline := 300 * time.Millisecond; !until(deadline); deadline *= 2 {
			require.Less(t, deadline, hang)
		}
	}
}

// A caller that has sent everything may close its half at once or much later, as long as it reads.
func TestACallerMayCloseItsHalfOrLeaveItOpen(t *testing.T) {
	rpctest.NoLeaks(t)
	w := simWorker(t)
	rows := vectorRows(64, 2)
	want := w.train(t.Context(), t, training(nil), rowsOf(rows))
	require.NoError(t, want.err)
	stream := w.begin(t.Context(), t, training(nil))
	require.NoError(t, stream.Send(rowsOf(rows)))
	open := hearBehindAccepted(t, stream)
	require.NoError(t, open.err)
	require.Equal(t, want.codebook, open.codebook)
	require.NoError(t, stream.CloseSend())

	w.server.patience = 200 * time.Millisecond
	idle, err := w.vectors.TrainCodebook(t.Context())
	require.NoError(t, err)
	_, err = idle.Recv() // a stream without a first message
	require.Equal(t, reason.SilentSender, rpc.Reason(err), "%v", err)
}
