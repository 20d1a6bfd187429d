package server_test

import (
	"cmp"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/loading"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
	"github.com/millrace/millrace/services/scheduler/internal/residency"
	"github.com/millrace/millrace/services/scheduler/internal/rpcstatus"
	"github.com/millrace/millrace/services/scheduler/internal/server"
	"github.com/millrace/millrace/services/scheduler/internal/vectors"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

// hang bounds waits that end much sooner unless the code under test hangs.
const hang = 30 * time.Second

// maxInFlight is the rigs' bound of requests on one worker.
const maxInFlight = 2000

// failoverWait is how long the rigs' streams wait for another worker.
const failoverWait = 100 * time.Millisecond

// maxQueue is the rigs' bound of requests that wait for a slot.
const maxQueue = 20

// maxWaitingBytes is the rigs' bound of the bytes of waiting requests, at least one of the largest.
const maxWaitingBytes = rpc.DefaultMaxReceiveBytes

// rig is a scheduler over in-memory connections.
type rig struct {
	*testing.T
	net    *workertest.Net
	fleet  *fleet.Fleet
	conn   *grpc.ClientConn
	stop   func() // as SIGTERM does
	places *admission.Admission
}

// newRig starts a scheduler over workers at the addresses. The workers need not run yet.
func newRig(t *testing.T, n *workertest.Net, addresses ...string) *rig {
	t.Helper()
	return newRigWith(t, n, time.Second, addresses...)
}

// newRigWith also sets how long a worker may be silent.
func newRigWith(t *testing.T, n *workertest.Net, stale time.Duration, addresses ...string) *rig {
	t.Helper()
	return startRig(t, n, rigOptions{stale: stale}, addresses...)
}

// rigOptions are options that most rigs do not set.
type rigOptions struct {
	stale  time.Duration // how long a worker may be silent
	limits loading.Config
	// grace is how long a model may be without a worker; 0: the default.
	grace time.Duration
	// onDemand is how long requests wait for loads of their models; 0: no loads on demand.
	onDemand time.Duration
}

// startRig is newRig with options.
func startRig(t *testing.T, n *workertest.Net, o rigOptions, addresses ...string) *rig {
	t.Helper()
	logger := rpctest.Logger(t)
	f, err := fleet.New(fleet.Config{Workers: addresses, Dial: n.Dial, Interval: 20 * time.Millisecond,
		Stale: o.stale, BackoffMax: 50 * time.Millisecond, Grace: hang,
		Urgent: vectors.Urgent}, logger)
	require.NoError(t, err)
	loader := loading.New(f, o.limits, logger)
	admitted := admission.New(f, maxInFlight, admission.MaxQueue(maxQueue), admission.OnDemand(o.onDemand > 0),
		admission.Grace(cmp.Or(o.grace, admission.DefaultGrace)))
	var places relay.Placer = admitted
	if o.onDemand > 0 {
		onDemand := residency.New(places, residency.By(loader), residency.Config{Timeout: o.onDemand}, logger)
		t.Cleanup(onDemand.Close)
		places = onDemand
	}
	carrier := vectors.New(f, vectors.Config{}, logger)
	t.Cleanup(carrier.Close)
	handlers := server.New(f, relay.New(places, relay.Options{FailoverWait: failoverWait}), loader, carrier.UnderWayOn)
	s := rpc.NewServer(rpc.ServerConfig{
		Domain: rpcstatus.Domain, DrainTimeout: 5 * time.Second, MaxWaitingBytes: maxWaitingBytes,
	}, logger)
	handlers.Register(s)
	carrier.Register(s)
	following, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = f.Run(following) }()
	t.Cleanup(func() { cancel(); <-done })
	t.Cleanup(loader.Close)
	lis := rpctest.Listener(t)
	stop := rpctest.Serve(t, s, lis)
	return &rig{T: t, net: n, fleet: f, conn: rpctest.Dial(t, lis), stop: stop, places: admitted}
}

// await waits until the scheduler sees n connected workers and its fleet is known.
func (r *rig) await(n int) {
	r.Helper()
	require.Eventually(r, func() bool {
		s := r.fleet.Snapshot()
		have := 0
		for _, m := range s.Members {
			if m.Connected {
				have++
			}
		}
		return s.Route.Known && have == n
	}, hang, time.Millisecond)
}

// within returns a context that ends after hang.
func (r *rig) within() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	r.Cleanup(cancel)
	return ctx
}

// patient returns a context without a deadline, so that failoverWait bounds the wait of a broken
// stream.
func (r *rig) patient() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	guard := time.AfterFunc(hang, cancel)
	r.Cleanup(func() { guard.Stop(); cancel() })
	return ctx
}

func (r *rig) inference() pb.InferenceServiceClient { return pb.NewInferenceServiceClient(r.conn) }
func (r *rig) models() pb.ModelServiceClient        { return pb.NewModelServiceClient(r.conn) }
func (r *rig) operators() pb.FleetServiceClient     { return pb.NewFleetServiceClient(r.conn) }

// ask returns a generation of a number of tokens.
func ask(model string, tokens int32) *pb.GenerateRequest {
	return &pb.GenerateRequest{Model: model, Input: &pb.GenerateRequest_Prompt{Prompt: "once"},
		Stopping: &pb.Stopping{MaxTokens: &tokens}}
}

// all reads a stream to its end.
func all[T any](stream grpc.ServerStreamingClient[T], err error) ([]*T, error) {
	if err != nil {
		return nil, err
	}
	var out []*T
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, m)
	}
}

// waits sends `started` and some tokens, then nothing until the call ends.
func waits(w *workertest.Worker, tokens int) {
	w.OnGenerate = func(_ *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		if err := stream.Send(workertest.Started("w")); err != nil {
			return err
		}
		for i := range tokens {
			if err := stream.Send(workertest.Token(i)); err != nil {
				return err
			}
		}
		<-stream.Context().Done()
		return stream.Context().Err()
	}
}

// read reads n events of a stream.
func read(t *testing.T, stream grpc.ServerStreamingClient[pb.GenerateResponse], n int) {
	t.Helper()
	for range n {
		_, err := stream.Recv()
		require.NoError(t, err)
	}
}
