package server

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millrace/millrace/gpuworker/engine/enginetest"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// readiness returns the result of a health check.
func (w *worker) readiness(t *testing.T) healthpb.HealthCheckResponse_ServingStatus {
	t.Helper()
	out, err := healthpb.NewHealthClient(w.conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	return out.GetStatus()
}

// brake slows the steps of a device down until it is released, so that a sequence of hundreds of
// tokens lasts longer than the test needs. No step is so slow that it counts as hung.
type brake struct{ released atomic.Bool }

func (b *brake) wait() error {
	if !b.released.Load() {
		time.Sleep(100 * time.Millisecond)
	}
	return nil
}

// braked starts a worker with a brake on its steps.
func braked(t *testing.T, load ...string) (*worker, *brake) {
	t.Helper()
	b := &brake{}
	w := start(t, enginetest.Intercept(simDevice(t, sim.Options{}), enginetest.Hooks{Wait: b.wait}), load...)
	t.Cleanup(func() { b.released.Store(true) })
	return w, b
}

func TestDrainRefusesNewCallsUntilUndrain(t *testing.T) {
	// Running calls end by themselves.
	w, b := braked(t, "stories")
	_, next := follow(t, w)
	_, report := next()
	stream, err := w.infer.Generate(t.Context(), prompted("Once", 400))
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	require.Equal(t, healthpb.HealthCheckResponse_SERVING, w.readiness(t))

	out, err := w.health.Drain(t.Context(), &pb.DrainRequest{})
	require.NoError(t, err)
	require.EqualValues(t, 1, out.GetSequences())
	require.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, w.readiness(t), "by the time of the answer")
	for report.GetState() != pb.WorkerState_WORKER_STATE_DRAINING {
		_, report = next()
	}
	refused := func(err error) {
		t.Helper()
		require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
		require.Equal(t, reason.WorkerDraining, rpc.Reason(err))
		require.Contains(t, err.Error(), "until an operator undrains it")
	}
	refused(w.generate(t.Context(), t, prompted("Once", 1)).err)
	load, err := w.models.LoadModel(t.Context(), &pb.LoadModelRequest{Model: "stories"})
	require.NoError(t, err)
	_, err = load.Recv()
	refused(err)

	b.released.Store(true)
	var last *pb.GenerateResponse
	for err = nil; err == nil; {
		var in *pb.GenerateResponse
		if in, err = stream.Recv(); err == nil {
			last = in
		}
	}
	require.ErrorIs(t, err, io.EOF, "what runs goes on")
	require.NotNil(t, last.GetFinished())
	require.Eventually(t, func() bool { // a caller may have the end of its sequence before the loop is done with it
		out, err = w.health.Drain(t.Context(), &pb.DrainRequest{})
		return err != nil || out.GetSequences() == 0
	}, hang, time.Millisecond)
	require.NoError(t, err, "it may be asked again")
	for range 5 { // idle, and still followed
		_, report = next()
	}
	require.Equal(t, pb.WorkerState_WORKER_STATE_DRAINING, report.GetState())
	refused(w.generate(t.Context(), t, prompted("Once", 1)).err)

	for range 2 {
		_, err = w.health.Undrain(t.Context(), &pb.UndrainRequest{})
		require.NoError(t, err)
		require.Equal(t, healthpb.HealthCheckResponse_SERVING, w.readiness(t))
		require.NoError(t, w.generate(t.Context(), t, prompted("Once", 1)).err)
	}
	for report.GetState() != pb.WorkerState_WORKER_STATE_READY {
		_, report = next()
	}
}

func TestDrainReportsBeforeItRefuses(t *testing.T) {
	w := start(t, simDevice(t, sim.Options{}), "stories")
	refused := make(chan healthpb.HealthCheckResponse_ServingStatus, 4)
	var all sync.WaitGroup
	for range cap(refused) {
		all.Go(func() {
			for t.Context().Err() == nil {
				stream, err := w.infer.Generate(t.Context(), prompted("Once", 1))
				for err == nil {
					_, err = stream.Recv()
				}
				if rpc.Reason(err) == reason.WorkerDraining {
					out, _ := healthpb.NewHealthClient(w.conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
					refused <- out.GetStatus()
					return
				}
			}
		})
	}
	_, err := w.health.Drain(t.Context(), &pb.DrainRequest{})
	require.NoError(t, err)
	all.Wait()
	for range cap(refused) {
		require.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, <-refused)
	}
}

func TestDrainDoesNotWaitForAHungDevice(t *testing.T) {
	device := &gauged{Device: simDevice(t, sim.Options{})}
	w := start(t, device, "stories")
	w.server.drainReportTimeout = 100 * time.Millisecond
	hold := make(chan struct{})
	device.block(hold)
	defer close(hold)
	_, err := w.health.Drain(t.Context(), &pb.DrainRequest{})
	require.NoError(t, err)
	require.Equal(t, reason.WorkerDraining, rpc.Reason(w.generate(t.Context(), t, prompted("Once", 1)).err))
}

func TestStoppingWorkerCannotBeUndrained(t *testing.T) {
	w := start(t, simDevice(t, sim.Options{}), "stories")
	_, err := w.health.Drain(t.Context(), &pb.DrainRequest{})
	require.NoError(t, err)
	w.server.Stop()
	_, err = w.health.Undrain(t.Context(), &pb.UndrainRequest{})
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	require.Equal(t, reason.WorkerStopping, rpc.Reason(err))
	_, err = w.health.Drain(t.Context(), &pb.DrainRequest{})
	require.NoError(t, err, "it drains already")
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	stream, err := w.health.Health(ctx)
	require.NoError(t, err)
	for err == nil {
		_, err = stream.Recv()
	}
	require.NoError(t, ctx.Err(), "a health stream ends with the last request, once the process stops")
}

func TestReloadBetweenTwoPulsesIsMarked(t *testing.T) {
	ready := func(name, digest string) *pb.ModelStatus {
		return &pb.ModelStatus{Name: name, ModelDigest: digest, State: pb.ModelState_MODEL_STATE_READY}
	}
	last := []*pb.ModelStatus{ready("a", "d1"), ready("b", "d1"), {Name: "c", State: pb.ModelState_MODEL_STATE_LOADING}}
	now := []*pb.ModelStatus{ready("a", "d2"), ready("b", "d1"), ready("c", "d1"), ready("d", "d9")}
	require.True(t, markReloads(last, now))
	require.Equal(t, pb.ModelState_MODEL_STATE_LOADING, now[0].GetState())
	require.Empty(t, now[0].GetModelDigest())
	for i, m := range now[1:] {
		require.Equal(t, pb.ModelState_MODEL_STATE_READY, m.GetState(), "%d", i)
	}
	require.False(t, markReloads(now, []*pb.ModelStatus{ready("a", "d2")}), "the next pulse has it as it is")
}

func TestDrainDeadlineEndsRunningCalls(t *testing.T) {
	// Their status lets a scheduler resume them on another worker.
	w, b := braked(t, "stories")
	begin := func() grpc.ServerStreamingClient[pb.GenerateResponse] {
		t.Helper()
		stream, err := w.infer.Generate(t.Context(), prompted("Once", 400))
		require.NoError(t, err)
		_, err = stream.Recv()
		require.NoError(t, err)
		return stream
	}
	drain := func(timeout *durationpb.Duration) {
		t.Helper()
		_, err := w.health.Drain(t.Context(), &pb.DrainRequest{Timeout: timeout})
		require.NoError(t, err)
	}
	stream := begin()
	drain(durationpb.New(0))
	got := ending(t, stream)
	require.Equal(t, codes.Unavailable, status.Code(got))
	require.Equal(t, reason.WorkerDraining, rpc.Reason(got))
	require.Len(t, stream.Trailer().Get(rpc.UsageTrailer), 1, "the usage is in the trailers")
	_, err := w.health.Undrain(t.Context(), &pb.UndrainRequest{})
	require.NoError(t, err)

	for name, back := range map[string]func(){
		"by the end of the drain": func() {
			_, err := w.health.Undrain(t.Context(), &pb.UndrainRequest{})
			require.NoError(t, err)
		},
		"by a drain without one": func() { drain(nil) },
	} {
		t.Run("it is taken back "+name, func(t *testing.T) {
			b.released.Store(false)
			stream := begin()
			drain(durationpb.New(time.Hour))
			require.True(t, w.server.drain.deadline.isSet())
			back()
			require.False(t, w.server.drain.deadline.isSet())
			b.released.Store(true)
			require.NoError(t, ending(t, stream))
			_, err := w.health.Undrain(t.Context(), &pb.UndrainRequest{})
			require.NoError(t, err)
		})
	}
	for _, timeout := range []*durationpb.Duration{durationpb.New(-1), durationpb.New(24*time.Hour + 1), {Seconds: 1, Nanos: -1}} {
		_, err := w.health.Drain(t.Context(), &pb.DrainRequest{Timeout: timeout})
		require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", timeout)
		require.Equal(t, []string{"timeout"}, violated(err))
	}
	require.Equal(t, healthpb.HealthCheckResponse_SERVING, w.readiness(t), "a refused Drain does not drain")
}

func (d *drainDeadline) isSet() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.timer != nil
}

func TestDrainDeadlineCancelsUnlessCleared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d drainDeadline
		ctx, leave := d.join(t.Context())
		defer leave()
		ended := func(after time.Duration) error {
			time.Sleep(after)
			synctest.Wait()
			return context.Cause(ctx)
		}
		d.set(time.Second)
		require.NoError(t, ended(time.Second-1))
		d.clear()
		require.NoError(t, ended(time.Hour))
		d.set(time.Second)
		require.NoError(t, ended(time.Second-1))
		require.ErrorIs(t, ended(1), errDrained)
	})
}

func TestDrainDeadlineCancelsCallsThatJoinLate(t *testing.T) {
	// A call that passed Admit before the drain and joins after its deadline is cancelled until the
	// deadline is cleared.
	synctest.Test(t, func(t *testing.T) {
		var d drainDeadline
		cause := func() error {
			ctx, leave := d.join(t.Context())
			defer leave()
			return context.Cause(ctx)
		}
		d.set(time.Second)
		require.NoError(t, cause())
		time.Sleep(time.Second)
		synctest.Wait()
		for range 2 {
			require.ErrorIs(t, cause(), errDrained)
		}
		d.clear()
		require.NoError(t, cause())
		d.set(time.Second)
		require.NoError(t, cause(), "the next deadline has not passed")
	})
}

// ending reads the rest of a call and returns its error.
func ending(t *testing.T, stream grpc.ServerStreamingClient[pb.GenerateResponse]) error {
	t.Helper()
	for {
		if _, err := stream.Recv(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}
