package main

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/gpuworker/health"
	"github.com/millrace/millrace/internal/repotest"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gpuworker/internal/config"
	"github.com/millrace/millrace/services/internal/app"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// gpu is a simulated device that reports itself as a GPU and can be lost.
type gpu struct {
	engine.Device
	lost atomic.Bool
}

func (g *gpu) Info() (engine.DeviceInfo, error) {
	info, err := g.Device.Info()
	if g.lost.Load() {
		return engine.DeviceInfo{}, engine.ErrDevice
	}
	info.Kind = "cuda"
	return info, err
}

// draining is a worker that was asked to stop while a request runs. The request takes most of a
// minute unless end is called.
type draining struct {
	device *gpu
	health pb.WorkerService_HealthClient
	report *pb.WorkerReport // the full report with the deltas applied
	ended  <-chan error
	end    func() // ends the request
}

func drain(t *testing.T) *draining {
	t.Helper()
	rpctest.NoLeaks(t)
	c := &config.Config{
		Flags:    app.Flags{Listen: "unix:" + filepath.Join(t.TempDir(), "worker"), DrainTimeout: time.Minute},
		WorkerID: "w", Load: []string{"stories"}, MaxSequences: 4, Models: repotest.Path("models"),
	}
	device, err := sim.Open(sim.Options{Reserved: 16, DecodeTime: 100 * time.Millisecond}, rpctest.Logger(t))
	require.NoError(t, err)
	d := &draining{device: &gpu{Device: device}}
	ctx, signal := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	d.ended = ended
	go func() { ended <- serve(ctx, c, d.device, rpctest.Logger(t)) }()

	watched, stop := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(stop)
	conn, err := rpc.Dial(c.Listen, "test")
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.Eventually(t, func() bool {
		d.health, err = pb.NewWorkerServiceClient(conn).Health(watched)
		if err != nil {
			return false
		}
		in, err := d.health.Recv()
		d.report = in.GetFull()
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	for d.report.GetState() != pb.WorkerState_WORKER_STATE_READY {
		d.next(t)
	}
	call, cancel := context.WithCancel(t.Context())
	d.end = cancel
	maxTokens, ignore := int32(4000), true
	stream, err := pb.NewInferenceServiceClient(conn).Generate(call, &pb.GenerateRequest{
		Model: "stories", Input: &pb.GenerateRequest_Prompt{Prompt: "Once"},
		Stopping: &pb.Stopping{MaxTokens: &maxTokens, IgnoreEos: &ignore},
	})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	go func() {
		for err == nil {
			_, err = stream.Recv()
		}
	}()
	signal()
	for d.report.GetState() != pb.WorkerState_WORKER_STATE_DRAINING {
		d.next(t)
	}
	return d
}

// next applies the next message of the health stream.
func (d *draining) next(t *testing.T) {
	t.Helper()
	in, err := d.health.Recv()
	require.NoError(t, err)
	delta := in.GetDelta()
	if delta.GetState() != 0 {
		d.report.State = delta.GetState()
	}
	if delta.GetChecksChanged() {
		d.report.Checks = delta.GetChecks()
	}
	if delta != nil {
		d.report.Load = delta.GetLoad()
	}
}

func TestDrainingWorkerReportsItsLoad(t *testing.T) {
	d := drain(t)
	first := d.report.GetLoad().GetGeneratedTokens()
	for d.report.GetLoad().GetGeneratedTokens() < first+20 || d.report.GetLoad().GetTokensPerSecond() == 0 {
		d.next(t)
	}
	require.Equal(t, pb.WorkerState_WORKER_STATE_DRAINING, d.report.GetState())
	d.end()
	require.NoError(t, <-d.ended)
}

func TestGPULostWhileDrainingEndsWithAnError(t *testing.T) {
	d := drain(t)
	d.device.lost.Store(true)
	failed := func() bool {
		for _, c := range d.report.GetChecks() {
			if c.GetName() == health.CheckDevice {
				return !c.GetOk()
			}
		}
		return false
	}
	for !failed() {
		d.next(t)
	}
	require.Equal(t, pb.WorkerState_WORKER_STATE_DRAINING, d.report.GetState())
	d.end()
	require.ErrorIs(t, <-d.ended, engine.ErrDevice)
}
