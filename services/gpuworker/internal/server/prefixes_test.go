package server

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/prefixhash"
)

// fakeCache is a prefix journal like that of a step loop. A reader that is more than memory changes
// late gets a reset.
type fakeCache struct {
	mu      sync.Mutex
	keys    map[uint64]bool
	changes []uint64 // in order; the low bit says that the key above it came
	memory  int
}

func newFakeCache(memory int) *fakeCache { return &fakeCache{keys: map[uint64]bool{}, memory: memory} }

func (c *fakeCache) flip(key uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change := key << 1
	if c.keys[key] {
		delete(c.keys, key)
	} else {
		c.keys[key] = true
		change |= 1
	}
	c.changes = append(c.changes, change)
}

func (c *fakeCache) Prefixes(since uint64) (at uint64, reset bool, added, removed, hosted []uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at = uint64(len(c.changes))
	if since > at || at-since > uint64(c.memory) {
		return at, true, slices.Sorted(maps.Keys(c.keys)), nil, nil
	}
	last := map[uint64]bool{}
	for _, change := range c.changes[since:] {
		if _, twice := last[change>>1]; twice {
			delete(last, change>>1)
			continue
		}
		last[change>>1] = change&1 == 1
	}
	for key, came := range last {
		if came {
			added = append(added, key)
		} else {
			removed = append(removed, key)
		}
	}
	return at, false, added, removed, nil
}

// apply applies a message to the keys of a scheduler.
func apply(known map[string]map[uint64]bool, m *pb.PrefixKeys) {
	if m.GetReset_() || known[m.GetModel()] == nil {
		known[m.GetModel()] = map[uint64]bool{}
	}
	for _, key := range m.GetRemoved() {
		delete(known[m.GetModel()], key)
	}
	for _, key := range m.GetAdded() {
		known[m.GetModel()][key] = true
	}
}

func all(string, string) bool { return true }

func TestSchedulerHasTheCachedPrefixes(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		models := []prefixCache{{"a", "da", newFakeCache(50)}, {"b", "db", newFakeCache(1 << 30)}}
		r, known := prefixSubscription{}, map[string]map[uint64]bool{}
		for range 200 {
			for i := range models {
				if random.IntN(20) == 0 {
					models[i].journal = newFakeCache(50) // a reload
				}
				for range random.IntN(30) * random.IntN(4) {
					models[i].journal.(*fakeCache).flip(random.Uint64N(100))
				}
			}
			if random.IntN(40) == 0 {
				r.reset()
				clear(known)
			}
			for _, m := range r.changes(models, all) {
				apply(known, m)
			}
			for _, m := range models {
				require.Equal(t, m.journal.(*fakeCache).keys, known[m.name])
			}
		}
	}
}

func TestMessagesSayWhichPrefixesAreHosted(t *testing.T) {
	added := make([]uint64, 2*maxPrefixKeys+5)
	for i := range added {
		added[i] = uint64(i)
	}
	hosted := []uint64{0, 5, maxPrefixKeys - 1, maxPrefixKeys, 2*maxPrefixKeys + 4}
	var got [][]uint64
	for _, m := range prefixMessages(prefixCache{name: "m"}, false, added, []uint64{1 << 40}, hosted) {
		for _, key := range m.GetHosted() {
			require.Contains(t, m.GetAdded(), key)
		}
		got = append(got, m.GetHosted())
	}
	require.Equal(t, hosted, slices.Concat(got...))
}

func TestMessagesOfPrefixesAreSmall(t *testing.T) {
	for name, tc := range map[string]struct {
		reset          bool
		added, removed int
		want           []int // keys of each message
	}{
		"nothing to say":                      {false, 0, 0, nil},
		"a beginning with nothing cached":     {true, 0, 0, []int{0}},
		"one key":                             {false, 1, 0, []int{1}},
		"a full message":                      {true, maxPrefixKeys, 0, []int{maxPrefixKeys}},
		"one more":                            {true, maxPrefixKeys + 1, 0, []int{maxPrefixKeys, 1}},
		"keys that went go first":             {false, 3, maxPrefixKeys, []int{maxPrefixKeys, 3}},
		"both share a message":                {false, maxPrefixKeys, 2, []int{maxPrefixKeys, 2}},
		"a whole cache of the largest device": {true, 100_000, 0, slices.Concat(slices.Repeat([]int{maxPrefixKeys}, 12), []int{100_000 - 12*maxPrefixKeys})},
	} {
		t.Run(name, func(t *testing.T) {
			added, removed := make([]uint64, tc.added), make([]uint64, tc.removed)
			for i := range added {
				added[i] = uint64(i)<<40 | 1
			}
			for i := range removed {
				removed[i] = uint64(i) << 40
			}
			var got []int
			var back, gone []uint64
			for i, m := range prefixMessages(prefixCache{name: "m", digest: "d"}, tc.reset, added, removed, nil) {
				require.Equal(t, tc.reset && i == 0, m.GetReset_())
				require.Equal(t, "m", m.GetModel())
				require.Equal(t, "d", m.GetModelDigest())
				require.LessOrEqual(t, proto.Size(m), 8*maxPrefixKeys+1024)
				got = append(got, len(m.GetAdded())+len(m.GetRemoved()))
				back, gone = append(back, m.GetAdded()...), append(gone, m.GetRemoved()...)
			}
			require.Equal(t, tc.want, got)
			slices.Sort(back)
			slices.Sort(gone)
			require.True(t, slices.Equal(added, back))
			require.True(t, slices.Equal(removed, gone))
		})
	}
}

func TestPrefixesFollowReportAndInterval(t *testing.T) {
	// They come after the full report, and then at the wanted interval.
	inBubble(t, func(t *testing.T, f *followed) {
		t.Helper()
		cache := newFakeCache(100)
		f.caches.Store([]prefixCache{{"m", "", cache}, {"not reported yet", "", newFakeCache(1)}})
		f.stream.requests <- &pb.HealthRequest{Interval: durationpb.New(500 * time.Millisecond)}
		f.stream.requests <- &pb.HealthRequest{} // another full report
		full, first := <-f.stream.sent, <-f.stream.sent
		require.NotNil(t, full.GetFull())
		require.Equal(t, full.at, first.at)
		require.True(t, first.GetPrefixKeys().GetReset_())
		require.Empty(t, first.GetPrefixKeys().GetAdded())
		require.Equal(t, full.GetSequence()+1, first.GetSequence())

		key, last := uint64(0), first.at
		messages := f.messages(5*time.Second, func(*pb.WorkerReport) {
			key++
			cache.flip(key)
		})
		keys, sequence := 0, first.GetSequence()
		for _, m := range messages {
			require.Equal(t, sequence+1, m.GetSequence(), "no message is missing")
			sequence++
			p := m.GetPrefixKeys()
			if p == nil {
				require.NotNil(t, m.GetHeartbeat(), "prefixes keep no heartbeat from its time")
				continue
			}
			require.Equal(t, "m", p.GetModel())
			require.False(t, p.GetReset_())
			require.GreaterOrEqual(t, m.at.Sub(last), 500*time.Millisecond)
			last = m.at
			keys += len(p.GetAdded())
		}
		require.InDelta(t, key, keys, 6, "all but those since the last interval")
		require.InDelta(t, 20, len(messages), 2, "a heartbeat and a message of prefixes each interval")
	})
}

func TestPrefixesOfUnreportedModelWait(t *testing.T) {
	cache := newFakeCache(10)
	cache.flip(7)
	models := []prefixCache{{"m", "d", cache}}
	r := prefixSubscription{}
	require.Empty(t, r.changes(models, func(string, string) bool { return false }))
	got := r.changes(models, all)
	require.Len(t, got, 1)
	require.True(t, got[0].GetReset_())
	require.Equal(t, []uint64{7}, got[0].GetAdded())
	require.Empty(t, r.changes(models, all))
	require.Empty(t, r.changes(nil, all), "the report says that a model is gone")
	require.True(t, r.changes(models, all)[0].GetReset_(), "a model that comes back is sent again")
}

func TestHealthStreamHasCachedPrefixes(t *testing.T) {
	w := start(t, cpuDevice(t), "stories")
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	stream, err := w.health.Health(ctx)
	require.NoError(t, err)
	require.NoError(t, stream.Send(&pb.HealthRequest{Interval: durationpb.New(minHealthInterval)}))
	known := map[string]map[uint64]bool{}
	until := func(holds func(keys map[uint64]bool) bool) {
		t.Helper()
		for !holds(known["stories"]) {
			in, err := stream.Recv()
			require.NoError(t, err)
			if p := in.GetPrefixKeys(); p != nil {
				apply(known, p)
			}
		}
	}
	until(func(keys map[uint64]bool) bool { return keys != nil && len(keys) == 0 })
	in := prompted(strings.Repeat("Once upon a time there was a girl who had a cat. ", 12), 3)
	prefixes, _ := prefixhash.Of(in)
	require.Len(t, prefixes, 2)
	out := w.generate(ctx, t, in)
	require.NoError(t, out.err)
	require.Zero(t, out.finished[0].GetUsage().GetCachedTokens())
	until(func(keys map[uint64]bool) bool { return keys[prefixes[0].Key] && keys[prefixes[1].Key] })

	again := w.generate(ctx, t, in)
	require.NoError(t, again.err)
	require.Equal(t, out.ids, again.ids)
	require.Positive(t, again.finished[0].GetUsage().GetCachedTokens())

	// Another salt has other keys, and a request that bypasses the cache leaves none.
	bypassing := proto.CloneOf(in)
	bypassing.Input = &pb.GenerateRequest_Prompt{Prompt: strings.Repeat("The dog ran to the big red house. ", 12)}
	bypassing.Cache = &pb.CacheOptions{BypassPrefixCache: ptr(true)}
	require.NoError(t, w.generate(ctx, t, bypassing).err)
	salted := proto.CloneOf(in)
	salted.Cache = &pb.CacheOptions{Salt: ptr("mine")}
	others, _ := prefixhash.Of(salted)
	require.NoError(t, w.generate(ctx, t, salted).err)
	until(func(keys map[uint64]bool) bool { return keys[others[1].Key] })
	require.Len(t, known["stories"], 4)
}

func TestTheLargestKeyIsHosted(t *testing.T) {
	largest := ^uint64(0)
	all := prefixMessages(prefixCache{name: "m"}, false, []uint64{1, largest}, nil, []uint64{largest})
	require.Len(t, all, 1)
	require.Equal(t, []uint64{largest}, all[0].GetHosted())
}
