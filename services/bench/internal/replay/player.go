package replay

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/proc"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// player makes the calls of one row.
type player struct {
	scale Scale
	conns []*grpc.ClientConn // to the schedulers, in turn, or to the workers that rules selects from
	rules *dispatcher        // nil: the schedulers select the workers

	mu        sync.Mutex // guards rules and all below
	first     stats.Histogram
	late      stats.Histogram
	prompt    int // tokens of calls that ended well
	cached    int // of these
	predicted int // of these, predicted by the oracle's books
	failed    map[failure]int
	example   map[failure]string
}

// failure is a kind of failed call.
type failure struct {
	code   codes.Code
	reason string
}

// play starts each call when it is due and waits for all. When ctx ends, it starts no more calls,
// and the running ones are cancelled.
func (p *player) play(ctx context.Context, all []job, progress func(done int)) {
	p.failed, p.example = map[failure]int{}, map[failure]string{}
	timer := time.NewTimer(0)
	defer timer.Stop()
	var running sync.WaitGroup
	defer running.Wait()
	begin := time.Now()
	for i := range all {
		j := all[i]
		j.ids = p.scale.prompt(j.of, proc.FleetVocabulary)
		due := begin.Add(j.at)
		timer.Reset(time.Until(due))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		running.Go(func() { p.call(ctx, &j, due) })
		if (i+1)%100 == 0 {
			progress(i + 1)
		}
	}
}

func (p *player) call(ctx context.Context, j *job, due time.Time) {
	conn, see := p.conns[j.index%len(p.conns)], load.Observer{}
	var t *ticket
	if p.rules != nil {
		p.mu.Lock()
		t = p.rules.send(j)
		p.mu.Unlock()
		conn = p.conns[t.worker]
		see.Tokens = func(n int) {
			p.mu.Lock()
			p.rules.received(t, n)
			p.mu.Unlock()
		}
	}
	out := load.Call(ctx, conn, proc.FleetRequest(j.ids, j.output), due, 0, see, nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	if t != nil {
		p.rules.end(t)
	}
	p.recordLocked(&out, t)
}

// recordLocked counts a call.
func (p *player) recordLocked(out *load.Outcome, t *ticket) {
	p.late.Add(out.Sent.Sub(out.Due))
	switch {
	case out.Cut:
		return
	case out.Code != codes.OK:
		kind := failure{out.Code, out.Reason}
		p.failed[kind]++
		p.example[kind] = out.Message
		return
	}
	p.first.Add(out.FirstToken)
	p.prompt += out.Prompt
	p.cached += out.Cached
	if t != nil {
		found, _ := t.found()
		p.predicted += found
	}
}

// job is one call of the replay.
type job struct {
	index  int
	at     time.Duration // since the beginning
	of     Request
	ids    []uint32 // of the prompt; set when the call is sent
	names  []uint64 // of its prefixes, one for each block
	block  int      // tokens of a whole block
	output int      // tokens, >= 1
}

// jobs returns the calls of a trace.
func jobs(requests []Request, s Scale) []job {
	all := make([]job, len(requests))
	for i, r := range requests {
		all[i] = job{index: i, at: s.time(r.Arrival), of: r, names: prefixes(r.Blocks), block: s.block(), output: s.tokens(r.Output)}
	}
	return all
}
