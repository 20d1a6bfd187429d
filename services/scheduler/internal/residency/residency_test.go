package residency

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// world is a fleet of models that are served or not, whose loads take a while.
type world struct {
	*testing.T
	takes   time.Duration            // of a load
	failure error                    // of loads
	has     string                   // the digest of the file; loads of another one fail, with failure or without
	refuses error                    // of Start
	late    map[string]time.Duration // by tenant: how long a refusal is on its way
	starts  atomic.Int64

	mu     sync.Mutex
	served map[string]bool // guarded by mu
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{T: t, takes: 10 * time.Second, served: map[string]bool{}}
}

// Place is the placer: it returns a lease, or a refusal that says whether a load would help.
func (w *world) Place(ctx context.Context, r route.Request) (*admission.Lease, error) {
	lease, err := w.place(ctx, r)
	if err != nil {
		time.Sleep(w.late[r.Tenant])
	}
	return lease, err
}

func (w *world) place(ctx context.Context, r route.Request) (*admission.Lease, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case r.Model == "no file":
		return nil, &route.Refusal{Err: route.ErrUnknownModel}
	case !w.served[r.Model] || len(r.Unloaded) > 0:
		return nil, &route.Refusal{Err: route.ErrModelNotLoaded, Message: "on disk", Loadable: true, Digest: r.Digest}
	}
	return &admission.Lease{WorkerID: "w1"}, nil
}

// load is one load of the world.
type load struct {
	events chan *pb.LoadModelResponse
	err    error
}

func (l *load) Events() <-chan *pb.LoadModelResponse { return l.events }
func (l *load) Err() error                           { return l.err }

func (w *world) start(model, digest, _ string) (Load, error) {
	if w.refuses != nil {
		return nil, w.refuses
	}
	w.starts.Add(1)
	l := &load{events: make(chan *pb.LoadModelResponse, 1)}
	l.events <- &pb.LoadModelResponse{WorkerId: "w1", Event: &pb.LoadModelResponse_Progress{Progress: &pb.LoadProgress{
		State: pb.LoadState_LOAD_STATE_UPLOADING, BytesDone: 1, BytesTotal: 2}}}
	go func() {
		time.Sleep(w.takes)
		l.err = w.failure
		if digest != "" && digest != w.has {
			l.err = rpc.Error{Code: codes.FailedPrecondition, Domain: rpc.WorkerDomain, Reason: reason.DigestMismatch, Message: digest}.Err()
		}
		if l.err == nil {
			w.set(model, true)
		}
		close(l.events)
	}()
	return l, nil
}

// set makes a model served, or not.
func (w *world) set(model string, served bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.served[model] = served
}

// residency makes a Residency over the world.
func (w *world) residency(cfg Config) *Residency {
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute
	}
	r := New(w, w.start, cfg, rpctest.Logger(w.T))
	w.Cleanup(func() {
		r.Close()
	})
	return r
}

func wants(model string) route.Request { return route.Request{Model: model} }

// many places n requests at once and counts the results by reason; "" is a lease.
func many(r *Residency, n int, model string) map[string]int {
	var mu sync.Mutex
	var wait sync.WaitGroup
	out := map[string]int{}
	for range n {
		wait.Go(func() {
			_, err := r.Place(context.Background(), wants(model))
			mu.Lock()
			defer mu.Unlock()
			out[rpc.Reason(err)]++
		})
	}
	wait.Wait()
	return out
}

func TestManyRequestsShareOneLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.residency(Config{})
		begin := time.Now()
		require.Equal(t, map[string]int{"": 100}, many(r, 100, "m"))
		require.EqualValues(t, 1, w.starts.Load())
		require.Equal(t, w.takes, time.Since(begin))
		require.Equal(t, map[string]int{"": 3}, many(r, 3, "m"), "and what is served is loaded no more")
		require.EqualValues(t, 1, w.starts.Load())
	})
}

func TestStaleRefusalStartsNoLoad(t *testing.T) {
	// A refusal that is older than the end of a load starts none.
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.late = map[string]time.Duration{"late": 2 * w.takes}
		r := w.residency(Config{})
		go many(r, 1, "m")
		begin := time.Now()
		_, err := r.Place(t.Context(), route.Request{Model: "m", Tenant: "late"})
		require.NoError(t, err)
		require.Equal(t, 2*w.takes, time.Since(begin))
		require.EqualValues(t, 1, w.starts.Load())
	})
}

func TestWhatNoLoadWouldHelpIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.residency(Config{})
		_, err := r.Place(t.Context(), wants("no file"))
		require.ErrorIs(t, err, route.ErrUnknownModel)
		require.Zero(t, w.starts.Load())

		w.refuses = status.Error(codes.NotFound, "nobody")
		_, err = r.Place(t.Context(), wants("m"))
		require.ErrorIs(t, err, route.ErrModelNotLoaded, "the refusal says more than that nobody can load it")

		w.refuses = rpc.Error{Code: codes.ResourceExhausted, Domain: "d", Reason: reason.TooManyLoads, Message: "busy"}.Err()
		_, err = r.Place(t.Context(), wants("m"))
		require.Equal(t, reason.TooManyLoads, rpc.Reason(err))
	})
}

func TestFailedLoadIsRetriedAfterGrowingPauses(t *testing.T) {
	// All requests that wait get the failure; the load is tried again after a pause that grows.
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.failure = rpc.Error{Code: codes.FailedPrecondition, Domain: rpc.WorkerDomain, Reason: reason.InvalidModelFile,
			Message: "a web page", Metadata: map[string]string{"a": "b"}}.Err()
		r := w.residency(Config{})
		for i, seconds := range []int{1, 2, 4, 8, 16, 32, 60, 60} {
			pause := time.Duration(seconds) * time.Second
			require.Equal(t, map[string]int{reason.InvalidModelFile: 100}, many(r, 100, "m"))
			require.EqualValues(t, i+1, w.starts.Load())
			time.Sleep(pause - time.Millisecond)
			_, err := r.Place(t.Context(), wants("m"))
			require.Equal(t, time.Millisecond, rpc.RetryAfter(err), "it says when to come again")
			require.Equal(t, codes.FailedPrecondition, status.Code(err))
			require.Equal(t, rpc.WorkerDomain, rpc.Info(err).GetDomain(), "it is the worker's word")
			require.Equal(t, map[string]string{"a": "b"}, rpc.Info(err).GetMetadata())
			require.ErrorContains(t, err, "a web page; its load is tried again in 1ms at the soonest")
			require.EqualValues(t, i+1, w.starts.Load(), "no storm")
			time.Sleep(time.Millisecond)
		}
		w.failure = nil
		require.Equal(t, map[string]int{"": 1}, many(r, 1, "m"))
		w.set("m", false)
		w.failure = status.Error(codes.Unavailable, "gone")
		many(r, 1, "m")
		_, err := r.Place(t.Context(), wants("m"))
		require.Equal(t, time.Second, rpc.RetryAfter(err), "a load that succeeds begins the count anew")
	})
}

func TestAWorkerThatKnowsWhenThereIsRoomIsBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.failure = rpc.Error{Code: codes.ResourceExhausted, Domain: rpc.WorkerDomain, Reason: reason.ModelDoesNotFit, Message: "no",
			RetryAfter: 7 * time.Second}.Err()
		r := w.residency(Config{})
		for range 5 {
			_, err := r.Place(t.Context(), wants("m"))
			require.Equal(t, 7*time.Second, rpc.RetryAfter(err), "however often it was said")
			time.Sleep(7 * time.Second)
		}
		require.EqualValues(t, 5, w.starts.Load())
	})
}

func TestPlaceEndsAtDeadlineAndLoadContinues(t *testing.T) {
	// A request waits no longer than its deadline or the timeout; the load continues.
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.residency(Config{Timeout: 5 * time.Second})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		begin := time.Now()
		_, err := r.Place(ctx, wants("m"))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 2*time.Second, time.Since(begin))

		_, err = r.Place(t.Context(), wants("m"))
		require.Equal(t, 7*time.Second, time.Since(begin))
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.Equal(t, reason.ModelLoading, rpc.Reason(err))
		require.Equal(t, map[string]string{"model": "m", "waited_ms": "5000"}, rpc.Info(err).GetMetadata())
		require.ErrorContains(t, err, "uploading on w1, 1 of 2 bytes")
		require.Positive(t, rpc.RetryAfter(err))

		gone, leave := context.WithCancelCause(t.Context())
		left := errors.New("the caller left")
		time.AfterFunc(time.Second, func() { leave(left) })
		_, err = r.Place(gone, wants("m"))
		require.ErrorIs(t, err, left)
		_, err = r.Place(t.Context(), wants("m"))
		require.NoError(t, err)
		require.Equal(t, w.takes, time.Since(begin))
		require.EqualValues(t, 1, w.starts.Load())
	})
}

func TestRequestsThatWaitForALoadAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.residency(Config{MaxWaiting: 60})
		require.Equal(t, map[string]int{"": 60, reason.WorkersFull: 40}, many(r, 100, "m"))
		require.EqualValues(t, 1, w.starts.Load())
		go many(r, 60, "x")
		synctest.Wait()
		require.Equal(t, map[string]int{"": 60}, many(r, 60, "y"), "each model has its own bound")
	})
}

func TestPlaceLoadsAnEvictedModelThreeTimes(t *testing.T) {
	// A model that is unloaded after each load is loaded maxRounds times, not for ever.
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.residency(Config{})
		start := r.start
		r.start = func(model, digest, id string) (Load, error) { // another model takes its place as soon as it is loaded
			l, err := start(model, digest, id)
			time.AfterFunc(w.takes, func() { w.set(model, false) })
			return l, err
		}
		_, err := r.Place(t.Context(), wants("m"))
		if err != nil { // the order in which the requests continue after a load is not defined
			require.ErrorIs(t, err, route.ErrModelNotLoaded)
			require.EqualValues(t, maxRounds, w.starts.Load())
		}
		require.LessOrEqual(t, w.starts.Load(), int64(maxRounds))
	})
}

func TestPlaceReloadsAModelJustUnloaded(t *testing.T) {
	// A request whose worker has just unloaded its model gets the model there again.
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.set("m", true)
		r := w.residency(Config{})
		lease, err := r.Place(t.Context(), route.Request{Model: "m", Unloaded: []string{"w1"}})
		require.NoError(t, err)
		require.Equal(t, "w1", lease.WorkerID)
		require.EqualValues(t, 1, w.starts.Load())
	})
}

func TestLoadTimeoutIsNotTheRequestsDeadline(t *testing.T) {
	// The deadline or cancellation of a load must not read like that of the request.
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.failure = status.Error(codes.DeadlineExceeded, "not within 2h")
		r := w.residency(Config{})
		_, err := r.Place(t.Context(), wants("m"))
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.ErrorContains(t, err, "not within 2h")
	})
}

func TestFailureOfADigestLeavesOthersAlone(t *testing.T) {
	// The failed load of one digest does not stop requests for another.
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.has = "here"
		r := w.residency(Config{})
		of := func(digest string) route.Request { return route.Request{Model: "m", Digest: digest, Resumes: true} }
		resumed := make(chan error, 1)
		begin := time.Now()
		go func() {
			_, err := r.Place(context.Background(), of("gone"))
			resumed <- err
		}()
		synctest.Wait()
		_, err := r.Place(t.Context(), wants("m"))
		require.NoError(t, err, "it joined a load that could not end well, and began its own")
		require.Equal(t, 2*w.takes, time.Since(begin))
		require.Equal(t, reason.DigestMismatch, rpc.Reason(<-resumed))
		require.EqualValues(t, 2, w.starts.Load())

		w.set("m", false)
		_, err = r.Place(t.Context(), of("gone"))
		require.Equal(t, reason.DigestMismatch, rpc.Reason(err))
		_, err = r.Place(t.Context(), of("here"))
		require.NoError(t, err)
		require.EqualValues(t, 4, w.starts.Load())
	})
}
