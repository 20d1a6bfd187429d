package batch

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/guide"
	"github.com/millrace/millrace/gpuworker/kvcache"
)

// story is one random run of a loop: its sizes, its requests and its failures. The oracle of every
// sequence is the pure function of its prompt and parameters. The fake runner checks every step,
// and the state of every sequence is checked whenever a step is accepted.
type story struct {
	t    *testing.T
	rng  *rand.Rand
	l    *Loop
	fake *fakeRunner
	cfg  Config
	saw  *tally
}

// tally counts what happens in stories.
type tally struct {
	sync.Mutex
	counts map[string]int
}

func (c *tally) add(what string, n int) {
	c.Lock()
	defer c.Unlock()
	c.counts[what] += n
}

// mostSeeds is how many stories run.
const mostSeeds = 150

func TestRandomStoriesNeverChangeTheTokens(t *testing.T) {
	saw := &tally{counts: map[string]int{}}
	for seed := range uint64(mostSeeds) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { runStory(t, seed, saw) })
		})
		if t.Failed() {
			return
		}
	}
	for _, what := range []string{
		"preempted", "swapped", "cached", "cancelled", "refused", "without host memory", "resumed", "several", "previous", "forced",
		"recalled", "displaced in host memory", "windows from host memory",
		"swapped with states", "cached with states", "states evicted",
		"swapped with windows", "cached with windows", "windows evicted", "windows freed",
	} {
		require.Positive(t, saw.counts[what], "no story had it: %s of %v", what, saw.counts)
	}
}

func runStory(t *testing.T, seed uint64, saw *tally) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 5))
	host, masks := []int{0, 5, 100}[rng.IntN(3)], []*maskLimits{nil, nil, {}}[rng.IntN(3)]
	y := &story{t: t, rng: rng, saw: saw, cfg: Config{
		Context: 300, Chunk: []int{0, 1, 7, 64}[rng.IntN(4)], YieldAfter: time.Duration(1+rng.IntN(20)) * time.Millisecond,
		Grain: []int{0, 16, 64}[rng.IntN(3)], StallLimit: time.Hour, OneClass: rng.IntN(2) == 0, BlockBytes: uint64(rng.IntN(2) * 1 << 20), masks: masks,
		Runner: engine.RunnerConfig{KVBlocks: 19 + rng.IntN(30), MaxSequences: 1 + rng.IntN(6), HostBlocks: host},
	}}
	// A third of the stories is of a model whose layers carry states.
	stateful := rand.New(rand.NewPCG(seed, 8))
	if seed%3 == 2 {
		y.cfg.States, y.cfg.StateBytes, y.cfg.StateInterval = true, uint64(stateful.IntN(1<<20)), 16*(1+stateful.IntN(8))
		y.cfg.Runner.SavedStates, y.cfg.Runner.HostStates = []int{0, 1, 5, 40}[stateful.IntN(4)], []int{0, 1, 10}[stateful.IntN(3)]
	}
	// Another third is of a model with a window group.
	windows := rand.New(rand.NewPCG(seed, 9))
	if seed%3 == 1 {
		y.cfg.Window = []int{1, 15, 16, 17, 40, 100}[windows.IntN(6)]
		least := leastWindow(y.cfg.Window, 16)
		y.cfg.Runner.WindowBlocks = least + windows.IntN([]int{1, 4, 40}[windows.IntN(3)])
		y.cfg.Runner.HostWindowBlocks = []int{0, 6, 100}[windows.IntN(3)]
	}
	// Most stories have a host tier, which may be tiny.
	if tiers := rand.New(rand.NewPCG(seed, 10)); tiers.IntN(4) > 0 {
		y.tier([]int{3, 20, 300}[tiers.IntN(3)], []int{2, 10, 40}[tiers.IntN(3)])
	}
	moods := rand.New(rand.NewPCG(seed, 6))
	large, moody := 3+rng.IntN(200), rng.IntN(2)*(3+rng.IntN(10))
	y.l, y.fake = start(t, y.cfg, func(f *fakeRunner) {
		f.oneClass, f.stateful, f.window = y.cfg.OneClass, y.cfg.States, y.cfg.Window
		f.prompts = func(p engine.SlotParams) engine.KernelClass { return engine.KernelClass(p.TopK) }
		f.lasts = func(*engine.Step) time.Duration { return time.Duration(moods.IntN(3)) * time.Millisecond }
		f.refuse = func(s *engine.Step) error { return y.mood(s, moods, moody, large) }
		f.watch = y.check
	})
	var trunks [][]int32
	for i := range int32(3) {
		trunks = append(trunks, prompt(200, 50+i))
	}
	done, readers := make(chan struct{}), 0
	for i := range 14 {
		r := y.request(trunks)
		streams, err := y.l.Submit(r)
		require.NoError(t, err)
		for k, s := range streams {
			readers++
			go func() {
				defer func() { done <- struct{}{} }()
				y.read(s, r, k, rand.New(rand.NewPCG(seed, uint64(100*i+k))))
			}()
		}
		time.Sleep(time.Duration(rng.IntN(6)) * time.Millisecond)
	}
	for range readers {
		<-done
	}
	time.Sleep(time.Second) // steps in flight end
	synctest.Wait()
	y.end()
}

// tier gives a story a host tier of blocks of both groups, and of states.
func (y *story) tier(blocks, states int) {
	c := &y.cfg
	c.Tier.Blocks, c.LeastRecall = blocks, 1
	if c.Window > 0 {
		c.Tier.WindowBlocks = blocks
	}
	if c.States {
		c.Tier.States = states
	}
	c.Runner.HostBlocks += c.Tier.Blocks
	c.Runner.HostWindowBlocks += c.Tier.WindowBlocks
	c.Runner.HostStates += c.Tier.States
}

// mood refuses steps for temporary reasons.
func (y *story) mood(s *engine.Step, moods *rand.Rand, moody, large int) error {
	for _, op := range s.PreOps {
		if (op.Kind == engine.BlockOut || op.Kind == engine.StateOut) && moody > 0 && moods.IntN(3) == 0 {
			y.saw.add("without host memory", 1)
			return fmt.Errorf("host memory: %w", engine.ErrOutOfMemory)
		}
	}
	several := slices.ContainsFunc(s.Segments, func(seg engine.Segment) bool { return seg.Slot != s.Segments[0].Slot })
	if several && moody > 0 && moods.IntN(moody) == 0 {
		return fmt.Errorf("not these together: %w", engine.ErrPrecondition)
	}
	for i := range s.Segments {
		if len(s.Segments[i].Tokens) > large {
			return fmt.Errorf("segment %d: %w", i, engine.ErrOutOfMemory)
		}
	}
	return nil
}

func (y *story) request(trunks [][]int32) Request {
	rng := y.rng
	p := slices.Clone(trunks[rng.IntN(3)][:rng.IntN(121)])
	p = append(p, prompt(1+rng.IntN(30), int32(rng.IntN(3)))...)
	r := Request{
		Prompt: p, MaxTokens: rng.IntN(120), PromptTopN: -1, Progress: rng.IntN(2) == 0, Class: engine.KernelClass(rng.IntN(5) / 4),
		Params:   engine.SlotParams{Seed: rng.Uint64N(3)},
		Priority: int32(rng.IntN(8) / 6), Tenant: string(rune('a' + rng.IntN(3))), Salt: []string{"", "", "s"}[rng.IntN(3)],
		Bypass: rng.IntN(5) == 0, Keys: []PrefixKey{{Key: uint64(len(p)), Tokens: 16}, {Key: 1, Tokens: len(p)}},
	}
	r.Params.TopK = int32(r.Class)
	if rng.IntN(6) == 0 {
		r.PromptTopN = rng.IntN(3)
	}
	n := 1
	if rng.IntN(4) == 0 {
		n = 2 + rng.IntN(4)
		y.saw.add("several", 1)
	}
	for i := range n {
		r.Continuations = append(r.Continuations, Continuation{OutputIndex: int32(i)})
	}
	if rng.IntN(3) == 0 {
		y.constrain(&r)
	} else if r.MaxTokens > 3 && rng.IntN(2) == 0 {
		r.StopIDs = []int32{wantOf(r, rng.IntN(n))[rng.IntN(r.MaxTokens)]}
	}
	if rng.IntN(3) == 0 {
		for i := range r.Continuations {
			whole := y.whole(r, i)
			if k := rng.IntN(len(whole) + 1); k < len(whole) {
				r.Continuations[i].Resumed = whole[:k]
				for _, id := range whole[:k] {
					if c := &r.Continuations[i]; !c.Guide.Free() {
						var err error
						c.Guide, err = c.Guide.Advance(id)
						require.NoError(y.t, err)
					}
				}
				y.saw.add("resumed", 1)
			}
		}
	}
	return r
}

// constrain gives a request a grammar, most of which have chains of forced tokens.
func (y *story) constrain(r *Request) {
	sources := []string{oddNumbers, `([0-9]{2} (101 202 303 ){3}){1,40}`, `(500 ){90}`, `(11 22 33 44 55 ){0,9}66 77 88 `, `([1-9][0-9] 100 |200 300 ){30}`}
	g, err := guide.Compile(guide.Source{Kind: guide.Regex, Text: sources[y.rng.IntN(len(sources))]}, fakeWords())
	require.NoError(y.t, err)
	r.StopIDs = []int32{0}
	for i := range r.Continuations {
		r.Continuations[i].Guide = g.Start(r.StopIDs)
	}
}

// whole is all that continuation i generates, including its stop.
func (y *story) whole(r Request, i int) []int32 {
	if c := r.Continuations[i]; !c.Guide.Free() {
		return append(slices.Clone(c.Resumed), wantGuided(y.t, r, i)...)
	}
	whole := wantOf(r, i)
	if at := slices.IndexFunc(whole, func(id int32) bool { return slices.Contains(r.StopIDs, id) }); at >= 0 {
		whole = whole[:at+1]
	}
	return whole
}

// read follows a stream as readers do: at once, late, or until it wants no more.
func (y *story) read(s *Stream, r Request, i int, rng *rand.Rand) {
	t := y.t
	lazy, until := rng.IntN(3) == 0, 1<<30
	if rng.IntN(5) == 0 {
		until = rng.IntN(60)
	}
	var tokens []int32
	var progress []int
	scores, expected := 0, y.whole(r, i)[len(r.Continuations[i].Resumed):]
	for {
		events, err := s.Recv(t.Context(), nil)
		require.NoError(t, err)
		if len(events) == 0 {
			break
		}
		var done *Done
		for _, e := range events {
			require.Nil(t, done, "nothing follows the end")
			switch {
			case e.Token != nil:
				tokens = append(tokens, e.Token.Token)
			case e.Prefilled > 0:
				progress = append(progress, e.Prefilled)
			case e.Done != nil:
				done = e.Done
				require.Equal(t, len(tokens)+len(r.Continuations[i].Resumed), done.Generated)
			}
			scores += len(e.Scored)
		}
		require.LessOrEqual(t, len(events), bufferLimit+maxForced+2*depth+1)
		if len(tokens) > until {
			s.Cancel()
			require.Equal(t, expected[:len(tokens)], tokens)
			return
		}
		if lazy {
			time.Sleep(time.Duration(rng.IntN(150)) * time.Millisecond)
		}
	}
	require.Equal(t, expected, tokens)
	require.LessOrEqual(t, s.Cached(), len(r.Prompt)-1)
	require.True(t, slices.IsSorted(progress))
	if i == 0 && r.Progress {
		require.Equal(t, len(r.Prompt), progress[len(progress)-1])
	}
	if i == 0 && r.PromptTopN >= 0 {
		require.Equal(t, len(r.Prompt)-1, scores, "every prompt token is scored once")
	} else {
		require.Zero(t, scores)
	}
}

// check compares the loop's state with its invariants. The loop is in a Submit of its runner.
func (y *story) check(*engine.Step) error {
	l, held := y.l, map[string]int{}
	for i, s := range l.slots {
		if s == nil {
			continue
		}
		held[s.request.Tenant]++
		goes := slices.Contains(l.departing, s)
		for what, broken := range map[string]bool{
			"it is in its slot":                      i != int(s.slot),
			"it is in one list":                      slices.Contains(l.running, s) == goes,
			"it departs if it is to go":              goes != (s.preempted || s.ended),
			"it has not computed more than it began": s.computed > s.submitted,
			"it has ids for what it computes":        s.submitted > s.length(),
			"its samples are of steps in flight":     s.sampling < 0 || s.sampling > s.inFlight || s.inFlight > depth,
			"its blocks cover what is computed":      l.cache.BlocksFor(s.submitted) > len(s.table.Blocks),
			"its window is not beyond its blocks":    len(s.table.Window) > len(s.table.Blocks),
			"it frees blocks that left the window":   y.cfg.Window > 0 && !s.ended && !s.preempted && y.holdsStale(s),
		} {
			if broken {
				return fmt.Errorf("slot %d: not true: %s", i, what)
			}
		}
	}
	for s := range l.queue.Each {
		if s.table != nil || s.inFlight > 0 || s.slot >= 0 {
			return fmt.Errorf("sequence %d waits and holds slot %d", s.age, s.slot)
		}
	}
	switch {
	case !maps.Equal(held, l.held):
		return fmt.Errorf("tenants hold %v, counted as %v", held, l.held)
	case len(l.flights) > 1:
		return fmt.Errorf("%d steps are in flight before this one", len(l.flights))
	case !slices.IsSortedFunc(l.running, byUrgency):
		return errors.New("running sequences are out of order")
	}
	return nil
}

// holdsStale reports whether a sequence holds blocks that left the window of its next position.
func (y *story) holdsStale(s *sequence) bool {
	first := min(engine.FirstWindowBlock(s.computed, y.cfg.Window, 16), len(s.table.Window))
	if first > 0 {
		y.saw.add("windows freed", 1)
	}
	return slices.ContainsFunc(s.table.Window[:first], func(b int32) bool { return b != engine.NoBlock })
}

// end checks the state after the last sequence.
func (y *story) end() {
	t, l, stats := y.t, y.l, y.l.Stats()
	require.True(t, l.Idle())
	require.Equal(t, y.cfg.Runner.KVBlocks, stats.FreeBlocks, "blocks are free or cached")
	require.Equal(t, y.cfg.Runner.HostBlocks-l.cfg.Tier.Blocks, stats.FreeHostBlocks)
	require.Equal(t, y.cfg.Runner.SavedStates, l.cache.FreeStates(), "states are free or findable")
	require.Equal(t, y.cfg.Runner.WindowBlocks, stats.FreeWindowBlocks, "window blocks are free or findable")
	require.Equal(t, y.cfg.Runner.HostWindowBlocks-l.cfg.Tier.WindowBlocks, stats.FreeHostWindowBlocks)
	require.Zero(t, stats.Paused)
	require.Zero(t, stats.QueueAge)
	require.Zero(t, stats.WaitingPrefillTokens)
	require.Empty(t, l.sharedPrompts)
	require.Empty(t, l.held)
	require.Empty(t, l.departing)
	require.Nil(t, l.reservedFor)
	require.Equal(t, max(1, y.fake.deepest), y.fake.deepest)
	y.saw.add("preempted", int(stats.Preempted))
	y.saw.add("swapped", int(stats.Swapped))
	y.saw.add("cached", int(stats.CachedTokens))
	tier := l.cache.Stats().Tier
	y.saw.add("recalled", int(tier.Recalls))
	y.saw.add("displaced in host memory", int(tier.Evictions))
	y.saw.add("windows from host memory", int(tier.In[kvcache.WindowBlock]))
	if y.cfg.States {
		y.saw.add("swapped with states", int(stats.Swapped))
		y.saw.add("cached with states", int(stats.CachedTokens))
		y.saw.add("states evicted", int(l.cache.Stats().StateEvictions))
	}
	if y.cfg.Window > 0 {
		y.saw.add("swapped with windows", int(stats.Swapped))
		y.saw.add("cached with windows", int(stats.CachedTokens))
		y.saw.add("windows evicted", int(l.cache.Stats().WindowEvictions))
	}
	y.saw.add("cancelled", int(stats.Cancelled))
	y.saw.add("refused", int(stats.RefusedSteps))
	y.saw.add("previous", y.fake.previous)
	y.saw.add("forced", int(stats.ForcedTokens))
}
