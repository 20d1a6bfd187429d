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

// witness notes what it is told of all calls.
type witness struct {
	mu     sync.Mutex
	placed []string // guarded by mu, as all below; models
	first  int
	tokens int64
	again  []relay.Again
	ends   []codes.Code
}

func (w *witness) Placed(model string, waited time.Duration) relay.CallObserver {
	w.mu.Lock()
	defer w.mu.Unlock()
	if waited >= 0 {
		w.placed = append(w.placed, model)
	}
	return w
}

func (w *witness) FirstToken(time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.first++
}

func (w *witness) Tokens(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tokens += n
}

func (w *witness) Again(a relay.Again) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.again = append(w.again, a)
}

func (w *witness) Ended(code codes.Code, _ time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ends = append(w.ends, code)
}

// ended waits for the ends of calls, which come behind their callers' own.
func (w *witness) ended(t *testing.T, calls int) {
	t.Helper()
	require.Eventually(t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.ends) == calls
	}, hang, time.Millisecond)
}

func TestAnObserverIsToldOfEachGeneration(t *testing.T) {
	lost := ways["with the connection's error"]
	for name, tc := range map[string]struct {
		first   workertest.Answer // of whichever worker is asked first
		options relay.Options
		again   []relay.Again
		tokens  int64
	}{
		"that nothing disturbs":              {first: workertest.Whole(""), tokens: 5},
		"that is sent again":                 {first: workertest.Answer{Err: lost}, again: []relay.Again{relay.Retried}, tokens: 5},
		"that goes on at another worker":     {first: workertest.Answer{Events: 3, Err: lost}, again: []relay.Again{relay.Resumed}, tokens: 5},
		"that goes on behind its last token": {first: workertest.Answer{Events: 6, Err: lost}, again: []relay.Again{relay.Resumed}, tokens: 5},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &witness{}
				tc.options.Observer = w
				r := newRig(t, tc.options, map[string]workertest.Answer{"w1": {}, "w2": {}})
				var attempts atomic.Int64
				for id, is := range r.workers {
					is.OnGenerate = func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
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
				require.Equal(t, []string{"m"}, w.placed)
				require.Equal(t, 1, w.first)
				require.Equal(t, tc.tokens, w.tokens)
				require.Equal(t, tc.again, w.again)
				require.Equal(t, []codes.Code{codes.OK}, w.ends)
			})
		})
	}
}

func TestAnObserverIsToldOfAStreamThatNobodyTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		r := newRig(t, relay.Options{FailoverWait: 50 * time.Millisecond, Observer: w},
			map[string]workertest.Answer{"w1": {Events: 3, Hold: true}})
		stream, _ := r.begin(ask(9), 3)
		r.processes["w1"].Kill()
		_, err := all(stream)
		require.Error(t, err)
		w.ended(t, 1)
		require.Equal(t, []relay.Again{relay.Lost}, w.again)
		require.Equal(t, []codes.Code{codes.Unavailable}, w.ends)
		require.EqualValues(t, 2, w.tokens)
	})
}

func TestAnObserverIsToldOfStreamsThatMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		r := newRig(t, relay.Options{Observer: w}, map[string]workertest.Answer{"w1": slow(), "w2": slow()})
		stream, got := r.begin(ask(200), 4)
		r.drain(got[0].GetStarted().GetWorkerId(), true)
		_, err := all(stream)
		require.NoError(t, err)
		w.ended(t, 1)
		require.Equal(t, []relay.Again{relay.Moved}, w.again)
		require.EqualValues(t, 200, w.tokens, "none twice")
	})
}

func TestAnObserverIsNotToldOfWhatIsRefused(t *testing.T) {
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
		require.Equal(t, []string{"m"}, w.placed)
	})
}
