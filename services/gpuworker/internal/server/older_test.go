package server

import (
	"context"
	_ "embed"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// olderContract is the contract of the release before this one, as `buf build proto --exclude-source-info --as-file-descriptor-set -o
// older.binpb` writes it there: what a scheduler that is one release older knows.
//
//go:embed testdata/older.binpb
var olderContract []byte

// olderScheduler is one of that release before a worker of this one. All that it says and hears goes through the contract that it knows.
type olderScheduler struct {
	*testing.T
	worker *worker
	files  *protoregistry.Files
}

func newOlder(t *testing.T, w *worker) *olderScheduler {
	t.Helper()
	var set descriptorpb.FileDescriptorSet
	require.NoError(t, proto.Unmarshal(olderContract, &set))
	files, err := protodesc.NewFiles(&set)
	require.NoError(t, err)
	return &olderScheduler{t, w, files}
}

// empty is the message as that release has it.
func (o *olderScheduler) empty(like proto.Message) *dynamicpb.Message {
	o.Helper()
	d, err := o.files.FindDescriptorByName(like.ProtoReflect().Descriptor().FullName())
	require.NoError(o, err)
	return dynamicpb.NewMessage(d.(protoreflect.MessageDescriptor))
}

// says is a message that it can say.
func (o *olderScheduler) says(m proto.Message) proto.Message {
	o.Helper()
	out := o.empty(m)
	convert(o, m, out, proto.UnmarshalOptions{})
	require.Empty(o, out.GetUnknown(), "it cannot say so")
	return out
}

// hears is what it understands of a message, which it lays into as.
func (o *olderScheduler) hears(m *dynamicpb.Message, as proto.Message) {
	o.Helper()
	known := o.empty(as)
	convert(o, m, known, proto.UnmarshalOptions{DiscardUnknown: true})
	convert(o, known, as, proto.UnmarshalOptions{})
}

func convert(t require.TestingT, from, to proto.Message, how proto.UnmarshalOptions) {
	raw, err := proto.Marshal(from)
	require.NoError(t, err)
	require.NoError(t, how.Unmarshal(raw, to))
}

// call opens a stream of a method and asks.
func (o *olderScheduler) call(ctx context.Context, method string, in proto.Message) grpc.ClientStream {
	o.Helper()
	stream, err := o.worker.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	require.NoError(o, err)
	require.NoError(o, stream.SendMsg(o.says(in)))
	return stream
}

// generate relays a call as that release does: the request's bytes to the worker, the frames to the caller, whatever is in them. The
// caller knows no more than the scheduler.
func (o *olderScheduler) generate(in *pb.GenerateRequest) outcome {
	o.Helper()
	stream := o.call(o.Context(), pb.InferenceService_Generate_FullMethodName, in)
	require.NoError(o, stream.CloseSend())
	return collect(o.T, func() (*pb.GenerateResponse, error) {
		frame, event := o.empty(&pb.GenerateResponse{}), &pb.GenerateResponse{}
		if err := stream.RecvMsg(frame); err != nil {
			return nil, err
		}
		o.hears(frame, event)
		require.NotNil(o, event.GetEvent(), "an event that it does not know: %v", frame)
		return event, nil
	})
}

// load has the worker load a model, and returns its digest.
func (o *olderScheduler) load(name string) string {
	o.Helper()
	stream := o.call(o.Context(), pb.ModelService_LoadModel_FullMethodName, &pb.LoadModelRequest{Model: name})
	require.NoError(o, stream.CloseSend())
	for {
		frame, event := o.empty(&pb.LoadModelResponse{}), &pb.LoadModelResponse{}
		require.NoError(o, stream.RecvMsg(frame))
		o.hears(frame, event)
		require.NotNil(o, event.GetEvent(), "an event that it does not know: %v", frame)
		if result := event.GetResult(); result != nil {
			return result.GetModelDigest()
		}
	}
}

// follow keeps a health stream as that release does: it asks once, then probes once a second, and breaks off at a gap and at an event
// that it does not know. next is the report as it stands behind one more message.
func (o *olderScheduler) follow() (next func() *pb.WorkerReport) {
	o.Helper()
	ctx, cancel := context.WithTimeout(o.Context(), lifetime)
	o.Cleanup(cancel)
	stream := o.call(ctx, pb.WorkerService_Health_FullMethodName,
		&pb.HealthRequest{Interval: durationpb.New(250 * time.Millisecond), Probe: 1})
	var report *pb.WorkerReport
	var sequence, probe uint64 = 0, 1
	probed := time.Now()
	return func() *pb.WorkerReport {
		o.Helper()
		frame, in := o.empty(&pb.HealthResponse{}), &pb.HealthResponse{}
		require.NoError(o, stream.RecvMsg(frame))
		o.hears(frame, in)
		sequence++
		require.Equal(o, sequence, in.GetSequence())
		report = o.merge(report, in)
		if time.Since(probed) >= time.Second {
			probe, probed = probe+1, time.Now()
			require.NoError(o, stream.SendMsg(o.says(&pb.HealthRequest{
				Ack: sequence, Interval: durationpb.New(250 * time.Millisecond), Probe: probe,
			})))
		}
		return report
	}
}

// merge applies a message as that release does.
func (o *olderScheduler) merge(last *pb.WorkerReport, in *pb.HealthResponse) *pb.WorkerReport {
	o.Helper()
	if full := in.GetFull(); full != nil {
		require.NotEmpty(o, full.GetWorkerId())
		require.NotEmpty(o, full.GetIncarnation())
		return full
	}
	require.NotNil(o, last, "a message before the full report: %v", in)
	out := proto.CloneOf(last)
	switch event := in.GetEvent().(type) {
	case *pb.HealthResponse_Delta:
		d := event.Delta
		if d.GetState() != pb.WorkerState_WORKER_STATE_UNSPECIFIED {
			out.State = d.GetState()
		}
		if d.GetLoad() != nil {
			out.Load = d.GetLoad()
		}
		if d.GetModelsChanged() {
			out.Models = d.GetModels()
		}
		if d.GetFilesChanged() {
			out.Files = d.GetFiles()
		}
	case *pb.HealthResponse_Heartbeat, *pb.HealthResponse_PrefixKeys:
	default:
		require.Fail(o, "an event that it does not know", "%v", in)
	}
	return out
}

// until reads on until the report says something.
func until(t *testing.T, next func() *pb.WorkerReport, says func(*pb.WorkerReport) bool) *pb.WorkerReport {
	t.Helper()
	for range 1000 {
		if r := next(); says(r) {
			return r
		}
	}
	require.FailNow(t, "it is never told")
	return nil
}

// state is whether a report has a model in a state.
func state(r *pb.WorkerReport, name string, is pb.ModelState) bool {
	return slices.ContainsFunc(r.GetModels(), func(m *pb.ModelStatus) bool { return m.GetName() == name && m.GetState() == is })
}
