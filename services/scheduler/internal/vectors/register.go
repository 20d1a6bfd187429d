package vectors

import (
	"context"
	"slices"

	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// handlers are VectorService's unary methods.
type handlers struct {
	pb.UnimplementedVectorServiceServer
	vectors *Vectors
}

// Register puts VectorService on a server. Methods that carry rows, codes or codebooks get handlers
// that relay: generated ones would decode every message.
func (v *Vectors) Register(r grpc.ServiceRegistrar) {
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
	r.RegisterService(&desc, &handlers{vectors: v})
}

// LoadCodebook implements VectorService.
func (h *handlers) LoadCodebook(ctx context.Context, in *pb.LoadCodebookRequest) (*pb.LoadCodebookResponse, error) {
	return h.vectors.Load(ctx, in)
}

// UnloadCodebook implements VectorService.
func (h *handlers) UnloadCodebook(ctx context.Context, in *pb.UnloadCodebookRequest) (*pb.UnloadCodebookResponse, error) {
	return h.vectors.Unload(ctx, in)
}

// ListCodebooks implements VectorService.
func (h *handlers) ListCodebooks(context.Context, *pb.ListCodebooksRequest) (*pb.ListCodebooksResponse, error) {
	return h.vectors.List()
}
