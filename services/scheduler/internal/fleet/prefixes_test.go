package fleet_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

// prefixReporter makes a worker report cached prefixes instead of heartbeats. It can skip a number.
type prefixReporter struct {
	mu struct {
		sync.Mutex
		queue []*pb.PrefixKeys
	}
	fulls atomic.Int64
	skip  atomic.Bool
}

func (p *prefixReporter) report(keys ...*pb.PrefixKeys) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.queue = append(p.mu.queue, keys...)
}

func (p *prefixReporter) onHealth(out *pb.HealthResponse) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case out.GetFull() != nil:
		p.fulls.Add(1)
	case out.GetHeartbeat() != nil && p.skip.CompareAndSwap(true, false):
		out.Sequence++
	case out.GetHeartbeat() != nil && len(p.mu.queue) > 0:
		out.Event = &pb.HealthResponse_PrefixKeys{PrefixKeys: p.mu.queue[0]}
		p.mu.queue = p.mu.queue[1:]
	}
}

func keysOf(model string, reset bool, added, removed []uint64) *pb.PrefixKeys {
	return &pb.PrefixKeys{Model: model, ModelDigest: "d-" + model, Reset_: reset, Added: added, Removed: removed}
}

// longest returns the number of the longest cached prefix of a request on the fleet's first worker.
func longest(f *fleet.Fleet, model string, keys ...uint64) int {
	for _, m := range f.Snapshot().Route.Workers[0].Models {
		if m.Name == model {
			return m.Prefixes.Longest(keys)
		}
	}
	return -1
}

func TestCachedPrefixesReachRouting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n, w, p := workertest.NewNet(), workertest.New("w1", "i1", "m", "other"), &prefixReporter{}
		w.OnHealth = p.onHealth
		n.Start(t, "a:1", w)
		f := follow(t, n, nil, "a:1")
		until(t, f, connected(1))
		require.Zero(t, longest(f, "m", 1, 2, 3))
		becomes := func(want int, model string, keys ...uint64) {
			t.Helper()
			require.Eventually(t, func() bool { return longest(f, model, keys...) == want }, hang, time.Millisecond)
		}

		p.report(keysOf("m", true, []uint64{1}, nil), keysOf("m", false, []uint64{2, 3}, nil))
		becomes(3, "m", 1, 2, 3, 4)
		require.Zero(t, longest(f, "other", 1, 2, 3), "each model has its own")
		p.report(keysOf("m", false, []uint64{4}, []uint64{3}))
		becomes(4, "m", 1, 2, 3, 4)
		require.Zero(t, longest(f, "m", 3))
		p.report(keysOf("m", true, []uint64{9}, nil))
		becomes(1, "m", 9)
		require.Zero(t, longest(f, "m", 1, 2, 3, 4), "a reset drops the keys reported before")

		// Keys of a model that the report does not list, or of another digest, are ignored.
		p.report(keysOf("stranger", true, []uint64{1}, nil), &pb.PrefixKeys{Model: "m", ModelDigest: "d-old", Added: []uint64{5}},
			keysOf("m", false, []uint64{6}, nil))
		becomes(1, "m", 6)
		require.Zero(t, longest(f, "m", 5))

		// The prefixes of a model that is unloaded are dropped.
		w.Change(func(r *pb.WorkerReport) { r.Models = []*pb.ModelStatus{workertest.Model("other")} })
		becomes(-1, "m", 9)
		w.Change(func(r *pb.WorkerReport) { r.Models = append(r.Models, workertest.Model("m")) })
		becomes(0, "m", 9)
		p.report(keysOf("m", false, []uint64{9}, nil))
		becomes(1, "m", 9)
		w.Change(func(r *pb.WorkerReport) { r.Models[1].ModelDigest = "d-new" })
		becomes(0, "m", 9)
	})
}

func TestGapDropsCachedPrefixes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n, w, p := workertest.NewNet(), workertest.New("w1", "i1", "m"), &prefixReporter{}
		w.OnHealth = p.onHealth
		n.Start(t, "a:1", w)
		f := follow(t, n, nil, "a:1")
		until(t, f, connected(1))
		p.report(keysOf("m", true, []uint64{1, 2}, nil))
		require.Eventually(t, func() bool { return longest(f, "m", 1, 2) == 2 }, hang, time.Millisecond)
		old := f.Snapshot().Route.Workers[0].Models[0].Prefixes
		p.skip.Store(true)
		require.Eventually(t, func() bool { return p.fulls.Load() == 2 && longest(f, "m", 1, 2) == 0 }, hang, time.Millisecond)
		require.Zero(t, old.Len(), "nor does an older snapshot have what nobody vouches for")
		p.report(keysOf("m", true, []uint64{1}, nil))
		require.Eventually(t, func() bool { return longest(f, "m", 1, 2) == 1 }, hang, time.Millisecond)
	})
}
