package vectorserver

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/vectors"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gpuworker/internal/server"
	"github.com/millrace/millrace/services/internal/rpc"
)

// Config is what a Server needs.
type Config struct {
	Manager *vectors.Manager
	// WorkerID is the worker's id, for answers.
	WorkerID string
	// Patience is how long a caller may send no message that is due, or read none. 0 is
	// DefaultPatience.
	Patience time.Duration
}

// DefaultPatience is long for a program, and short for memory that others could use.
const DefaultPatience = time.Minute

// Worker is the server of the worker's models.
type Worker interface {
	// Admit refuses a new call if the worker drains.
	Admit() error
	// Nudge makes the worker report at once.
	Nudge()
}

// Server holds VectorService's handlers, and is the worker's server.Extension. Safe for concurrent
// use.
type Server struct {
	pb.UnimplementedVectorServiceServer

	manager  *vectors.Manager
	workerID string
	patience time.Duration
	worker   Worker
	files    codebookList
}

// New returns a server over the codebooks of one device.
func New(worker Worker, cfg Config) *Server {
	return &Server{
		manager: cfg.Manager, workerID: cfg.WorkerID, patience: cmp.Or(cfg.Patience, DefaultPatience), worker: worker,
	}
}

// Register implements server.Extension. Encode and Decode borrow the buffers in which rows and
// codes arrived, so that these are not copied.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	desc := pb.VectorService_ServiceDesc
	desc.Methods = slices.DeleteFunc(slices.Clone(desc.Methods), func(m grpc.MethodDesc) bool {
		return m.MethodName == "Encode" || m.MethodName == "Decode"
	})
	desc.Streams = append(slices.Clone(desc.Streams),
		grpc.StreamDesc{StreamName: "Encode", Handler: borrowed(s.Encode)}, grpc.StreamDesc{StreamName: "Decode", Handler: borrowed(s.Decode)})
	r.RegisterService(&desc, s)
}

// borrowed makes a handler that passes a borrowed request to method. The request is valid until
// method returns.
func borrowed[I any, P interface {
	*I
	proto.Message
}, O proto.Message](method func(context.Context, P) (O, error)) grpc.StreamHandler {
	return func(_ any, stream grpc.ServerStream) error {
		in := P(new(I))
		message := rpc.BorrowedMessage{Message: in}
		if err := stream.RecvMsg(&message); err != nil {
			return err
		}
		defer message.Free()
		out, err := method(stream.Context(), in)
		if err != nil {
			return err
		}
		return stream.SendMsg(out)
	}
}

// Encode implements VectorService.
func (s *Server) Encode(ctx context.Context, in *pb.EncodeRequest) (*pb.EncodeResponse, error) {
	rpc.Annotate(ctx, "codebook", in.GetCodebook())
	if err := smallEnough(in); err != nil {
		return nil, err
	}
	c := &checker{}
	c.codebookNamed(in.GetCodebook(), in.ExpectCodebookDigest)
	e := engine.Encoding{
		Element: named(c, "element_type", elementOf, in.GetElementType()), Rows: in.GetRows(), Distances: in.GetReturnDistances(),
		Neighbours: int(whole(c, "neighbours", in.Neighbours, 1, 1, engine.MaxNeighbours)),
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	if err := s.worker.Admit(); err != nil {
		return nil, err
	}
	book, release, err := s.manager.Acquire(in.GetCodebook(), digestIn(in.ExpectCodebookDigest))
	if err != nil {
		return nil, statusOf(err)
	}
	defer release()
	c.encoding(book.Desc, e)
	if err := c.Err(); err != nil {
		return nil, err
	}
	codes, err := book.Encode(ctx, e)
	if err != nil {
		return nil, statusOf(err)
	}
	out := &pb.EncodeResponse{
		Codes: codes.Codes, CodebookDigest: hex.EncodeToString(book.Digest[:]), CodeBytes: uint32(book.Desc.CodeSize()),
	}
	if e.Distances {
		out.Distances = make([]byte, 0, 4*len(codes.Distances))
		for _, d := range codes.Distances {
			out.Distances = binary.LittleEndian.AppendUint32(out.Distances, math.Float32bits(d))
		}
	}
	return out, nil
}

// codebookNamed checks the fields that choose the codebook.
func (c *checker) codebookNamed(name string, digest *string) {
	if name == "" {
		c.Add("codebook", "is required: the name of a codebook that the worker has loaded")
	}
	c.Digest("expect_codebook_digest", digest)
}

// encoding checks rows against the codebook, and the size of the answer.
func (c *checker) encoding(d engine.CodebookDesc, e engine.Encoding) {
	row := d.Dimension * e.Element.Size()
	if len(e.Rows)%row != 0 {
		c.Add("rows", "has %d bytes, want a multiple of %d: the codebook's dimension is %d, of %d bytes each", len(e.Rows), row,
			d.Dimension, e.Element.Size())
		return
	}
	codes, distances := d.Subspaces, 1
	if d.Kind == engine.Flat {
		if most := min(engine.MaxNeighbours, d.Codewords); e.Neighbours > most {
			c.Add("neighbours", "is %d, want [1, %d]", e.Neighbours, most)
			return
		}
		codes, distances = e.Neighbours, e.Neighbours
	} else if e.Neighbours != 1 {
		c.Add("neighbours", "is %d: a PRODUCT codebook gives 1", e.Neighbours)
		return
	}
	each := codes * d.CodeSize()
	if e.Distances {
		each += 4 * distances
	}
	c.answer("rows", len(e.Rows)/row, each)
}

// answer refuses a request whose answer would exceed one message.
func (c *checker) answer(field string, count, each int) {
	if most := answerBytes / each; count > most {
		c.Add(field, "has %d rows, whose answer has %d bytes each: send at most %d rows at a time", count, each, most)
	}
}

// Decode implements VectorService.
func (s *Server) Decode(ctx context.Context, in *pb.DecodeRequest) (*pb.DecodeResponse, error) {
	rpc.Annotate(ctx, "codebook", in.GetCodebook())
	if err := smallEnough(in); err != nil {
		return nil, err
	}
	c := &checker{}
	c.codebookNamed(in.GetCodebook(), in.ExpectCodebookDigest)
	if err := c.Err(); err != nil {
		return nil, err
	}
	if err := s.worker.Admit(); err != nil {
		return nil, err
	}
	book, release, err := s.manager.Acquire(in.GetCodebook(), digestIn(in.ExpectCodebookDigest))
	if err != nil {
		return nil, statusOf(err)
	}
	defer release()
	d := book.Desc
	if n, row := len(in.GetCodes()), d.Subspaces*d.CodeSize(); n%row != 0 {
		c.Add("codes", "has %d bytes, want a multiple of %d: a row has %d codes of %d bytes", n, row, d.Subspaces, d.CodeSize())
	} else {
		c.answer("codes", n/row, d.Dimension*d.Type.Size())
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	rows, err := book.Decode(ctx, in.GetCodes())
	if err != nil {
		return nil, statusOf(err)
	}
	return &pb.DecodeResponse{Rows: rows, ElementType: key(elementOf, d.Type), CodebookDigest: hex.EncodeToString(book.Digest[:])}, nil
}

// PutCodebook implements VectorService.
func (s *Server) PutCodebook(stream grpc.ClientStreamingServer[pb.PutCodebookRequest, pb.PutCodebookResponse]) error {
	ctx, stop := server.BeforeDeadline(stream.Context())
	defer stop()
	in := newInbox(ctx, s.patience, stream.Recv)
	first, err := in.next(ctx, nil)
	if errors.Is(err, io.EOF) || err == nil && first.GetHeader() == nil {
		return refused("header", "is missing: it is the first message")
	}
	if err != nil {
		return statusOf(err)
	}
	h := first.GetHeader()
	rpc.Annotate(ctx, "codebook", h.GetCodebook())
	c := &checker{}
	if err := vectors.CheckName(h.GetCodebook()); err != nil {
		c.Add("header.codebook", "%v", err)
	}
	c.Digest("header.expect_codebook_digest", h.ExpectCodebookDigest)
	c.replicas("header.replicas", h.Replicas)
	desc := c.codebook("header.shape.", h.GetShape(), 1)
	if err := c.Err(); err != nil {
		return err
	}
	if !s.manager.Has(h.GetCodebook()) { // a worker that drains replaces a codebook that it has, because it may be undrained
		if err := s.worker.Admit(); err != nil {
			return err
		}
	}
	arrival, err := s.manager.Put(h.GetCodebook(), desc, digestIn(h.ExpectCodebookDigest), h.GetReplace())
	if err != nil {
		return statusOf(err)
	}
	defer arrival.Close()
	for {
		m, err := in.next(ctx, nil)
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && m.GetHeader() != nil {
			err = &vectors.InputError{Field: "header", Problem: "it comes a second time: one call puts one codebook"}
		}
		if err == nil {
			err = arrival.Write(m.GetChunk())
		}
		if err != nil {
			return statusOf(err)
		}
		if len(m.GetChunk()) > 0 {
			in.hear()
		}
	}
	status, already, err := arrival.Finish(ctx)
	s.files.age()
	s.worker.Nudge()
	if err != nil {
		return statusOf(err)
	}
	return stream.SendAndClose(&pb.PutCodebookResponse{Copies: []*pb.CodebookCopy{s.copyOf(status, already)}})
}

// replicas refuses more than one copy, because a worker holds one.
func (c *checker) replicas(field string, n *uint32) {
	if n != nil && *n != 1 {
		c.Add(field, "is %d: one worker holds one copy; use a scheduler for more", *n)
	}
}

func (s *Server) copyOf(b vectors.Status, already bool) *pb.CodebookCopy {
	return &pb.CodebookCopy{
		WorkerId: s.workerID, CodebookDigest: hex.EncodeToString(b.Digest[:]), DeviceBytes: b.DeviceBytes, AlreadyLoaded: already,
	}
}

// LoadCodebook implements VectorService.
func (s *Server) LoadCodebook(ctx context.Context, in *pb.LoadCodebookRequest) (*pb.LoadCodebookResponse, error) {
	rpc.Annotate(ctx, "codebook", in.GetCodebook())
	c := &checker{}
	c.codebookNamed(in.GetCodebook(), in.ExpectCodebookDigest)
	c.replicas("replicas", in.Replicas)
	if err := c.Err(); err != nil {
		return nil, err
	}
	if err := s.worker.Admit(); err != nil {
		return nil, err
	}
	status, already, err := s.manager.Load(ctx, in.GetCodebook(), digestIn(in.ExpectCodebookDigest))
	s.worker.Nudge()
	if err != nil {
		return nil, statusOf(err)
	}
	return &pb.LoadCodebookResponse{Copies: []*pb.CodebookCopy{s.copyOf(status, already)}}, nil
}

// UnloadCodebook implements VectorService.
func (s *Server) UnloadCodebook(ctx context.Context, in *pb.UnloadCodebookRequest) (*pb.UnloadCodebookResponse, error) {
	rpc.Annotate(ctx, "codebook", in.GetCodebook())
	freed, err := s.manager.Unload(ctx, in.GetCodebook())
	s.worker.Nudge()
	if err != nil {
		return nil, statusOf(err)
	}
	return &pb.UnloadCodebookResponse{WorkerIds: []string{s.workerID}, FreedBytes: freed}, nil
}

// ListCodebooks implements VectorService.
func (s *Server) ListCodebooks(context.Context, *pb.ListCodebooksRequest) (*pb.ListCodebooksResponse, error) {
	if !s.manager.Supported() {
		return nil, statusOf(engine.ErrUnsupported)
	}
	out := &pb.ListCodebooksResponse{}
	for _, b := range s.manager.List() {
		info := codebookInfo(b)
		info.WorkerIds = []string{s.workerID}
		out.Codebooks = append(out.Codebooks, info)
	}
	return out, nil
}

var codebookStateOf = map[vectors.State]pb.CodebookState{
	vectors.OnDisk: pb.CodebookState_CODEBOOK_STATE_ON_DISK, vectors.Ready: pb.CodebookState_CODEBOOK_STATE_READY,
	vectors.Failed: pb.CodebookState_CODEBOOK_STATE_FAILED,
}

// codebookInfo describes a codebook for lists and reports, without its worker.
func codebookInfo(b vectors.Status) *pb.CodebookInfo {
	out := &pb.CodebookInfo{Name: b.Name, State: codebookStateOf[b.State], DeviceBytes: b.DeviceBytes}
	if b.Problem != nil {
		out.Problem = b.Problem.Error()
	}
	if d := b.Desc; d.Dimension > 0 {
		out.CodebookDigest = hex.EncodeToString(b.Digest[:])
		out.Shape = &pb.CodebookShape{
			Kind: key(codebookKindOf, d.Kind), Metric: metricNamed(d.Metric), Dimension: uint32(d.Dimension),
			Codewords: uint32(d.Codewords), Subspaces: uint32(d.Subspaces), CodewordType: key(elementOf, d.Type),
		}
	}
	if b.VerifiedAge > 0 {
		out.VerifiedAge = durationpb.New(b.VerifiedAge)
	}
	return out
}

// key returns the contract's value for an engine's; the last one of several.
func key[E ~int32, V comparable](of map[E]V, value V) (name E) {
	for k, v := range of {
		if v == value {
			name = max(name, k)
		}
	}
	return name
}

func metricNamed(m engine.Metric) pb.VectorMetric { return key(metricOf, m) }

// TokensOf returns a function that reports the work of a device's models. Trainings yield to it.
func TokensOf(m *model.Manager) func() vectors.Tokens {
	return func() (t vectors.Tokens) {
		for _, inst := range m.Instances() {
			if inst.Loop == nil {
				continue // its load failed, and the device still holds its memory
			}
			t.Steps += inst.Loop.Stats().Steps
			t.Busy = t.Busy || !inst.Loop.Idle()
		}
		return t
	}
}
