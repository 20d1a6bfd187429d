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
	"strconv"
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

// proxyConfig makes nginx a gRPC proxy with its defaults, except for the lines of a test.
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

// proxy is nginx in front of servers.
type proxy struct {
	*server
	dir string
}

// startProxy starts a proxy, or skips the test if there is no nginx. set are lines of its
// configuration.
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

// listens waits until the proxy listens; it returns false if its port was taken.
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

// connections returns the connections of calls that have ended.
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

// goOn requires that open streams continue.
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

// A proxy closes a connection gracefully: its streams run to their ends, and later calls go
// elsewhere. A scheduler that stops does the same.
func TestProxyStreamsOutlastStoppingSchedulers(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", paced...)
	a, b := startScheduler(t, []*server{w}, "--drain-timeout", hang.String()), startScheduler(t, []*server{w})
	for _, s := range []*server{a, b} {
		s.untilServed(t, long, 1)
	}
	p := startProxy(t, []*server{a, b})
	calls := beginAll(t, p.server, 4, endless) // round robin, so both have some
	flipped := a.readiness(t)
	a.terminate()
	flipped()
	// A call that connects just before the port is closed is cut, and a proxy does not retry calls.
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
	p := startProxy(t, []*server{w}, "keepalive_requests 3") // calls of a connection, which ends after them
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

// A stream that is silent for longer than the proxy allows is ended, on the device too. The steps
// take a second, and the proxy allows a tenth.
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

func TestProxyAcceptsPromptsOfAMebibyte(t *testing.T) {
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

func TestProxyForwardsMetadata(t *testing.T) {
	// Headers, trailers and error details pass through the proxy.
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

	// Trailers: the load report of a worker, which a scheduler does not forward, and the details of
	// a refusal.
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

// retrying is a service config by which gRPC sends calls that ended UNAVAILABLE up to four times.
const retrying = `{"loadBalancingConfig": [{"round_robin": {}}], "methodConfig": [{"name": [{}], "retryPolicy": {
	"maxAttempts": 4, "initialBackoff": "0.01s", "maxBackoff": "0.1s", "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]}}]}`

// flaky refuses every call, or breaks it after its first event, and counts the calls.
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

// startFlaky starts a flaky server; calls returns the number of its calls.
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

// requireSafeRetries checks, on a connection to a worker and a flaky server, that calls which the
// flaky one refuses are sent to the worker, and that calls which it has begun to answer are not.
func requireSafeRetries(t *testing.T, dial func(t *testing.T, addresses ...string) *grpc.ClientConn) {
	t.Helper()
	w := startWorker(t, "w1", paced...)
	for _, events := range []int{0, 1} {
		t.Run(fmt.Sprint("after events: ", events), func(t *testing.T) {
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

// A proxy that has forwarded a part of an answer can only reset its stream when the server is lost,
// and gRPC reports a reset as INTERNAL. An error of the server itself has one of our reasons; the
// reset has none.
func TestProxyResetsStreamsOfALostScheduler(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", paced...)
	s := startScheduler(t, []*server{w})
	s.untilServed(t, long, 1)
	p := startProxy(t, []*server{s})
	c := beginAll(t, p.server, 1, endless)[0]
	s.kill()
	require.Equal(t, fault{code: codes.Internal}, faultOf(c.end().err), "%v", c.err)
	w.untilIdle(t)
}

func TestLanguageClientsResumeThroughAProxy(t *testing.T) {
	t.Parallel()
	inEach(t, func(c exampleClient) {
		t := c.T
		w := startWorker(t, "w1", "--device", "sim:step=5ms,prefill=0s,decode=0s", "--load", long)
		a, b := startScheduler(t, []*server{w}), startScheduler(t, []*server{w})
		for _, s := range []*server{a, b} {
			s.untilServed(t, long, 1)
		}
		p := startProxy(t, []*server{a, {address: b.address + " backup"}})
		const tokens = 1500
		want := toldInGo(t, startWorker(t, "w2", append([]string{"--load", long}, quick...)...), long, tokens)
		printed, complaint, err := c.story(func(string) { a.kill() }, "--target", p.address, "--model", long,
			"--seed", "7", "--max-tokens", strconv.Itoa(tokens))
		require.NoError(t, err, complaint)
		require.Equal(t, want, printed)
		require.Eventually(t, func() bool { return strings.Contains(b.log.String(), "grpc.method=Generate") }, hang, hang/1000, "nothing was lost: nothing is proven")
	})
}
