package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
)

func TestStandardToolsFindTheirWay(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", append([]string{"--load", stories}, quick...)...)
	s := startScheduler(t, []*server{w})
	servers := map[string]struct {
		on       *server
		services []string
	}{
		"worker":    {w, []string{"millrace.v1.InferenceService", "millrace.v1.ModelService", "millrace.v1.WorkerService"}},
		"scheduler": {s, []string{"millrace.v1.FleetService", "millrace.v1.InferenceService", "millrace.v1.ModelService"}},
	}
	for name, of := range servers {
		reflection, err := reflectionpb.NewServerReflectionClient(of.on.conn).ServerReflectionInfo(within(t))
		require.NoError(t, err)
		require.NoError(t, reflection.Send(&reflectionpb.ServerReflectionRequest{
			MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{},
		}))
		in, err := reflection.Recv()
		require.NoError(t, err)
		var listed []string
		for _, service := range in.GetListServicesResponse().GetService() {
			listed = append(listed, service.GetName())
		}
		require.Subset(t, listed, of.services, name)
		require.Subset(t, listed, []string{
			"grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection",
			"grpc.channelz.v1.Channelz",
		}, name)

		for _, service := range of.services {
			require.NoError(t, reflection.Send(&reflectionpb.ServerReflectionRequest{
				MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: service},
			}))
			in, err := reflection.Recv()
			require.NoError(t, err)
			files := in.GetFileDescriptorResponse().GetFileDescriptorProto()
			require.NotEmpty(t, files, "%s describes %s", name, service)
			file := &descriptorpb.FileDescriptorProto{}
			require.NoError(t, proto.Unmarshal(files[0], file))
			require.Equal(t, "millrace.v1", file.GetPackage())

			health, err := of.on.health.Check(within(t), &healthpb.HealthCheckRequest{Service: service})
			require.NoError(t, err)
			require.Equal(t, healthpb.HealthCheckResponse_SERVING, health.GetStatus(), "%s: %s", name, service)
		}
		require.NoError(t, reflection.CloseSend())
		all, err := of.on.health.List(within(t), &healthpb.HealthListRequest{})
		require.NoError(t, err)
		require.Contains(t, all.GetStatuses(), "")
	}
}
