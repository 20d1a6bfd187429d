package console

import (
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// method is one that the page calls. A unary one is a stream of one answer.
type method struct {
	full    string
	in, out proto.Message
}

// methods are those that the page calls, and no others: what is not needed is not reached.
var methods = map[string]method{
	"DrainWorker":   {pb.FleetService_DrainWorker_FullMethodName, &pb.DrainWorkerRequest{}, &pb.DrainWorkerResponse{}},
	"Generate":      {pb.InferenceService_Generate_FullMethodName, &pb.GenerateRequest{}, &pb.GenerateResponse{}},
	"LoadModel":     {pb.ModelService_LoadModel_FullMethodName, &pb.LoadModelRequest{}, &pb.LoadModelResponse{}},
	"UndrainWorker": {pb.FleetService_UndrainWorker_FullMethodName, &pb.UndrainWorkerRequest{}, &pb.UndrainWorkerResponse{}},
	"UnloadModel":   {pb.ModelService_UnloadModel_FullMethodName, &pb.UnloadModelRequest{}, &pb.UnloadModelResponse{}},
	"WatchFleet":    {pb.FleetService_WatchFleet_FullMethodName, &pb.WatchFleetRequest{}, &pb.WatchFleetResponse{}},
}

// request makes an empty request.
func (m method) request() proto.Message { return m.in.ProtoReflect().New().Interface() }

// answer makes an empty answer.
func (m method) answer() proto.Message { return m.out.ProtoReflect().New().Interface() }
