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

// olderContract is the contract of the release before this one: the fields that a scheduler of that
// release has. `buf build proto --exclude-source-info --as-file-descriptor-set -o older.binpb`
// wrote it there.
//
//go:embed testdata/older.binpb
var olderContract []byte

// olderScheduler is a scheduler of that release in front of a worker of this one. All its messages
// pass through the older contract.
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

// empty returns an empty message of the older contract.
func (o *olderScheduler) empty(like proto.Message) *dynamicpb.Message {
	o.Helper()
	d, err := o.files.FindDescriptorByName(like.ProtoReflect().Descriptor().FullName())
	require.NoError(o, err)
	return dynamicpb.NewMessage(d.(protoreflect.MessageDescriptor))
}

// says returns the bytes of a message without the fields that the older contract lacks.
func (o *olderScheduler) says(m proto.Message) proto.Message {
	o.Helper()
	out := o.empty(m)
	convert(o, m, out, proto.UnmarshalOptions{})
	require.Empty(o, out.GetUnknown(), "it cannot say so")
	return out
}

// hears decodes a message by the older contract, and stores the fields that it has in as.
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

// call opens a stream of a method and sends the request.
func (o *olderScheduler) call(ctx context.Context, method string, in proto.Message) grpc.ClientStream {
	o.Helper()
	stream, err := o.worker.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	require.NoError(o, err)
	require.NoError(o, stream.SendMsg(o.says(in)))
	return stream
}

// generate relays a call as that release does: the bytes of the request to the worker, and every
// frame to the caller. The caller has the older contract too.
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

// load loads a model on the worker and returns its digest.
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

// follow holds a health stream as that release does: it sends one request, then probes once a
// second, and fails at a gap and at an unknown event. next returns the report with one more message
// applied.
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

// until reads messages until the report fulfils a condition.
func until(t *testing.T, next func() *pb.WorkerReport, says func(*pb.WorkerReport) bool) *pb.WorkerReport {
	t.Helper()
	for range 1000 {
		if r := next(); says(r) {
			return r
		}
	}
	require.FailNow(t, "the report never has it")
	return nil
}

// state returns the condition that a report has a model in a state.
func state(r *pb.WorkerReport, name string, is pb.ModelState) bool {
	return slices.ContainsFunc(r.GetModels(), func(m *pb.ModelStatus) bool { return m.GetName() == name && m.GetState() == is })
}
