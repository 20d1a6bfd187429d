package fleet

import (
	"io"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// serving returns a report of models with 8 slots and 100 blocks of 16 tokens.
func serving(load *pb.LoadStatus, models ...string) *pb.WorkerReport {
	r := &pb.WorkerReport{WorkerId: "w", Load: load}
	for _, name := range models {
		r.Models = append(r.Models, &pb.ModelStatus{Name: name, ModelDigest: "d-" + name, State: pb.ModelState_MODEL_STATE_READY,
			Loaded: &pb.LoadResult{MaxSequences: 8, KvBlocks: 100, BlockSize: 16}})
	}
	return r
}

func TestRoutingSeesTheLoadOfAModel(t *testing.T) {
	load := &route.Load{}
	report := serving(&pb.LoadStatus{Running: 9, Models: []*pb.ModelLoad{
		{Name: "a", Running: 2, Waiting: 1, WaitingPrefillTokens: 70, FreeBlocks: 50, PrefillTokensPerSecond: 1000}, {Name: "b", Running: 6}}},
		"a", "b", "new")
	setReports(load, report)
	require.EqualValues(t, 3, load.Of("a").Foreign())
	require.EqualValues(t, 70, load.Of("a").Prefill())
	require.EqualValues(t, 6, load.Of("b").Foreign())
	require.Zero(t, load.Of("new").Foreign(), "one that has just come does nothing yet")
	w := forRouting(&Member{Connected: true, Report: report, Load: load}, nil)
	a := w.Models[0]
	require.EqualValues(t, 8, a.MaxSequences)
	require.EqualValues(t, 1600, a.CacheTokens)
	require.EqualValues(t, 800, a.FreeTokens)
	require.InDelta(t, 1000, a.PrefillRate, 0)
}

func TestStalledSequencesFreeSlotsOfTheirModel(t *testing.T) {
	load := &route.Load{}
	setReports(load, serving(&pb.LoadStatus{Running: 16, Paused: 8, Stalled: 3, Models: []*pb.ModelLoad{
		{Name: "a", Running: 8, Paused: 4, Stalled: 3}, {Name: "b", Running: 8, Paused: 4}}}, "a", "b"))
	require.EqualValues(t, 5, load.Of("a").Busy())
	require.EqualValues(t, 8, load.Of("b").Busy(), "none of its places is free")
}

func TestSumsOfOlderWorkersApplyToEachModel(t *testing.T) {
	load := &route.Load{}
	report := serving(&pb.LoadStatus{Running: 5, Waiting: 2, WaitingPrefillTokens: 30, FreeBlocks: 9}, "a", "b")
	s := route.NewSnapshot(true, []route.Worker{forRouting(&Member{Connected: true, Load: load,
		Report: &pb.WorkerReport{State: pb.WorkerState_WORKER_STATE_READY, Models: report.GetModels()}}, nil)})
	for range 4 {
		c, err := route.Pick(&s, route.Request{Model: "b", Sequences: 1})
		require.NoError(t, err)
		require.True(t, c.Reserve())
	}
	setReports(load, report)
	require.EqualValues(t, 3, load.Of("a").Foreign(), "what is known to be of another model is not of this one")
	require.EqualValues(t, 3, load.Of("b").Foreign())
	require.Zero(t, forRouting(&Member{Report: report, Load: load}, nil).Models[0].CacheTokens, "the report does not say how much of the model's memory is free")
	report.Models[0].Loaded = nil
	require.Zero(t, forRouting(&Member{Report: report, Load: load}, nil).Models[0].MaxSequences)
}

func TestWorkerAtTwoAddressesIsReportedOnce(t *testing.T) {
	f, err := New(Config{Dial: func(string) (*grpc.ClientConn, error) { return nil, io.EOF }}, hclog.NewNullLogger())
	require.NoError(t, err)
	report := serving(&pb.LoadStatus{Models: []*pb.ModelLoad{{Name: "a", Running: 1}}}, "a")
	report.Incarnation = "i"
	conn, err := grpc.NewClient("passthrough:///nobody", grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	tell := func(m *member) {
		m.mu.tracker.open()
		f.apply(m, newLink(conn, nil, Config{}), &pb.HealthResponse{Sequence: 1, Event: &pb.HealthResponse_Full{Full: report}}, time.Now(), &probe{})
	}
	first, second := &member{}, &member{}
	tell(first)
	load := first.mu.load.Of("a")
	require.EqualValues(t, 1, load.Foreign(), "what it does is of others")
	s := route.NewSnapshot(true, []route.Worker{forRouting(&Member{Connected: true, Load: &first.mu.load.Load,
		Report: &pb.WorkerReport{State: pb.WorkerState_WORKER_STATE_READY, Models: report.GetModels()}}, nil)})
	c, err := route.Pick(&s, route.Request{Model: "a", Sequences: 1})
	require.NoError(t, err)
	require.True(t, c.Reserve())
	c.End()
	for range 3 { // reports from before the end, in which the sequence still runs, in this interval and the next
		tell(second)
		require.Same(t, first.mu.load, second.mu.load)
	}
	require.Zero(t, func() int64 { tell(first); return load.Foreign() }())
	first.end()
	tell(second)
	require.Zero(t, load.Foreign())
	tell(second)
	require.EqualValues(t, 1, load.Foreign(), "the other one tells when the first has gone")
}
