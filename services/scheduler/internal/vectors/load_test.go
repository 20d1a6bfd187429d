package vectors_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/vectors"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

// onDisk gives every worker codebook k as a file.
func onDisk(_ string, w *workertest.Worker) {
	w.WithVectors("k")
	w.Change(func(report *pb.WorkerReport) {
		report.Vectors.Codebooks[0].State = pb.CodebookState_CODEBOOK_STATE_ON_DISK
	})
}

func TestLongCodebookNamesAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vectors.Config{}, []string{"w1"}, onDisk)
		for bytes, want := range map[int]string{200: reason.UnknownCodebook, 201: reason.InvalidArgument} {
			_, err := r.LoadCodebook(r.within(), &pb.LoadCodebookRequest{Codebook: strings.Repeat("k", bytes)})
			require.Equal(t, want, rpc.Reason(err), "%d bytes: %v", bytes, err)
		}
	})
}

func TestLoadListUnloadAcrossTheFleet(t *testing.T) {
	// A codebook is loaded, listed and unloaded across the fleet.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vectors.Config{}, []string{"w1", "w2", "w3"}, onDisk)
		out, err := r.LoadCodebook(r.within(), &pb.LoadCodebookRequest{Codebook: "k", Replicas: proto.Uint32(2)})
		require.NoError(t, err)
		require.Len(t, out.GetCopies(), 2)
		list, err := r.ListCodebooks(r.within(), &pb.ListCodebooksRequest{})
		require.NoError(t, err)
		require.Len(t, list.GetCodebooks(), 2)
		ready, disk := list.GetCodebooks()[0], list.GetCodebooks()[1]
		require.Equal(t, pb.CodebookState_CODEBOOK_STATE_READY, ready.GetState())
		require.Equal(t, []string{out.GetCopies()[0].GetWorkerId(), out.GetCopies()[1].GetWorkerId()}, ready.GetWorkerIds())
		require.Len(t, disk.GetWorkerIds(), 1)

		more, err := r.LoadCodebook(r.within(), &pb.LoadCodebookRequest{Codebook: "k", Replicas: proto.Uint32(3)})
		require.NoError(t, err)
		already := 0
		for _, c := range more.GetCopies() {
			if c.GetAlreadyLoaded() {
				already++
			}
		}
		require.Equal(t, 2, already, "copies that exist count first")

		gone, err := r.UnloadCodebook(r.within(), &pb.UnloadCodebookRequest{Codebook: "k"})
		require.NoError(t, err)
		require.Equal(t, []string{"w1", "w2", "w3"}, gone.GetWorkerIds())
		require.EqualValues(t, 3*64, gone.GetFreedBytes())
		_, err = r.Encode(r.within(), &pb.EncodeRequest{Codebook: "k"})
		refused(t, err, rpc.SchedulerDomain, codes.NotFound, reason.CodebookNotLoaded)
		_, err = r.UnloadCodebook(r.within(), &pb.UnloadCodebookRequest{Codebook: "k"})
		refused(t, err, rpc.SchedulerDomain, codes.NotFound, reason.CodebookNotLoaded)
	})
}

func TestALoadThatCannotBeSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vectors.Config{}, []string{"w1", "w2"}, onDisk)
		for name, tc := range map[string]struct {
			in     *pb.LoadCodebookRequest
			code   codes.Code
			reason string
		}{
			"no name":         {&pb.LoadCodebookRequest{}, codes.InvalidArgument, reason.InvalidArgument},
			"no copies":       {&pb.LoadCodebookRequest{Codebook: "k", Replicas: proto.Uint32(0)}, codes.InvalidArgument, reason.InvalidArgument},
			"too many copies": {&pb.LoadCodebookRequest{Codebook: "k", Replicas: proto.Uint32(1025)}, codes.InvalidArgument, reason.InvalidArgument},
			"too few workers": {&pb.LoadCodebookRequest{Codebook: "k", Replicas: proto.Uint32(3)}, codes.ResourceExhausted, reason.TooFewWorkers},
			"no such file":    {&pb.LoadCodebookRequest{Codebook: "nope"}, codes.NotFound, reason.UnknownCodebook},
			"another digest":  {&pb.LoadCodebookRequest{Codebook: "k", ExpectCodebookDigest: proto.String("x")}, codes.FailedPrecondition, reason.CodebookDigestMismatch},
		} {
			t.Log(name) // a bubble has no subtests
			_, err := r.LoadCodebook(r.within(), tc.in)
			refused(t, err, rpc.SchedulerDomain, tc.code, tc.reason)
		}
		_, err := r.UnloadCodebook(r.within(), &pb.UnloadCodebookRequest{Codebook: "/"})
		refused(t, err, rpc.SchedulerDomain, codes.InvalidArgument, reason.InvalidArgument)
		r.processes["w1"].Kill()
		r.processes["w2"].Kill()
		r.await(0)
		_, err = r.ListCodebooks(r.within(), &pb.ListCodebooksRequest{})
		refused(t, err, rpc.SchedulerDomain, codes.Unavailable, reason.NoWorker)
	})
}

func TestALoadGoesToAnotherWorkerWhereOneIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vectors.Config{}, []string{"w1", "w2", "w3"}, func(id string, w *workertest.Worker) {
			onDisk(id, w)
			if id != "w2" {
				w.OnLoadCodebook = func(context.Context, *pb.LoadCodebookRequest) error {
					return workertest.Refusal(codes.ResourceExhausted, reason.DoesNotFit, "no room")
				}
			}
		})
		out, err := r.LoadCodebook(r.within(), &pb.LoadCodebookRequest{Codebook: "k"})
		require.NoError(t, err)
		require.Equal(t, "w2", out.GetCopies()[0].GetWorkerId())
		_, err = r.LoadCodebook(r.within(), &pb.LoadCodebookRequest{Codebook: "k", Replicas: proto.Uint32(3)})
		refused(t, err, rpc.SchedulerDomain, codes.ResourceExhausted, reason.LoadIncomplete)
		require.Equal(t, "w1,w3", rpc.Info(err).GetMetadata()["failed_workers"])
	})
}

func TestListMergesByDigest(t *testing.T) {
	// A list has an entry for each digest, with the age of the check that is due first.
	synctest.Test(t, func(t *testing.T) {
		ages := map[string]time.Duration{"w1": time.Second, "w2": time.Hour, "w3": time.Minute}
		r := newRig(t, vectors.Config{}, []string{"w1", "w2", "w3"}, func(id string, w *workertest.Worker) {
			w.WithVectors("k")
			w.Change(func(report *pb.WorkerReport) {
				report.Vectors.Codebooks[0].VerifiedAge = durationpb.New(ages[id])
				report.Vectors.Codebooks = append(report.Vectors.Codebooks, workertest.Codebook("two", id[:1]+map[string]string{"w3": "x"}[id]))
			})
		})
		for range 2 { // reports are not changed by it
			list, err := r.ListCodebooks(r.within(), &pb.ListCodebooksRequest{})
			require.NoError(t, err)
			require.Len(t, list.GetCodebooks(), 3)
			require.Equal(t, []string{"w1", "w2", "w3"}, list.GetCodebooks()[0].GetWorkerIds())
			require.Equal(t, time.Hour, list.GetCodebooks()[0].GetVerifiedAge().AsDuration())
			require.Equal(t, []string{"w1", "w2"}, list.GetCodebooks()[1].GetWorkerIds())
			require.Equal(t, []string{"w3"}, list.GetCodebooks()[2].GetWorkerIds())
		}
	})
}
