package batch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/internal/scripttest"
)

// TestScripts runs the scripts of testdata. A script is lines of commands that one loop executes.
// Lines that begin with "-> " are the outcome of the command above them, and -update rewrites them.
// Blocks have 16 tokens, and a step takes a millisecond.
//
//	loop [slots=N] [blocks=N] [host=N] [chunk=N] [grain=N] [context=N] [waiting=N]
//	     [queue=DURATION] [oneclass]
//	submit NAME prompt=N[+N] tokens=N [of=TRUNK] [n=N] [resumed=N] [stop=N] [priority=N]
//	       [tenant=T] [salt=S] [bypass] [top=N] [progress] [class=decode]
//	round [N]        N rounds of the loop, or until it is idle
//	skip N           the same without output
//	cancel NAME
//	deaf NAME        stop reading its stream
//	hear NAME        read it again
//	refuse WHAT      refuse steps with "several" sequences, "out" moves, a "previous" sample,
//	                 "all" or "none"
//	wait DURATION
//	state            print slots, blocks and queue
//	back             print how many prompts are held back, and for how long any was
//
// A prompt is the first N tokens of a trunk, then tokens of its own. Token i of a prompt or an
// answer is written as its position. An answer that differs from what its sequence generates alone
// fails the test.
func TestScripts(t *testing.T) {
	scripttest.Run(t, func(t *testing.T, text string) (got string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) { got = play(t, text) })
		return got
	})
}

// player executes a script.
type player struct {
	t       *testing.T
	l       *Loop
	fake    *fakeRunner
	actors  []*actor
	refused string
	steps   int
	took    []string // events of the round
}

// actor is a continuation of a script.
type actor struct {
	name   string
	stream *Stream
	seq    *sequence
	want   []int32 // what must be delivered
	got    int
	first  int // position of the first token to deliver
	deaf   bool
	ended  bool
}

// play runs a script and returns it with its actual outcomes.
func play(t *testing.T, script string) string {
	t.Helper()
	p := &player{t: t}
	var out strings.Builder
	for line := range strings.Lines(script) {
		if strings.HasPrefix(line, "-> ") {
			continue
		}
		out.WriteString(line)
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		for _, came := range p.command(words) {
			out.WriteString("-> " + came + "\n")
		}
	}
	return out.String()
}

func (p *player) command(words []string) []string {
	switch words[0] {
	case "loop":
		p.begin(options(words[1:]))
	case "submit":
		return p.submit(words[1], options(words[2:]))
	case "round":
		return p.rounds(words[1:])
	case "skip":
		p.rounds(words[1:])
	case "cancel":
		p.actor(words[1]).stream.Cancel()
	case "deaf", "hear":
		p.actor(words[1]).deaf = words[0] == "deaf"
	case "refuse":
		p.refused = words[1]
	case "wait":
		d, err := time.ParseDuration(words[1])
		require.NoError(p.t, err)
		time.Sleep(d)
	case "state":
		return []string{p.state()}
	case "back":
		s := p.l.Stats()
		return []string{fmt.Sprintf("%d held back, %v so far", s.HeldBack, s.HeldBackTime)}
	default:
		require.FailNow(p.t, "unknown command", words[0])
	}
	return nil
}

func options(words []string) map[string]string {
	o := map[string]string{}
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		o[key] = value
	}
	return o
}

func (p *player) number(o map[string]string, key string, unset int) int {
	text, set := o[key]
	if !set {
		return unset
	}
	n, err := strconv.Atoi(text)
	require.NoError(p.t, err, key)
	return n
}

func (p *player) begin(o map[string]string) {
	p.actors, p.refused, p.steps = nil, "", 0
	slots := p.number(o, "slots", 4)
	_, one := o["oneclass"]
	cfg := Config{
		Context: p.number(o, "context", 512), Chunk: p.number(o, "chunk", 64), OneClass: one, BlockBytes: 1,
		MaxWaiting: p.number(o, "waiting", 0), Grain: p.number(o, "grain", 0),
		Runner: engine.RunnerConfig{
			BlockSize: 16, KVBlocks: p.number(o, "blocks", 64), MaxSequences: slots, MaxBatchedTokens: 160,
			MaxSampleRows: slots, MaxScoreRows: 8, HostBlocks: p.number(o, "host", 0),
		},
	}
	if o["queue"] != "" {
		var err error
		cfg.MaxQueueTime, err = time.ParseDuration(o["queue"])
		require.NoError(p.t, err)
	}
	p.fake = newFake(cfg.Runner)
	p.fake.oneClass = one
	p.fake.prompts = func(q engine.SlotParams) engine.KernelClass { return engine.KernelClass(q.TopK) }
	p.fake.lasts = func(*engine.Step) time.Duration { return time.Millisecond }
	p.fake.refuse, p.fake.watch = p.refuse, p.watch
	p.l = New(cfg, p.fake, hclog.NewNullLogger())
}

func (p *player) refuse(s *engine.Step) error {
	out := slices.ContainsFunc(s.PreOps, func(op engine.PreOp) bool { return op.Kind == engine.BlockOut })
	switch {
	case p.refused == "several" && len(s.Segments) > 1:
		p.took = append(p.took, fmt.Sprintf("refused: %d sequences", len(s.Segments)))
		return fmt.Errorf("several: %w", engine.ErrPrecondition)
	case p.refused == "previous" && slices.ContainsFunc(s.Segments, func(g engine.Segment) bool {
		return g.Tokens[0] == engine.PreviousSample
	}):
		p.took = append(p.took, "refused: a previous sample")
		return fmt.Errorf("previous: %w", engine.ErrPrecondition)
	case p.refused == "all":
		p.took = append(p.took, fmt.Sprintf("refused: %d sequences", len(s.Segments)))
		return fmt.Errorf("all: %w", engine.ErrInvalid)
	case p.refused == "out" && out:
		p.took = append(p.took, "refused: no host memory")
		return fmt.Errorf("host memory: %w", engine.ErrOutOfMemory)
	}
	return nil
}

func (p *player) submit(name string, o map[string]string) []string {
	trunk, own := o["prompt"], "0"
	if before, after, cut := strings.Cut(trunk, "+"); cut {
		trunk, own = before, after
	}
	shared, err := strconv.Atoi(trunk)
	require.NoError(p.t, err)
	alone, err := strconv.Atoi(own)
	require.NoError(p.t, err)
	seed := int32(len(p.actors)) + 1
	from := 100 + seed
	if o["of"] != "" {
		from = int32(o["of"][0])
	}
	r := Request{
		Prompt: append(prompt(shared, from), prompt(alone, 200+seed)...), MaxTokens: p.number(o, "tokens", 1),
		PromptTopN: p.number(o, "top", -1), Priority: int32(p.number(o, "priority", 0)), Tenant: o["tenant"], Salt: o["salt"],
	}
	_, r.Bypass = o["bypass"]
	_, r.Progress = o["progress"]
	if o["class"] == "decode" {
		r.Class = engine.Decode
	}
	r.Params.TopK, r.Params.Seed = int32(r.Class), uint64(seed)
	n := p.number(o, "n", 1)
	if at := p.number(o, "stop", -1); at >= 0 {
		r.StopIDs = []int32{wantOf(r, 0)[at]}
	}
	resumed := p.number(o, "resumed", 0)
	r.Resumed = resumed > 0
	for i := range n {
		r.Continuations = append(r.Continuations, Continuation{OutputIndex: int32(i), Resumed: wantOf(r, i)[:resumed]})
	}
	streams, err := p.l.Submit(r)
	if err != nil {
		return []string{err.Error()}
	}
	arrived := p.l.inbox.arrivals[len(p.l.inbox.arrivals)-n:]
	for i, s := range streams {
		a := &actor{name: name, stream: s, seq: arrived[i], want: wantOf(r, i)[resumed:], first: len(r.Prompt) + resumed}
		if n > 1 {
			a.name += "." + strconv.Itoa(i)
		}
		p.actors = append(p.actors, a)
	}
	return nil
}

func (p *player) actor(name string) *actor {
	at := slices.IndexFunc(p.actors, func(a *actor) bool { return a.name == name })
	require.GreaterOrEqual(p.t, at, 0, "nobody is called %s", name)
	return p.actors[at]
}

// rounds returns a line for what each round submitted, read and delivered.
func (p *player) rounds(words []string) (lines []string) {
	n := 1
	if len(words) > 0 {
		var err error
		n, err = strconv.Atoi(words[0])
		require.NoError(p.t, err)
	}
	for range n {
		p.took = nil
		idle, err := p.l.round(p.t.Context())
		require.NoError(p.t, err)
		p.deliver()
		if idle && len(p.took) == 0 {
			return append(lines, "idle")
		}
		lines = append(lines, strings.Join(p.took, " | "))
	}
	return lines
}

// watch describes an accepted step.
func (p *player) watch(s *engine.Step) error {
	p.steps++
	var parts []string
	sampled := map[int32]int32{}
	for _, row := range s.Samples {
		sampled[row.Slot] = row.Position
	}
	for _, op := range s.PreOps {
		switch op.Kind {
		case engine.SlotSet:
			parts = append(parts, fmt.Sprintf("set %s has %d", p.name(op.Slot), len(op.History)))
		case engine.BlockCopy:
			parts = append(parts, fmt.Sprintf("copy %d to %d", op.Src, op.Dst))
		case engine.BlockOut:
			parts = append(parts, fmt.Sprintf("out %d to host %d", op.Src, op.Dst))
		case engine.BlockIn:
			parts = append(parts, fmt.Sprintf("in host %d to %d", op.Src, op.Dst))
		case engine.StateOut, engine.StateIn:
			require.Fail(p.t, "a step moves a state", "layers of scripts carry none")
		}
	}
	for i := range s.Segments {
		seg := &s.Segments[i]
		last := seg.FirstPosition + int32(len(seg.Tokens)) - 1
		what := fmt.Sprintf("%s %d", p.name(seg.Slot), seg.FirstPosition)
		if last > seg.FirstPosition {
			what += fmt.Sprintf("..%d", last)
		}
		if seg.Class == engine.Decode {
			what += " decode"
		}
		if seg.Tokens[0] == engine.PreviousSample {
			what += " previous"
		}
		if at, ok := sampled[seg.Slot]; ok {
			what += fmt.Sprintf(" samples %d", at)
		}
		parts = append(parts, what)
	}
	if n := len(s.Scores); n > 0 {
		parts = append(parts, fmt.Sprintf("%d scores", n))
	}
	p.took = append(p.took, fmt.Sprintf("step %d: %s", p.steps, strings.Join(parts, ", ")))
	return nil
}

// name is the sequence in a slot.
func (p *player) name(slot int32) string {
	for _, a := range p.actors {
		if a.seq == p.l.slots[slot] {
			return a.name
		}
	}
	return "nobody"
}

// deliver reads every stream that has events.
func (p *player) deliver() {
	ready, cancel := context.WithCancelCause(context.Background())
	cancel(errOver)
	for _, a := range p.actors {
		if a.deaf || a.ended {
			continue
		}
		events, err := a.stream.Recv(ready, nil)
		if errors.Is(err, errOver) {
			continue
		}
		said := []string{}
		for _, e := range events {
			switch {
			case e.Token != nil:
				require.Equal(p.t, a.want[a.got], e.Token.Token, "%s, token %d", a.name, a.got)
				said = append(said, strconv.Itoa(a.first+a.got))
				a.got++
			case e.Scored != nil:
				said = append(said, fmt.Sprintf("%d scores", len(e.Scored)))
			case e.Prefilled > 0:
				said = append(said, fmt.Sprintf("prompt %d", e.Prefilled))
			case e.Done != nil:
				a.ended = true
				reason := "length"
				if e.Done.Reason == Stop {
					reason = "stop"
				}
				said = append(said, fmt.Sprintf("ends by %s with %d", reason, e.Done.Generated))
			}
		}
		if err != nil {
			a.ended = true
			said = append(said, err.Error())
		}
		if len(said) > 0 {
			p.took = append(p.took, a.name+" gets "+strings.Join(said, ", "))
		}
	}
}

func (p *player) state() string {
	p.l.report(time.Now())
	s := p.l.Stats()
	return fmt.Sprintf("%d running, %d waiting, %d of %d blocks free, %d of them cached, %d of %d in host memory; preempted %d, swapped %d, "+
		"cached tokens %d, steps after a cancel %d", s.Running, s.Waiting, s.FreeBlocks, s.TotalBlocks, s.CachedBlocks,
		s.TotalHostBlocks-s.FreeHostBlocks, s.TotalHostBlocks, s.Preempted, s.Swapped, s.CachedTokens, s.StepsAfterCancel)
}
