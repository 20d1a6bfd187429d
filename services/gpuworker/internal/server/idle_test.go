package server

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/gpuworker/model"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

func TestPinIsHonouredAndReported(t *testing.T) {
	w := start(t, simDevice(t, sim.Options{}))
	pinned := func(pin *bool) bool {
		stream, err := w.models.LoadModel(t.Context(), &pb.LoadModelRequest{Model: "stories", Pin: pin})
		require.NoError(t, err)
		for err == nil {
			_, err = stream.Recv()
		}
		list, err := w.models.ListModels(t.Context(), &pb.ListModelsRequest{})
		require.NoError(t, err)
		require.NotNil(t, list.GetModels()[0].GetIdleAge())
		m := statusOfModel(w.manager.Loaded()[0], 0)
		require.Equal(t, m.GetPinned(), len(list.GetModels()[0].GetPinnedWorkerIds()) == 1)
		return m.GetPinned()
	}
	yes, no := true, false
	require.False(t, pinned(nil), "unset is not pinned")
	require.True(t, pinned(&yes))
	require.True(t, pinned(nil), "unset leaves it as it was")
	require.False(t, pinned(&no))
}

func TestReportHasWhyAModelIsKept(t *testing.T) {
	for name, tc := range map[string]struct {
		status model.Status
		want   *pb.ModelStatus
	}{
		"in use": {model.Status{State: model.Ready}, &pb.ModelStatus{IdleAge: durationpb.New(0)}},
		"idle": {model.Status{State: model.Ready, IdleAge: 3 * time.Second, IdleUnload: time.Minute, Reclaimable: true},
			&pb.ModelStatus{IdleAge: durationpb.New(3 * time.Second), IdleUnload: durationpb.New(time.Minute), Reclaimable: true}},
		"pinned":   {model.Status{State: model.Ready, IdleAge: 1, Pinned: true}, &pb.ModelStatus{IdleAge: durationpb.New(1), Pinned: true}},
		"draining": {model.Status{State: model.Draining}, &pb.ModelStatus{}},
	} {
		t.Run(name, func(t *testing.T) {
			got := statusOfModel(tc.status, 0)
			require.Equal(t, tc.want.GetIdleAge(), got.GetIdleAge())
			require.Equal(t, tc.want.GetIdleUnload(), got.GetIdleUnload())
			require.Equal(t, tc.want.GetPinned(), got.GetPinned())
			require.Equal(t, tc.want.GetReclaimable(), got.GetReclaimable())
		})
	}
}

func TestIdleAgeIsNotUrgentButReclaimableIs(t *testing.T) {
	report := func(m *pb.ModelStatus) *snapshot {
		return &snapshot{report: &pb.WorkerReport{Device: &pb.DeviceStatus{}, Load: &pb.LoadStatus{}, Models: []*pb.ModelStatus{m}}}
	}
	was := report(&pb.ModelStatus{Name: "m", IdleAge: durationpb.New(1)})
	for name, tc := range map[string]struct {
		now    *pb.ModelStatus
		urgent bool
	}{
		"older":       {&pb.ModelStatus{Name: "m", IdleAge: durationpb.New(2)}, false},
		"in use":      {&pb.ModelStatus{Name: "m", IdleAge: durationpb.New(0)}, false},
		"reclaimable": {&pb.ModelStatus{Name: "m", IdleAge: durationpb.New(2), Reclaimable: true}, true},
		"pinned":      {&pb.ModelStatus{Name: "m", IdleAge: durationpb.New(2), Pinned: true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			now := report(tc.now)
			now.revisions = was.revisions.next(was, now)
			require.Equal(t, tc.urgent, now.revisions.urgent != was.revisions.urgent)
			d := now.delta(was.revisions)
			require.Equal(t, !tc.urgent, d.GetReadingsOnly())
			require.True(t, d.GetModelsChanged(), "the delta has it")
		})
	}
}

func TestFitErrorNamesIdleModelsAndRetryDelay(t *testing.T) {
	err := statusOf(&model.FitError{Name: "m", Needed: 10, Free: 5, RoomIn: 7 * time.Second,
		Idle: []model.Idle{{Name: "a", Bytes: 3, Age: time.Minute}, {Name: "b", Bytes: 4, Age: time.Second}}})
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.Equal(t, reason.ModelDoesNotFit, rpc.Reason(err))
	require.Equal(t, 7*time.Second, rpc.RetryAfter(err))
	require.Equal(t, "a,b", rpc.Info(err).GetMetadata()["idle_models"])
	require.ErrorContains(t, err, `"a" (3 bytes, unused for 1m0s), "b" (4 bytes, unused for 1s)`)
	require.Zero(t, rpc.RetryAfter(statusOf(&model.FitError{Name: "m"})), "no retry delay if no wait helps")
}
