package auth

import (
	"strings"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// Right is something that a key may do.
type Right string

// Rights.
const (
	Generate Right = "generate" // have tokens generated, and texts made into tokens and back
	Vectors  Right = "vectors"  // train codebooks, encode and decode
	Load     Right = "load"     // change which models and codebooks there are on workers
	Admin    Right = "admin"    // take workers out of service and back, and look into the process
	Health   Right = "health"   // see the fleet: workers, their devices and their load
)

// Rights are all there are, in the order in which documents have them.
func Rights() []Right { return []Right{Generate, Vectors, Load, Admin, Health} }

// need is what a method asks of its caller: one of some rights, a key whatever its rights are, or nothing.
type need struct {
	open, anyKey bool
	rights       []Right
}

var (
	open   = need{open: true}
	anyKey = need{anyKey: true}
)

func one(rights ...Right) need { return need{rights: rights} }

// needs are all methods that servers of ours register. One that is missing is refused to everybody: a test finds it.
var needs = map[string]need{
	pb.InferenceService_Generate_FullMethodName:   one(Generate),
	pb.InferenceService_Embed_FullMethodName:      one(Generate),
	pb.InferenceService_Tokenize_FullMethodName:   one(Generate),
	pb.InferenceService_Detokenize_FullMethodName: one(Generate),

	pb.VectorService_TrainCodebook_FullMethodName: one(Vectors),
	pb.VectorService_Encode_FullMethodName:        one(Vectors),
	pb.VectorService_Decode_FullMethodName:        one(Vectors),

	// PutCodebook may replace what others use, which a training cannot.
	pb.VectorService_PutCodebook_FullMethodName:    one(Load),
	pb.VectorService_LoadCodebook_FullMethodName:   one(Load),
	pb.VectorService_UnloadCodebook_FullMethodName: one(Load),
	pb.ModelService_LoadModel_FullMethodName:       one(Load),
	pb.ModelService_UnloadModel_FullMethodName:     one(Load),

	pb.FleetService_DrainWorker_FullMethodName:   one(Admin),
	pb.FleetService_UndrainWorker_FullMethodName: one(Admin),
	pb.WorkerService_Drain_FullMethodName:        one(Admin),
	pb.WorkerService_Undrain_FullMethodName:      one(Admin),

	// Names and states, without which nobody can do what the right is for.
	pb.ModelService_ListModels_FullMethodName:     one(Generate, Load, Admin, Health),
	pb.VectorService_ListCodebooks_FullMethodName: one(Vectors, Load, Admin, Health),
	pb.FleetService_WatchFleet_FullMethodName:     one(Health, Admin),
	pb.WorkerService_Health_FullMethodName:        one(Health),

	// Probes have no tokens: Kubernetes sends none. One question that tells one word.
	"/grpc.health.v1.Health/Check": open,
	"/grpc.health.v1.Health/Watch": anyKey,
	"/grpc.health.v1.Health/List":  anyKey,

	// Reflection tells what is public; only strangers have no business with it.
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      anyKey,
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": anyKey,

	"/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics": one(Health),

	// Who is connected from where is not everybody's.
	"/grpc.channelz.v1.Channelz/GetTopChannels":   one(Admin),
	"/grpc.channelz.v1.Channelz/GetServers":       one(Admin),
	"/grpc.channelz.v1.Channelz/GetServer":        one(Admin),
	"/grpc.channelz.v1.Channelz/GetServerSockets": one(Admin),
	"/grpc.channelz.v1.Channelz/GetChannel":       one(Admin),
	"/grpc.channelz.v1.Channelz/GetSubchannel":    one(Admin),
	"/grpc.channelz.v1.Channelz/GetSocket":        one(Admin),
}

// list is rights for people.
func list(rights []Right) string {
	texts := make([]string, len(rights))
	for i, r := range rights {
		texts[i] = string(r)
	}
	return strings.Join(texts, ", ")
}
