//go:build xds

package e2e

import (
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	orcapb "github.com/cncf/xds/go/xds/data/orca/v3"
	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routepb "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millrace/millrace/services/internal/certs/certstest"
	"github.com/millrace/millrace/services/internal/rpc"
)

// envoyVariable names the program of these tests. One on the PATH is not used: it may be there for
// other purposes.
const envoyVariable = "MILLRACE_TEST_ENVOY"

// envoy is an Envoy in front of servers.
type envoy struct {
	*proxy
	admin string
}

// needEnvoy returns the path of Envoy, or skips the test if there is none.
func needEnvoy(t *testing.T) string {
	t.Helper()
	path := os.Getenv(envoyVariable)
	if path == "" {
		t.Skipf("no Envoy: set %s to the path of its program, which its project publishes for each release", envoyVariable)
	}
	return path
}

// startEnvoy starts Envoy in plaintext with a file of deploy/envoy after change.
func startEnvoy(t *testing.T, name string, behind []*server, change func(*envoyConfig)) *envoy {
	t.Helper()
	var addresses []string
	for _, s := range behind {
		addresses = append(addresses, s.address)
	}
	return startEnvoyTo(t, name, addresses, nil, func(c *envoyConfig) {
		c.StaticResources.Listeners[0].FilterChains[0].TransportSocket, c.cluster.TransportSocket = nil, nil
		if change != nil {
			change(c)
		}
	})
}

// startEnvoyTo starts an Envoy that callers dial with credentials; nil is plaintext.
func startEnvoyTo(t *testing.T, name string, behind []string, creds grpc.DialOption, change func(*envoyConfig)) *envoy {
	t.Helper()
	path := needEnvoy(t)
	for range 5 {
		e := &envoy{&proxy{server: &server{address: freeAddress(t), creds: creds}, dir: t.TempDir()}, freeAddress(t)}
		c := readEnvoy(t, name)
		c.Admin.Address, c.StaticResources.Listeners[0].Address = socket(t, e.admin), socket(t, e.address)
		c.cluster.ClusterDiscoveryType = &clusterpb.Cluster_Type{Type: clusterpb.Cluster_STATIC}
		place := &endpointpb.LocalityLbEndpoints{}
		for _, a := range behind {
			place.LbEndpoints = append(place.LbEndpoints, &endpointpb.LbEndpoint{
				HostIdentifier: &endpointpb.LbEndpoint_Endpoint{Endpoint: &endpointpb.Endpoint{Address: socket(t, a)}},
			})
		}
		c.cluster.LoadAssignment.Endpoints = []*endpointpb.LocalityLbEndpoints{place}
		change(c)
		file := filepath.Join(e.dir, "envoy.json")
		require.NoError(t, os.WriteFile(file, c.bytes(t), 0o600))
		e.process = launch(t, path, "-c", file, "--disable-hot-restart", "--concurrency", "2", "--log-level", "warn")
		if e.listens(t) {
			e.connect(t)
			return e
		}
	}
	require.FailNow(t, "no port is free for long enough")
	return nil
}

// socket returns an address as a message of Envoy's API.
func socket(t *testing.T, address string) *corepb.Address {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	number, err := strconv.ParseUint(port, 10, 16)
	require.NoError(t, err)
	return &corepb.Address{Address: &corepb.Address_SocketAddress{SocketAddress: &corepb.SocketAddress{
		Address: host, PortSpecifier: &corepb.SocketAddress_PortValue{PortValue: uint32(number)},
	}}}
}

// stat returns one of its counters.
func (e *envoy) stat(t *testing.T, name string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(within(t), http.MethodGet, "http://"+e.admin+"/stats?filter=^"+name+"$", http.NoBody)
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	_, value, _ := strings.Cut(strings.TrimSpace(string(body)), ": ")
	number, err := strconv.Atoi(value)
	require.NoError(t, err, "%s: %s", name, body)
	return number
}

func TestEnvoySendsCallsPastASchedulerThatIsGone(t *testing.T) {
	t.Parallel()
	needEnvoy(t)
	w := startWorker(t, "w1", paced...)
	a, b := startScheduler(t, []*server{w}), startScheduler(t, []*server{w})
	for _, s := range []*server{a, b} {
		s.untilServed(t, long, 1)
	}
	e := startEnvoy(t, "gateway.yaml", []*server{a, b}, nil)
	good(t, e.server, long)
	a.kill()
	for range 20 {
		good(t, e.server, long)
	}
}

func TestEnvoyStreamsOutlastStoppingSchedulers(t *testing.T) {
	t.Parallel()
	needEnvoy(t)
	w := startWorker(t, "w1", paced...)
	a, b := startScheduler(t, []*server{w}, "--drain-timeout", hang.String()), startScheduler(t, []*server{w})
	for _, s := range []*server{a, b} {
		s.untilServed(t, long, 1)
	}
	e := startEnvoy(t, "gateway.yaml", []*server{a, b}, nil)
	calls := beginAll(t, e.server, 8, endless) // least request, so both servers have some
	flipped := a.readiness(t)
	a.terminate()
	flipped()
	for range 10 {
		good(t, e.server, long)
	}
	goOn(t, calls)
	require.True(t, a.alive(), "it waits for the streams that it has: Envoy had given it some")
}

func TestEnvoyResetsStreamsOfALostScheduler(t *testing.T) {
	t.Parallel()
	needEnvoy(t)
	w := startWorker(t, "w1", paced...)
	s := startScheduler(t, []*server{w})
	s.untilServed(t, long, 1)
	c := beginAll(t, startEnvoy(t, "gateway.yaml", []*server{s}, nil).server, 1, endless)[0]
	s.kill()
	require.Equal(t, fault{code: codes.Internal}, faultOf(c.end().err), "%v", c.err)
	w.untilIdle(t)
}

// Each limit of Envoy ends an endless stream, on the device too, without one of our reasons; the
// file as shipped ends none.
func TestEnvoysTimeLimitsCutStreams(t *testing.T) {
	t.Parallel()
	needEnvoy(t)
	second := durationpb.New(time.Second)
	for name, change := range map[string]func(*envoyConfig){
		"the route's, unset, which is 15 s": func(c *envoyConfig) { c.route.Timeout = nil },
		"the route's":                       func(c *envoyConfig) { c.route.Timeout = second },
		"that of streams": func(c *envoyConfig) {
			c.route.MaxStreamDuration = &routepb.RouteAction_MaxStreamDuration{MaxStreamDuration: second}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := startWorker(t, "w1", paced...)
			kept := beginAll(t, startEnvoy(t, "gateway.yaml", []*server{w}, nil).server, 1, endless)[0]
			cut := beginAll(t, startEnvoy(t, "gateway.yaml", []*server{w}, change).server, 1, endless)[0].end()
			require.Error(t, cut.err)
			require.Nil(t, cut.finished)
			require.Empty(t, rpc.Domain(cut.err), "it is not a word of ours: %v", cut.err)
			goOn(t, []*call{kept})
			kept.leave()
			w.untilIdle(t)
		})
	}
}

// Steps of three seconds are longer than a second.
func TestEnvoyThatAllowsNoSilenceCutsPromptsOff(t *testing.T) {
	t.Parallel()
	needEnvoy(t)
	w := startWorker(t, "w1", "--device", "sim:step=3s,prefill=0s,decode=0s", "--load", long)
	e := startEnvoy(t, "gateway.yaml", []*server{w}, func(c *envoyConfig) { c.manager.StreamIdleTimeout = durationpb.New(time.Second) })
	o := generate(within(t), e.infer, ask(long, 60))
	require.Error(t, o.err)
	require.Empty(t, rpc.Domain(o.err), "it is not a word of ours: %v", o.err)
	w.untilIdle(t)
}

func TestEnvoyThatAgesConnectionsLosesNoStream(t *testing.T) {
	t.Parallel()
	needEnvoy(t)
	w := startWorker(t, "w1", paced...)
	e := startEnvoy(t, "gateway.yaml", []*server{w}, func(c *envoyConfig) {
		c.manager.CommonHttpProtocolOptions = &corepb.HttpProtocolOptions{MaxConnectionDuration: durationpb.New(time.Second)}
		c.manager.DrainTimeout = durationpb.New(100 * time.Millisecond)
	})
	calls := beginAll(t, e.server, 4, endless)
	require.Eventually(t, func() bool { return e.stat(t, "http.callers.downstream_cx_max_duration_reached") > 0 }, hang, 10*time.Millisecond)
	require.Eventually(t, func() bool {
		good(t, e.server, long)
		return e.stat(t, "http.callers.downstream_cx_total") > 1
	}, hang, 10*time.Millisecond, "calls from then on have another connection")
	goOn(t, calls)
}

func TestEnvoyForwardsMetadata(t *testing.T) {
	// Headers, trailers and error details pass through Envoy.
	t.Parallel()
	needEnvoy(t)
	w1, w2 := startWorker(t, "w1", paced...), startWorker(t, "w2", paced...)
	s := startScheduler(t, []*server{w1, w2}, "--load-reports")
	s.untilServed(t, long, 2)
	e := startEnvoy(t, "gateway.yaml", []*server{s}, nil)
	keyed := metadata.AppendToOutgoingContext(within(t), rpc.RoutingKey, "alice", rpc.RequestIDKey, "of-the-caller")
	home := generate(keyed, e.infer, ask(long, 3)).started.GetWorkerId()
	for range 10 {
		require.Equal(t, home, generate(keyed, e.infer, ask(long, 3)).started.GetWorkerId(), "its key leads to one worker")
	}
	undatedCall := metadata.AppendToOutgoingContext(undated(t), rpc.RequestIDKey, "undated")
	require.NoError(t, generate(undatedCall, e.infer, ask(long, 3)).err)
	for id, dated := range map[string]bool{"of-the-caller": true, "undated": false} {
		var line string
		require.Eventually(t, func() bool {
			_, after, found := strings.Cut(s.log.String(), "request_id="+id+" ")
			line, _, _ = strings.Cut(after, "\n")
			return found
		}, hang, 10*time.Millisecond, "a caller's id is that of the log")
		require.Equal(t, dated, strings.Contains(line, "grpc.request.deadline="), "a caller's deadline is the only one: %s", line)
	}

	stream, err := e.infer.Generate(within(t), ask(long, 3))
	for err == nil {
		_, err = stream.Recv()
	}
	require.ErrorIs(t, err, io.EOF)
	raw := stream.Trailer().Get(rpc.LoadReportPrefix + "-bin")
	require.Len(t, raw, 1)
	require.NoError(t, proto.Unmarshal([]byte(raw[0]), &orcapb.OrcaLoadReport{}))
	require.Equal(t, fault{codes.NotFound, rpc.SchedulerDomain, "UNKNOWN_MODEL"}, faultOf(generate(within(t), e.infer, ask("no-such-model", 3)).err))
}

func TestEnvoysRetriesAreOfCallsWithoutAnswer(t *testing.T) {
	t.Parallel()
	needEnvoy(t)
	requireSafeRetries(t, func(t *testing.T, addresses ...string) *grpc.ClientConn {
		t.Helper()
		var behind []*server
		for _, a := range addresses {
			behind = append(behind, &server{address: a})
		}
		// The refusing server has no health service.
		return startEnvoy(t, "workers.yaml", behind, func(c *envoyConfig) { c.cluster.HealthChecks = nil }).conn
	})
}

func TestEnvoyWeighsWorkersByTheirLoadReports(t *testing.T) {
	t.Parallel()
	needEnvoy(t)
	full, idle := weighted(t)
	untilWeighed(t, startEnvoy(t, "workers.yaml", []*server{full, idle}, nil).conn, "idle")
}

func TestEnvoySpeaksMutualTLSWithSchedulers(t *testing.T) {
	t.Parallel()
	needEnvoy(t)
	g := guard(t, 1)
	g.scheduler.untilServed(t, long, 1)
	gateway := certstest.Save(t, g.ca.Issue(t, "dns:gateway", "ip:127.0.0.1"))
	e := startEnvoyTo(t, "gateway.yaml", []string{g.scheduler.address}, g.client, func(c *envoyConfig) {
		swap := func(common *tlspb.CommonTlsContext) {
			common.TlsCertificates[0].CertificateChain = filed(gateway.Cert)
			common.TlsCertificates[0].PrivateKey = filed(gateway.Key)
			if trusted := common.GetValidationContext(); trusted != nil {
				trusted.TrustedCa = filed(g.ca.File)
			}
		}
		var down tlspb.DownstreamTlsContext
		packed := c.StaticResources.Listeners[0].FilterChains[0].TransportSocket.GetTypedConfig()
		require.NoError(t, packed.UnmarshalTo(&down))
		swap(down.CommonTlsContext)
		require.NoError(t, packed.MarshalFrom(&down))
		var up tlspb.UpstreamTlsContext
		packed = c.cluster.TransportSocket.GetTypedConfig()
		require.NoError(t, packed.UnmarshalTo(&up))
		swap(up.CommonTlsContext)
		require.NoError(t, packed.MarshalFrom(&up))
	})
	good(t, e.server, long)
}

// filed decodes a file as a message of Envoy's API.
func filed(name string) *corepb.DataSource {
	return &corepb.DataSource{Specifier: &corepb.DataSource_Filename{Filename: name}}
}
