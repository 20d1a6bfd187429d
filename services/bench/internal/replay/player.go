package replay

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/simfleet"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// player makes the calls of one row.
type player struct {
	scale Scale
	conns []*grpc.ClientConn // to schedulers, which are asked in turn; or to the workers that rules chooses from
	rules *dispatcher        // nil: schedulers choose

	mu        sync.Mutex // guards rules and all below
	first     stats.Histogram
	late      stats.Histogram
	prompt    int // tokens of calls that ended well
	cached    int // of these
	predicted int // of these, by the oracle's books
	failed    map[failure]int
	example   map[failure]string
}

// failure is a kind of failed call.
type failure struct {
	code   codes.Code
	reason string
}

// play starts each call when it is due, and waits for all. When ctx ends no more are started and the running ones are cut off.
func (p *player) play(ctx context.Context, all []job, tell func(done int)) {
	p.failed, p.example = map[failure]int{}, map[failure]string{}
	timer := time.NewTimer(0)
	defer timer.Stop()
	var running sync.WaitGroup
	defer running.Wait()
	begin := time.Now()
	for i := range all {
		j := all[i]
		j.ids = p.scale.prompt(j.of, simfleet.Vocabulary)
		due := begin.Add(j.at)
		timer.Reset(time.Until(due))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		running.Go(func() { p.call(ctx, &j, due) })
		if (i+1)%100 == 0 {
			tell(i + 1)
		}
	}
}

func (p *player) call(ctx context.Context, j *job, due time.Time) {
	conn, see := p.conns[j.index%len(p.conns)], load.Observer{}
	var t *ticket
	if p.rules != nil {
		p.mu.Lock()
		t = p.rules.give(j)
		p.mu.Unlock()
		conn = p.conns[t.worker]
		see.Tokens = func(n int) {
			p.mu.Lock()
			p.rules.got(t, n)
			p.mu.Unlock()
		}
	}
	out := load.Call(ctx, conn, simfleet.Request(j.ids, j.output), due, 0, see, nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	if t != nil {
		p.rules.end(t)
	}
	p.record(&out, t)
}

// record counts a call. p.mu is held.
func (p *player) record(out *load.Outcome, t *ticket) {
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
