package workertest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
)

// Vectors is a worker's VectorService. It computes no real codebook: the code of a byte is the byte
// with some bits flipped. The hooks must be set before the worker starts.
type Vectors struct {
	pb.UnimplementedVectorServiceServer

	// OnEncode is called before the answer. Its error is the answer.
	OnEncode func(context.Context, *pb.EncodeRequest) error
	// OnTrain replaces a training that accepts all rows, and sends a checkpoint, the rows' digest
	// as codebook, and its end.
	OnTrain func(grpc.BidiStreamingServer[pb.TrainCodebookRequest, pb.TrainCodebookResponse]) error
	// OnPut is called after the header. Its error is the answer.
	OnPut func(*pb.PutCodebookHeader) error
	// OnLoadCodebook is called before the load. Its error is the answer.
	OnLoadCodebook func(context.Context, *pb.LoadCodebookRequest) error

	// Encodes, Puts and CodebookLoads count calls; Training counts running trainings.
	Encodes, Puts, CodebookLoads, Training atomic.Int64

	worker *Worker
	mu     struct {
		sync.Mutex
		put map[string][]byte
	}
}

// WithVectors gives a worker codebooks that serve, digest "d-" and the name, and room for two
// trainings.
func (w *Worker) WithVectors(codebooks ...string) *Worker {
	w.Change(func(r *pb.WorkerReport) {
		r.Vectors = &pb.VectorStatus{MaxTrainings: 2, FreeSpoolBytes: 1 << 40}
		r.Device.BytesFree = 1 << 40
		for _, name := range codebooks {
			r.Vectors.Codebooks = append(r.Vectors.Codebooks, Codebook(name, "d-"+name))
		}
	})
	return w
}

// Codebook returns a codebook that is ready.
func Codebook(name, digest string) *pb.CodebookInfo {
	return &pb.CodebookInfo{Name: name, CodebookDigest: digest, State: pb.CodebookState_CODEBOOK_STATE_READY, DeviceBytes: 64,
		Shape: Shape()}
}

// Shape returns the shape of a codebook of 64 bytes.
func Shape() *pb.CodebookShape {
	return &pb.CodebookShape{Kind: pb.CodebookKind_CODEBOOK_KIND_FLAT, Metric: pb.VectorMetric_VECTOR_METRIC_L2, Dimension: 8, Codewords: 2,
		Subspaces: 1, CodewordType: pb.ElementType_ELEMENT_TYPE_F32}
}

// Put returns the file that was put under a name; nil: none was.
func (v *Vectors) Put(name string) []byte {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mu.put[name]
}

// Codes returns the codes of bytes, and the bytes of codes.
func Codes(rows []byte) []byte {
	out := slices.Clone(rows)
	for i := range out {
		out[i] ^= 0x5a
	}
	return out
}

// find returns the codebook that is ready, or a refusal.
func (v *Vectors) find(name string, digest *string) (*pb.CodebookInfo, error) {
	report, _ := v.worker.now()
	for _, b := range report.GetVectors().GetCodebooks() {
		switch {
		case b.GetName() != name || b.GetState() != pb.CodebookState_CODEBOOK_STATE_READY:
		case digest != nil && *digest != b.GetCodebookDigest():
			return nil, Refusal(codes.FailedPrecondition, reason.CodebookDigestMismatch, "another digest")
		default:
			return b, nil
		}
	}
	return nil, Refusal(codes.NotFound, reason.UnknownCodebook, "no such codebook")
}

// set sets a codebook in the report, or removes it.
func (v *Vectors) set(name string, b *pb.CodebookInfo) {
	v.worker.Change(func(r *pb.WorkerReport) {
		r.Vectors.Codebooks = slices.DeleteFunc(r.GetVectors().GetCodebooks(), func(b *pb.CodebookInfo) bool { return b.GetName() == name })
		if b != nil {
			r.Vectors.Codebooks = append(r.Vectors.Codebooks, b)
		}
	})
}

// Encode answers Codes.
func (v *Vectors) Encode(ctx context.Context, in *pb.EncodeRequest) (*pb.EncodeResponse, error) {
	v.worker.see(ctx)
	v.Encodes.Add(1)
	if v.OnEncode != nil {
		if err := v.OnEncode(ctx, in); err != nil {
			return nil, err
		}
	}
	b, err := v.find(in.GetCodebook(), in.ExpectCodebookDigest)
	if err != nil {
		return nil, err
	}
	return &pb.EncodeResponse{Codes: Codes(in.GetRows()), CodebookDigest: b.GetCodebookDigest(), CodeBytes: 1}, nil
}

// Decode answers the rows that Encode made codes of.
func (v *Vectors) Decode(ctx context.Context, in *pb.DecodeRequest) (*pb.DecodeResponse, error) {
	v.worker.see(ctx)
	b, err := v.find(in.GetCodebook(), in.ExpectCodebookDigest)
	if err != nil {
		return nil, err
	}
	return &pb.DecodeResponse{Rows: Codes(in.GetCodes()), CodebookDigest: b.GetCodebookDigest()}, nil
}

// TrainCodebook does what OnTrain does, or trains.
func (v *Vectors) TrainCodebook(stream grpc.BidiStreamingServer[pb.TrainCodebookRequest, pb.TrainCodebookResponse]) error {
	v.worker.see(stream.Context())
	v.Training.Add(1)
	defer v.Training.Add(-1)
	if v.OnTrain != nil {
		return v.OnTrain(stream)
	}
	in, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := stream.Send(Accepted()); err != nil {
		return err
	}
	sum := sha256.New()
	for left := int(in.GetConfig().GetRows()) * int(in.GetConfig().GetDimension()); left > 0; {
		in, err := stream.Recv()
		if err != nil {
			return err
		}
		sum.Write(in.GetRows())
		left -= len(in.GetRows())
	}
	for _, m := range []*pb.TrainCodebookResponse{
		Checkpoint(1, 0, 2), Checkpoint(1, 1, 2),
		{Event: &pb.TrainCodebookResponse_Codebook{Codebook: sum.Sum(nil)}},
		{Event: &pb.TrainCodebookResponse_Finished{Finished: &pb.TrainingFinished{Iterations: 2}}},
	} {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return nil
}

// Accepted is the first message of a training.
func Accepted() *pb.TrainCodebookResponse {
	return &pb.TrainCodebookResponse{Event: &pb.TrainCodebookResponse_Accepted{Accepted: &pb.TrainingAccepted{Seed: 7}}}
}

// Checkpoint is a byte of a checkpoint.
func Checkpoint(iteration, offset, total uint64) *pb.TrainCodebookResponse {
	return &pb.TrainCodebookResponse{WorkerId: "w", Event: &pb.TrainCodebookResponse_Checkpoint{Checkpoint: &pb.TrainingCheckpoint{
		Iteration: iteration, Offset: offset, Total: total, Chunk: []byte{byte(offset)}}}}
}

// PutCodebook keeps the bytes, and reports the codebook as serving.
func (v *Vectors) PutCodebook(stream grpc.ClientStreamingServer[pb.PutCodebookRequest, pb.PutCodebookResponse]) error {
	v.worker.see(stream.Context())
	v.Puts.Add(1)
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	h := first.GetHeader()
	if h == nil || h.Replicas != nil {
		return Refusal(codes.InvalidArgument, reason.InvalidArgument, "no header, or one of a scheduler")
	}
	if v.OnPut != nil {
		if err := v.OnPut(h); err != nil {
			return err
		}
	}
	var all []byte
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if in.GetHeader() != nil {
			return Refusal(codes.InvalidArgument, reason.BadTrainingInput, "a second header")
		}
		all = append(all, in.GetChunk()...)
	}
	sum := sha256.Sum256(all)
	digest := hex.EncodeToString(sum[:])
	report, _ := v.worker.now()
	copied := &pb.CodebookCopy{WorkerId: report.GetWorkerId(), CodebookDigest: digest, DeviceBytes: uint64(len(all))}
	if b, _ := v.find(h.GetCodebook(), nil); b != nil {
		if b.GetCodebookDigest() != digest && !h.GetReplace() {
			return Refusal(codes.AlreadyExists, reason.CodebookExists, "other bytes have the name")
		}
		copied.AlreadyLoaded = b.GetCodebookDigest() == digest
	}
	v.mu.Lock()
	if v.mu.put == nil {
		v.mu.put = map[string][]byte{}
	}
	v.mu.put[h.GetCodebook()] = all
	v.mu.Unlock()
	v.set(h.GetCodebook(), Codebook(h.GetCodebook(), digest))
	return stream.SendAndClose(&pb.PutCodebookResponse{Copies: []*pb.CodebookCopy{copied}})
}

// LoadCodebook makes a codebook of the report serve.
func (v *Vectors) LoadCodebook(ctx context.Context, in *pb.LoadCodebookRequest) (*pb.LoadCodebookResponse, error) {
	v.worker.see(ctx)
	v.CodebookLoads.Add(1)
	if v.OnLoadCodebook != nil {
		if err := v.OnLoadCodebook(ctx, in); err != nil {
			return nil, err
		}
	}
	report, _ := v.worker.now()
	for _, b := range report.GetVectors().GetCodebooks() {
		if b.GetName() != in.GetCodebook() {
			continue
		}
		already := b.GetState() == pb.CodebookState_CODEBOOK_STATE_READY
		b = proto.CloneOf(b)
		b.State = pb.CodebookState_CODEBOOK_STATE_READY
		v.set(in.GetCodebook(), b)
		return &pb.LoadCodebookResponse{Copies: []*pb.CodebookCopy{{WorkerId: report.GetWorkerId(),
			CodebookDigest: b.GetCodebookDigest(), AlreadyLoaded: already}}}, nil
	}
	return nil, Refusal(codes.NotFound, reason.UnknownCodebook, "no such file")
}

// UnloadCodebook leaves the codebook on disk.
func (v *Vectors) UnloadCodebook(ctx context.Context, in *pb.UnloadCodebookRequest) (*pb.UnloadCodebookResponse, error) {
	v.worker.see(ctx)
	b, err := v.find(in.GetCodebook(), nil)
	if err != nil {
		return nil, err
	}
	b = proto.CloneOf(b)
	b.State = pb.CodebookState_CODEBOOK_STATE_ON_DISK
	v.set(in.GetCodebook(), b)
	report, _ := v.worker.now()
	return &pb.UnloadCodebookResponse{WorkerIds: []string{report.GetWorkerId()}, FreedBytes: 64}, nil
}
