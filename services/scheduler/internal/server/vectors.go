package server

import (
	"context"
	"slices"

	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/vectors"
)

// vectorServer holds VectorService's handlers.
type vectorServer struct {
	pb.UnimplementedVectorServiceServer
	vectors *vectors.Vectors
}

// RegisterVectors puts VectorService on a server, with handlers that relay where rows, codes or codebooks pass: generated ones would
// decode them.
func RegisterVectors(r grpc.ServiceRegistrar, v *vectors.Vectors) {
	s := &vectorServer{vectors: v}
	piece := func(method string) grpc.StreamHandler {
		return func(_ any, stream grpc.ServerStream) error { return v.Piece(stream, method) }
	}
	desc := pb.VectorService_ServiceDesc
	desc.Methods = slices.DeleteFunc(slices.Clone(desc.Methods), func(m grpc.MethodDesc) bool {
		return m.MethodName == "Encode" || m.MethodName == "Decode"
	})
	desc.Streams = []grpc.StreamDesc{
		{StreamName: "Encode", Handler: piece(pb.VectorService_Encode_FullMethodName)},
		{StreamName: "Decode", Handler: piece(pb.VectorService_Decode_FullMethodName)},
		{StreamName: "TrainCodebook", ClientStreams: true, ServerStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error { return v.Train(stream) }},
		{StreamName: "PutCodebook", ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error { return v.Put(stream) }},
	}
	r.RegisterService(&desc, s)
}

// LoadCodebook makes sure that as many workers as wanted serve the codebook.
func (s *vectorServer) LoadCodebook(ctx context.Context, in *pb.LoadCodebookRequest) (*pb.LoadCodebookResponse, error) {
	return s.vectors.Load(ctx, in)
}

// UnloadCodebook unloads the codebook on every worker that has it loaded.
func (s *vectorServer) UnloadCodebook(ctx context.Context, in *pb.UnloadCodebookRequest) (*pb.UnloadCodebookResponse, error) {
	return s.vectors.Unload(ctx, in)
}

// ListCodebooks merges what the workers report.
func (s *vectorServer) ListCodebooks(context.Context, *pb.ListCodebooksRequest) (*pb.ListCodebooksResponse, error) {
	return s.vectors.List()
}
