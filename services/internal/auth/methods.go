package auth

import (
	"strings"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// Right is a right of a key.
type Right string

// Rights.
const (
	Generate Right = "generate" // generate tokens, tokenize and detokenize
	Vectors  Right = "vectors"  // train codebooks, encode and decode
	Load     Right = "load"     // change which models and codebooks workers have
	Admin    Right = "admin"    // drain and undrain workers, and inspect the process
	Health   Right = "health"   // see the fleet: workers, their devices and their load
)

// Rights returns all rights in the order of the documents.
func Rights() []Right { return []Right{Generate, Vectors, Load, Admin, Health} }

// need is the requirement of a method: one of some rights, any key, or nothing.
type need struct {
	open, anyKey bool
	rights       []Right
}

var (
	open   = need{open: true}
	anyKey = need{anyKey: true}
)

func anyOf(rights ...Right) need { return need{rights: rights} }

// needs has every method that the servers register. A missing one is refused to all callers, and
// fails a test.
var needs = map[string]need{
	pb.InferenceService_Generate_FullMethodName:   anyOf(Generate),
	pb.InferenceService_Embed_FullMethodName:      anyOf(Generate),
	pb.InferenceService_Rerank_FullMethodName:     anyOf(Generate),
	pb.InferenceService_Tokenize_FullMethodName:   anyOf(Generate),
	pb.InferenceService_Detokenize_FullMethodName: anyOf(Generate),

	pb.VectorService_TrainCodebook_FullMethodName: anyOf(Vectors),
	pb.VectorService_Encode_FullMethodName:        anyOf(Vectors),
	pb.VectorService_Decode_FullMethodName:        anyOf(Vectors),

	// PutCodebook may replace a codebook that others use. A training cannot.
	pb.VectorService_PutCodebook_FullMethodName:    anyOf(Load),
	pb.VectorService_LoadCodebook_FullMethodName:   anyOf(Load),
	pb.VectorService_UnloadCodebook_FullMethodName: anyOf(Load),
	pb.ModelService_LoadModel_FullMethodName:       anyOf(Load),
	pb.ModelService_UnloadModel_FullMethodName:     anyOf(Load),

	pb.FleetService_DrainWorker_FullMethodName:   anyOf(Admin),
	pb.FleetService_UndrainWorker_FullMethodName: anyOf(Admin),
	pb.WorkerService_Drain_FullMethodName:        anyOf(Admin),
	pb.WorkerService_Undrain_FullMethodName:      anyOf(Admin),

	// Names and states, without which the other rights cannot be used.
	pb.ModelService_ListModels_FullMethodName:     anyOf(Generate, Load, Admin, Health),
	pb.VectorService_ListCodebooks_FullMethodName: anyOf(Vectors, Load, Admin, Health),
	pb.FleetService_WatchFleet_FullMethodName:     anyOf(Health, Admin),
	pb.WorkerService_Health_FullMethodName:        anyOf(Health),

	// Probes have no tokens, because Kubernetes sends none. The answer is one word.
	"/grpc.health.v1.Health/Check": open,
	"/grpc.health.v1.Health/Watch": anyKey,
	"/grpc.health.v1.Health/List":  anyKey,

	// Reflection returns public information, but only callers with a key need it.
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      anyKey,
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": anyKey,

	"/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics": anyOf(Health),

	// Channelz shows the addresses of callers.
	"/grpc.channelz.v1.Channelz/GetTopChannels":   anyOf(Admin),
	"/grpc.channelz.v1.Channelz/GetServers":       anyOf(Admin),
	"/grpc.channelz.v1.Channelz/GetServer":        anyOf(Admin),
	"/grpc.channelz.v1.Channelz/GetServerSockets": anyOf(Admin),
	"/grpc.channelz.v1.Channelz/GetChannel":       anyOf(Admin),
	"/grpc.channelz.v1.Channelz/GetSubchannel":    anyOf(Admin),
	"/grpc.channelz.v1.Channelz/GetSocket":        anyOf(Admin),
}

// list returns rights for people.
func list(rights []Right) string {
	texts := make([]string, len(rights))
	for i, r := range rights {
		texts[i] = string(r)
	}
	return strings.Join(texts, ", ")
}
