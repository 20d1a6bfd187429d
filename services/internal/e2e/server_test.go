package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millrace/millrace/internal/cputest"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// server is a running worker or scheduler and a connection to it.
type server struct {
	*process
	address string
	binary  string
	before  []string // arguments before those of the program, if the binary is a wrapper
	args    []string
	creds   grpc.DialOption // for connect; nil: plaintext
	env     []string        // additional environment variables

	conn   *grpc.ClientConn
	infer  pb.InferenceServiceClient
	models pb.ModelServiceClient
	worker pb.WorkerServiceClient // of workers
	fleet  pb.FleetServiceClient  // of schedulers
	health healthpb.HealthClient
}

// startWorker starts a worker over modelsDir and waits until it is ready.
func startWorker(t *testing.T, id string, args ...string) *server {
	t.Helper()
	return startWorkerOf(t, modelsDir, id, args...)
}

// startWorkerWith is startWorker; change is applied to the server before it starts.
func startWorkerWith(t *testing.T, change func(*server), id string, args ...string) *server {
	t.Helper()
	return serveWith(t, change, workerBinary, workerFlags(modelsDir, id, args...)...)
}

// startWorkerOf starts a worker with a models folder. The engine has one thread because tests run
// in parallel; its bits do not depend on the number.
func startWorkerOf(t *testing.T, models, id string, args ...string) *server {
	t.Helper()
	return serve(t, workerBinary, workerFlags(models, id, args...)...)
}

func workerFlags(models, id string, args ...string) []string {
	return slices.Concat([]string{"--models", models, "--worker-id", id, "--threads", "1"}, cputest.Flags(), args)
}

// On a busy machine a process may be silent for seconds, which looks like a loss. Most schedulers
// of the tests are patient, so that workers are lost only when a test wants it; alert ones have the
// default, for tests that freeze a worker while others serve.
var patient, alert = []string{"--stale", "1m"}, []string{"--stale", "1600ms"}

// startScheduler starts a scheduler and waits until it is ready and has a report of every running
// worker; args are further flags.
func startScheduler(t *testing.T, workers []*server, args ...string) *server {
	t.Helper()
	return startSchedulerWith(t, func(*server) {}, workers, args...)
}

// startSchedulerWith is startScheduler; change is applied to the server before it starts.
func startSchedulerWith(t *testing.T, change func(*server), workers []*server, args ...string) *server {
	t.Helper()
	var addresses []string
	running := 0
	for _, w := range workers {
		addresses = append(addresses, w.address)
		if w.process != nil {
			running++
		}
	}
	s := serveWith(t, change, schedulerBinary, slices.Concat([]string{"--workers", strings.Join(addresses, ",")}, patient, args)...)
	s.untilConnected(t, running)
	return s
}

// serve starts a program on a free port.
func serve(t *testing.T, binary string, args ...string) *server {
	t.Helper()
	return serveWith(t, func(*server) {}, binary, args...)
}

// serveTo is serve for a program that the test dials with credentials.
func serveTo(t *testing.T, creds grpc.DialOption, binary string, args ...string) *server {
	t.Helper()
	return serveWith(t, func(s *server) { s.creds = creds }, binary, args...)
}

// serveWith is serve; change is applied to the server before it starts.
func serveWith(t *testing.T, change func(*server), binary string, args ...string) *server {
	t.Helper()
	for range 5 {
		s := &server{binary: binary, args: args, address: freeAddress(t)}
		change(s)
		if s.start(t) {
			return s
		}
	}
	require.FailNow(t, "no port is free for long enough")
	return nil
}

// again starts the program again on the same port, after it has ended.
func (s *server) again(t *testing.T) *server {
	t.Helper()
	<-s.ended
	next := &server{binary: s.binary, args: s.args, creds: s.creds, env: s.env, address: s.address}
	require.True(t, next.start(t), "the port of the process before is taken")
	return next
}

// start launches the program and waits until its health is SERVING; it returns false if the port
// was taken.
func (s *server) start(t *testing.T) bool {
	t.Helper()
	s.process = launchWith(t, s.env, s.binary, slices.Concat(s.before, []string{"--listen", s.address}, s.args)...)
	for deadline := time.Now().Add(hang); ; time.Sleep(5 * time.Millisecond) {
		if s.taken(t) {
			return false
		}
		require.True(t, time.Now().Before(deadline), "%s is not ready:\n%s", s.name, tail(s.log.String(), 40))
		// grpc-go waits a second after a refused connection, so connect only after the port is
		// open.
		if conn, err := net.DialTimeout("tcp", s.address, time.Second); err == nil {
			_ = conn.Close()
			break
		}
	}
	s.connect(t)
	require.Eventually(t, func() bool { return !s.alive() || s.serving(t) }, hang, 5*time.Millisecond)
	return !s.taken(t) // the connection may be to the process that took the port
}

// taken reports whether the program has ended because its port was taken. The test fails if it
// ended for another reason.
func (s *server) taken(t *testing.T) bool {
	t.Helper()
	if s.alive() {
		return false
	}
	require.Contains(t, s.log.String(), "address already in use", "%s ended before it was ready", s.name)
	return true
}

// connect makes the clients.
func (s *server) connect(t *testing.T) {
	t.Helper()
	var options []grpc.DialOption
	if s.creds != nil {
		options = append(options, s.creds)
	}
	s.conn = dial(t, s.address, options...)
	s.infer, s.models = pb.NewInferenceServiceClient(s.conn), pb.NewModelServiceClient(s.conn)
	s.worker, s.fleet = pb.NewWorkerServiceClient(s.conn), pb.NewFleetServiceClient(s.conn)
	s.health = healthpb.NewHealthClient(s.conn)
}

// dial makes a connection that the test closes.
func dial(t *testing.T, address string, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := rpc.Dial(address, "e2e", options...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() }) // some tests close it earlier
	return conn
}

// serving calls the standard health service.
func (s *server) serving(t *testing.T) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	r, err := s.health.Check(ctx, &healthpb.HealthCheckRequest{})
	return err == nil && r.GetStatus() == healthpb.HealthCheckResponse_SERVING
}

var (
	portsMu sync.Mutex
	ports   = map[int]bool{}
)

// freeAddress returns a loopback address without a listener that no other test of this process has.
// It is below the ephemeral ports, so that it is still free when a process is started again.
func freeAddress(t *testing.T) string {
	t.Helper()
	portsMu.Lock()
	defer portsMu.Unlock()
	for range 1000 {
		port := 15000 + rand.IntN(17000)
		if ports[port] {
			continue
		}
		address := fmt.Sprintf("127.0.0.1:%d", port)
		lis, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		require.NoError(t, lis.Close())
		ports[port] = true
		return address
	}
	require.FailNow(t, "no free port")
	return ""
}

// undated returns a context without a deadline that is cancelled after a long time: without a
// deadline a broken stream waits as long as its scheduler's --failover-wait. The time is longer
// than hang because a test may wait for several things, each with its own guard, while the stream
// is open.
func undated(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	guard := time.AfterFunc(3*hang, cancel)
	t.Cleanup(func() { guard.Stop(); cancel() })
	return ctx
}

// within returns a context that ends after hang.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	t.Cleanup(cancel)
	return ctx
}

// until watches the fleet of a scheduler until it is as wanted.
func (s *server) until(t *testing.T, what string, holds func([]*pb.FleetWorker) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	stream, err := s.fleet.WatchFleet(ctx, &pb.WatchFleetRequest{Interval: durationpb.New(100 * time.Millisecond)})
	require.NoError(t, err)
	var last *pb.WatchFleetResponse
	for {
		in, err := stream.Recv()
		require.NoError(t, err, "until %s; the fleet: %v", what, last)
		if last = in; holds(in.GetWorkers()) {
			return
		}
	}
}

// untilConnected waits until a scheduler is connected to at least n workers. A scheduler may be
// ready before.
func (s *server) untilConnected(t *testing.T, workers int) {
	t.Helper()
	if workers == 0 {
		return
	}
	s.until(t, fmt.Sprintf("%d workers are connected", workers), func(fleet []*pb.FleetWorker) bool { return connected(fleet) >= workers })
}

// connected counts the workers that a scheduler is connected to.
func connected(fleet []*pb.FleetWorker) (n int) {
	for _, w := range fleet {
		if w.GetConnected() {
			n++
		}
	}
	return n
}

// untilServed waits until a scheduler shows exactly n workers that serve a model.
func (s *server) untilServed(t *testing.T, model string, workers int) {
	t.Helper()
	s.until(t, fmt.Sprintf("%d workers serve %s", workers, model), func(fleet []*pb.FleetWorker) bool {
		n := 0
		for _, w := range fleet {
			if w.GetConnected() && w.GetReport().GetState() == pb.WorkerState_WORKER_STATE_READY && has(w, model) {
				n++
			}
		}
		return n == workers
	})
}

// has reports whether a worker serves a model.
func has(w *pb.FleetWorker, model string) bool {
	for _, m := range w.GetReport().GetModels() {
		if m.GetName() == model && m.GetState() == pb.ModelState_MODEL_STATE_READY {
			return true
		}
	}
	return false
}

// report returns the current report of a worker.
func (s *server) report(t *testing.T) *pb.WorkerReport {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	stream, err := s.worker.Health(ctx)
	require.NoError(t, err)
	in, err := stream.Recv()
	require.NoError(t, err)
	require.NotNil(t, in.GetFull(), "a report comes first")
	return in.GetFull()
}

// untilLoad reads a worker's load until it is as wanted.
func (s *server) untilLoad(t *testing.T, what string, holds func(*pb.LoadStatus) bool) *pb.LoadStatus {
	t.Helper()
	for deadline := time.Now().Add(hang); ; time.Sleep(20 * time.Millisecond) {
		load := s.report(t).GetLoad()
		if holds(load) {
			return load
		}
		require.True(t, time.Now().Before(deadline), "%s until %s: %v", s.name, what, load)
	}
}

// untilIdle waits until a worker has no sequence, running or waiting.
func (s *server) untilIdle(t *testing.T) {
	t.Helper()
	s.untilLoad(t, "it is idle, with every block free", func(load *pb.LoadStatus) bool {
		return load.GetRunning() == 0 && load.GetWaiting() == 0 && load.GetFreeBlocks() == load.GetTotalBlocks()
	})
}

// untilEmpty waits until a worker's device holds nothing.
func (s *server) untilEmpty(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(hang); ; time.Sleep(10 * time.Millisecond) {
		d := s.report(t).GetDevice()
		if d.GetBytesWeights()+d.GetBytesKv()+d.GetBytesWorkspace() == 0 {
			return
		}
		require.True(t, time.Now().Before(deadline), "the ledger of %s is not back to zero: %v", s.name, d)
	}
}

// readiness watches the standard health service of a server until it is NOT_SERVING.
func (s *server) readiness(t *testing.T) (flipped func()) {
	t.Helper()
	watch, err := s.health.Watch(within(t), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	in, err := watch.Recv()
	require.NoError(t, err)
	require.Equal(t, healthpb.HealthCheckResponse_SERVING, in.GetStatus())
	return func() {
		t.Helper()
		in, err := watch.Recv()
		require.NoError(t, err)
		require.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, in.GetStatus())
	}
}
