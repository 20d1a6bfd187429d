//go:build xds

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	bootstrappb "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	routepb "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	managerpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/least_request/v3" // types in the files
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	tlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	upstreampb "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// envoyFiles are the configurations of deploy/envoy.
var envoyFiles = []string{"gateway.yaml", "workers.yaml"}

// envoyConfig is one of them, with the parts that tests check and change.
type envoyConfig struct {
	*bootstrappb.Bootstrap
	manager *managerpb.HttpConnectionManager // of the only listener; bytes packs it again
	route   *routepb.RouteAction             // of the only route
	cluster *clusterpb.Cluster               // the only one
}

// readEnvoy reads a file as Envoy does: an unknown field is an error.
func readEnvoy(t *testing.T, name string) *envoyConfig {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, "deploy", "envoy", name))
	require.NoError(t, err)
	var tree any
	require.NoError(t, yaml.Unmarshal(raw, &tree))
	raw, err = json.Marshal(tree)
	require.NoError(t, err)
	c := &envoyConfig{Bootstrap: &bootstrappb.Bootstrap{}, manager: &managerpb.HttpConnectionManager{}}
	require.NoError(t, protojson.Unmarshal(raw, c.Bootstrap))
	listeners, clusters := c.GetStaticResources().GetListeners(), c.GetStaticResources().GetClusters()
	require.Len(t, listeners, 1)
	require.Len(t, clusters, 1)
	require.NoError(t, listeners[0].GetFilterChains()[0].GetFilters()[0].GetTypedConfig().UnmarshalTo(c.manager))
	hosts := c.manager.GetRouteConfig().GetVirtualHosts()
	require.Len(t, hosts, 1)
	require.Len(t, hosts[0].GetRoutes(), 1)
	c.route, c.cluster = hosts[0].GetRoutes()[0].GetRoute(), clusters[0]
	return c
}

// bytes encodes the configuration with the changes of its parts.
func (c *envoyConfig) bytes(t *testing.T) []byte {
	t.Helper()
	require.NoError(t, c.StaticResources.Listeners[0].FilterChains[0].Filters[0].GetTypedConfig().MarshalFrom(c.manager))
	raw, err := protojson.Marshal(c.Bootstrap)
	require.NoError(t, err)
	return raw
}

// policy returns the load balancing policy of its cluster.
func (c *envoyConfig) policy(t *testing.T) proto.Message {
	t.Helper()
	m, err := c.cluster.GetLoadBalancingPolicy().GetPolicies()[0].GetTypedExtensionConfig().GetTypedConfig().UnmarshalNew()
	require.NoError(t, err)
	return m
}

// Envoy checks each message by the rules of its API when it starts, and so does the test.
func TestEnvoyConfigurationsAreValid(t *testing.T) {
	t.Parallel()
	for _, name := range envoyFiles {
		t.Run(name, func(t *testing.T) {
			checked := map[protoreflect.FullName]bool{}
			require.NoError(t, protorange.Range(readEnvoy(t, name).ProtoReflect(), func(p protopath.Values) error {
				m, ok := p.Index(-1).Value.Interface().(protoreflect.Message)
				if !ok {
					return nil
				}
				if ruled, ok := m.Interface().(interface{ ValidateAll() error }); ok {
					checked[m.Descriptor().FullName()] = true
					return ruled.ValidateAll()
				}
				return nil
			}))
			for _, packed := range []proto.Message{&managerpb.HttpConnectionManager{}, &upstreampb.HttpProtocolOptions{}} {
				require.True(t, checked[packed.ProtoReflect().Descriptor().FullName()], "packed messages are checked too")
			}
		})
	}
}

// The files must have the values that docs/mesh.md states.
func TestEnvoysConfigurationsCutNoStream(t *testing.T) {
	t.Parallel()
	for _, name := range envoyFiles {
		t.Run(name, func(t *testing.T) {
			c := readEnvoy(t, name)
			require.NotNil(t, c.route.GetTimeout(), "unset it is 15 s")
			require.Zero(t, c.route.GetTimeout().AsDuration())
			require.Nil(t, c.route.GetMaxStreamDuration())
			require.Nil(t, c.route.GetIdleTimeout())
			require.Nil(t, c.manager.GetCommonHttpProtocolOptions().GetMaxStreamDuration())
			require.Greater(t, c.manager.GetStreamIdleTimeout().AsDuration(), 5*time.Minute, "unset it is 5 minutes")
			require.Nil(t, c.route.GetRetryPolicy().GetPerTryTimeout())
			require.Nil(t, c.route.GetRetryPolicy().GetPerTryIdleTimeout())
			require.Nil(t, c.route.GetHedgePolicy())
			require.Equal(t, c.cluster.GetName(), c.route.GetCluster())
			var upstream upstreampb.HttpProtocolOptions
			require.NoError(t, c.cluster.GetTypedExtensionProtocolOptions()["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"].UnmarshalTo(&upstream))
			require.NotNil(t, upstream.GetExplicitHttpConfig().GetHttp2ProtocolOptions(), "servers speak HTTP/2 alone")
			require.Greater(t, c.cluster.GetCircuitBreakers().GetThresholds()[0].GetMaxRequests().GetValue(), uint32(1024), "unset it is 1024")
		})
	}
}

// As a client Envoy uses at most TLS 1.2 by default, and the servers accept only 1.3.
func TestEnvoysGatewaySpeaksTLSAsSchedulersDo(t *testing.T) {
	t.Parallel()
	var up tlspb.UpstreamTlsContext
	require.NoError(t, readEnvoy(t, "gateway.yaml").cluster.GetTransportSocket().GetTypedConfig().UnmarshalTo(&up))
	common := up.GetCommonTlsContext()
	require.Equal(t, tlspb.TlsParameters_TLSv1_3, common.GetTlsParams().GetTlsMaximumProtocolVersion())
	require.Equal(t, []string{"h2"}, common.GetAlpnProtocols(), "gRPC's servers want it said")
	require.NotEmpty(t, common.GetTlsCertificates())
	require.NotEmpty(t, common.GetValidationContext().GetMatchTypedSubjectAltNames(), "whose certificate it is, is looked at")
}

// A proxyless client with the same routes retries calls that have no answer, and only those.
func TestControlPlaneEnvoyRetriesWithoutAnswer(t *testing.T) {
	t.Parallel()
	for _, name := range envoyFiles {
		t.Run(name, func(t *testing.T) {
			requireSafeRetries(t, func(t *testing.T, addresses ...string) *grpc.ClientConn {
				t.Helper()
				p := startPlane(t)
				p.set(t, mesh{servers: addresses, route: readEnvoy(t, name).route})
				return p.dial(t)
			})
		})
	}
}

// A proxyless client with the same policy weighs workers.
func TestControlPlaneEnvoyWeighsWorkers(t *testing.T) {
	t.Parallel()
	full, idle := weighted(t)
	p := startPlane(t)
	p.set(t, mesh{servers: []string{full.address, idle.address}, policy: readEnvoy(t, "workers.yaml").policy(t)})
	untilWeighed(t, p.dial(t), "idle")
}
