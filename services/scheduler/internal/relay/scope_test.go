package relay_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

// row says whether the caller gets a status that the worker gives before its first frame (refused),
// or after some tokens (ended). If not, another worker serves the call.
type row struct {
	reason  string
	code    codes.Code
	refused bool
	ended   bool
}

var rows = []row{
	{reason.DeadlineExceeded, codes.DeadlineExceeded, true, true},
	{reason.SlowReader, codes.ResourceExhausted, true, true},
	{reason.NoTokenLeft, codes.FailedPrecondition, true, true},
	{reason.GrammarTooAmbiguous, codes.FailedPrecondition, true, true},
	{reason.BadLogits, codes.Internal, true, true},

	{reason.UnknownField, codes.InvalidArgument, false, false},
	{reason.MalformedMessage, codes.InvalidArgument, true, true},
	{reason.MessageTooLarge, codes.ResourceExhausted, true, true},
	{reason.InvalidArgument, codes.InvalidArgument, true, true},
	{reason.InvalidGrammar, codes.InvalidArgument, true, true},
	{reason.NotBuilt, codes.Unimplemented, true, true},
	{reason.BadModelName, codes.InvalidArgument, true, true},
	{reason.NoTokenizer, codes.FailedPrecondition, true, true},
	{reason.RerankerOnly, codes.FailedPrecondition, true, true},
	{reason.VectorsOnly, codes.FailedPrecondition, true, true},
	{reason.NoChatTemplate, codes.FailedPrecondition, true, true},
	{reason.ChatTemplateFailed, codes.InvalidArgument, true, true},
	{reason.ChatTemplateLimit, codes.FailedPrecondition, true, true},
	{reason.NoTokens, codes.InvalidArgument, true, true},
	{reason.NoSuchTemplate, codes.InvalidArgument, true, true},
	{reason.BadTokenID, codes.InvalidArgument, true, true},
	{reason.PromptTooLong, codes.InvalidArgument, true, true},
	{reason.ResumeTooLong, codes.InvalidArgument, true, true},
	{reason.ResponseTooLarge, codes.InvalidArgument, true, true},
	{reason.ResumeMismatch, codes.FailedPrecondition, true, true},
	{reason.ExpectationFailed, codes.FailedPrecondition, true, true},
	{reason.RefusedByEngine, codes.InvalidArgument, true, true},

	{reason.WorkerFull, codes.ResourceExhausted, false, false},
	{reason.QueueTimeout, codes.ResourceExhausted, true, true},
	{reason.TooManyBytesWaiting, codes.ResourceExhausted, false, false},
	{reason.TooManyBytesSending, codes.ResourceExhausted, false, false},
	{reason.OutOfDeviceMemory, codes.ResourceExhausted, false, false},
	{reason.WorkerStopping, codes.Unavailable, false, false},
	{reason.WorkerDraining, codes.Unavailable, false, false},
	{reason.Cancelled, codes.Canceled, false, false},
	{reason.ModelUnloaded, codes.Unavailable, false, false},
	{reason.ModelDraining, codes.FailedPrecondition, false, false},
	{reason.ModelNotLoaded, codes.FailedPrecondition, false, false},
	{reason.UnknownModel, codes.NotFound, false, false},
	{reason.ModelOutOfService, codes.Unavailable, false, false},
	{reason.DigestMismatch, codes.FailedPrecondition, false, false},
	{reason.NotOnThisDevice, codes.Unimplemented, false, false},
	{reason.ContextTooShort, codes.FailedPrecondition, true, true},
	{reason.NoDevice, codes.Internal, false, false},
	{reason.CallerNotAllowed, codes.PermissionDenied, false, false},
	{reason.NoToken, codes.Unauthenticated, false, false},
	{reason.UnknownToken, codes.Unauthenticated, false, false},
	{reason.TokenExpired, codes.Unauthenticated, false, false},
	{reason.TokenRevoked, codes.Unauthenticated, false, false},
	{reason.RightMissing, codes.PermissionDenied, false, false},
	{reason.OtherTenant, codes.PermissionDenied, false, false},
	{reason.PriorityTooHigh, codes.PermissionDenied, false, false},
	{reason.TooManyRequests, codes.ResourceExhausted, false, false},
	{reason.TooManyTokens, codes.ResourceExhausted, false, false},
	{reason.TooManyStreams, codes.ResourceExhausted, false, false},
	{reason.ResidentTensorDiffers, codes.DataLoss, false, false},
	{reason.DeviceMemoryHeld, codes.Internal, false, false},

	{reason.StepFailed, codes.Internal, false, false},
	{reason.StepTimeout, codes.Internal, false, false},
	{reason.DeviceFailed, codes.Internal, false, false},
	{reason.EngineState, codes.Internal, false, false},
	{reason.Panic, codes.Internal, false, false},
	{reason.Internal, codes.Internal, false, false},
	{reason.ChatTemplateProcess, codes.Internal, false, false},

	{"OF_A_LATER_VERSION", codes.Unavailable, false, false},
	{"OF_A_LATER_VERSION", codes.ResourceExhausted, false, false},
	{"OF_A_LATER_VERSION", codes.Internal, false, false},
	{"OF_A_LATER_VERSION", codes.FailedPrecondition, true, true},
}

// elsewhere are reasons that no worker gives to a Generate call: the scheduler's own, and those of
// loads and of codebooks.
var elsewhere = []string{
	reason.AmbiguousCodebook, reason.TooManyVectorCalls,
	reason.AmbiguousModel, reason.ClassMismatch, reason.FleetUnknown, reason.NoWorker, reason.WorkerLost, reason.WorkersFull,
	reason.Stopping, reason.BadLoadOption, reason.ModelDoesNotFit, reason.TooManyLoads, reason.TooFewWorkers, reason.LoadIncomplete,
	reason.InvalidModelFile, reason.ModelFileUnreadable, reason.ModelFileClosed, reason.UnsupportedArchitecture,
	reason.UnsupportedTensorType, reason.UnsupportedTokenizer, reason.ModelLoading, reason.UnknownWorker,
	reason.Displaced, reason.TooLate, reason.LoadOptionsDiffer, reason.LoadEnded,
	reason.BadCodebookName, reason.UnknownCodebook, reason.CodebookNotLoaded, reason.CodebookExists, reason.CodebookDigestMismatch,
	reason.CodebookOutOfService, reason.InvalidCodebookFile, reason.CodebookNotWritten, reason.ResidentCodebookDiffers,
	reason.DoesNotFit, reason.NoTrainings, reason.TooManyTrainings, reason.BadTrainingInput, reason.CheckpointMismatch,
	reason.SilentSender, reason.NotAReranker,
}

func TestEveryReasonHasARetryScope(t *testing.T) {
	// The scope of each reason that a worker can give decides whether the caller gets its status.
	synctest.Test(t, func(t *testing.T) {
		var known []string
		for _, r := range rows {
			known = append(known, r.reason)
		}
		for _, r := range reason.All() {
			require.NotEqual(t, slices.Contains(known, r), slices.Contains(elsewhere, r), "%s: add its retry scope", r)
		}
		r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": {}, "w2": {}})
		for _, tc := range rows {
			t.Log(tc.reason + " " + tc.code.String()) // a bubble has no subtests
			said := workertest.Refusal(tc.code, tc.reason, "said")
			in := ask(6)
			for events, ends := range map[int]bool{0: tc.refused, 4: tc.ended} {
				generations := r.answerOnceWith(workertest.Answer{Events: events, Err: said}, nil)
				got, err := r.generate(in)
				if ends {
					require.Equal(t, tc.reason, rpc.Reason(err), "behind %d events: %v", events, err)
					require.Equal(t, rpc.WorkerDomain, rpc.Domain(err))
					require.Len(t, got, events)
					require.EqualValues(t, 1, generations())
					continue
				}
				require.NoError(t, err, "behind %d events", events)
				requireEqual(t, whole(t, in), got)
				require.EqualValues(t, 2, generations())
			}
		}
	})
}

// answerOnceWith makes the workers answer the next request with first and, unless it is nil, the
// one after it with second. All others are answered whole. The result returns how many requests
// workers have received since.
func (r *rig) answerOnceWith(first workertest.Answer, second error) func() int64 {
	before := int64(0)
	sum := func() (n int64) {
		for _, w := range r.workers {
			n += w.Generations.Load()
		}
		return n
	}
	before = sum()
	for id, w := range r.workers {
		w.OnGenerate = func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
			a := workertest.Whole(id)
			switch n := sum() - before; {
			case n == 1:
				a = first
				a.Worker = id
			case n == 2 && second != nil:
				return second
			}
			return a.Generate(in, stream)
		}
	}
	return func() int64 { return sum() - before }
}

func TestRefusalOfAStartedStreamEndsNothing(t *testing.T) {
	// If a worker has begun a request, the refusal of another one cannot be the fault of the request.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": {}, "w2": {}, "w3": {}})
		for _, tc := range rows {
			ends := tc.reason == reason.DeadlineExceeded || tc.reason == reason.SlowReader ||
				tc.reason == reason.NoTokenLeft || tc.reason == reason.GrammarTooAmbiguous || tc.reason == reason.BadLogits
			t.Log(tc.reason + " " + tc.code.String()) // a bubble has no subtests
			in := ask(6)
			generations := r.answerOnceWith(workertest.Answer{Events: 4}, workertest.Refusal(tc.code, tc.reason, "said"))
			got, err := r.generate(in)
			if ends {
				require.Equal(t, tc.reason, rpc.Reason(err), "%v", err)
				continue
			}
			require.NoError(t, err)
			requireEqual(t, whole(t, in), got)
			require.EqualValues(t, 3, generations())
		}
	})
}

func TestResumeWaitsForFullWorkers(t *testing.T) {
	// A fleet that is full for a while delays a broken stream and does not end it.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": {}, "w2": {}})
		begun := time.Now()
		cut := false
		for id, w := range r.workers {
			w.OnGenerate = func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
				switch {
				case !cut:
					cut = true
					return workertest.Answer{Worker: id, Events: 3}.Generate(in, stream)
				case time.Since(begun) < 300*time.Millisecond:
					return workertest.Refusal(codes.ResourceExhausted, reason.WorkerFull, "full")
				}
				return workertest.Whole(id).Generate(in, stream)
			}
		}
		in := ask(9)
		got, err := r.generate(in)
		require.NoError(t, err)
		requireEqual(t, whole(t, in), got)
		require.Less(t, r.workers["w1"].Generations.Load(), int64(60), "the searches back off")
	})
}
