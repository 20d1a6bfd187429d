package sametest

import (
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
)

// kind is the subject of a scenario.
type kind string

// Kinds of scenarios. The first six take turns, the others at the rates in Options.
const (
	kindCrowd    kind = "crowd"    // strangers come and leave
	kindPressure kind = "pressure" // too few blocks for all
	kindResumed  kind = "resumed"  // answers begun elsewhere
	kindTurns    kind = "turns"    // conversations: prompts that hold older answers
	kindPrefix   kind = "prefix"   // prompts with one beginning, at once and one after another
	kindSlow     kind = "slow"     // readers that stop reading
	kindRows     kind = "rows"     // as many decoding rows as a bucket holds, and one more or less
	kindWide     kind = "wide"
	kindLong     kind = "long"
)

var ordinaryKinds = [...]kind{
	kindCrowd, kindPressure, kindResumed, kindPrefix, kindTurns, kindPressure, kindPrefix, kindCrowd, kindSlow,
}

// rowCounts are the buckets of decode steps that engines have, and their neighbours.
var rowCounts = []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257}

// resumes is how many places there are in which an answer is resumed: after 1 .. resumes tokens.
const resumes = 40

// drawer makes scenarios. solve gives what an ask gives alone.
type drawer struct {
	dice
	opts  Options
	solve func(*ask) (answer, error)
	s     *scenario
}

// draw makes the scenario of a seed.
func draw(seed uint64, opts Options, solve func(*ask) (answer, error)) (*scenario, error) {
	d := &drawer{dice: roll(streamScenario, seed), opts: opts, solve: solve, s: &scenario{seed: seed}}
	d.s.model = d.opts.ordinary[d.IntN(len(d.opts.ordinary))]
	if len(d.opts.described) > 0 && d.in(3) {
		d.s.model = d.opts.described[d.IntN(len(d.opts.described))]
	}
	every := func(n int) bool { return n > 0 && seed%uint64(n) == uint64(n/2) }
	switch {
	case every(opts.LongEvery):
		d.s.kind, d.s.model = kindLong, modelLong
	case every(opts.RowsEvery):
		d.s.kind, d.s.model = kindRows, modelRows
	case every(opts.WideEvery):
		d.s.kind, d.s.model = kindWide, modelWide
	default:
		d.s.kind = ordinaryKinds[seed%uint64(len(ordinaryKinds))]
	}
	people := map[kind]func() error{
		kindCrowd: d.crowd, kindPressure: d.pressure, kindResumed: d.resumed, kindTurns: d.turns, kindPrefix: d.prefix,
		kindSlow: d.slow, kindRows: d.rows, kindWide: d.wide, kindLong: d.long,
	}
	if err := people[d.s.kind](); err != nil {
		return nil, fmt.Errorf("draw a scenario: %w", err)
	}
	d.loop()
	return d.s, nil
}

func (d *drawer) ask(most size) ask {
	a := drawAsk(d.s.model, d.IntN(entries), most)
	if d.opts.oneClass && d.in(6) {
		a.class = engine.Decode
	}
	return a
}

func (d *drawer) add(a actor) { d.s.actors = append(d.s.actors, a) }

// stranger is anybody, at any time.
func (d *drawer) stranger(most size) actor {
	a := newActor("stranger", d.ask(most), pick(d.dice, 1, 1, 1, 1, 2, 3, 4))
	if d.in(2) {
		a.after = d.one(1, 60)
	}
	if d.in(4) {
		a.cancel = d.one(0, most.tokens)
	}
	d.manners(&a)
	return a
}

// manners are what of a request may change when it runs, and never a bit of it.
func (d *drawer) manners(a *actor) {
	r := &a.request
	r.Priority = pick[int32](d.dice, 0, 0, 0, 1, 5, -3)
	r.Tenant = pick(d.dice, "", "a", "b", "c")
	r.Salt = pick(d.dice, "", "", "", "pepper")
	r.Bypass = d.in(8)
	r.Progress = d.in(4)
	if d.in(3) {
		for n := 16; n <= len(r.Prompt); n += 16 {
			r.Keys = append(r.Keys, batch.PrefixKey{Key: d.Uint64(), Tokens: n})
		}
	}
}

func (d *drawer) crowd() error {
	for range d.one(1, 7) {
		d.add(d.stranger(ordinary))
	}
	return nil
}

func (d *drawer) pressure() error {
	for range d.one(3, 6) {
		a := newActor("long answer", d.ask(lasting), pick(d.dice, 1, 1, 2))
		a.after = d.one(0, 20)
		d.manners(&a)
		if d.in(8) {
			a.cancel = d.one(0, lasting.tokens)
		}
		d.add(a)
	}
	return nil
}

// whole returns an ask whose answer has at least n tokens alone, and that answer.
func (d *drawer) whole(n int, most size) (ask, answer, error) {
	for {
		a := d.ask(most)
		a.tokens, a.stops = max(a.tokens, n), nil
		alone, err := d.solve(&a)
		if err != nil || len(alone.rows) >= n {
			return a, alone, err
		}
	}
}

// resumed continues three answers of one request, each begun elsewhere and broken off at another place.
func (d *drawer) resumed() error {
	k := int(d.s.seed / uint64(len(ordinaryKinds)) % resumes)
	a, _, err := d.whole(resumes+1, lasting)
	if err != nil {
		return err
	}
	again := newActor("resumed", a, pick(d.dice, 1, 3, 3))
	for i := range again.asks {
		alone, err := d.solve(&again.asks[i])
		if err != nil {
			return err
		}
		after := min(1+(k+13*i)%resumes, max(len(alone.rows)-1, 0))
		again.request.Continuations[i].Resumed = alone.tokens()[:after]
	}
	d.manners(&again)
	if d.in(2) { // the original runs here too, before or together with it
		first := newActor("the same from its beginning", a, 1)
		first.request.Salt = again.request.Salt
		d.add(first)
		if d.in(2) {
			again.follows = 0
		}
	}
	d.add(again)
	for range d.IntN(4) {
		d.add(d.stranger(ordinary))
	}
	return nil
}

func (d *drawer) turns() error {
	a, before := d.ask(ordinary), none
	salt := pick(d.dice, "", "", "pepper")
	for turn := range d.one(2, 3) {
		it := newActor(fmt.Sprintf("turn %d", turn+1), a, 1)
		d.manners(&it)
		it.request.Salt, it.follows = salt, before
		before = len(d.s.actors)
		d.add(it)
		for range d.IntN(3) {
			d.add(d.stranger(ordinary))
		}
		alone, err := d.solve(&a)
		if err != nil {
			return err
		}
		next := d.ask(ordinary)
		next.class = a.class
		next.prompt = slices.Concat(a.prompt, alone.tokens(), d.ids(d.one(1, 20), models[d.s.model].desc.Vocab))
		next.params.PromptLength = int32(len(next.prompt))
		a = next
	}
	return nil
}

func (d *drawer) prefix() error {
	a := d.ask(ordinary)
	vocab := models[d.s.model].desc.Vocab
	base := append(slices.Clone(a.prompt), d.ids(d.one(0, 90), vocab)...)
	for i := range d.one(2, 6) {
		b := d.ask(ordinary)
		b.class = a.class
		cut := pick(d.dice, len(base), len(base), len(base)/16*16, d.one(1, len(base)))
		b.prompt = append(slices.Clone(base[:max(cut, 1)]), d.ids(pick(d.dice, 0, 0, 1, 15, 16, 17, 40), vocab)...)
		b.params.PromptLength = int32(len(b.prompt))
		it := newActor("one beginning", b, pick(d.dice, 1, 1, 1, 3))
		d.manners(&it)
		if i > 0 && d.in(2) {
			it.follows = d.IntN(i)
		}
		if d.in(8) {
			it.cancel = d.one(0, 12)
		}
		d.add(it)
	}
	return nil
}

func (d *drawer) slow() error {
	const held = 70 // more events than a stream holds
	for i := range d.one(2, 4) {
		if i > 0 {
			d.add(d.stranger(ordinary))
			continue
		}
		a, _, err := d.whole(held, size{40, held + 12})
		if err != nil {
			return err
		}
		it := newActor("slow reader", a, 1)
		d.manners(&it)
		it.rest = d.one(0, 4)
		d.add(it)
	}
	return nil
}

// rows are asks of few tokens that all begin in one step: those after it decode as many rows.
func (d *drawer) rows() error {
	n := rowCounts[int(d.s.seed/uint64(d.opts.RowsEvery))%len(rowCounts)]
	d.s.together = true
	first := d.IntN(entries)
	for i := range n {
		a := drawAsk(d.s.model, (first+i)%entries, size{3, 4})
		a.tokens, a.stops, a.topN, a.params.Allowed, a.params.BiasIDs, a.params.BiasValues = 3+i%2, nil, -1, nil, nil, nil
		a.params.MinTokens, a.params.Suppressed = 0, nil
		a.logprobs = true // a forced token would leave the step a row short
		d.add(newActor("row", a, 1))
	}
	return nil
}

func (d *drawer) wide() error {
	for range d.one(2, 4) {
		d.add(d.stranger(slender))
	}
	return nil
}

// long is a prompt with more keys than 16 bits count, asked twice among strangers.
func (d *drawer) long() error {
	a := drawAsk(modelLong, d.IntN(entries), slender)
	a.prompt = roll(streamTokens, 1<<32).ids(1<<16+d.one(1, 40), models[modelLong].desc.Vocab)
	a.params.PromptLength = int32(len(a.prompt))
	a.topN, a.tokens = -1, 4
	for i := range 2 {
		it := newActor("long prompt", a, 1)
		it.follows = i - 1
		d.add(it)
	}
	for range 2 {
		d.add(d.stranger(slender))
	}
	return nil
}

// loop draws the loop that the actors meet: always large enough for each of them alone.
func (d *drawer) loop() {
	s, m := d.s, &models[d.s.model]
	longest, sum, sequences := 0, 0, 0
	for i := range s.actors {
		for j := range s.actors[i].asks {
			n := s.actors[i].asks[j].length()
			longest, sum, sequences = max(longest, n), sum+n, sequences+1
		}
	}
	if s.layout = d.IntN(layoutAlone); s.kind == kindRows {
		s.layout = layoutRows
	}
	for longest > layouts[s.layout].KVBlocks*layouts[s.layout].BlockSize && s.kind != kindLong {
		s.layout = d.IntN(layoutAlone)
	}
	cfg := sized(s.layout, m)
	blocks := func(n int) int { return (n + cfg.BlockSize - 1) / cfg.BlockSize }
	switch s.kind {
	case kindRows:
		s.cfg.Chunk = cfg.MaxBatchedTokens
	case kindLong:
	case kindPressure:
		cfg.KVBlocks = min(cfg.KVBlocks, blocks(longest)+d.IntN(3))
		cfg.HostBlocks = pick(d.dice, 0, 2, 64)
	default:
		cfg.KVBlocks = min(cfg.KVBlocks, blocks(longest)+pick(d.dice, 0, 2, blocks(sum)/2, blocks(sum)+sequences, 1<<20))
		cfg.HostBlocks = pick(d.dice, 0, 64)
	}
	if s.kind != kindRows && s.kind != kindLong {
		cfg.MaxSequences = min(cfg.MaxSequences, pick(d.dice, 1, 2, 3, 4, 6, 9, 260))
		cfg.MaxSampleRows = min(cfg.MaxSampleRows, max(cfg.MaxSequences, pick(d.dice, 1, 8, 260)))
		cfg.MaxBatchedTokens = min(cfg.MaxBatchedTokens, max(cfg.MaxSequences, pick(d.dice, 1, 16, 33, 100, 1024)))
		cfg.MaxScoreRows = min(cfg.MaxScoreRows, pick(d.dice, 1, 3, 8, 64))
		s.cfg.Chunk = pick(d.dice, 0, 0, 1, 2, 7, 15, 16, 17, 32, 33, 64, 200)
	}
	s.cfg.Runner, s.cfg.Context, s.cfg.OneClass = cfg, m.desc.Context, d.opts.oneClass
	s.cfg.BlockBytes = pick[uint64](d.dice, 1, 1, 1<<40) // it pays to swap, or does not
	if m.stateful() {
		d.states()
	}
	if m.grouped() {
		d.windows(m.desc.GroupWindow())
	}
	s.cfg.StepTarget = pick(d.dice, 0, time.Microsecond, 200*time.Microsecond, time.Millisecond)
	s.cfg.SharedTarget = pick(d.dice, 0, time.Microsecond, 100*time.Microsecond)
	s.cfg.YieldAfter = pick(d.dice, time.Millisecond, 3*time.Millisecond)
	d.tier()
}

// tier gives half of the loops a host tier of the prefix cache, in most of their host memory.
func (d *drawer) tier() {
	c := &d.s.cfg
	share := func(n int) int { return n * 3 / 4 }
	if d.in(2) {
		c.LeastRecall = 1
		c.Tier = batch.Tier{
			Blocks: share(c.Runner.HostBlocks), WindowBlocks: share(c.Runner.HostWindowBlocks), States: share(c.Runner.HostStates),
		}
	}
}

// windows draws what a loop has of the window group: at least what one sequence needs.
func (d *drawer) windows(window int) {
	c := &d.s.cfg
	c.Window, c.WindowBlockBytes = window, 1
	least := (window+c.Runner.BlockSize-2)/c.Runner.BlockSize + 2
	c.Runner.WindowBlocks = min(c.Runner.KVBlocks, least+pick(d.dice, 0, 1, 3, 10, 1<<20))
	c.Runner.HostWindowBlocks = pick(d.dice, 0, 2, 64)
	if d.in(2) {
		c.BlockBytes, c.Runner.HostBlocks, c.Runner.HostWindowBlocks = 1, 64, 64
	}
}

// states draws what a loop has for states. Where there is room in host memory, it mostly pays to
// swap: few scenarios have states.
func (d *drawer) states() {
	c := &d.s.cfg
	c.States, c.StateBytes, c.StateInterval = true, 1, pick(d.dice, 0, 16, 64)
	c.Runner.SavedStates = pick(d.dice, 0, 1, 3, c.Runner.SavedStates)
	c.Runner.HostStates = pick(d.dice, 0, 1, c.Runner.HostStates, c.Runner.HostStates)
	if !d.in(4) {
		c.BlockBytes, c.Runner.HostBlocks = 1, 64
	}
}
