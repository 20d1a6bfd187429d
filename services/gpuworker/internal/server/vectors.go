package server

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/vectors"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// registerVectors puts VectorService on a server. Rows and codes lie where they were received until their call ends.
func (s *Server) registerVectors(r grpc.ServiceRegistrar) {
	desc := pb.VectorService_ServiceDesc
	desc.Methods = slices.DeleteFunc(slices.Clone(desc.Methods), func(m grpc.MethodDesc) bool {
		return m.MethodName == "Encode" || m.MethodName == "Decode"
	})
	desc.Streams = append(slices.Clone(desc.Streams),
		grpc.StreamDesc{StreamName: "Encode", Handler: lent(s.Encode)}, grpc.StreamDesc{StreamName: "Decode", Handler: lent(s.Decode)})
	r.RegisterService(&desc, s)
}

// lent is the handler of a call whose request is lent to a method that is done with it when it returns.
func lent[I any, P interface {
	*I
	proto.Message
}, O proto.Message](method func(context.Context, P) (O, error)) grpc.StreamHandler {
	return func(_ any, stream grpc.ServerStream) error {
		in := P(new(I))
		message := rpc.Lent{Message: in}
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
	if err := invalid(c.violations); err != nil {
		return nil, err
	}
	if err := s.admit(); err != nil {
		return nil, err
	}
	book, release, err := s.vectors.Acquire(in.GetCodebook(), digestIn(in.ExpectCodebookDigest))
	if err != nil {
		return nil, statusOf(err)
	}
	defer release()
	c.encoding(book.Desc, e)
	if err := invalid(c.violations); err != nil {
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

// codebookNamed checks what says which codebook.
func (c *checker) codebookNamed(name string, digest *string) {
	if name == "" {
		c.add("codebook", "is required: the name of a codebook that the worker has loaded")
	}
	c.digest("expect_codebook_digest", digest)
}

// encoding checks rows against the codebook, and what they would be answered.
func (c *checker) encoding(d engine.CodebookDesc, e engine.Encoding) {
	row := d.Dimension * e.Element.Size()
	if len(e.Rows)%row != 0 {
		c.add("rows", "has %d bytes, want a multiple of %d: the codebook's dimension is %d, of %d bytes each", len(e.Rows), row,
			d.Dimension, e.Element.Size())
		return
	}
	codes, distances := d.Subspaces, 1
	if d.Kind == engine.Flat {
		if most := min(engine.MaxNeighbours, d.Codewords); e.Neighbours > most {
			c.add("neighbours", "is %d, want [1, %d]", e.Neighbours, most)
			return
		}
		codes, distances = e.Neighbours, e.Neighbours
	} else if e.Neighbours != 1 {
		c.add("neighbours", "is %d: a PRODUCT codebook gives 1", e.Neighbours)
		return
	}
	each := codes * d.CodeSize()
	if e.Distances {
		each += 4 * distances
	}
	c.answer("rows", len(e.Rows)/row, each)
}

// answer refuses a request whose answer would be too large for one message.
func (c *checker) answer(field string, count, each int) {
	if most := answerBytes / each; count > most {
		c.add(field, "has %d rows, whose answer has %d bytes each: send at most %d rows at a time", count, each, most)
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
	if err := invalid(c.violations); err != nil {
		return nil, err
	}
	if err := s.admit(); err != nil {
		return nil, err
	}
	book, release, err := s.vectors.Acquire(in.GetCodebook(), digestIn(in.ExpectCodebookDigest))
	if err != nil {
		return nil, statusOf(err)
	}
	defer release()
	d := book.Desc
	if n, row := len(in.GetCodes()), d.Subspaces*d.CodeSize(); n%row != 0 {
		c.add("codes", "has %d bytes, want a multiple of %d: a row has %d codes of %d bytes", n, row, d.Subspaces, d.CodeSize())
	} else {
		c.answer("codes", n/row, d.Dimension*d.Type.Size())
	}
	if err := invalid(c.violations); err != nil {
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
	ctx, stop := beforeDeadline(stream.Context())
	defer stop()
	in := newInbox(ctx, s.patience, stream.Recv)
	first, err := in.next(ctx, nil)
	if errors.Is(err, io.EOF) || err == nil && first.GetHeader() == nil {
		return invalid([]rpc.Violation{{Field: "header", Description: "is missing: it is the first message"}})
	}
	if err != nil {
		return statusOf(err)
	}
	h := first.GetHeader()
	rpc.Annotate(ctx, "codebook", h.GetCodebook())
	c := &checker{}
	if err := vectors.CheckName(h.GetCodebook()); err != nil {
		c.add("header.codebook", "%v", err)
	}
	c.digest("header.expect_codebook_digest", h.ExpectCodebookDigest)
	c.replicas("header.replicas", h.Replicas)
	desc := c.codebook("header.shape.", h.GetShape(), 1)
	if err := invalid(c.violations); err != nil {
		return err
	}
	if !s.vectors.Has(h.GetCodebook()) { // what a worker that drains has is kept true: it may be undrained
		if err := s.admit(); err != nil {
			return err
		}
	}
	arrival, err := s.vectors.Put(h.GetCodebook(), desc, digestIn(h.ExpectCodebookDigest), h.GetReplace())
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
	s.books.age()
	s.nudge()
	if err != nil {
		return statusOf(err)
	}
	return stream.SendAndClose(&pb.PutCodebookResponse{Copies: []*pb.CodebookCopy{s.copyOf(status, already)}})
}

// replicas: a worker holds one.
func (c *checker) replicas(field string, n *uint32) {
	if n != nil && *n != 1 {
		c.add(field, "is %d: one worker holds one copy; ask a scheduler for more", *n)
	}
}

func (s *Server) copyOf(b vectors.Status, already bool) *pb.CodebookCopy {
	return &pb.CodebookCopy{
		WorkerId: s.identity.WorkerID, CodebookDigest: hex.EncodeToString(b.Digest[:]), DeviceBytes: b.DeviceBytes, AlreadyLoaded: already,
	}
}

// LoadCodebook implements VectorService.
func (s *Server) LoadCodebook(ctx context.Context, in *pb.LoadCodebookRequest) (*pb.LoadCodebookResponse, error) {
	rpc.Annotate(ctx, "codebook", in.GetCodebook())
	c := &checker{}
	c.codebookNamed(in.GetCodebook(), in.ExpectCodebookDigest)
	c.replicas("replicas", in.Replicas)
	if err := invalid(c.violations); err != nil {
		return nil, err
	}
	if err := s.admit(); err != nil {
		return nil, err
	}
	status, already, err := s.vectors.Load(ctx, in.GetCodebook(), digestIn(in.ExpectCodebookDigest))
	s.nudge()
	if err != nil {
		return nil, statusOf(err)
	}
	return &pb.LoadCodebookResponse{Copies: []*pb.CodebookCopy{s.copyOf(status, already)}}, nil
}

// UnloadCodebook implements VectorService.
func (s *Server) UnloadCodebook(ctx context.Context, in *pb.UnloadCodebookRequest) (*pb.UnloadCodebookResponse, error) {
	rpc.Annotate(ctx, "codebook", in.GetCodebook())
	freed, err := s.vectors.Unload(ctx, in.GetCodebook())
	s.nudge()
	if err != nil {
		return nil, statusOf(err)
	}
	return &pb.UnloadCodebookResponse{WorkerIds: []string{s.identity.WorkerID}, FreedBytes: freed}, nil
}

// ListCodebooks implements VectorService.
func (s *Server) ListCodebooks(context.Context, *pb.ListCodebooksRequest) (*pb.ListCodebooksResponse, error) {
	if !s.vectors.Supported() {
		return nil, statusOf(engine.ErrUnsupported)
	}
	out := &pb.ListCodebooksResponse{}
	for _, b := range s.vectors.List() {
		info := codebookInfo(b)
		info.WorkerIds = []string{s.identity.WorkerID}
		out.Codebooks = append(out.Codebooks, info)
	}
	return out, nil
}

var codebookStateOf = map[vectors.State]pb.CodebookState{
	vectors.OnDisk: pb.CodebookState_CODEBOOK_STATE_ON_DISK, vectors.Ready: pb.CodebookState_CODEBOOK_STATE_READY,
	vectors.Failed: pb.CodebookState_CODEBOOK_STATE_FAILED,
}

// codebookInfo is a codebook as lists and reports have it, without its worker.
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

// key is what the contract calls a value; of several names the last.
func key[E ~int32, V comparable](of map[E]V, value V) (name E) {
	for k, v := range of {
		if v == value {
			name = max(name, k)
		}
	}
	return name
}

func metricNamed(m engine.Metric) pb.VectorMetric { return key(metricOf, m) }
