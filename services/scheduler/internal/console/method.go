package console

import (
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// method is a method that the page calls. A unary one is a stream of one response.
type method struct {
	full    string
	in, out proto.Message
}

// methods are the methods that the page calls. Others cannot be called.
var methods = map[string]method{
	"DrainWorker":   {pb.FleetService_DrainWorker_FullMethodName, &pb.DrainWorkerRequest{}, &pb.DrainWorkerResponse{}},
	"Generate":      {pb.InferenceService_Generate_FullMethodName, &pb.GenerateRequest{}, &pb.GenerateResponse{}},
	"LoadModel":     {pb.ModelService_LoadModel_FullMethodName, &pb.LoadModelRequest{}, &pb.LoadModelResponse{}},
	"UndrainWorker": {pb.FleetService_UndrainWorker_FullMethodName, &pb.UndrainWorkerRequest{}, &pb.UndrainWorkerResponse{}},
	"UnloadModel":   {pb.ModelService_UnloadModel_FullMethodName, &pb.UnloadModelRequest{}, &pb.UnloadModelResponse{}},
	"WatchFleet":    {pb.FleetService_WatchFleet_FullMethodName, &pb.WatchFleetRequest{}, &pb.WatchFleetResponse{}},
}

// request returns an empty request.
func (m method) request() proto.Message { return m.in.ProtoReflect().New().Interface() }

// answer returns an empty response.
func (m method) answer() proto.Message { return m.out.ProtoReflect().New().Interface() }
