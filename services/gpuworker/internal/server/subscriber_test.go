package server

import (
	"context"
	"io"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// message is a message of the stream and when it was sent.
type message struct {
	*pb.HealthResponse
	at time.Time
}

// fakeStream is the worker's end of a health stream inside a bubble of fake time.
type fakeStream struct {
	grpc.ServerStream
	ctx      context.Context
	requests chan *pb.HealthRequest
	sent     chan message
}

func (s *fakeStream) Context() context.Context { return s.ctx }

func (s *fakeStream) Recv() (*pb.HealthRequest, error) {
	in, ok := <-s.requests
	if !ok {
		return nil, io.EOF
	}
	return in, nil
}

func (s *fakeStream) Send(r *pb.HealthResponse) error {
	s.sent <- message{r, time.Now()}
	return nil
}

// followed is a subscriber to reports that the test publishes, in fake time.
type followed struct {
	*publisher
	stream *fakeStream
	caches atomic.Value     // []prefixCache of the worker
	report *pb.WorkerReport // as published last
	start  time.Time
	ended  chan error
}

// inBubble runs a test on a subscriber that was sent its first full report.
func inBubble(t *testing.T, test func(t *testing.T, f *followed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := New(nil, Config{}, hclog.NewNullLogger())
		ctx, cancel := context.WithCancel(t.Context())
		f := &followed{
			publisher: &publisher{server: s}, start: time.Now(), ended: make(chan error, 1),
			stream: &fakeStream{ctx: ctx, requests: make(chan *pb.HealthRequest), sent: make(chan message, 10_000)},
			report: &pb.WorkerReport{
				State: pb.WorkerState_WORKER_STATE_READY, Device: &pb.DeviceStatus{}, Load: &pb.LoadStatus{},
				Progress: &pb.StepProgress{}, Models: []*pb.ModelStatus{{Name: "m"}},
			},
		}
		s.prefixCaches = func() []prefixCache { caches, _ := f.caches.Load().([]prefixCache); return caches }
		f.change(func(*pb.WorkerReport) {})
		go func() { f.ended <- s.Health(f.stream) }()
		defer func() {
			close(f.stream.requests)
			require.NoError(t, <-f.ended)
			cancel()
		}()
		require.NotNil(t, (<-f.stream.sent).GetFull())
		test(t, f)
	})
}

// change publishes a report that differs from the last one.
func (f *followed) change(change func(*pb.WorkerReport)) {
	f.report = proto.CloneOf(f.report)
	change(f.report)
	f.offer(&snapshot{report: f.report})
}

// messages returns the messages of the next d, while a report is published each pulse, changed by
// move.
func (f *followed) messages(d time.Duration, move func(*pb.WorkerReport)) (all []message) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(pulse)
		f.change(move)
	}
	synctest.Wait()
	for len(f.stream.sent) > 0 {
		all = append(all, <-f.stream.sent)
	}
	return all
}

func (f *followed) wish(interval *durationpb.Duration) {
	f.stream.requests <- &pb.HealthRequest{Ack: 1, Interval: interval}
}

// warmer changes the readings that change all the time on a GPU.
func warmer(r *pb.WorkerReport) {
	r.Device.TemperatureCelsius = ptr(r.GetDevice().GetTemperatureCelsius() + 1)
	r.Models[0].VerifiedAge = durationpb.New(r.GetModels()[0].GetVerifiedAge().AsDuration() + pulse)
}

func still(*pb.WorkerReport) {}

func TestReadingsAreSentAtTheInterval(t *testing.T) {
	// They count as no change.
	inBubble(t, func(t *testing.T, f *followed) {
		t.Helper()
		f.wish(durationpb.New(500 * time.Millisecond))
		all := f.messages(5*time.Second, warmer)
		require.InDelta(t, 9, len(all), 1, "one each 500 ms, or at the pulse behind it")
		for _, m := range all {
			d := m.GetDelta()
			require.True(t, d.GetReadingsOnly())
			require.NotZero(t, d.GetDevice().GetTemperatureCelsius())
			require.True(t, d.GetModelsChanged())
			require.NotZero(t, d.GetModels()[0].GetVerifiedAge().AsDuration())
			require.Zero(t, d.GetState())
			require.False(t, d.GetFilesChanged())
		}
	})
}

// older changes what changes on an idle worker.
func older(r *pb.WorkerReport) {
	r.Models[0].VerifiedAge = durationpb.New(r.GetModels()[0].GetVerifiedAge().AsDuration() + pulse)
}

func TestOldAgesAreSentBetweenHeartbeats(t *testing.T) {
	inBubble(t, func(t *testing.T, f *followed) {
		t.Helper()
		f.wish(durationpb.New(250 * time.Millisecond))
		all := f.messages(6*time.Second, older)
		require.InDelta(t, 21, len(all), 3, "a message each 250 ms, or at the pulse behind it")
		deltas := 0
		for _, m := range all {
			if d := m.GetDelta(); d != nil {
				require.True(t, d.GetReadingsOnly())
				deltas++
			}
		}
		require.InDelta(t, 7, deltas, 1, "one each 750 ms, or at the next pulse")
	})
}

func TestIdleWorkerSendsHeartbeats(t *testing.T) {
	inBubble(t, func(t *testing.T, f *followed) {
		t.Helper()
		f.wish(durationpb.New(2 * time.Second))
		all := f.messages(10*time.Second+pulse, still)
		require.Len(t, all, 5)
		for i, m := range all {
			require.NotNil(t, m.GetHeartbeat())
			require.Equal(t, f.start.Add(time.Duration(i+1)*2*time.Second), m.at)
		}
	})
}

func TestStaleAssessmentSendsNoHeartbeat(t *testing.T) {
	// A scheduler that got heartbeats would take a hung worker for a healthy one.
	inBubble(t, func(t *testing.T, f *followed) {
		t.Helper()
		f.wish(durationpb.New(500 * time.Millisecond))
		require.Len(t, f.messages(2*time.Second+pulse, still), 4)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, f.stream.sent, int(maxAssessmentAge/(500*time.Millisecond)), "until the assessment is too old")
		f.messages(pulse, still)
		require.Len(t, f.messages(2*time.Second, still), 4, "it assesses itself again")
	})
}

func TestReadingsAreAtMostTwoSecondsOld(t *testing.T) {
	// The wanted interval does not matter. An engine's readings are up to a second old when they
	// are published.
	for name, interval := range map[string]*durationpb.Duration{
		"the default": nil, "an hour": durationpb.New(time.Hour), "the longest": {Seconds: math.MaxInt64, Nanos: math.MaxInt32},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *followed) {
				t.Helper()
				f.wish(interval)
				last := f.start
				for _, m := range f.messages(time.Minute, warmer) {
					require.LessOrEqual(t, m.at.Sub(last)+time.Second+pulse, 2*time.Second)
					last = m.at
				}
				require.Less(t, time.Since(last), time.Second)

				// A single change after a long idle time is sent in time as well.
				f.messages(time.Minute, still)
				begin := time.Now()
				f.change(func(r *pb.WorkerReport) { r.Device.PhysicalBytesFree = ptr(uint64(7)) })
				all := f.messages(time.Second, still)
				require.EqualValues(t, 7, all[0].GetDelta().GetDevice().GetPhysicalBytesFree())
				require.LessOrEqual(t, all[0].at.Sub(begin)+time.Second+pulse, 2*time.Second)
			})
		})
	}
}

func TestIntervalHasAMinimum(t *testing.T) {
	for name, interval := range map[string]*durationpb.Duration{
		"zero": {}, "negative": durationpb.New(-time.Second), "the most negative": {Seconds: math.MinInt64, Nanos: math.MinInt32},
		"a nanosecond": durationpb.New(1),
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *followed) {
				t.Helper()
				f.wish(interval)
				all := f.messages(10*time.Second, warmer)
				require.GreaterOrEqual(t, len(all), 30)
				for i := range all[1:] {
					require.GreaterOrEqual(t, all[i+1].at.Sub(all[i].at), minHealthInterval)
				}
			})
		})
	}
}

func TestUrgentChangesAreSentAtOnce(t *testing.T) {
	for name, change := range map[string]func(*pb.WorkerReport){
		"state":  func(r *pb.WorkerReport) { r.State = pb.WorkerState_WORKER_STATE_DEGRADED },
		"checks": func(r *pb.WorkerReport) { r.Checks = []*pb.HealthCheck{{Name: "memory-errors"}} },
		"models": func(r *pb.WorkerReport) { r.Models[0].State = pb.ModelState_MODEL_STATE_FAILED },
		"files":  func(r *pb.WorkerReport) { r.Files = []*pb.ModelFile{{Name: "a"}} },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *followed) {
				t.Helper()
				f.wish(durationpb.New(time.Hour))
				begin := time.Now()
				f.change(change)
				m := <-f.stream.sent
				require.Equal(t, begin, m.at)
				require.NotNil(t, m.GetDelta())
				require.False(t, m.GetDelta().GetReadingsOnly())
				report := &pb.WorkerReport{
					State: f.report.GetState(), Checks: m.GetDelta().GetChecks(), Models: f.report.GetModels(), Files: m.GetDelta().GetFiles(),
				}
				if m.GetDelta().GetModelsChanged() {
					report.Models = m.GetDelta().GetModels()
				}
				require.True(t, proto.Equal(&pb.WorkerReport{
					State: f.report.GetState(), Checks: f.report.GetChecks(), Models: f.report.GetModels(), Files: f.report.GetFiles(),
				}, report))
				require.Empty(t, f.messages(10*time.Second, still), "it is sent once")
			})
		})
	}
}

func TestMemoryAndLoadAreSentAtTheInterval(t *testing.T) {
	inBubble(t, func(t *testing.T, f *followed) {
		t.Helper()
		f.wish(durationpb.New(time.Hour))
		f.change(func(r *pb.WorkerReport) { r.Device.BytesFree, r.Load.Running = 5, 3 })
		all := f.messages(time.Second, still)
		require.Len(t, all, 1)
		require.False(t, all[0].GetDelta().GetReadingsOnly())
		require.EqualValues(t, 5, all[0].GetDelta().GetDevice().GetBytesFree())
		require.EqualValues(t, 3, all[0].GetDelta().GetLoad().GetRunning())
		require.False(t, all[0].GetDelta().GetModelsChanged())
	})
}

func TestFrequentProbesDoNotDelayChanges(t *testing.T) {
	inBubble(t, func(t *testing.T, f *followed) {
		t.Helper()
		f.wish(durationpb.New(time.Second))
		deltas, answers := 0, 0
		for probe := range uint64(50) {
			f.stream.requests <- &pb.HealthRequest{Ack: 1, Probe: probe + 1}
			for _, m := range f.messages(pulse, warmer) {
				if m.GetDelta() != nil {
					deltas++
				}
				if m.GetProbe() == probe+1 {
					answers++
				}
			}
		}
		require.Equal(t, 50, answers)
		require.GreaterOrEqual(t, deltas, 5)
	})
}

func TestFloodOfHealthRequestsIsSlowedDown(t *testing.T) {
	inBubble(t, func(t *testing.T, f *followed) {
		t.Helper()
		begin := time.Now()
		for range 1 + int(time.Second/requestGap) {
			f.stream.requests <- &pb.HealthRequest{}
		}
		require.GreaterOrEqual(t, time.Since(begin), time.Second)
		synctest.Wait()
		require.LessOrEqual(t, len(f.stream.sent), 1+int(time.Second/requestGap))
	})
}

func TestHealthStreamEndsAfterTheLastCall(t *testing.T) {
	inBubble(t, func(t *testing.T, f *followed) {
		t.Helper()
		f.wish(durationpb.New(time.Hour))
		f.change(func(r *pb.WorkerReport) { r.State, r.Load.Running = pb.WorkerState_WORKER_STATE_DRAINING, 1 })
		require.Equal(t, pb.WorkerState_WORKER_STATE_DRAINING, (<-f.stream.sent).GetDelta().GetState())
		require.Empty(t, f.messages(10*time.Second, still))
		require.Empty(t, f.ended, "a request runs")
		begin := time.Now()
		report := proto.CloneOf(f.report)
		report.Load.Running = 0
		f.offer(&snapshot{report: report, last: true})
		m := <-f.stream.sent
		require.Equal(t, begin, m.at)
		require.Zero(t, m.GetDelta().GetLoad().GetRunning())
		synctest.Wait()
		require.Len(t, f.ended, 1)
	})
}
