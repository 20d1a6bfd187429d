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

// Worker is a fake worker. Its hooks must be set before its process starts.
type Worker struct {
	pb.UnimplementedInferenceServiceServer
	pb.UnimplementedModelServiceServer
	pb.UnimplementedWorkerServiceServer
	Vectors // its codebooks and trainings

	// OnGenerate replaces Stream.
	OnGenerate func(*pb.GenerateRequest, grpc.ServerStreamingServer[pb.GenerateResponse]) error
	// OnTokenize is called before the answer. Its error is the answer.
	OnTokenize func(*pb.TokenizeRequest) error
	// OnEmbed answers Embed; nil: this worker does not have it.
	OnEmbed func(*pb.EmbedRequest) (*pb.EmbedResponse, error)
	// OnLoad replaces a load that succeeds after two events of progress.
	OnLoad func(*pb.LoadModelRequest, grpc.ServerStreamingServer[pb.LoadModelResponse]) error
	// OnUnload replaces an unload that frees 100 bytes of a model that is reported.
	OnUnload func(*pb.UnloadModelRequest) (*pb.UnloadModelResponse, error)
	// OnHealth may change every health message before it is sent.
	OnHealth func(*pb.HealthResponse)
	// OnDrain is called before a drain. Its error is the answer.
	OnDrain func(*pb.DrainRequest) error

	// Running counts running generations; Generations and Loads count calls.
	Running, Generations, Loads atomic.Int64

	mu struct {
		sync.Mutex
		report  *pb.WorkerReport // replaced, never changed
		changed chan struct{}    // closed on the next change
		hangUp  chan struct{}    // closed by HangUp
		calls   []metadata.MD    // of all calls but Health
	}
}

// New returns a worker that is ready and serves models with the digests "d-" and the name.
func New(id, incarnation string, models ...string) *Worker {
	w := &Worker{}
	w.mu.changed, w.mu.hangUp = make(chan struct{}), make(chan struct{})
	w.mu.report = &pb.WorkerReport{
		WorkerId: id, Incarnation: incarnation, ClassId: "class", Version: "test", State: pb.WorkerState_WORKER_STATE_READY,
		Device: &pb.DeviceStatus{Kind: "sim", BytesTotal: 1000, BytesFree: 1000}, Load: &pb.LoadStatus{},
	}
	w.Vectors.worker = w
	for _, name := range models {
		w.mu.report.Models = append(w.mu.report.Models, Model(name))
		w.mu.report.Files = append(w.mu.report.Files, &pb.ModelFile{Name: name, FileBytes: 100, NeededBytes: 100})
	}
	return w
}

// Model returns a model that is ready, with a context that is longer than the streams of tests.
func Model(name string) *pb.ModelStatus {
	return &pb.ModelStatus{Name: name, ModelDigest: "d-" + name, State: pb.ModelState_MODEL_STATE_READY, ContextLength: 1 << 20}
}

// Change changes the report, which Health streams send as a delta.
func (w *Worker) Change(change func(*pb.WorkerReport)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.report = proto.CloneOf(w.mu.report)
	change(w.mu.report)
	close(w.mu.changed)
	w.mu.changed = make(chan struct{})
}

// HangUp ends the open health streams.
func (w *Worker) HangUp() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.mu.hangUp)
	w.mu.hangUp = make(chan struct{})
}

// hungUp returns a channel that is closed when health streams must end.
func (w *Worker) hungUp() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.hangUp
}

// Seen returns the metadata of all calls but Health.
func (w *Worker) Seen() []metadata.MD {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]metadata.MD{}, w.mu.calls...)
}

// register registers the services on a server.
func (w *Worker) register(r grpc.ServiceRegistrar) {
	pb.RegisterInferenceServiceServer(r, w)
	pb.RegisterModelServiceServer(r, w)
	pb.RegisterWorkerServiceServer(r, w)
	pb.RegisterVectorServiceServer(r, &w.Vectors)
}

// see records the metadata of a call.
func (w *Worker) see(ctx context.Context) {
	md, _ := metadata.FromIncomingContext(ctx)
	w.mu.Lock()
	w.mu.calls = append(w.mu.calls, md)
	w.mu.Unlock()
}

// now returns the report and a channel that is closed when it changes.
func (w *Worker) now() (*pb.WorkerReport, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.report, w.mu.changed
}

// Health implements the contract: a worker that stops reports until its generations have ended.
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

// Generate calls OnGenerate, or Stream.
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

// Stream sends `started`, tokens events of one token with a pause before each, and `finished`.
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

// Started returns the first event.
func Started(worker string) *pb.GenerateResponse {
	return &pb.GenerateResponse{Event: &pb.GenerateResponse_Started{Started: &pb.Started{WorkerId: worker}}}
}

// Token returns the event of the i-th token.
func Token(i int) *pb.GenerateResponse {
	return &pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{Tokens: &pb.Tokens{
		TokenIndex: uint32(i), TokenIds: []uint32{uint32(i)}, Text: " token",
	}}}
}

// Finished returns the last event.
func Finished(tokens int) *pb.GenerateResponse {
	return &pb.GenerateResponse{Event: &pb.GenerateResponse_Finished{Finished: &pb.Finished{
		Reason: pb.FinishReason_FINISH_REASON_LENGTH, Usage: &pb.Usage{CompletionTokens: uint32(tokens)},
	}}}
}

// Tokenize returns one token for each byte.
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

// Embed calls OnEmbed.
func (w *Worker) Embed(ctx context.Context, in *pb.EmbedRequest) (*pb.EmbedResponse, error) {
	w.see(ctx)
	if w.OnEmbed == nil {
		return w.UnimplementedInferenceServiceServer.Embed(ctx, in)
	}
	return w.OnEmbed(in)
}

// LoadModel calls OnLoad, or loads.
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

// UnloadModel calls OnUnload, or unloads.
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
		return nil, rpc.Error{Code: codes.NotFound, Domain: rpc.WorkerDomain, Reason: reason.UnknownModel, Message: "not loaded"}.Err()
	}
	report, _ := w.now()
	return &pb.UnloadModelResponse{WorkerIds: []string{report.GetWorkerId()}, FreedBytes: 100}, nil
}

// Drain calls OnDrain and reports DRAINING.
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
