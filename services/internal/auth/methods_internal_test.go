package auth

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	channelzpb "google.golang.org/grpc/channelz/grpc_channelz_v1"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	alphapb "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	orcapb "github.com/cncf/xds/go/xds/service/orca/v3"
)

func TestEveryMethodHasANeed(t *testing.T) {
	// Every method of the contract and of the standard services has an entry in needs.
	files := []protoreflect.FileDescriptor{
		channelzpb.File_grpc_channelz_v1_channelz_proto, healthpb.File_grpc_health_v1_health_proto,
		reflectionpb.File_grpc_reflection_v1_reflection_proto, alphapb.File_grpc_reflection_v1alpha_reflection_proto,
		orcapb.File_xds_service_orca_v3_orca_proto,
	}
	protoregistry.GlobalFiles.RangeFilesByPackage("millrace.v1", func(f protoreflect.FileDescriptor) bool {
		files = append(files, f)
		return true
	})
	known := map[string]bool{}
	for _, f := range files {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				method := "/" + string(s.FullName()) + "/" + string(s.Methods().Get(j).Name())
				known[method] = true
				require.Contains(t, needs, method, "say who may call it")
			}
		}
	}
	for method, n := range needs {
		require.True(t, known[method], "%s is no method", method)
		require.Equal(t, !n.open && !n.anyKey, len(n.rights) > 0, method)
	}
}

// TestRightsAllowExactlyTheirMethods spells the names of methods out, so that a change of a right
// is made twice.
func TestRightsAllowExactlyTheirMethods(t *testing.T) {
	all := map[Right][]string{}
	var strangers, anybody []string
	for method, n := range needs {
		if n.open {
			strangers = append(strangers, method)
		}
		if n.anyKey {
			anybody = append(anybody, method)
			continue
		}
		for _, r := range Rights() {
			if (&Key{Rights: []Right{r}}).may(n) && !n.open {
				all[r] = append(all[r], method)
			}
		}
		require.Equal(t, n.open, (&Key{}).may(n), method)
	}
	for _, methods := range all {
		slices.Sort(methods)
	}
	slices.Sort(anybody)
	require.Equal(t, []string{"/grpc.health.v1.Health/Check"}, strangers)
	require.Equal(t, []string{
		"/grpc.health.v1.Health/List", "/grpc.health.v1.Health/Watch",
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
	}, anybody)
	const channelz = "/grpc.channelz.v1.Channelz/"
	require.Equal(t, map[Right][]string{
		Generate: {
			"/millrace.v1.InferenceService/Detokenize", "/millrace.v1.InferenceService/Embed", "/millrace.v1.InferenceService/Generate",
			"/millrace.v1.InferenceService/Rerank", "/millrace.v1.InferenceService/Tokenize", "/millrace.v1.ModelService/ListModels",
		},
		Vectors: {
			"/millrace.v1.VectorService/Decode", "/millrace.v1.VectorService/Encode", "/millrace.v1.VectorService/ListCodebooks",
			"/millrace.v1.VectorService/TrainCodebook",
		},
		Load: {
			"/millrace.v1.ModelService/ListModels", "/millrace.v1.ModelService/LoadModel", "/millrace.v1.ModelService/UnloadModel",
			"/millrace.v1.VectorService/ListCodebooks", "/millrace.v1.VectorService/LoadCodebook", "/millrace.v1.VectorService/PutCodebook",
			"/millrace.v1.VectorService/UnloadCodebook",
		},
		Admin: {
			channelz + "GetChannel", channelz + "GetServer", channelz + "GetServerSockets", channelz + "GetServers", channelz + "GetSocket",
			channelz + "GetSubchannel", channelz + "GetTopChannels",
			"/millrace.v1.FleetService/DrainWorker", "/millrace.v1.FleetService/UndrainWorker", "/millrace.v1.FleetService/WatchFleet",
			"/millrace.v1.ModelService/ListModels", "/millrace.v1.VectorService/ListCodebooks", "/millrace.v1.WorkerService/Drain",
			"/millrace.v1.WorkerService/Undrain",
		},
		Health: {
			"/millrace.v1.FleetService/WatchFleet", "/millrace.v1.ModelService/ListModels", "/millrace.v1.VectorService/ListCodebooks",
			"/millrace.v1.WorkerService/Health", "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics",
		},
	}, all)
}
