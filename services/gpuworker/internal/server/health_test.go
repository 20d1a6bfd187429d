package server

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/gpuworker/model"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// follow opens a health stream. next returns the next message, and the report with it applied.
func follow(t *testing.T, w *worker) (send func(*pb.HealthRequest), next func() (*pb.HealthResponse, *pb.WorkerReport)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lifetime)
	t.Cleanup(cancel)
	stream, err := w.health.Health(ctx)
	require.NoError(t, err)
	report, sequence := &pb.WorkerReport{}, uint64(0)
	return func(r *pb.HealthRequest) { require.NoError(t, stream.Send(r)) }, func() (*pb.HealthResponse, *pb.WorkerReport) {
		in, err := stream.Recv()
		require.NoError(t, err)
		sequence++
		require.Equal(t, sequence, in.GetSequence())
		switch e := in.GetEvent().(type) {
		case *pb.HealthResponse_Full:
			report = e.Full
		case *pb.HealthResponse_Delta:
			if e.Delta.GetState() != 0 {
				report.State = e.Delta.GetState()
			}
			if e.Delta.GetChecksChanged() {
				report.Checks = e.Delta.GetChecks()
			}
			if e.Delta.GetModelsChanged() {
				report.Models = e.Delta.GetModels()
			}
			if e.Delta.GetFilesChanged() {
				report.Files = e.Delta.GetFiles()
			}
			report.Load = e.Delta.GetLoad()
			report.Device = e.Delta.GetDevice()
		}
		return in, report
	}
}

func TestHealthSendsFullReportThenDeltas(t *testing.T) {
	w := start(t, simDevice(t, sim.Options{}))
	send, next := follow(t, w)
	first, report := next()
	require.NotNil(t, first.GetFull())
	require.Equal(t, "w1", report.GetWorkerId())
	require.Equal(t, pb.WorkerState_WORKER_STATE_READY, report.GetState())
	require.Equal(t, "sim", report.GetDevice().GetKind())
	require.Len(t, report.GetFiles(), 1)
	require.Empty(t, report.GetModels())

	send(&pb.HealthRequest{Interval: durationpb.New(250 * time.Millisecond), Probe: 99})
	for in := first; in.GetProbe() != 99; { // a probe comes back
		in, _ = next()
	}

	send(&pb.HealthRequest{Ack: 0, Probe: 100})
	var again *pb.HealthResponse
	for again.GetProbe() != 100 {
		again, report = next()
	}
	require.Equal(t, "w1", again.GetFull().GetWorkerId(), "an ack of 0 asks for everything")

	stream, err := w.models.LoadModel(t.Context(), &pb.LoadModelRequest{Model: "stories"})
	require.NoError(t, err)
	var result *pb.LoadResult
	for result == nil {
		in, err := stream.Recv()
		require.NoError(t, err)
		result = in.GetResult()
	}
	for len(report.GetModels()) != 1 || report.GetModels()[0].GetState() != pb.ModelState_MODEL_STATE_READY {
		_, report = next()
	}
	require.Equal(t, result.GetModelDigest(), report.GetModels()[0].GetModelDigest())

	got := w.generate(t.Context(), t, prompted("Once", 50))
	require.NoError(t, got.err)
	for report.GetLoad().GetGeneratedTokens() != 50 {
		_, report = next()
	}
}

func TestSlowDiskDoesNotDelayReports(t *testing.T) {
	l, done := &fileList{}, make(chan struct{}, 1)
	proceed := make(chan []model.Entry)
	slow := func() []model.Entry { return <-proceed }
	get := func() ([]*pb.ModelFile, bool) { return l.get(slow, func() { done <- struct{}{} }) }
	_, known := get()
	require.False(t, known, "the disk is read for the first time")
	_, known = get()
	require.False(t, known)
	proceed <- []model.Entry{{Name: "a"}}
	<-done
	files, known := get()
	require.True(t, known)
	require.Len(t, files, 1)
	l.mu.readAt = l.mu.readAt.Add(-fileListAge)
	for range 2 {
		files, known = get()
		require.True(t, known)
		require.Len(t, files, 1, "the old list, while the disk is read")
	}
	proceed <- []model.Entry{{Name: "a"}, {Name: "b"}}
	<-done
	files, _ = get()
	require.Len(t, files, 2)
}

// ready returns what the standard health service reports.
func ready(t *testing.T, w *worker) bool {
	t.Helper()
	r, err := healthpb.NewHealthClient(w.conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	return r.GetStatus() == healthpb.HealthCheckResponse_SERVING
}

func TestHungStepIsNotReadyAndIdleEngineIs(t *testing.T) {
	w := start(t, cpuDevice(t), "stories")
	require.Eventually(t, func() bool { return ready(t, w) }, hang, 10*time.Millisecond)
	_, next := follow(t, w)
	_, report := next()
	is := func(s pb.WorkerState) bool { return report.GetState() == s }
	// If the machine stalled until the step had ended before a pulse saw it, the test tries again
	// with a longer hang.
	for beyond := 4500 * time.Millisecond; ; beyond *= 2 {
		require.Less(t, beyond, hang)
		inst, _, err := w.manager.Load(t.Context(), "stories", model.Options{}, nil)
		require.NoError(t, err)
		hung := inst.Loop.Stats().StepBound + beyond
		require.NoError(t, inst.Fault(engine.FaultHangStep, 0, uint64(hung)))
		require.True(t, is(pb.WorkerState_WORKER_STATE_READY), "asked for, not yet hung: idle is no fault")
		begin := time.Now()
		stream, err := w.infer.Generate(t.Context(), prompted("Once upon a time", 5))
		require.NoError(t, err)
		for !is(pb.WorkerState_WORKER_STATE_NOT_READY) && time.Since(begin) < hung {
			_, report = next()
		}
		reported, checks, serves := is(pb.WorkerState_WORKER_STATE_NOT_READY), report.GetChecks(), true
		for reported && serves && time.Since(begin) < hung {
			serves = ready(t, w)
		}
		inTime := time.Since(begin) < hung
		require.NoError(t, receive(t, stream).err, "a step that ends after all goes on")
		for !is(pb.WorkerState_WORKER_STATE_READY) {
			_, report = next()
		}
		if !inTime { // the loop's bound grows with its longest step, so the next try needs a fresh loop
			_, err = w.manager.Unload(t.Context(), "stories", false)
			require.NoError(t, err)
			continue
		}
		require.True(t, reported)
		require.False(t, serves)
		failed := ""
		for _, c := range checks {
			if !c.GetOk() {
				failed += c.GetName()
				require.Contains(t, c.GetMessage(), "step")
			}
		}
		require.Equal(t, "step-progress/stories", failed)
		return
	}
}

func TestFlippedBitTakesItsModelOutOfService(t *testing.T) {
	w := start(t, cpuDevice(t), "stories")
	_, next := follow(t, w)
	next()
	inst, release, err := w.manager.Acquire("stories")
	require.NoError(t, err)
	tensor, err := inst.FlipBit(4, 1234)
	require.NoError(t, err)
	release()
	require.ErrorContains(t, w.manager.Verify(t.Context(), "stories"), tensor)
	var report *pb.WorkerReport
	for report.GetState() != pb.WorkerState_WORKER_STATE_DEGRADED {
		_, report = next()
	}
	require.Equal(t, pb.ModelState_MODEL_STATE_FAILED, report.GetModels()[0].GetState())
	require.Contains(t, report.GetModels()[0].GetProblem(), tensor)
	got := w.generate(t.Context(), t, prompted("Once", 5))
	require.ErrorContains(t, got.err, tensor)
}

func TestStopEndsReadinessNotStreams(t *testing.T) {
	w, b := braked(t, "stories")
	stream, err := w.infer.Generate(t.Context(), prompted("Once upon a time", 300))
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	_, next := follow(t, w)
	_, report := next()
	stopped := make(chan struct{})
	go func() { defer close(stopped); w.stop() }()
	for report.GetState() != pb.WorkerState_WORKER_STATE_DRAINING {
		_, report = next()
	}
	b.released.Store(true)
	tokens := 0
	for {
		in, err := stream.Recv()
		require.NoError(t, err, "a running stream finishes")
		tokens += len(in.GetTokens().GetTokenIds())
		if in.GetFinished() != nil {
			break
		}
	}
	require.Equal(t, 300, tokens)
	<-stopped
}
