package server

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/gpuworker/health"
	"github.com/millrace/millrace/gpuworker/model"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// gauged is a device whose readings a test sets. It counts how often it is read.
type gauged struct {
	engine.Device
	asked atomic.Int64
	mu    sync.Mutex
	set   func(*engine.DeviceInfo) error // guarded by mu
	hold  <-chan struct{}                // guarded by mu; nil, or it does not answer before this is closed
}

func (g *gauged) Info() (engine.DeviceInfo, error) {
	g.asked.Add(1)
	g.mu.Lock()
	hold := g.hold
	g.mu.Unlock()
	if hold != nil {
		<-hold
	}
	info, err := g.Device.Info()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.set != nil && err == nil {
		err = g.set(&info)
	}
	return info, err
}

func (g *gauged) block(until <-chan struct{}) {
	g.mu.Lock()
	g.hold = until
	g.mu.Unlock()
}

func (g *gauged) say(set func(*engine.DeviceInfo) error) {
	g.mu.Lock()
	g.set = set
	g.mu.Unlock()
}

func TestDeviceIsReadOnceAPulse(t *testing.T) {
	// The number of subscribers does not matter.
	device := &gauged{Device: simDevice(t, sim.Options{})}
	w := start(t, device)
	const followers, messages = 200, 5
	begin, asked := time.Now(), device.asked.Load()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	var all sync.WaitGroup
	failures := make(chan error, followers)
	for range followers {
		all.Go(func() {
			stream, err := w.health.Health(ctx)
			if err == nil {
				err = stream.Send(&pb.HealthRequest{Interval: durationpb.New(time.Millisecond)})
			}
			for range messages {
				if err == nil {
					_, err = stream.Recv()
				}
			}
			if err != nil {
				failures <- err
			}
		})
	}
	all.Wait()
	require.Empty(t, failures)
	asked = device.asked.Load() - asked
	// Reading the model files brings a pulse forward as well. One tick and one reading may fall on
	// either end. A pulse may have been running at the beginning, and three more may be due: by a
	// tick, by a read of the files and by Started.
	pulses := int64(time.Since(begin)/pulse + time.Since(begin)/fileListAge + 6)
	require.LessOrEqual(t, asked, pulses)
}

func TestWorkerIsNotReadyWithoutItsModels(t *testing.T) {
	device := &gauged{Device: simDevice(t, sim.Options{})}
	logger := rpctest.Logger(t)
	models := model.NewManager(model.Config{Dir: t.TempDir(), VerifyInterval: -1}, device, logger)
	defer func() {
		require.NoError(t, models.Close())
		require.NoError(t, device.Close())
	}()
	s := New(models, Config{}, logger)
	p := publisher{server: s}
	device.say(func(*engine.DeviceInfo) error { // between reading the models and the report
		s.Started()
		return nil
	})
	state, _ := p.publish()
	require.Equal(t, health.Starting, state, "the models were read before Started")
	state, _ = p.publish()
	require.Equal(t, health.Ready, state)
}

func TestReportHasMemoryOfOtherProcesses(t *testing.T) {
	const gib = 1 << 30
	device := &gauged{Device: simDevice(t, sim.Options{Memory: 64 * gib})}
	physical := func(free uint64) func(*engine.DeviceInfo) error {
		return func(i *engine.DeviceInfo) error {
			i.PhysicalTotal, i.PhysicalFree, i.BytesFree = ptr(uint64(66*gib)), ptr(free), min(i.BytesFree, free)
			return nil
		}
	}
	device.say(physical(65 * gib))
	w := start(t, device)
	_, next := follow(t, w)
	_, report := next()
	require.Equal(t, pb.WorkerState_WORKER_STATE_READY, report.GetState())
	device.say(physical(45 * gib))
	for report.GetState() != pb.WorkerState_WORKER_STATE_DEGRADED {
		_, report = next()
	}
	require.EqualValues(t, 45*gib, report.GetDevice().GetPhysicalBytesFree())
	require.EqualValues(t, 45*gib, report.GetDevice().GetBytesFree(), "as the next load will find it")
	for _, c := range report.GetChecks() {
		require.Equal(t, c.GetName() != health.CheckMemoryPressure, c.GetOk(), c.GetName())
		if !c.GetOk() {
			require.Contains(t, c.GetMessage(), "counts on 64.0 GiB")
			require.Contains(t, c.GetMessage(), "has 45.0 GiB")
		}
	}
	device.say(physical(60 * gib)) // too many bytes are gone still
	for report.GetDevice().GetPhysicalBytesFree() != 60*gib {
		_, report = next()
	}
	require.Equal(t, pb.WorkerState_WORKER_STATE_DEGRADED, report.GetState())
	device.say(physical(65 * gib))
	for report.GetState() != pb.WorkerState_WORKER_STATE_READY {
		_, report = next()
	}
}

func TestFailedDeviceKeepsItsIdentity(t *testing.T) {
	device := &gauged{Device: simDevice(t, sim.Options{})}
	warm := func(i *engine.DeviceInfo) error {
		i.TemperatureC = ptr(60)
		return nil
	}
	device.say(warm)
	w := start(t, device)
	_, next := follow(t, w)
	_, report := next()
	require.EqualValues(t, 60, report.GetDevice().GetTemperatureCelsius())
	was := report
	device.say(func(i *engine.DeviceInfo) error {
		*i = engine.DeviceInfo{}
		return engine.ErrDevice
	})
	for report.GetState() != pb.WorkerState_WORKER_STATE_NOT_READY {
		_, report = next()
	}
	require.Equal(t, was.GetClassId(), report.GetClassId())
	require.Equal(t, "sim", report.GetDevice().GetKind())
	require.Nil(t, report.GetDevice().TemperatureCelsius, "it is not known any more")
	require.Equal(t, health.CheckDevice, report.GetChecks()[0].GetName())
	require.False(t, report.GetChecks()[0].GetOk())
	_, first := follow(t, w)
	_, full := first()
	require.Equal(t, was.GetClassId(), full.GetClassId())
	device.say(warm)
	for report.GetState() != pb.WorkerState_WORKER_STATE_READY {
		_, report = next()
	}
}

func TestSubscribersSeeTheAgeOfChecksGrow(t *testing.T) {
	w := start(t, simDevice(t, sim.Options{}), "stories")
	_, next := follow(t, w)
	_, report := next()
	first := report.GetModels()[0].GetVerifiedAge().AsDuration()
	require.Positive(t, first)
	require.Less(t, first, time.Hour)
	in, report := next()
	for in.GetDelta() == nil {
		in, report = next()
	}
	require.True(t, in.GetDelta().GetReadingsOnly())
	require.Greater(t, report.GetModels()[0].GetVerifiedAge().AsDuration(), first)
}
