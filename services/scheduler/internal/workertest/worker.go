package workertest

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// Worker is what a process serves. Set the hooks before it starts.
type Worker struct {
	pb.UnimplementedInferenceServiceServer
	pb.UnimplementedModelServiceServer
	pb.UnimplementedWorkerServiceServer
	Vectors // its codebooks and trainings

	// OnGenerate replaces Stream.
	OnGenerate func(*pb.GenerateRequest, grpc.ServerStreamingServer[pb.GenerateResponse]) error
	// OnTokenize comes before the answer; its error is one.
	OnTokenize func(*pb.TokenizeRequest) error
	// OnLoad replaces a load that succeeds after two events of progress.
	OnLoad func(*pb.LoadModelRequest, grpc.ServerStreamingServer[pb.LoadModelResponse]) error
	// OnUnload replaces an unload that frees 100 bytes of a model that is reported.
	OnUnload func(*pb.UnloadModelRequest) (*pb.UnloadModelResponse, error)
	// OnHealth sees, and may change, every health message before it leaves.
	OnHealth func(*pb.HealthResponse)
	// OnDrain replaces a Drain that shows in the report.
	OnDrain func(*pb.DrainRequest) error

	// Running counts generations under way; Generations and Loads count those begun.
	Running, Generations, Loads atomic.Int64

	mu      sync.Mutex
	report  *pb.WorkerReport // guarded by mu; replaced, never changed
	changed chan struct{}    // guarded by mu; closed on the next change
	hangUp  chan struct{}    // guarded by mu; closed by HangUp
	seen    []metadata.MD    // guarded by mu; of each call but Health
}

// New makes a worker that is ready and serves the models given, digest "d-" and the name.
func New(id, incarnation string, models ...string) *Worker {
	w := &Worker{changed: make(chan struct{}), hangUp: make(chan struct{})}
	w.report = &pb.WorkerReport{
		WorkerId: id, Incarnation: incarnation, ClassId: "class", Version: "test", State: pb.WorkerState_WORKER_STATE_READY,
		Device: &pb.DeviceStatus{Kind: "sim", BytesTotal: 1000, BytesFree: 1000}, Load: &pb.LoadStatus{},
	}
	w.Vectors.worker = w
	for _, name := range models {
		w.report.Models = append(w.report.Models, Model(name))
		w.report.Files = append(w.report.Files, &pb.ModelFile{Name: name, FileBytes: 100, NeededBytes: 100})
	}
	return w
}

// Model is a model that serves, with a context that is longer than the streams of tests.
func Model(name string) *pb.ModelStatus {
	return &pb.ModelStatus{Name: name, ModelDigest: "d-" + name, State: pb.ModelState_MODEL_STATE_READY, ContextLength: 1 << 20}
}

// Change changes the report; Health streams tell it as a delta.
func (w *Worker) Change(change func(*pb.WorkerReport)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report = proto.CloneOf(w.report)
	change(w.report)
	close(w.changed)
	w.changed = make(chan struct{})
}

// HangUp ends the health streams there are.
func (w *Worker) HangUp() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.hangUp)
	w.hangUp = make(chan struct{})
}

// hungUp is closed when health streams are to end.
func (w *Worker) hungUp() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hangUp
}

// Seen is the metadata of the calls so far, Health aside.
func (w *Worker) Seen() []metadata.MD {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]metadata.MD{}, w.seen...)
}

// register puts the services on a server.
func (w *Worker) register(r grpc.ServiceRegistrar) {
	pb.RegisterInferenceServiceServer(r, w)
	pb.RegisterModelServiceServer(r, w)
	pb.RegisterWorkerServiceServer(r, w)
	pb.RegisterVectorServiceServer(r, &w.Vectors)
}

// see notes a call.
func (w *Worker) see(ctx context.Context) {
	md, _ := metadata.FromIncomingContext(ctx)
	w.mu.Lock()
	w.seen = append(w.seen, md)
	w.mu.Unlock()
}

// now is the report and what is closed when it changes.
func (w *Worker) now() (*pb.WorkerReport, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.report, w.changed
}

// Health serves the contract: a worker that stops reports until its generations have ended.
func (w *Worker) Health(stream grpc.BidiStreamingServer[pb.HealthRequest, pb.HealthResponse]) error {
	in, err := stream.Recv()
	if err != nil {
		return err
	}
	requests := make(chan *pb.HealthRequest, 1)
	go func() {
		for {
			in, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case requests <- in:
			case <-stream.Context().Done():
				return
			}
		}
	}()
	report, changed := w.now()
	out := &pb.HealthResponse{Probe: in.GetProbe(), Event: &pb.HealthResponse_Full{Full: report}}
	interval := time.NewTicker(in.GetInterval().AsDuration())
	defer interval.Stop()
	draining, stopping := rpc.Draining(stream.Context()), false
	hungUp := w.hungUp()
	for sequence := uint64(1); ; sequence++ {
		out.Sequence = sequence
		if w.OnHealth != nil {
			w.OnHealth(out)
		}
		if err := stream.Send(out); err != nil {
			return err
		}
		out = &pb.HealthResponse{}
		select {
		case <-changed:
			report, changed = w.now()
			out.Event = &pb.HealthResponse_Delta{Delta: &pb.WorkerDelta{
				State: report.GetState(), Device: report.GetDevice(), Load: report.GetLoad(), Progress: report.GetProgress(),
				Models: report.GetModels(), ModelsChanged: true, Files: report.GetFiles(), FilesChanged: true,
				Vectors: report.GetVectors(),
			}}
		case <-interval.C:
			out.Event = &pb.HealthResponse_Heartbeat{Heartbeat: &pb.Heartbeat{Progress: report.GetProgress()}}
		case in := <-requests:
			out.Probe = in.GetProbe()
			out.Event = &pb.HealthResponse_Heartbeat{Heartbeat: &pb.Heartbeat{Progress: &pb.StepProgress{Steps: sequence}}}
			if in.GetAck() == 0 {
				report, changed = w.now()
				out.Event = &pb.HealthResponse_Full{Full: report}
			}
		case <-hungUp:
			return status.Error(codes.Aborted, "hung up")
		case <-draining:
			draining, stopping = nil, true
			out.Event = &pb.HealthResponse_Delta{Delta: &pb.WorkerDelta{State: pb.WorkerState_WORKER_STATE_DRAINING}}
		case <-stream.Context().Done():
			return nil
		}
		if stopping && w.Running.Load() == 0 {
			return nil
		}
	}
}

// Generate streams what OnGenerate or Stream does.
func (w *Worker) Generate(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	w.see(stream.Context())
	w.Generations.Add(1)
	w.Running.Add(1)
	defer w.Running.Add(-1)
	if w.OnGenerate != nil {
		return w.OnGenerate(in, stream)
	}
	report, _ := w.now()
	return Stream(stream, report.GetWorkerId(), int(in.GetStopping().GetMaxTokens()), 0)
}

// Stream sends `started`, as many events of one token with a pause before each, and `finished`.
func Stream(stream grpc.ServerStreamingServer[pb.GenerateResponse], worker string, tokens int, pause time.Duration) error {
	if err := stream.Send(Started(worker)); err != nil {
		return err
	}
	for i := range tokens {
		if pause > 0 {
			select {
			case <-time.After(pause):
			case <-stream.Context().Done():
				return stream.Context().Err()
			}
		}
		if err := stream.Send(Token(i)); err != nil {
			return err
		}
	}
	return stream.Send(Finished(tokens))
}

// Started is the first event.
func Started(worker string) *pb.GenerateResponse {
	return &pb.GenerateResponse{Event: &pb.GenerateResponse_Started{Started: &pb.Started{WorkerId: worker}}}
}

// Token is the event of the i-th token.
func Token(i int) *pb.GenerateResponse {
	return &pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{Tokens: &pb.Tokens{
		TokenIndex: uint32(i), TokenIds: []uint32{uint32(i)}, Text: " token",
	}}}
}

// Finished is the last event.
func Finished(tokens int) *pb.GenerateResponse {
	return &pb.GenerateResponse{Event: &pb.GenerateResponse_Finished{Finished: &pb.Finished{
		Reason: pb.FinishReason_FINISH_REASON_LENGTH, Usage: &pb.Usage{CompletionTokens: uint32(tokens)},
	}}}
}

// Tokenize answers one token for each byte.
func (w *Worker) Tokenize(ctx context.Context, in *pb.TokenizeRequest) (*pb.TokenizeResponse, error) {
	w.see(ctx)
	if w.OnTokenize != nil {
		if err := w.OnTokenize(in); err != nil {
			return nil, err
		}
	}
	out := &pb.TokenizeResponse{}
	for _, b := range []byte(in.GetText()) {
		out.TokenIds = append(out.TokenIds, uint32(b))
	}
	return out, nil
}

// LoadModel does what OnLoad does, or loads.
func (w *Worker) LoadModel(in *pb.LoadModelRequest, stream grpc.ServerStreamingServer[pb.LoadModelResponse]) error {
	w.see(stream.Context())
	w.Loads.Add(1)
	if w.OnLoad != nil {
		return w.OnLoad(in, stream)
	}
	for done := range uint64(2) {
		if err := stream.Send(&pb.LoadModelResponse{Event: &pb.LoadModelResponse_Progress{Progress: &pb.LoadProgress{
			State: pb.LoadState_LOAD_STATE_UPLOADING, BytesDone: 50 * (done + 1), BytesTotal: 100}}}); err != nil {
			return err
		}
	}
	w.Change(func(r *pb.WorkerReport) {
		for _, m := range r.GetModels() {
			if m.GetName() == in.GetModel() {
				return
			}
		}
		r.Models = append(r.Models, Model(in.GetModel()))
	})
	return stream.Send(&pb.LoadModelResponse{Event: &pb.LoadModelResponse_Result{Result: &pb.LoadResult{
		ModelDigest: "d-" + in.GetModel()}}})
}

// UnloadModel does what OnUnload does, or unloads.
func (w *Worker) UnloadModel(_ context.Context, in *pb.UnloadModelRequest) (*pb.UnloadModelResponse, error) {
	if w.OnUnload != nil {
		return w.OnUnload(in)
	}
	found := false
	w.Change(func(r *pb.WorkerReport) {
		kept := r.GetModels()[:0]
		for _, m := range r.GetModels() {
			if m.GetName() == in.GetModel() {
				found = true
			} else {
				kept = append(kept, m)
			}
		}
		r.Models = kept
	})
	if !found {
		return nil, rpc.Fault{Code: codes.NotFound, Domain: rpc.WorkerDomain, Reason: reason.UnknownModel, Message: "not loaded"}.Err()
	}
	report, _ := w.now()
	return &pb.UnloadModelResponse{WorkerIds: []string{report.GetWorkerId()}, FreedBytes: 100}, nil
}

// Drain does what OnDrain does, or reports DRAINING.
func (w *Worker) Drain(_ context.Context, in *pb.DrainRequest) (*pb.DrainResponse, error) {
	if w.OnDrain != nil {
		if err := w.OnDrain(in); err != nil {
			return nil, err
		}
	}
	w.Change(func(r *pb.WorkerReport) { r.State = pb.WorkerState_WORKER_STATE_DRAINING })
	return &pb.DrainResponse{Sequences: uint32(w.Running.Load())}, nil
}

// Undrain reports READY.
func (w *Worker) Undrain(context.Context, *pb.UndrainRequest) (*pb.UndrainResponse, error) {
	w.Change(func(r *pb.WorkerReport) { r.State = pb.WorkerState_WORKER_STATE_READY })
	return &pb.UndrainResponse{}, nil
}
