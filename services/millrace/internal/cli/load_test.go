package cli_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

type loading = grpc.ServerStreamingServer[pb.LoadModelResponse]

var loadResult = &pb.LoadModelResponse{WorkerId: "w1", Event: &pb.LoadModelResponse_Result{Result: &pb.LoadResult{
	ModelDigest: strings.Repeat("ab", 32), DeviceBytes: 10 << 20, KvBlocks: 8, BlockSize: 16, MaxSequences: 4, ContextLength: 64}}}

func loader(got **pb.LoadModelRequest, end error) func(*pb.LoadModelRequest, loading) error {
	return func(in *pb.LoadModelRequest, s loading) error {
		*got = in
		_ = s.Send(progress(pb.LoadState_LOAD_STATE_READING, 0, 0))
		for i := range 101 {
			_ = s.Send(progress(pb.LoadState_LOAD_STATE_UPLOADING, uint64(i), 100))
		}
		_ = s.Send(progress(pb.LoadState_LOAD_STATE_READY, 0, 0))
		if end != nil {
			return end
		}
		return s.Send(loadResult)
	}
}

const loadLine = "m loaded on w1: 10.0 MiB, 8 KV blocks of 16 tokens, 4 sequences at once, context 64, digest "

func TestLoadPrintsProgressInTenths(t *testing.T) {
	var got *pb.LoadModelRequest
	r := serve(t, &fake{load: loader(&got, nil)})
	require.Equal(t, 0, r.run(t, "load", "m"))
	require.Equal(t, loadLine+strings.Repeat("ab", 32)+"\n", r.out.String())
	require.True(t, strings.HasPrefix(r.err.String(), "w1: reading\nw1: uploading [..........] 0% of 100 B\nw1: uploading [#.........] 10% of 100 B\n"), r.err.String())
	require.Equal(t, 1+11+1, strings.Count(r.err.String(), "\n"))
	require.True(t, proto.Equal(&pb.LoadModelRequest{Model: "m"}, got), "%v", got)
}

func TestEveryFlagOfLoadReachesTheServer(t *testing.T) {
	var got *pb.LoadModelRequest
	r := serve(t, &fake{load: loader(&got, nil)})
	require.Equal(t, 0, r.run(t, "load", "m", "--replicas", "2", "--kv-tokens", "3", "--context", "4", "--kv-type", "bf16", "--max-sequences", "5", "--digest", "d", "--pin"))
	want := &pb.LoadModelRequest{Model: "m", Replicas: proto.Uint32(2), KvTokens: proto.Uint64(3), ContextLength: proto.Uint32(4),
		KvType: pb.KvType_KV_TYPE_BF16.Enum(), MaxSequences: proto.Uint32(5), ExpectModelDigest: proto.String("d"), Pin: proto.Bool(true)}
	require.True(t, proto.Equal(want, got), "%v", got)
	fields := got.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		require.True(t, got.ProtoReflect().Has(fields.Get(i)), "%s has no flag", fields.Get(i).FullName())
	}
}

func TestLoadAsJSONPrintsEventsAndNothingElse(t *testing.T) {
	var got *pb.LoadModelRequest
	r := serve(t, &fake{load: loader(&got, nil)})
	require.Equal(t, 0, r.run(t, "load", "m", "--json"))
	lines := strings.Split(strings.TrimSuffix(r.out.String(), "\n"), "\n")
	require.Len(t, lines, 104)
	for _, line := range lines {
		require.NoError(t, protojson.Unmarshal([]byte(line), &pb.LoadModelResponse{}), line)
	}
	require.Empty(t, r.err.String())
}

func TestLoadReportsFailedCopies(t *testing.T) {
	// Each failed copy is reported, and the exit code is that of the call's status.
	r := serve(t, &fake{load: func(_ *pb.LoadModelRequest, s loading) error {
		_ = s.Send(&pb.LoadModelResponse{WorkerId: "w2", Event: &pb.LoadModelResponse_Failure{Failure: &pb.LoadFailure{
			Code: int32(codes.DataLoss), Message: "bits\x1b[2J flipped", Reason: "RESIDENT_TENSOR_DIFFERS"}}})
		_ = s.Send(loadResult)
		return refusal(codes.DataLoss, "LOAD_INCOMPLETE", "1 of 2")
	}})
	require.Equal(t, 1, r.run(t, "load", "m", "--replicas", "2"))
	require.Contains(t, r.out.String(), loadLine)
	require.Contains(t, r.err.String(), "m not loaded on w2: bits [2J flipped (RESIDENT_TENSOR_DIFFERS, DATA_LOSS)\n")
	require.Contains(t, r.err.String(), "1 of 2\n  reason: LOAD_INCOMPLETE")
}

func TestAModelThatDoesNotFitIsRefusedWithNumbers(t *testing.T) {
	var got *pb.LoadModelRequest
	r := serve(t, &fake{load: loader(&got, refusal(codes.ResourceExhausted, "MODEL_DOES_NOT_FIT", "too large"))})
	require.Equal(t, 7, r.run(t, "load", "m"))
	require.Contains(t, r.err.String(), "try: unload another model")
}

func TestInterruptedLoadSaysThatItContinues(t *testing.T) {
	r := serve(t, &fake{load: func(_ *pb.LoadModelRequest, s loading) error {
		_ = s.Send(progress(pb.LoadState_LOAD_STATE_READING, 0, 0))
		<-s.Context().Done()
		return s.Context().Err()
	}})
	r.interrupt(t, &r.err, "reading")
	require.Equal(t, 130, r.run(t, "load", "m"))
	require.Contains(t, r.err.String(), "the load continues in the server")
}

func TestUnloadPrintsFreedBytes(t *testing.T) {
	var got *pb.UnloadModelRequest
	r := serve(t, &fake{unload: func(_ context.Context, in *pb.UnloadModelRequest) (*pb.UnloadModelResponse, error) {
		got = in
		if in.GetModel() == "none" {
			return nil, refusal(codes.NotFound, "MODEL_NOT_LOADED", "not loaded")
		}
		return &pb.UnloadModelResponse{WorkerIds: []string{"w1", "w2"}, FreedBytes: 3 << 20}, nil
	}})
	require.Equal(t, 0, r.run(t, "unload", "m"))
	require.Equal(t, "m unloaded from w1, w2: 3.00 MiB freed\n", r.out.String())
	require.True(t, proto.Equal(&pb.UnloadModelRequest{Model: "m"}, got))
	require.Equal(t, 0, r.run(t, "unload", "m", "--cancel", "--json"))
	require.True(t, got.GetCancelRunning())
	require.Contains(t, r.out.String(), `{"workerIds":["w1","w2"],"freedBytes":"3145728"}`)
	require.Equal(t, 5, r.run(t, "unload", "none"))
	require.Contains(t, r.err.String(), "shows the loaded models")
}

// unload names the workers where it ended a load apart from those that had the model.
func TestUnloadNamesEndedLoads(t *testing.T) {
	for name, tc := range map[string]struct {
		out  *pb.UnloadModelResponse
		says string
	}{
		"a load alone": {
			&pb.UnloadModelResponse{WorkerIds: []string{"w1"}, LoadEndedWorkerIds: []string{"w1"}},
			"m: its load on w1 has ended, and nothing of it is left\n",
		},
		"a load and a model": {
			&pb.UnloadModelResponse{WorkerIds: []string{"w1", "w2"}, LoadEndedWorkerIds: []string{"w1"}, FreedBytes: 3 << 20},
			"m unloaded from w2: 3.00 MiB freed; its load on w1 has ended\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := serve(t, &fake{unload: func(context.Context, *pb.UnloadModelRequest) (*pb.UnloadModelResponse, error) { return tc.out, nil }})
			require.Equal(t, 0, r.run(t, "unload", "m"))
			require.Equal(t, tc.says, r.out.String())
		})
	}
}

func TestModelsAreATable(t *testing.T) {
	broken := &pb.ModelInfo{Name: "broken", State: pb.ModelState_MODEL_STATE_ON_DISK, FileBytes: 10, WorkerIds: []string{"w1"}, Problem: "truncated\nat 5"}
	busy, idle, some := model("busy"), model("idle"), model("some")
	busy.IdleAge, idle.IdleAge, some.IdleAge = durationpb.New(0), durationpb.New(90*time.Second), durationpb.New(time.Second)
	idle.PinnedWorkerIds = idle.GetWorkerIds()
	some.WorkerIds, some.PinnedWorkerIds = []string{"w1", "w2"}, []string{"w2"}
	r := serve(t, &fake{models: []*pb.ModelInfo{broken, model("m"), busy, idle, some}})
	require.Equal(t, 0, r.run(t, "models"))
	require.Equal(t, ""+
		"NAME    STATE     ARCH   QUANT  TYPES      PARAMS  CONTEXT  WINDOW  SIZE      DIGEST        LAST USE                 WORKERS\n"+
		"broken  unusable  -      -      -          -       -        -       10 B      -             -                        w1\n"+
		"m       ready     llama  Q8_0   Q8_0 Q6_K  5.25M   64       32      5.00 MiB  abababababab  -                        w1\n"+
		"busy    ready     llama  Q8_0   Q8_0 Q6_K  5.25M   64       32      5.00 MiB  abababababab  now                      w1\n"+
		"idle    ready     llama  Q8_0   Q8_0 Q6_K  5.25M   64       32      5.00 MiB  abababababab  90 s ago, pinned         w1\n"+
		"some    ready     llama  Q8_0   Q8_0 Q6_K  5.25M   64       32      5.00 MiB  abababababab  1.0 s ago, pinned on w2  w1 w2\n"+
		"broken: truncated at 5\n", r.out.String())
	r.out = buffer{}
	require.Equal(t, 0, r.run(t, "models", "--json"))
	out := &pb.ListModelsResponse{}
	require.NoError(t, protojson.Unmarshal([]byte(r.out.String()), out))
	require.Len(t, out.GetModels(), 5)
}

func TestNoModelsIsSaid(t *testing.T) {
	r := serve(t, &fake{models: []*pb.ModelInfo{}})
	require.Equal(t, 0, r.run(t, "models"))
	require.Empty(t, r.out.String())
	require.Contains(t, r.err.String(), "--models")
}
