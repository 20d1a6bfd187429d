package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/millrace/millrace/internal/cputest"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/certs"
	"github.com/millrace/millrace/services/internal/certs/certstest"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/internal/transport"
)

// guarded is a fleet with mutual TLS: workers accept a scheduler and an operator, a scheduler
// accepts every certificate of the authority.
type guarded struct {
	ca        *certstest.Authority
	names     map[string][]string        // of certificates, by owner
	files     map[string]certstest.Files // the same
	client    grpc.DialOption
	operator  grpc.DialOption
	workers   []*server
	scheduler *server
}

// newGuarded makes the certificates of a fleet and starts nothing.
func newGuarded(t *testing.T) *guarded {
	t.Helper()
	g := &guarded{ca: certstest.New(t), files: map[string]certstest.Files{}, names: map[string][]string{
		"worker": {"uri:spiffe://example.org/worker", "ip:127.0.0.1"}, "scheduler": {"dns:scheduler", "ip:127.0.0.1"},
		"operator": {"dns:operator"}, "client": {"dns:client"},
	}}
	for who, names := range g.names {
		g.files[who] = certstest.Save(t, g.ca.Issue(t, names...))
	}
	g.client, g.operator = g.as(t, "client"), g.as(t, "operator")
	return g
}

// guard starts n workers with steps of 2 ms and their scheduler.
func guard(t *testing.T, n int) *guarded {
	t.Helper()
	g := newGuarded(t)
	var addresses []string
	for i := range n {
		args := append([]string{
			"--models", modelsDir, "--worker-id", fmt.Sprint("w", i), "--threads", "1", "--tls-client-san", "dns:scheduler,dns:operator",
		}, cputest.Flags()...)
		w := serveTo(t, g.operator, workerBinary, append(append(args, g.serving("worker")...), paced...)...)
		g.workers, addresses = append(g.workers, w), append(addresses, w.address)
	}
	g.scheduler = serveTo(t, g.client, schedulerBinary, slices.Concat(g.serving("scheduler"), patient, []string{
		"--workers", strings.Join(addresses, ","), "--tls-ca", g.ca.File, "--tls-server-san", "uri:spiffe://example.org/worker",
	})...)
	return g
}

// serving returns the flags of a server that requires certificates.
func (g *guarded) serving(who string) []string {
	return []string{"--tls-cert", g.files[who].Cert, "--tls-key", g.files[who].Key, "--tls-client-ca", g.ca.File}
}

// as returns the dial option of an owner.
func (g *guarded) as(t *testing.T, who string) grpc.DialOption {
	t.Helper()
	creds, err := (&transport.Flags{CA: g.ca.File, Cert: g.files[who].Cert, Key: g.files[who].Key}).Dialer(rpctest.Logger(t))
	require.NoError(t, err)
	return grpc.WithTransportCredentials(creds)
}

func TestMutualTLSServesAndFailsOver(t *testing.T) {
	t.Parallel()
	g := guard(t, 2)
	g.scheduler.untilServed(t, long, 2)
	want := undisturbed(t, startWorker(t, "plain", paced...), []*pb.GenerateRequest{story(long, 500, 1), held(story(long, 500, 2))})
	calls := beginAll(t, g.scheduler, 7, func() *pb.GenerateRequest { return story(long, 500, 1) })
	last := beginAll(t, g.scheduler, 1, func() *pb.GenerateRequest { return held(story(long, 500, 2)) })[0]
	for _, w := range g.workers {
		if last.started.GetWorkerId() == w.args[3] {
			w.kill()
		}
	}
	for i, c := range calls {
		requireSame(t, want[0], c.end(), fmt.Sprint("stream ", i))
	}
	requireSame(t, want[1], last.end(), "the stream that is under way when its worker is killed")
	require.Eventually(t, func() bool { return g.scheduler.resumes() > 0 }, hang, 10*time.Millisecond, "none was continued")

	// The client reads its certificates from flags or from the environment, and its error names
	// what is missing.
	flags := []string{"--tls-ca", g.ca.File, "--tls-cert", g.files["client"].Cert, "--tls-key", g.files["client"].Key}
	run := func(environment []string, args ...string) (string, error) {
		cmd := exec.CommandContext(within(t), clientBinary, append(args, "--target", g.scheduler.address)...)
		cmd.Env = append(os.Environ(), environment...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := run(nil, append([]string{"generate", "-m", long, "--max-tokens", "3", "Once"}, flags...)...)
	require.NoError(t, err, out)
	out, err = run([]string{"MILLRACE_TLS_CA=" + g.ca.File, "MILLRACE_TLS_CERT=" + g.files["client"].Cert, "MILLRACE_TLS_KEY=" + g.files["client"].Key}, "health")
	require.NoError(t, err, out)
	out, err = run(nil, "models", "--tls-ca", g.ca.File)
	require.Error(t, err)
	require.Contains(t, out, "cannot reach "+g.scheduler.address)
	out, err = run(nil, "models")
	require.Error(t, err)
	require.Contains(t, out, "--tls-ca")
	health := exec.CommandContext(within(t), schedulerBinary, append([]string{"health", "--target", g.scheduler.address}, flags...)...)
	text, err := health.CombinedOutput()
	require.NoError(t, err, string(text))
}

// methods returns all methods of a server by reflection, as paths of calls.
func methods(t *testing.T, conn *grpc.ClientConn) (all []string) {
	t.Helper()
	reflection, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(within(t))
	require.NoError(t, err)
	ask := func(in *reflectionpb.ServerReflectionRequest) *reflectionpb.ServerReflectionResponse {
		require.NoError(t, reflection.Send(in))
		out, err := reflection.Recv()
		require.NoError(t, err)
		return out
	}
	services := ask(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
	for _, s := range services.GetListServicesResponse().GetService() {
		files := ask(&reflectionpb.ServerReflectionRequest{
			MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: s.GetName()},
		}).GetFileDescriptorResponse().GetFileDescriptorProto()
		require.NotEmpty(t, files, s.GetName())
		file := &descriptorpb.FileDescriptorProto{}
		require.NoError(t, proto.Unmarshal(files[0], file))
		before := len(all)
		for _, service := range file.GetService() {
			for _, m := range service.GetMethod() {
				if full := file.GetPackage() + "." + service.GetName(); full == s.GetName() {
					all = append(all, "/"+full+"/"+m.GetName())
				}
			}
		}
		require.Greater(t, len(all), before, s.GetName())
	}
	return all
}

func TestMethodsRefuseUnauthorisedCallers(t *testing.T) {
	t.Parallel()
	g := guard(t, 1)
	w := g.workers[0]
	known := methods(t, w.conn)
	require.Contains(t, known, "/millrace.v1.WorkerService/Health")
	require.Contains(t, known, "/grpc.channelz.v1.Channelz/GetServers")
	require.Contains(t, known, "/grpc.health.v1.Health/Watch")
	stranger := dial(t, w.address, g.client)
	for _, method := range append(known, "/millrace.v1.NoService/NoMethod") {
		err := stranger.Invoke(within(t), method, &emptypb.Empty{}, &emptypb.Empty{})
		require.Equal(t, fault{codes.PermissionDenied, rpc.WorkerDomain, "CALLER_NOT_ALLOWED"}, faultOf(err), "%s: %v", method, err)
	}
	nobody, err := (&transport.Flags{CA: g.ca.File}).Dialer(rpctest.Logger(t))
	require.NoError(t, err)
	for _, on := range []*server{w, g.scheduler} {
		for _, method := range methods(t, on.conn) {
			err := dial(t, on.address, grpc.WithTransportCredentials(nobody)).Invoke(within(t), method, &emptypb.Empty{}, &emptypb.Empty{})
			require.Equal(t, codes.Unavailable, status.Code(err), "%s: %v", method, err)
		}
	}

	// A scheduler that workers refuse never learns of a fleet, and logs why.
	alien := launch(t, schedulerBinary, append(g.serving("client"), "--listen", freeAddress(t), "--workers", w.address,
		"--tls-ca", g.ca.File, "--tls-server-san", "uri:spiffe://example.org/worker")...)
	require.Eventually(t, func() bool {
		return strings.Contains(alien.log.String(), "the names of your certificate are dns:client")
	}, hang, 10*time.Millisecond)
	// A scheduler does not talk to a worker with another name in its certificate.
	wary := launch(t, schedulerBinary, append(g.serving("scheduler"), "--listen", freeAddress(t), "--workers", w.address,
		"--tls-ca", g.ca.File, "--tls-server-san", "uri:spiffe://example.org/other")...)
	require.Eventually(t, func() bool { return strings.Contains(wary.log.String(), "--tls-server-san allows none of them") }, hang, 10*time.Millisecond)
	g.scheduler.untilServed(t, long, 1)
	good(t, g.scheduler, long)
}

func TestCertificatesRotateUnderLoad(t *testing.T) {
	// No stream may fail while certificates and the authority are replaced.
	t.Parallel()
	g := guard(t, 2)
	g.scheduler.untilServed(t, long, 2)
	want := good(t, g.scheduler, long)

	// Callers that connect again for each call, and streams that stay open through all of it.
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	stop := sync.OnceFunc(func() { cancel(); callers.Wait() })
	t.Cleanup(stop)
	var failed atomic.Int64
	served, received := make([]atomic.Int64, 4), make([]atomic.Int64, 4) // calls by caller; tokens by open stream
	for i := range received {
		c, err := begin(ctx, g.scheduler.infer, endless())
		require.NoError(t, err)
		callers.Go(func() {
			for err == nil {
				received[i].Add(1)
				err = c.read()
			}
			if ctx.Err() == nil {
				failed.Add(1)
				t.Log("a standing stream: ", err)
			}
		})
	}
	for i := range served {
		callers.Go(func() {
			for ctx.Err() == nil {
				conn, err := rpc.Dial(g.scheduler.address, "e2e", g.client)
				if err == nil {
					o := generate(ctx, pb.NewInferenceServiceClient(conn), ask(long, 3))
					if err = o.err; err == nil && o.text != want.text {
						err = fmt.Errorf("it received %q", o.text)
					}
				}
				if conn != nil {
					_ = conn.Close()
				}
				if err != nil && ctx.Err() == nil {
					failed.Add(1)
					t.Log(err)
				}
				served[i].Add(1)
			}
		})
	}
	cycle := func(counts []atomic.Int64, more int64) {
		for i := range counts {
			before := counts[i].Load()
			require.Eventually(t, func() bool { return counts[i].Load() >= before+more || failed.Load() > 0 }, hang, 10*time.Millisecond)
		}
	}
	// Files are read when a connection is made, at most once a second. After that second a new
	// connection uses them. When every caller has ended its current stream and one more, no caller
	// uses the old files.
	pause := func() {
		time.Sleep(time.Second)
		cycle(served, 2)
	}
	next, err := certs.New("the next authority", time.Now().Add(-12*time.Hour), time.Now().Add(12*time.Hour))
	require.NoError(t, err)
	pause()
	certstest.Write(t, g.ca.File, append(bytes.Clone(g.ca.Cert), next.Cert...))
	pause()
	after := &certstest.Authority{Authority: next, File: g.ca.File}
	for who, names := range g.names {
		g.files[who].Replace(t, after.Issue(t, names...))
	}
	pause()
	certstest.Write(t, g.ca.File, next.Cert)
	pause()
	// A worker that restarts is dialled again, with certificates of the next authority.
	g.workers[0].kill()
	g.workers[0] = g.workers[0].again(t)
	g.scheduler.untilServed(t, long, 2)
	pause()
	cycle(received, 1)
	stop()
	require.Zero(t, failed.Load())
	require.Eventually(t, func() bool { return strings.Contains(g.scheduler.log.String(), "certificate files read again") }, hang, 10*time.Millisecond)
	for i := range served {
		t.Logf("caller %d: %d streams, each on a connection of its own, none failed", i, served[i].Load())
	}
}
