package load_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/synth"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/modelfile"
	"github.com/millrace/millrace/services/bench/internal/proc"
	"github.com/millrace/millrace/services/bench/internal/proc/proctest"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// workerBinary is the shipped worker, built by TestMain.
var workerBinary string

func TestMain(m *testing.M) { proctest.MainWithWorker(m, &workerBinary) }

// startWorker starts the shipped worker on a simulated device with a model loaded, until the test
// ends, and returns its service and its process id.
func startWorker(t *testing.T, device string, sequences uint32, flags ...string) (*load.Service, int) {
	t.Helper()
	rpctest.NoLeaks(t)
	dir := t.TempDir()
	shape := synth.Shape{Name: "m", Architecture: "llama", Desc: engine.Uniform{
		Layers: 1, Hidden: 32, Heads: 1, FFN: 32, Vocab: 1000, Context: 4096,
	}}
	require.NoError(t, modelfile.Write(filepath.Join(dir, "m.gguf"), shape, synth.Only(gguf.Q8_0), 1))
	folder, err := os.MkdirTemp("", "s") //nolint:usetesting // a socket's path is short
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(folder)) })
	address := "unix:" + filepath.Join(folder, "worker") // a free port may be taken before the worker listens on it
	program, err := proc.Start(context.WithoutCancel(t.Context()), "worker", workerBinary,
		append(flags, "--listen", address, "--device", device, "--models", dir)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, program.Stop(45*time.Second)) })
	conns, hangUp, err := load.Dial(address, 1)
	require.NoError(t, err)
	t.Cleanup(hangUp)
	kv := uint64(16384)
	require.NoError(t, program.Wait(t.Context(), time.Minute, func(ctx context.Context) error {
		stream, err := pb.NewModelServiceClient(conns[0]).LoadModel(ctx, &pb.LoadModelRequest{Model: "m", MaxSequences: &sequences, KvTokens: &kv})
		for err == nil {
			_, err = stream.Recv()
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}))
	target, err := load.FindTarget(t.Context(), conns[0], "")
	require.NoError(t, err)
	return &load.Service{
		Conns: []grpc.ClientConnInterface{conns[0]}, Worker: conns[0], Target: target,
		Maker: load.Maker{Model: "m", Vocabulary: 1000, IDsOnly: true, Seed: 1}, Progress: func(string, ...any) {}, HostMemory: proc.MemoryOf,
	}, program.PID()
}

// printed returns a report as text and checks that it can be encoded as JSON.
func printed(t *testing.T, report interface{ Print(io.Writer) }) string {
	t.Helper()
	_, err := json.Marshal(report)
	require.NoError(t, err)
	var text bytes.Buffer
	report.Print(&text)
	return text.String()
}

func TestPrefixComputesSharedTokensOnce(t *testing.T) {
	s, _ := startWorker(t, "sim:step=1ms,prefill=20us,decode=0s", 16)
	r, err := s.Prefix(t.Context(), load.PrefixConfig{Calls: 8, Shared: 640, Own: 10, History: 500, New: 20, Answer: 3, Repeat: 2})
	require.NoError(t, err)
	require.NoError(t, r.Err())
	require.Equal(t, 8*650, r.Cached.Prompt)
	require.InDelta(t, 8*650, r.Bypassed.Computed.Min, 0)
	require.LessOrEqual(t, r.Cached.Computed.Max, 640.0+8*(10+32), "the shared tokens are computed once, except parts of blocks")
	require.GreaterOrEqual(t, r.Turn.Cached.Min, 400.0)
	require.Zero(t, r.BypassedTurn.Cached.Max)
	computed, known := r.Figure("shared", "computed")
	require.True(t, known)
	require.InDelta(t, r.Cached.Computed.Max, computed, 0)
	_, known = r.Figure("turn", "nothing")
	require.False(t, known)
	require.Contains(t, printed(t, r), "sooner with the cache")
}

func TestPrefixMeasuresEvictedPrompts(t *testing.T) {
	for name, tc := range map[string]struct {
		flags  []string
		cached float64
	}{"with a host cache": {[]string{"--host-cache", "64MiB"}, 3984}, "without": {nil, 0}} {
		t.Run(name, func(t *testing.T) {
			s, _ := startWorker(t, "sim:step=1ms,prefill=20us,decode=0s", 16, tc.flags...)
			r, err := s.Prefix(t.Context(), load.PrefixConfig{Calls: 1, Shared: 10, Own: 10, History: 4000, New: 20, Answer: 3, Repeat: 2, Evict: 6})
			require.NoError(t, err)
			require.InDelta(t, tc.cached, r.Evicted.Cached.Min, 0)
			require.InDelta(t, tc.cached, r.Evicted.Cached.Max, 0)
			if sooner, known := r.Figure("evicted", "sooner"); tc.cached > 0 {
				require.True(t, known)
				require.Greater(t, sooner, 2.0, "computing takes 80 ms")
			}
			require.Contains(t, printed(t, r), "a prompt of 4000 tokens again after 6 others")
		})
	}
}

func TestCancelLeavesNothing(t *testing.T) {
	s, _ := startWorker(t, "sim:step=1ms,prefill=10us,decode=0s", 8)
	r, err := s.Cancel(t.Context(), load.CancelConfig{Calls: 60, AtOnce: 12, Beside: 4, Prompt: 40, Max: 30, Seed: 5})
	require.NoError(t, err)
	require.NoError(t, r.Err())
	require.EqualValues(t, 60, r.Cancelled+r.Ended)
	require.Positive(t, r.Cancelled)
	require.Positive(t, r.Early)
	require.Zero(t, r.StepsAfterCancel)
	require.Zero(t, r.BlocksMissing)
	require.Contains(t, printed(t, r), "0 KV blocks missing")
}

func TestOverloadEndsEveryCall(t *testing.T) {
	s, pid := startWorker(t, "sim:step=1ms,prefill=0s,decode=0s", 4)
	r, err := s.Overload(t.Context(), load.OverloadConfig{
		Capacity: 4, Factor: 10, Duration: 500 * time.Millisecond, Measure: 200 * time.Millisecond, Grace: time.Minute, Prompt: 20,
		Answer: 10, PID: pid,
	})
	require.NoError(t, err)
	require.NoError(t, r.Err())
	require.Zero(t, r.Hung)
	require.Zero(t, r.Empty)
	require.Positive(t, r.During.OK)
	require.Positive(t, r.Before)
	require.Positive(t, r.After)
	require.Equal(t, r.DeviceBefore, r.DevicePeak, "calls take no memory of the device")
	require.GreaterOrEqual(t, r.HostPeak, r.HostBefore/2)
	require.LessOrEqual(t, r.During.PeakStreams, int64(40))
	require.Contains(t, printed(t, r), "40 calls at once for 500ms, where 4 are computed at once")
}

// silent is a server that does not answer the first call after its first health report.
type silent struct {
	pb.UnimplementedInferenceServiceServer
	pb.UnimplementedWorkerServiceServer
	reports, calls atomic.Int64 // calls: since the first report
}

func (f *silent) Generate(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	if f.reports.Load() > 0 && f.calls.Add(1) == 1 {
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	time.Sleep(time.Millisecond)
	ids := make([]uint32, in.GetStopping().GetMaxTokens())
	tokens := &pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{Tokens: &pb.Tokens{TokenIds: ids}}}
	return errors.Join(stream.Send(tokens), stream.Send(&pb.GenerateResponse{Event: &pb.GenerateResponse_Finished{Finished: &pb.Finished{}}}))
}

func (f *silent) Health(stream grpc.BidiStreamingServer[pb.HealthRequest, pb.HealthResponse]) error {
	f.reports.Add(1)
	return stream.Send(&pb.HealthResponse{Event: &pb.HealthResponse_Full{Full: &pb.WorkerReport{}}})
}

func TestOverloadReportsHungCalls(t *testing.T) {
	rpctest.NoLeaks(t)
	server := &silent{}
	conn := rpctest.Pair(t, rpc.ServerConfig{}, func(r grpc.ServiceRegistrar) {
		pb.RegisterInferenceServiceServer(r, server)
		pb.RegisterWorkerServiceServer(r, server)
	})
	s := &load.Service{
		Conns: []grpc.ClientConnInterface{conn}, Worker: conn, Maker: load.Maker{Model: "m", Vocabulary: 9}, Progress: func(string, ...any) {}, HostMemory: proc.MemoryOf,
	}
	r, err := s.Overload(t.Context(), load.OverloadConfig{
		Capacity: 2, Factor: 2, Duration: 50 * time.Millisecond, Measure: 20 * time.Millisecond, Grace: 200 * time.Millisecond, Prompt: 2,
		Answer: 3,
	})
	require.NoError(t, err)
	require.Positive(t, r.Hung)
	require.ErrorIs(t, r.Err(), load.ErrBroken)
	require.ErrorContains(t, r.Err(), "had no end 200ms after")
	_, known := r.Figure("overload", "host_growth_mb")
	require.False(t, known, "no process was watched")
}

func TestFairnessComparesSingleCalls(t *testing.T) {
	s, _ := startWorker(t, "sim:step=1ms,prefill=0s,decode=0s", 4)
	r, err := s.Fairness(t.Context(), load.FairnessConfig{Crowd: 12, Singles: 3, Prompt: 20, Answer: 5})
	require.NoError(t, err)
	require.NoError(t, r.Err())
	require.InEpsilon(t, r.Crowded.Total.Median/r.Idle.Total.Median, r.TotalRatio, 1e-9)
	require.Positive(t, r.Crowd.OK)
	require.Positive(t, r.Idle.First.Min)
	require.LessOrEqual(t, r.Crowd.PeakStreams, int64(12))
	require.Contains(t, printed(t, r), "during 12 calls of another tenant")
}
