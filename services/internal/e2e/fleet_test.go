package e2e

import (
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// loading is the events of a LoadModel call.
type loading struct {
	results  map[string]*pb.LoadResult // by worker
	progress map[string]int            // events by worker
	err      error
}

// load runs a LoadModel call to its end.
func load(t *testing.T, on *server, in *pb.LoadModelRequest) loading {
	t.Helper()
	l := loading{results: map[string]*pb.LoadResult{}, progress: map[string]int{}}
	stream, err := on.models.LoadModel(within(t), in)
	require.NoError(t, err)
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return l
		}
		if err != nil {
			l.err = err
			return l
		}
		switch in.GetEvent().(type) {
		case *pb.LoadModelResponse_Progress:
			l.progress[in.GetWorkerId()]++
		case *pb.LoadModelResponse_Result:
			require.Nil(t, l.results[in.GetWorkerId()], "one result for each copy")
			l.results[in.GetWorkerId()] = in.GetResult()
		case *pb.LoadModelResponse_Failure:
			require.Fail(t, "a copy failed", "%v", in.GetFailure())
		}
	}
}

// workers returns the ids of the workers that loaded.
func (l loading) workers() []string {
	ids := []string{}
	for id := range l.results {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// quick is a simulated device whose steps take no time.
var quick = []string{"--device", "sim:step=0s,prefill=0s,decode=0s"}

func TestTwoSchedulersLoadUseAndUnloadOneFleet(t *testing.T) {
	t.Parallel()
	w1, w2 := startWorker(t, "w1", quick...), startWorker(t, "w2", quick...)
	a, b := startScheduler(t, []*server{w1, w2}), startScheduler(t, []*server{w1, w2})
	for _, s := range []*server{a, b} {
		require.Equal(t, fault{codes.FailedPrecondition, rpc.SchedulerDomain, "MODEL_NOT_LOADED"},
			faultOf(generate(within(t), s.infer, ask(stories, 3)).err))
	}

	one := load(t, a, &pb.LoadModelRequest{Model: stories})
	require.NoError(t, one.err)
	require.Len(t, one.results, 1)
	require.Equal(t, one.workers()[0], good(t, a, stories).started.GetWorkerId(), "the worker that loaded the model serves it")
	b.untilServed(t, stories, 1)
	require.Equal(t, one.workers()[0], good(t, b, stories).started.GetWorkerId())
	same := load(t, b, &pb.LoadModelRequest{Model: stories})
	require.NoError(t, same.err)
	require.Equal(t, one.workers(), same.workers(), "the copy that there is is the one wanted")
	require.True(t, same.results[one.workers()[0]].GetAlreadyLoaded())

	both := load(t, b, &pb.LoadModelRequest{Model: stories, Replicas: ptr(uint32(2))})
	require.NoError(t, both.err)
	require.Equal(t, []string{"w1", "w2"}, both.workers())
	require.Equal(t, both.results["w1"].GetModelDigest(), both.results["w2"].GetModelDigest())
	a.untilServed(t, stories, 2)

	unloaded, err := a.models.UnloadModel(within(t), &pb.UnloadModelRequest{Model: stories})
	require.NoError(t, err)
	require.Equal(t, []string{"w1", "w2"}, unloaded.GetWorkerIds())
	require.Equal(t, both.results["w1"].GetDeviceBytes()+both.results["w2"].GetDeviceBytes(), unloaded.GetFreedBytes())
	for _, s := range []*server{a, b} {
		s.untilServed(t, stories, 0)
		require.Equal(t, codes.FailedPrecondition, faultOf(generate(within(t), s.infer, ask(stories, 3)).err).code)
	}
	for _, w := range []*server{w1, w2} {
		w.untilEmpty(t)
	}

	fresh := load(t, a, &pb.LoadModelRequest{Model: storiesF16, Replicas: ptr(uint32(2))})
	require.NoError(t, fresh.err)
	require.Equal(t, []string{"w1", "w2"}, fresh.workers())
	require.Positive(t, fresh.progress["w1"], "progress of both comes on one stream")
	require.Positive(t, fresh.progress["w2"])
}

func TestWorkersLeaveAndJoinUnderTwoSchedulers(t *testing.T) {
	t.Parallel()
	w1, w2 := startWorker(t, "w1", paced...), startWorker(t, "w2", paced...)
	a, b := startScheduler(t, []*server{w1, w2}), startScheduler(t, []*server{w1, w2})
	for _, s := range []*server{a, b} {
		s.untilServed(t, long, 2)
	}
	calls := beginAll(t, a, 4, endless)
	b.until(t, "the load that comes through the other scheduler is seen", func(fleet []*pb.FleetWorker) bool {
		running := uint32(0)
		for _, w := range fleet {
			running += w.GetReport().GetLoad().GetRunning()
			require.Zero(t, w.GetInFlight(), "none of it comes through this one")
		}
		return running == 4
	})

	b.kill()
	for _, c := range calls {
		for had := len(c.ids); len(c.ids) < had+10; {
			require.NoError(t, c.read(), "a scheduler that is killed takes only its own calls with it")
		}
	}
	b = b.again(t)
	b.untilServed(t, long, 2)

	w1.kill()
	for _, s := range []*server{a, b} {
		s.untilServed(t, long, 1)
		for range 5 {
			require.Equal(t, "w2", good(t, s, long).started.GetWorkerId())
		}
	}
	w1 = w1.again(t)
	for _, s := range []*server{a, b} {
		s.untilServed(t, long, 2)
	}
	w2.terminate()
	for _, s := range []*server{a, b} {
		s.untilServed(t, long, 1)
		require.Equal(t, "w1", good(t, s, long).started.GetWorkerId())
	}
	for _, c := range calls {
		for had := len(c.ids); len(c.ids) < had+10; {
			require.NoError(t, c.read(), "the stream continues")
		}
		c.leave()
	}
	w1.untilIdle(t)
}
