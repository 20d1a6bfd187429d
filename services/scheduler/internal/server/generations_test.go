package server_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

// watch follows the fleet, with a number of generations, until a condition holds.
func (r *rig) watch(generations *uint32, holds func(*pb.WatchFleetResponse) bool) *pb.WatchFleetResponse {
	r.Helper()
	ctx, cancel := context.WithCancel(r.within())
	defer cancel()
	stream, err := r.operators().WatchFleet(ctx, &pb.WatchFleetRequest{
		Interval: durationpb.New(100 * time.Millisecond), MaxGenerations: generations,
	})
	require.NoError(r, err)
	for {
		told, err := stream.Recv()
		require.NoError(r, err)
		if holds(told) {
			return told
		}
	}
}

func anyFleet(*pb.WatchFleetResponse) bool { return true }

func TestWatchFleetListsTheOldestGenerations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := workertest.New("w1", "i1", "m")
		w.Change(func(report *pb.WorkerReport) { report.Models[0].Loaded = &pb.LoadResult{MaxSequences: 1} })
		waits(w, 3)
		r, _ := one(t, w)
		require.Zero(t, r.watch(proto.Uint32(5), anyFleet).GetGenerationsUnderWay())

		ctx, cancel := context.WithCancel(r.within())
		defer cancel()
		begin := func(id string, events int) {
			in := ask("m", 5)
			in.RequestId = &id
			stream, err := r.inference().Generate(ctx, in)
			require.NoError(t, err)
			read(t, stream, events)
			time.Sleep(time.Second)
		}
		begin("first", 4) // the place, and a spare one
		begin("second", 4)
		begin("third", 0) // which waits
		const second = time.Second
		told := r.watch(proto.Uint32(2), anyFleet)
		require.EqualValues(t, 3, told.GetGenerationsUnderWay())
		require.Len(t, told.GetGenerations(), 2)
		told = r.watch(proto.Uint32(1000), anyFleet)
		for i, want := range []*pb.FleetGeneration{
			{RequestId: "first", Model: "m", WorkerId: "w1", Tokens: 3, Age: durationpb.New(3 * second)},
			{RequestId: "second", Model: "m", WorkerId: "w1", Tokens: 3, Age: durationpb.New(2 * second)},
			{RequestId: "third", Model: "m", Age: durationpb.New(second)},
		} {
			got := told.GetGenerations()[i]
			require.GreaterOrEqual(t, got.GetAge().AsDuration(), want.GetAge().AsDuration())
			require.Less(t, got.GetAge().AsDuration(), want.GetAge().AsDuration()+second)
			got.Age = want.GetAge()
			require.True(t, proto.Equal(want, got), "%v", got)
		}
		told = r.watch(proto.Uint32(0), anyFleet)
		require.Empty(t, told.GetGenerations())
		require.EqualValues(t, 3, told.GetGenerationsUnderWay(), "their number can be had alone")
		require.Zero(t, r.watch(nil, anyFleet).GetGenerationsUnderWay(), "who does not ask is told nothing of them")

		ended := make(chan struct{})
		go func() {
			defer close(ended)
			r.watch(proto.Uint32(5), func(f *pb.WatchFleetResponse) bool { return f.GetGenerationsUnderWay() == 0 })
		}()
		cancel()
		<-ended
	})
}

func TestWatchFleetBoundsGenerations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := one(t, workertest.New("w1", "i1", "m"))
		stream, err := r.operators().WatchFleet(r.within(), &pb.WatchFleetRequest{MaxGenerations: proto.Uint32(1001)})
		require.NoError(t, err)
		_, err = stream.Recv()
		require.Equal(t, codes.InvalidArgument, status.Code(err))
		require.ErrorContains(t, err, "max_generations is 1001")
	})
}
