package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"text/template"
	"time"

	orcapb "github.com/cncf/xds/go/xds/data/orca/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// proxyConfig is nginx as a proxy of gRPC with what it does by default, but for what a test sets.
var proxyConfig = template.Must(template.New("nginx").Parse(`{{if .Root}}user root;
{{end}}daemon off;
master_process off;
pid {{.Dir}}/pid;
error_log stderr warn;
events { worker_connections 1024; }
http {
	log_format connections 'connection=$connection.';
	access_log {{.Dir}}/access.log connections;
	client_body_temp_path {{.Dir}}/body;
	proxy_temp_path {{.Dir}}/proxy;
	fastcgi_temp_path {{.Dir}}/fastcgi;
	uwsgi_temp_path {{.Dir}}/uwsgi;
	scgi_temp_path {{.Dir}}/scgi;
	upstream servers {
{{range .Servers}}		server {{.}};
{{end}}	}
	server {
		listen {{.Listen}} http2;
{{range .Set}}		{{.}};
{{end}}		location / { grpc_pass grpc://servers; }
	}
}
`))

// proxy is nginx before servers.
type proxy struct {
	*server
	dir string
}

// startProxy starts one, or skips the test where there is none. set are lines of its configuration.
func startProxy(t *testing.T, behind []*server, set ...string) *proxy {
	t.Helper()
	path, err := exec.LookPath("nginx")
	if err != nil {
		if path, err = exec.LookPath("/usr/sbin/nginx"); err != nil {
			t.Skip("no nginx: apt install nginx-light")
		}
	}
	var addresses []string
	for _, s := range behind {
		addresses = append(addresses, s.address)
	}
	for range 5 {
		p := &proxy{server: &server{address: freeAddress(t)}, dir: t.TempDir()}
		var text strings.Builder
		require.NoError(t, proxyConfig.Execute(&text, map[string]any{
			"Root": os.Geteuid() == 0, "Dir": p.dir, "Listen": p.address, "Servers": addresses, "Set": set,
		}))
		file := filepath.Join(p.dir, "nginx.conf")
		require.NoError(t, os.WriteFile(file, []byte(text.String()), 0o600))
		p.process = launch(t, path, "-e", "stderr", "-p", p.dir, "-c", file)
		if p.listens(t) {
			p.connect(t)
			return p
		}
	}
	require.FailNow(t, "no port is free for long enough")
	return nil
}

// listens waits until it does; false means that somebody else took its port.
func (p *proxy) listens(t *testing.T) bool {
	t.Helper()
	for deadline := time.Now().Add(hang); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if !p.alive() {
			require.Contains(t, p.log.String(), "Address already in use")
			return false
		}
		if conn, err := net.DialTimeout("tcp", p.address, time.Second); err == nil {
			return conn.Close() == nil
		}
	}
	require.FailNow(t, "it does not listen", p.log.String())
	return false
}

// connections are those on which calls came that have ended.
func (p *proxy) connections(t *testing.T) (calls int, on map[string]bool) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir, "access.log"))
	require.NoError(t, err)
	on = map[string]bool{}
	for _, found := range regexp.MustCompile(`connection=(\d+)\.`).FindAllStringSubmatch(string(text), -1) {
		calls++
		on[found[1]] = true
	}
	return calls, on
}

// goOn requires that streams which stand go on.
func goOn(t *testing.T, calls []*call) {
	t.Helper()
	for i, c := range calls {
		for had := len(c.ids); len(c.ids) < had+10; {
			require.NoError(t, c.read(), "stream %d", i)
		}
	}
}

func TestAProxySendsCallsPastASchedulerThatIsGone(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", paced...)
	a, b := startScheduler(t, []*server{w}), startScheduler(t, []*server{w})
	for _, s := range []*server{a, b} {
		s.untilServed(t, long, 1)
	}
	p := startProxy(t, []*server{a, b})
	good(t, p.server, long)
	a.kill()
	for range 20 {
		good(t, p.server, long)
	}
}

// A proxy closes a connection in peace: who is on it reads to the end, and calls from then on go elsewhere. A scheduler that is told to
// stop does the same.
func TestStreamsThroughAProxyOutlastSchedulersThatStop(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", paced...)
	a, b := startScheduler(t, []*server{w}, "--drain-timeout", hang.String()), startScheduler(t, []*server{w})
	for _, s := range []*server{a, b} {
		s.untilServed(t, long, 1)
	}
	p := startProxy(t, []*server{a, b})
	calls := beginAll(t, p.server, 4, endless) // by turns, so that both have some
	flipped := a.readiness(t)
	a.terminate()
	flipped()
	// Whoever connects in the moment before its port is closed is cut off when it is, and a proxy sends no call twice.
	require.Eventually(t, func() bool {
		conn, err := net.DialTimeout("tcp", a.address, time.Second)
		return err != nil || conn.Close() != nil
	}, hang, 5*time.Millisecond, "its port is closed")
	for range 10 {
		good(t, p.server, long)
	}
	goOn(t, calls)
	require.True(t, a.alive(), "it waits for the streams that it has: the proxy had given it some")
}

func TestAProxyThatAgesConnectionsLosesNoStream(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", append([]string{"--max-sequences", "64"}, paced...)...)
	p := startProxy(t, []*server{w}, "keepalive_requests 3") // of a connection, which then ends with its calls
	const streams = 12
	calls := beginAll(t, p.server, streams, endless)
	goOn(t, calls)
	for _, c := range calls {
		c.leave()
	}
	w.untilIdle(t)
	require.Eventually(t, func() bool {
		ended, on := p.connections(t)
		return ended == streams && len(on) >= streams/3
	}, hang, 10*time.Millisecond, "one connection for each three streams at least")
}

// What is silent for longer than a proxy allows is cut off, on the device too. Steps of a second are longer than a tenth.
func TestAProxyThatAllowsNoSilenceCutsPromptsOff(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", "--device", "sim:step=1s,prefill=0s,decode=0s", "--load", long)
	p := startProxy(t, []*server{w}, "grpc_read_timeout 100ms", "grpc_next_upstream off")
	o := generate(within(t), p.infer, ask(long, 60))
	require.Error(t, o.err)
	if o.started == nil {
		require.Equal(t, codes.Unavailable, status.Code(o.err), "%v", o.err)
	}
	require.Empty(t, rpc.Domain(o.err), "it is not a word of ours: %v", o.err)
	w.untilIdle(t)
}

func TestAProxyTakesPromptsOfAMebibyteUnlessToldOtherwise(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", paced...)
	large := ask(long, 1)
	large.Input = &pb.GenerateRequest_Prompt{Prompt: strings.Repeat("once upon a time ", 120_000)}
	of := func(p *proxy) error { return generate(within(t), p.infer, large).err }
	err := of(startProxy(t, []*server{w}))
	require.Contains(t, status.Convert(err).Message(), "413", "%v", err)
	err = of(startProxy(t, []*server{w}, "client_max_body_size 0"))
	require.Equal(t, rpc.WorkerDomain, rpc.Domain(err), "the worker itself says that it is too long: %v", err)
}

func TestAProxyPassesOnWhatCallsAndAnswersSayBesides(t *testing.T) {
	t.Parallel()
	w1, w2 := startWorker(t, "w1", paced...), startWorker(t, "w2", paced...)
	s := startScheduler(t, []*server{w1, w2})
	s.untilServed(t, long, 2)
	p := startProxy(t, []*server{s})
	keyed := metadata.AppendToOutgoingContext(within(t), rpc.RoutingKey, "alice", rpc.RequestIDKey, "of-the-caller")
	home := generate(keyed, p.infer, ask(long, 3)).started.GetWorkerId()
	for range 10 {
		require.Equal(t, home, generate(keyed, p.infer, ask(long, 3)).started.GetWorkerId(), "its key leads to one worker")
	}
	require.Eventually(t, func() bool { return strings.Contains(s.log.String(), "of-the-caller") }, hang, 10*time.Millisecond)

	// Trailers: the report by which balancers weigh workers, which a scheduler keeps to itself, and the details of a refusal.
	reports := func(on *proxy) []string {
		stream, err := on.infer.Generate(within(t), ask(long, 3))
		require.NoError(t, err)
		for err == nil {
			_, err = stream.Recv()
		}
		require.ErrorIs(t, err, io.EOF)
		return stream.Trailer().Get(rpc.LoadReportPrefix + "-bin")
	}
	require.Empty(t, reports(p))
	raw := reports(startProxy(t, []*server{w1}))
	require.Len(t, raw, 1)
	require.NoError(t, proto.Unmarshal([]byte(raw[0]), &orcapb.OrcaLoadReport{}))
	require.Equal(t, fault{codes.NotFound, rpc.SchedulerDomain, "UNKNOWN_MODEL"}, faultOf(generate(within(t), p.infer, ask("no-such-model", 3)).err))
}

// retrying are what gRPC's own retries are told: calls that ended UNAVAILABLE are sent again, four times at most.
const retrying = `{"loadBalancingConfig": [{"round_robin": {}}], "methodConfig": [{"name": [{}], "retryPolicy": {
	"maxAttempts": 4, "initialBackoff": "0.01s", "maxBackoff": "0.1s", "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]}}]}`

// flaky refuses every call, or breaks it off behind its first event, and counts them.
type flaky struct {
	pb.UnimplementedInferenceServiceServer
	events int
	seen   chan struct{}
}

func (f *flaky) Generate(_ *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	f.seen <- struct{}{}
	for range f.events {
		if err := stream.Send(&pb.GenerateResponse{Event: &pb.GenerateResponse_Started{Started: &pb.Started{}}}); err != nil {
			return err
		}
	}
	return status.Error(codes.Unavailable, "broken off")
}

// startFlaky serves one; calls is how many it has had.
func startFlaky(t *testing.T, events int) (address string, calls func() int) {
	t.Helper()
	f := &flaky{events: events, seen: make(chan struct{}, 1000)}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer()
	pb.RegisterInferenceServiceServer(s, f)
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	t.Cleanup(func() { s.Stop(); require.NoError(t, <-served) })
	return lis.Addr().String(), func() int { return len(f.seen) }
}

// requireSafeRetries checks on a connection to a worker and a flaky server that calls which the latter refuses are made again elsewhere,
// and those that it has begun to answer are not.
func requireSafeRetries(t *testing.T, dial func(t *testing.T, addresses ...string) *grpc.ClientConn) {
	t.Helper()
	w := startWorker(t, "w1", paced...)
	for _, events := range []int{0, 1} {
		t.Run(fmt.Sprint("behind events: ", events), func(t *testing.T) {
			address, calls := startFlaky(t, events)
			client := pb.NewInferenceServiceClient(dial(t, w.address, address))
			call := func() error {
				stream, err := client.Generate(within(t), ask(long, 3))
				for err == nil {
					_, err = stream.Recv()
				}
				if errors.Is(err, io.EOF) {
					return nil
				}
				require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
				return err
			}
			guard := time.Now().Add(hang)
			for call() != nil {
				require.True(t, time.Now().Before(guard), "the worker is never connected")
			}
			failed, before := 0, calls()
			for calls() < before+10 {
				require.True(t, time.Now().Before(guard), "the other one is never called")
				if call() != nil {
					failed++
				}
			}
			require.Equal(t, events*(calls()-before), failed, "a call that has an answer is never made twice, and one that has none always")
		})
	}
}
