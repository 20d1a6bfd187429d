package relay_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

// witness records the events of all calls.
type witness struct {
	mu struct {
		sync.Mutex
		placed []string // models
		first  int
		tokens int64
		causes []relay.Continuation
		ends   []codes.Code
	}
}

func (w *witness) Placed(model string, waited time.Duration) relay.CallObserver {
	w.mu.Lock()
	defer w.mu.Unlock()
	if waited >= 0 {
		w.mu.placed = append(w.mu.placed, model)
	}
	return w
}

func (w *witness) FirstToken(time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.first++
}

func (w *witness) Tokens(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.tokens += n
}

func (w *witness) Continued(c relay.Continuation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.causes = append(w.mu.causes, c)
}

func (w *witness) Ended(code codes.Code, _ time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.ends = append(w.mu.ends, code)
}

// ended waits until calls have ended, which the observer sees after their callers.
func (w *witness) ended(t *testing.T, calls int) {
	t.Helper()
	require.Eventually(t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.mu.ends) == calls
	}, hang, time.Millisecond)
}

func TestObserverSeesEachGeneration(t *testing.T) {
	lost := ways["with the connection's error"]
	for name, tc := range map[string]struct {
		first   workertest.Answer // of the worker that is chosen first
		options relay.Options
		causes  []relay.Continuation
		tokens  int64
	}{
		"undisturbed":              {first: workertest.Whole(""), tokens: 5},
		"retried":                  {first: workertest.Answer{Err: lost}, causes: []relay.Continuation{relay.Retried}, tokens: 5},
		"resumed":                  {first: workertest.Answer{Events: 3, Err: lost}, causes: []relay.Continuation{relay.Resumed}, tokens: 5},
		"resumed after last token": {first: workertest.Answer{Events: 6, Err: lost}, causes: []relay.Continuation{relay.Resumed}, tokens: 5},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &witness{}
				tc.options.Observer = w
				r := newRig(t, tc.options, map[string]workertest.Answer{"w1": {}, "w2": {}})
				var attempts atomic.Int64
				for id, worker := range r.workers {
					worker.OnGenerate = func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
						a := workertest.Whole(id)
						if attempts.Add(1) == 1 {
							a = tc.first
							a.Worker = id
						}
						return a.Generate(in, stream)
					}
				}
				_, err := r.generate(ask(5))
				require.NoError(t, err)
				w.ended(t, 1)
				require.Equal(t, []string{"m"}, w.mu.placed)
				require.Equal(t, 1, w.mu.first)
				require.Equal(t, tc.tokens, w.mu.tokens)
				require.Equal(t, tc.causes, w.mu.causes)
				require.Equal(t, []codes.Code{codes.OK}, w.mu.ends)
			})
		})
	}
}

func TestObserverSeesLostStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		r := newRig(t, relay.Options{FailoverWait: 50 * time.Millisecond, Observer: w},
			map[string]workertest.Answer{"w1": {Events: 3, Hold: true}})
		stream, _ := r.begin(ask(9), 3)
		r.processes["w1"].Kill()
		_, err := all(stream)
		require.Error(t, err)
		w.ended(t, 1)
		require.Equal(t, []relay.Continuation{relay.Lost}, w.mu.causes)
		require.Equal(t, []codes.Code{codes.Unavailable}, w.mu.ends)
		require.EqualValues(t, 2, w.mu.tokens)
	})
}

func TestObserverSeesMovedStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		r := newRig(t, relay.Options{Observer: w}, map[string]workertest.Answer{"w1": slow(), "w2": slow()})
		stream, got := r.begin(ask(200), 4)
		r.drain(got[0].GetStarted().GetWorkerId(), true)
		_, err := all(stream)
		require.NoError(t, err)
		w.ended(t, 1)
		require.Equal(t, []relay.Continuation{relay.Moved}, w.mu.causes)
		require.EqualValues(t, 200, w.mu.tokens, "none twice")
	})
}

func TestObserverIgnoresRefusedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		r := newRig(t, relay.Options{Observer: w}, map[string]workertest.Answer{"w1": workertest.Whole("")})
		in := ask(3)
		in.Model = "a name that a caller made up"
		_, err := r.generate(in)
		require.Error(t, err)
		_, err = r.generate(ask(1))
		require.NoError(t, err)
		w.ended(t, 1)
		require.Equal(t, []string{"m"}, w.mu.placed)
	})
}
