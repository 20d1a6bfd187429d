//go:build xds

package e2e

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routepb "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	managerpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	weightedpb "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/client_side_weighted_round_robin/v3"
	localitypb "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/wrr_locality/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	control "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/xds"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// node is the client's identity at the control plane.
const node = "caller"

// plane is a control plane in this process, with the addresses of the fleet and the rules of calls.
type plane struct {
	bootstrap []byte // of clients
	cache     cache.SnapshotCache
	version   int
}

// mesh is its configuration.
type mesh struct {
	servers []string
	route   *routepb.RouteAction // nil: no limits
	policy  proto.Message        // of load balancing; nil: round robin
}

func startPlane(t *testing.T) *plane {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &plane{cache: cache.NewSnapshotCache(true, cache.IDHash{}, nil)}
	p.bootstrap, err = json.Marshal(map[string]any{
		"xds_servers": []any{map[string]any{
			"server_uri": lis.Addr().String(), "channel_creds": []any{map[string]any{"type": "insecure"}}, "server_features": []any{"xds_v3"},
		}},
		"node": map[string]any{"id": node},
	})
	require.NoError(t, err)
	s := grpc.NewServer()
	discoverypb.RegisterAggregatedDiscoveryServiceServer(s, control.NewServer(t.Context(), p.cache, nil))
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	t.Cleanup(func() { s.Stop(); require.NoError(t, <-served) })
	return p
}

// set replaces the configuration of xds:///fleet.
func (p *plane) set(t *testing.T, m mesh) {
	t.Helper()
	pack := func(m proto.Message) *anypb.Any {
		packed, err := anypb.New(m)
		require.NoError(t, err)
		return packed
	}
	action := m.route
	if action == nil {
		action = &routepb.RouteAction{}
	}
	action.ClusterSpecifier = &routepb.RouteAction_Cluster{Cluster: "servers"}
	manager := &managerpb.HttpConnectionManager{
		RouteSpecifier: &managerpb.HttpConnectionManager_RouteConfig{RouteConfig: &routepb.RouteConfiguration{
			Name: "routes", VirtualHosts: []*routepb.VirtualHost{{Name: "all", Domains: []string{"*"}, Routes: []*routepb.Route{{
				Match:  &routepb.RouteMatch{PathSpecifier: &routepb.RouteMatch_Prefix{}},
				Action: &routepb.Route_Route{Route: action},
			}}}},
		}},
		HttpFilters: []*managerpb.HttpFilter{{Name: "router", ConfigType: &managerpb.HttpFilter_TypedConfig{TypedConfig: pack(&routerpb.Router{})}}},
	}
	servers := &clusterpb.Cluster{
		Name: "servers", ClusterDiscoveryType: &clusterpb.Cluster_Type{Type: clusterpb.Cluster_EDS},
		EdsClusterConfig: &clusterpb.Cluster_EdsClusterConfig{EdsConfig: &corepb.ConfigSource{ConfigSourceSpecifier: &corepb.ConfigSource_Ads{}}},
	}
	policies := func(m proto.Message) *clusterpb.LoadBalancingPolicy {
		return &clusterpb.LoadBalancingPolicy{Policies: []*clusterpb.LoadBalancingPolicy_Policy{{
			TypedExtensionConfig: &corepb.TypedExtensionConfig{Name: "policy", TypedConfig: pack(m)},
		}}}
	}
	if m.policy != nil {
		servers.LoadBalancingPolicy = policies(&localitypb.WrrLocality{EndpointPickingPolicy: policies(m.policy)})
	}
	place := &endpointpb.LocalityLbEndpoints{Locality: &corepb.Locality{Region: "here"}, LoadBalancingWeight: wrapperspb.UInt32(1)}
	for _, address := range m.servers {
		host, port, err := net.SplitHostPort(address)
		require.NoError(t, err)
		number, err := strconv.ParseUint(port, 10, 16)
		require.NoError(t, err)
		place.LbEndpoints = append(place.LbEndpoints, &endpointpb.LbEndpoint{HostIdentifier: &endpointpb.LbEndpoint_Endpoint{
			Endpoint: &endpointpb.Endpoint{Address: &corepb.Address{Address: &corepb.Address_SocketAddress{SocketAddress: &corepb.SocketAddress{
				Address: host, PortSpecifier: &corepb.SocketAddress_PortValue{PortValue: uint32(number)},
			}}}},
		}})
	}
	p.version++
	snapshot, err := cache.NewSnapshot(strconv.Itoa(p.version), map[resource.Type][]types.Resource{
		resource.ListenerType: {&listenerpb.Listener{Name: "fleet", ApiListener: &listenerpb.ApiListener{ApiListener: pack(manager)}}},
		resource.ClusterType:  {servers},
		resource.EndpointType: {&endpointpb.ClusterLoadAssignment{ClusterName: "servers", Endpoints: []*endpointpb.LocalityLbEndpoints{place}}},
	})
	require.NoError(t, err)
	require.NoError(t, p.cache.SetSnapshot(t.Context(), node, snapshot))
}

// dial dials xds:///fleet as a client of the project does.
func (p *plane) dial(t *testing.T) *grpc.ClientConn {
	t.Helper()
	knows, err := xds.NewXDSResolverWithConfigForTesting(p.bootstrap)
	require.NoError(t, err)
	return dial(t, "xds:///fleet", grpc.WithResolvers(knows))
}

// called returns the server of a call.
func (c *call) called(t *testing.T) string {
	t.Helper()
	at, ok := peer.FromContext(c.stream.Context())
	require.True(t, ok)
	return at.Addr.String()
}

func TestClientsFindSchedulersByAControlPlane(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", paced...)
	a, b := startScheduler(t, []*server{w}), startScheduler(t, []*server{w})
	for _, s := range []*server{a, b} {
		s.untilServed(t, long, 1)
	}
	p := startPlane(t)
	p.set(t, mesh{servers: []string{a.address, b.address}})
	on := &server{infer: pb.NewInferenceServiceClient(p.dial(t))}
	calls := map[string]*call{}
	guard := time.Now().Add(hang)
	for len(calls) < 2 {
		require.True(t, time.Now().Before(guard), "calls go to both by turns")
		c := beginAll(t, on, 1, endless)[0]
		if at := c.called(t); calls[at] == nil {
			calls[at] = c
		} else {
			c.leave()
		}
	}

	// A scheduler that the control plane removes gets no more calls and keeps its open ones.
	p.set(t, mesh{servers: []string{b.address}})
	for others := 0; others < 10; others++ {
		require.True(t, time.Now().Before(guard), "it gets no more")
		c := beginAll(t, on, 1, endless)[0]
		if c.called(t) == a.address {
			others = 0
		}
		c.leave()
	}
	goOn(t, []*call{calls[a.address], calls[b.address]})

	// One that dies gets no further call, even if the control plane still lists it.
	p.set(t, mesh{servers: []string{a.address, b.address}})
	a.kill()
	require.Eventually(t, func() bool { return generate(within(t), on.infer, ask(long, 3)).err == nil }, hang, time.Millisecond)
	goOn(t, []*call{calls[b.address]})
}

// Only Envoy applies a route's timeout; to a proxyless client max_stream_duration is a deadline.
func TestControlPlaneStreamLimitsAreDeadlines(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", paced...)
	p := startPlane(t)
	p.set(t, mesh{servers: []string{w.address}, route: &routepb.RouteAction{Timeout: durationpb.New(time.Millisecond)}})
	o := generate(within(t), pb.NewInferenceServiceClient(p.dial(t)), ask(long, 100)) // of 2 ms each
	require.NoError(t, o.err)
	require.Len(t, o.ids, 100)

	p = startPlane(t)
	p.set(t, mesh{servers: []string{w.address}, route: &routepb.RouteAction{
		MaxStreamDuration: &routepb.RouteAction_MaxStreamDuration{MaxStreamDuration: durationpb.New(time.Second)},
	}})
	stream, err := pb.NewInferenceServiceClient(p.dial(t)).Generate(undated(t), endless())
	for err == nil {
		_, err = stream.Recv()
	}
	require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
	w.untilIdle(t)
}

func TestControlPlaneRetriesWithoutAnswer(t *testing.T) {
	t.Parallel()
	requireSafeRetries(t, func(t *testing.T, addresses ...string) *grpc.ClientConn {
		t.Helper()
		p := startPlane(t)
		p.set(t, mesh{servers: addresses, route: &routepb.RouteAction{RetryPolicy: &routepb.RetryPolicy{
			RetryOn: "unavailable", NumRetries: wrapperspb.UInt32(3),
			RetryBackOff: &routepb.RetryPolicy_RetryBackOff{BaseInterval: durationpb.New(10 * time.Millisecond), MaxInterval: durationpb.New(100 * time.Millisecond)},
		}}})
		return p.dial(t)
	})
}

func TestControlPlaneWeighsByLoadReports(t *testing.T) {
	t.Parallel()
	full, idle := weighted(t)
	p := startPlane(t)
	p.set(t, mesh{servers: []string{full.address, idle.address}, policy: &weightedpb.ClientSideWeightedRoundRobin{
		BlackoutPeriod: durationpb.New(0), WeightUpdatePeriod: durationpb.New(100 * time.Millisecond),
	}})
	untilWeighed(t, p.dial(t), "idle")
}

// A client built with the tag accepts such a target; the error of one without it names the tag.
func TestClientDialsAControlPlaneTarget(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", paced...)
	p := startPlane(t)
	p.set(t, mesh{servers: []string{w.address}})
	built := filepath.Join(t.TempDir(), "millrace")
	build := exec.CommandContext(t.Context(), "go", "build", "-tags", "xds", "-o", built, "./services/millrace")
	build.Dir = root
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	run := func(binary string) (string, error) {
		cmd := exec.CommandContext(within(t), binary, "generate", "--target", "xds:///fleet", "--insecure", "-m", long, "--max-tokens", "3", "Once")
		cmd.Env = append(os.Environ(), "GRPC_XDS_BOOTSTRAP_CONFIG="+string(p.bootstrap))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	said, err := run(built)
	require.NoError(t, err, said)
	said, err = run(clientBinary)
	require.Error(t, err)
	require.Contains(t, said, "built without xDS")
}
