package replay

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func of(prompt, output int, blocks ...uint64) Request {
	return Request{Prompt: prompt, Output: output, Blocks: blocks}
}

func TestPromptsShareEqualLeadingBlocks(t *testing.T) {
	for shrink := 1; shrink <= 32; shrink *= 2 {
		t.Run(fmt.Sprint(shrink), func(t *testing.T) {
			s := Scale{Shrink: shrink, Speed: 1, Seed: 7}
			a := s.prompt(of(1200, 1, 5, 6, 7), 32000)
			b := s.prompt(of(1024, 1, 5, 6), 32000)
			c := s.prompt(of(1536, 1, 5, 8, 7), 32000)
			require.Len(t, a, (1200+shrink-1)/shrink)
			require.Len(t, b, 1024/shrink)
			require.Equal(t, b, a[:len(b)])
			require.Equal(t, a[:s.block()], c[:s.block()])
			require.NotEqual(t, a[s.block():2*s.block()], c[s.block():2*s.block()])
			require.Less(t, slices.Max(c), uint32(32000))
			require.Equal(t, a, s.prompt(of(1200, 1, 5, 6, 7), 32000), "the same again")
		})
	}
	require.Equal(t, 1, Scale{Shrink: 32, Speed: 1}.tokens(0), "no call is without a token")
	require.Len(t, Scale{Shrink: 32, Speed: 1}.prompt(of(1, 1, 9), 100), 1)
}

func TestPrefixNamesCoverAllBlocksBefore(t *testing.T) {
	a, b := prefixes([]uint64{1, 2, 3}), prefixes([]uint64{9, 2, 3})
	require.Equal(t, a[:2], prefixes([]uint64{1, 2}))
	for i := range a {
		require.NotEqual(t, a[i], b[i])
	}
	require.Empty(t, prefixes(nil))
}

func TestUniqueTraceHasNoReuse(t *testing.T) {
	requests := Synthetic(2000, 3)
	require.Len(t, requests, 2000)
	require.Equal(t, requests, Synthetic(2000, 3))
	require.NotEqual(t, requests, Synthetic(2000, 4))
	require.True(t, slices.IsSortedFunc(requests, func(a, b Request) int { return int(a.Arrival - b.Arrival) }))
	require.InDelta(t, 0.6, reusable(requests), 0.2)
	c := valid()
	require.NoError(t, c.check(requests))

	unique := Unique(requests)
	require.Zero(t, reusable(unique))
	require.NoError(t, c.check(unique))
	for i := range unique {
		require.Equal(t, requests[i].Arrival, unique[i].Arrival)
		require.Equal(t, requests[i].Prompt, unique[i].Prompt)
		require.Equal(t, requests[i].Output, unique[i].Output)
	}
	require.Positive(t, reusable(requests), "the trace itself stays")
}

func TestReusableShareOfATrace(t *testing.T) {
	for name, tc := range map[string]struct {
		requests []Request
		want     float64
	}{
		"nothing twice":                  {[]Request{of(512, 1, 1), of(512, 1, 2)}, 0},
		"all but the last token":         {[]Request{of(512, 1, 1), of(512, 1, 1)}, 511.0 / 1024},
		"the lead blocks":                {[]Request{of(1024, 1, 1, 2), of(1024, 1, 1, 3)}, 512.0 / 2048},
		"a block behind another is new":  {[]Request{of(1024, 1, 1, 2), of(1024, 1, 3, 2)}, 0},
		"a beginning of what came later": {[]Request{of(1024, 1, 1, 2), of(1536, 1, 1, 2, 3), of(1536, 1, 1, 2, 3)}, (1024.0 + 1535) / 4096},
	} {
		t.Run(name, func(t *testing.T) { require.InDelta(t, tc.want, reusable(tc.requests), 1e-9) })
	}
}

// made is a call with its ids, shrunk by 8.
func made(index int, r Request) *job {
	s := Scale{Shrink: 8, Speed: 1}
	j := jobs([]Request{r}, s)[0]
	j.index, j.ids = index, s.prompt(r, 32000)
	return &j
}

func TestBookKnowsAWorkersCache(t *testing.T) {
	b := newBook(64 * 6)
	first := made(0, of(1100, 80, 1, 2, 3)) // 138 tokens and an answer of 10
	require.Zero(t, b.longest(first.names))
	e := b.begin(first)
	require.Zero(t, e.found)
	require.Equal(t, 2, b.longest(first.names), "whole blocks count at once, also while they are computed")

	second := made(1, of(1536, 8, 1, 2, 4))
	require.Equal(t, 2, b.longest(second.names))
	f := b.begin(second)
	require.Equal(t, 128, f.found)
	b.end(e)
	b.end(f)
	require.Equal(t, 3, b.longest(second.names))

	b.end(b.begin(made(2, of(2560, 8, 7, 8, 9, 10, 11)))) // 321 tokens of the 384 evict the least recently used
	require.Zero(t, b.longest([]uint64{first.names[0] + 1}))
	require.Less(t, b.longest(second.names), 3, "leaves go first")
	require.LessOrEqual(t, b.longest(first.names), 1)
}

func TestBookNeverEvictsWhatIsInUse(t *testing.T) {
	b := newBook(64 * 4)
	held := b.begin(made(0, of(1536, 8, 1, 2, 3)))
	more := b.begin(made(1, of(1536, 8, 4, 5, 6))) // has no place beside it
	require.Equal(t, 3, b.longest(prefixes([]uint64{1, 2, 3})))
	require.Zero(t, b.longest(prefixes([]uint64{4, 5, 6})))
	b.end(more)
	b.end(held)
	require.Equal(t, 3, b.longest(prefixes([]uint64{1, 2, 3})))
}

func TestRulesChooseByTheirState(t *testing.T) {
	choices := func(d *dispatcher, calls ...*job) (workers []int) {
		for _, j := range calls {
			workers = append(workers, d.send(j).worker)
		}
		return workers
	}
	long, short := of(5120, 8, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10), of(512, 8, 20)
	calls := []*job{made(0, long), made(1, short), made(2, short), made(3, short), made(4, long)}
	require.Equal(t, []int{1, 0, 1, 0, 1}, choices(newDispatcher(roundRobin, 2, 4096), calls...))
	require.Equal(t, []int{1, 0, 0, 0, 0}, choices(newDispatcher(leastLoaded, 2, 4096), calls...), "who has the long one has enough")

	d := newDispatcher(oracle, 2, 4096)
	require.Equal(t, []int{1, 0, 0, 0}, choices(d, calls[:4]...))
	again := d.send(made(5, long))
	require.Equal(t, 1, again.worker, "the long prefix saves more than its worker is behind")
	found, known := again.found()
	require.True(t, known)
	require.Equal(t, 624, found, "all whole KV blocks but the one with the last token")
}

func TestOracleLeavesAnOverloadedWorker(t *testing.T) {
	d := newDispatcher(oracle, 2, 1<<16)
	shared := of(1024, 8, 1, 2)
	home := d.send(made(0, shared)).worker
	for i := range 20 { // new work, half of which lands at home
		blocks := make([]uint64, 10)
		for j := range blocks {
			blocks[j] = uint64(1000 + 10*i + j)
		}
		d.send(made(1+i, of(5120, 8, blocks...)))
	}
	d.tasks[home] += 100_000
	require.NotEqual(t, home, d.send(made(50, shared)).worker)
}

func TestDispatcherReleasesFinishedCalls(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, rule := range []rule{roundRobin, leastLoaded, oracle} {
		d := newDispatcher(rule, 3, 2048)
		var open []*ticket
		for i := range 300 {
			blocks := []uint64{uint64(random.IntN(9)), uint64(random.IntN(9))}
			open = append(open, d.send(made(i, of(513+random.IntN(512), 1+random.IntN(200), blocks...))))
			if random.IntN(2) == 0 {
				at := random.IntN(len(open))
				for range random.IntN(30) {
					d.received(open[at], 1+random.IntN(3))
				}
				d.end(open[at])
				open = slices.Delete(open, at, at+1)
			}
			for w, n := range d.tasks {
				require.GreaterOrEqual(t, n, int64(0), "worker %d", w)
			}
		}
		for _, ticket := range open {
			d.end(ticket)
		}
		require.Equal(t, []int64{0, 0, 0}, d.tasks)
		for _, b := range d.books {
			require.Equal(t, b.cache.Total(), b.cache.Free(), "every block is given back")
		}
	}
}

func valid() Config {
	return Config{
		Rows: RowNames(), Workers: 8, Cache: 819_200, Load: 0.7, Step: 20 * time.Millisecond, Sequences: 64, Scale: Scale{Shrink: 8, Speed: 10},
	}
}

func TestDeviceFollowsFromTheLoad(t *testing.T) {
	c := valid()
	require.NoError(t, c.Validate())
	last := of(1000, 1, 3, 4)
	last.Arrival = 10 * time.Second
	requests := []Request{of(1000, 1, 1, 2), last}
	// 0.7 of 8 workers over 10 s are 56 s for 2000 tokens: 28 ms each; 8 of them a tenth as long.
	require.Equal(t, 28*time.Millisecond, c.prefill(requests))
	require.Equal(t, "sim:step=16ms,prefill=22.4ms,decode=0s", c.device(requests))
	require.Equal(t, []string{"--max-batched-tokens", "512", "--step-target", "5ms"}, c.workerFlags())
	require.Equal(t, 102400, c.cacheTokens())
}

func TestConfigIsValidated(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"a row that there is not":      {func(c *Config) { c.Rows = []string{"trace/luck"} }, `no row "trace/luck"`},
		"no row":                       {func(c *Config) { c.Rows = nil }, "--rows is empty"},
		"no worker":                    {func(c *Config) { c.Workers = 0 }, "--workers 0"},
		"a block shorter than KV's":    {func(c *Config) { c.Scale.Shrink = 64 }, "--shrink 64"},
		"a block that is not divided":  {func(c *Config) { c.Scale.Shrink = 6 }, "--shrink 6"},
		"time that stands still":       {func(c *Config) { c.Scale.Speed = 0 }, "--speed 0"},
		"no load":                      {func(c *Config) { c.Load = 0 }, "--load 0"},
		"a step that goes back":        {func(c *Config) { c.Step = -1 }, "--step"},
		"more sequences than a worker": {func(c *Config) { c.Sequences = 1025 }, "--sequences 1025"},
		"no cache":                     {func(c *Config) { c.Cache = 0 }, "--cache 0"},
	} {
		t.Run(name, func(t *testing.T) {
			c := valid()
			tc.change(&c)
			require.ErrorContains(t, c.Validate(), tc.want)
		})
	}
	later := of(512, 1, 1)
	later.Arrival = time.Second
	for name, tc := range map[string]struct {
		requests []Request
		want     string
	}{
		"nothing":        {nil, "takes no time"},
		"one moment":     {[]Request{of(1, 1, 1), of(1, 1, 2)}, "takes no time"},
		"no blocks":      {[]Request{of(512, 1, 1), {Arrival: 1, Prompt: 512, Output: 1}}, "request 2 of 512 tokens names 0 blocks, want 1"},
		"beyond a cache": {[]Request{of(512, 819_200, 1), later}, "raise --cache"},
	} {
		t.Run(name, func(t *testing.T) {
			c := valid()
			err := c.check(tc.requests)
			require.ErrorIs(t, err, ErrTrace)
			require.ErrorContains(t, err, tc.want)
		})
	}
}
