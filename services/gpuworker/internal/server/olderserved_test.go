package server

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/millrace/millrace/gpuworker/model"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// shape has the properties of a field that its bytes on the wire depend on.
func shape(f protoreflect.FieldDescriptor) [4]any {
	kind := any(f.Kind())
	if f.Message() != nil {
		kind = f.Message().FullName()
	}
	return [4]any{f.Number(), kind, f.Cardinality(), f.IsPacked()}
}

func TestOlderContractKeepsItsMeaning(t *testing.T) {
	checked := 0
	var messages func(protoreflect.MessageDescriptors)
	messages = func(all protoreflect.MessageDescriptors) {
		for i := range all.Len() {
			then := all.Get(i)
			found, err := protoregistry.GlobalFiles.FindDescriptorByName(then.FullName())
			require.NoError(t, err)
			now := found.(protoreflect.MessageDescriptor).Fields()
			for j := range then.Fields().Len() {
				f := then.Fields().Get(j)
				require.NotNil(t, now.ByName(f.Name()), "%s is gone", f.FullName())
				require.Equal(t, shape(f), shape(now.ByName(f.Name())), f.FullName())
				checked++
			}
			messages(then.Messages())
		}
	}
	newOlder(t, nil).files.RangeFilesByPackage("millrace.v1", func(f protoreflect.FileDescriptor) bool {
		messages(f.Messages())
		for i := range f.Enums().Len() {
			found, err := protoregistry.GlobalFiles.FindDescriptorByName(f.Enums().Get(i).FullName())
			require.NoError(t, err)
			for then, j := f.Enums().Get(i).Values(), 0; j < then.Len(); j++ {
				now := found.(protoreflect.EnumDescriptor).Values().ByName(then.Get(j).Name())
				require.NotNil(t, now, "%s is gone", then.Get(j).FullName())
				require.Equal(t, then.Get(j).Number(), now.Number())
			}
		}
		return true
	})
	require.Greater(t, checked, 200, "the whole contract")
}

func TestOlderSchedulerFollowsItsWorker(t *testing.T) {
	w, b := braked(t)
	o := newOlder(t, w)
	next := o.follow()
	report := next()
	require.Equal(t, pb.WorkerState_WORKER_STATE_READY, report.GetState())
	require.Len(t, report.GetFiles(), 1)

	digest := o.load("stories")
	report = until(t, next, func(r *pb.WorkerReport) bool { return state(r, "stories", pb.ModelState_MODEL_STATE_READY) })
	require.Equal(t, digest, report.GetModels()[0].GetModelDigest(), "by which it routes")
	require.NotEmpty(t, report.GetModels()[0].GetClassId())

	ended := make(chan error, 1)
	go func() { ended <- o.generate(prompted("Once", 300)).err }()
	until(t, next, func(r *pb.WorkerReport) bool { return r.GetLoad().GetRunning() == 1 })
	_, err := w.health.Drain(t.Context(), &pb.DrainRequest{})
	require.NoError(t, err)
	until(t, next, func(r *pb.WorkerReport) bool { return r.GetState() == pb.WorkerState_WORKER_STATE_DRAINING })
	b.released.Store(true)
	require.NoError(t, <-ended, "what runs ends where it is: an older scheduler hands nothing over")
	err = o.generate(prompted("Once", 1)).err
	require.Equal(t, codes.Unavailable, status.Code(err), "which it takes to another worker")
	require.Equal(t, reason.WorkerDraining, rpc.Reason(err))
	_, err = w.health.Undrain(t.Context(), &pb.UndrainRequest{})
	require.NoError(t, err)
	until(t, next, func(r *pb.WorkerReport) bool { return r.GetState() == pb.WorkerState_WORKER_STATE_READY })

	_, err = w.manager.Unload(t.Context(), "stories", true)
	require.NoError(t, err)
	err = o.generate(prompted("Once", 1)).err
	require.Equal(t, codes.FailedPrecondition, status.Code(err), "as for a model that went because it was idle")
	require.Equal(t, reason.ModelNotLoaded, rpc.Reason(err))
	until(t, next, func(r *pb.WorkerReport) bool { return len(r.GetModels()) == 0 })
}

// wishes are requests whose responses have different events.
var wishes = map[string]func(*pb.GenerateRequest){
	"plain":   func(*pb.GenerateRequest) {},
	"greedy":  func(in *pb.GenerateRequest) { in.Sampling.Temperature = ptr(float32(0)) },
	"no seed": func(in *pb.GenerateRequest) { in.Sampling.Seed = nil },
	"logprobs": func(in *pb.GenerateRequest) {
		in.Response = &pb.ResponseOptions{OutputLogprobs: ptr(true), EchoPrompt: ptr(true)}
	},
	"three":      func(in *pb.GenerateRequest) { in.Sampling.NumSequences = ptr(int32(3)) },
	"stops":      func(in *pb.GenerateRequest) { in.Stopping.Stop = []string{" a"} },
	"by tenants": func(in *pb.GenerateRequest) { in.Priority, in.FairnessId = ptr(int32(3)), ptr("t") },
}

// requireSame compares the outcomes of two calls without their timings.
func requireSame(t *testing.T, want, got outcome) {
	t.Helper()
	require.NoError(t, want.err)
	require.NoError(t, got.err)
	require.Equal(t, want.ids, got.ids)
	require.Equal(t, want.text, got.text)
	require.Equal(t, bits(want), bits(got))
	require.Len(t, got.finished, len(want.finished))
	for output, f := range want.finished {
		require.Equal(t, f.GetReason(), got.finished[output].GetReason())
		require.Equal(t, f.GetUsage().GetCompletionTokens(), got.finished[output].GetUsage().GetCompletionTokens())
	}
}

// An older scheduler sends a worker more calls than it has slots, as does one of this release.
func TestOlderSchedulersCallsHaveEqualTokens(t *testing.T) {
	w := start(t, cpuDevice(t))
	_, _, err := w.manager.Load(t.Context(), "stories", model.Options{MaxSequences: 2}, nil)
	require.NoError(t, err)
	o := newOlder(t, w)
	var all sync.WaitGroup
	for name, change := range wishes {
		in := prompted("Once upon a time", 24)
		change(in)
		all.Go(func() {
			relayed := o.generate(in)
			if in.Sampling.Seed == nil {
				in = proto.CloneOf(in)
				in.Sampling.Seed = ptr(relayed.started.GetSeed())
			}
			t.Log(name)
			requireSame(t, w.generate(t.Context(), t, in), relayed)
		})
	}
	all.Wait()
}

// If an older scheduler loses a worker, its client gets WORKER_LOST and resumes by itself, through
// the same scheduler or through one of this release.
func TestOlderSchedulersLostStreamIsResumed(t *testing.T) {
	w := start(t, cpuDevice(t), "stories")
	o := newOlder(t, w)
	whole := o.generate(prompted("Once upon a time", 30))
	require.NoError(t, whole.err)
	for k := range 31 {
		in := prompted("Once upon a time", 30)
		in.ExpectClassId, in.ExpectModelDigest = ptr(whole.started.GetClassId()), ptr(whole.started.GetModelDigest())
		in.Resume = []*pb.Resume{{TokenIds: whole.ids[0][:k]}}
		for through, rest := range map[string]outcome{"an older": o.generate(in), "this": w.generate(t.Context(), t, in)} {
			require.NoError(t, rest.err, through)
			require.Equal(t, []uint32{uint32(k)}, rest.started.GetResumedTokens())
			require.Equal(t, whole.ids[0][k:], append([]uint32{}, rest.ids[0]...), "after %d, through %s", k, through)
		}
	}
}
