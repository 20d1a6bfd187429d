package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/scripttest"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// TestScripts plays golden scripts. A script is lines of commands. A line "-> ..." is an outcome of
// the command before it, and -update rewrites it.
//
//	queue [most=N] [grace=SECONDS] [longest=SECONDS]
//	at SECONDS
//	worker ID [lost] [places=N] [class=C] [rate=N] [cache=N] [free=N] [context=N]
//	report ID sequences=N
//	ask NAME [prompt=N] [tokens=N] [sequences=N] [priority=N] [tenant=T] [class=C] [resumes]
//	    [exclude=ID] [unloaded=ID] [length=N] [atleast=N] [deadline=SECONDS] [arrived=SECONDS]
//	asks N NAME ...                          NAME1 to NAMEN
//	end NAME [used=N]                        N: tokens computed; without it, all that it asked for
//	cancel NAME
//	stats
func TestScripts(t *testing.T) {
	scripttest.Run(t, func(t *testing.T, text string) string {
		t.Helper()
		p := &player{T: t, grace: 3 * time.Second, begun: time.Unix(1000, 0), waiters: map[string]*waiter{}, leases: map[string]*Lease{}}
		p.now, p.queue.most = p.begun, 3
		return p.play(text)
	})
}

// player plays one script.
type player struct {
	*testing.T
	queue      queue
	grace      time.Duration
	begun, now time.Time
	workers    []route.Worker
	names      []string // of waiters, in order of arrival
	waiters    map[string]*waiter
	leases     map[string]*Lease
	out        strings.Builder
}

func (p *player) play(script string) string {
	for line := range strings.Lines(script) {
		if strings.HasPrefix(line, "-> ") {
			continue
		}
		p.out.WriteString(line)
		words := strings.Fields(line)
		if len(words) > 0 && !strings.HasPrefix(line, "#") {
			p.command(words)
		}
	}
	return p.out.String()
}

func (p *player) command(words []string) {
	p.Helper()
	o := options(words)
	switch words[0] {
	case "queue":
		p.queue.most, p.grace = int(p.number(o, "most")), time.Duration(p.number(o, "grace"))*time.Second
		p.queue.longest = time.Duration(p.number(o, "longest")) * time.Second
	case "at":
		seconds, err := strconv.ParseFloat(words[1], 64)
		require.NoError(p, err)
		p.now = p.begun.Add(time.Duration(seconds * float64(time.Second)))
		p.expire()
		p.dispatch()
	case "worker":
		p.worker(words[1], o)
		p.dispatch()
	case "report":
		p.workers[p.find(words[1])].Load.Of("m").SetReport(route.Report{Running: p.number(o, "sequences")})
		p.dispatch()
	case "ask":
		p.ask(words[1], o)
	case "asks":
		n, err := strconv.Atoi(words[1])
		require.NoError(p, err)
		for i := range n {
			p.ask(fmt.Sprintf("%s%d", words[2], i+1), o)
		}
	case "end":
		l := p.leases[words[1]]
		if o["used"] != "" {
			l.Progress(p.number(o, "used"))
		} else {
			l.left = 0
		}
		l.choice.End()
		p.queue.settle(l)
		p.dispatch()
	case "cancel":
		left, _ := p.queue.withdraw(p.waiters[words[1]], context.Canceled, p.now)
		fmt.Fprintf(&p.out, "-> %s left: %v\n", words[1], left)
		p.names = slices.DeleteFunc(p.names, func(n string) bool { return n == words[1] })
		p.dispatch()
	case "stats":
		s := p.queue.read(p.now)
		fmt.Fprintf(&p.out, "-> %d waiting and %d resuming, the oldest for %v; %d queued in %v, at most %v; %d shed, %d displaced, %d late, %d timed out, %d left\n",
			s.Waiting, s.Resuming, s.Oldest, s.Queued, s.WaitTotal, s.WaitMax, s.Shed, s.Displaced, s.Late, s.Expired, s.Left)
	default:
		require.FailNow(p, "unknown command", words[0])
	}
}

// ask does the same as Place.
func (p *player) ask(name string, o map[string]string) {
	_, resumes := o["resumes"]
	w := &waiter{granted: make(chan grant, 1), request: route.Request{
		Model: "m", Prompt: p.number(o, "prompt"), Tokens: p.number(o, "tokens"), Sequences: 1, Priority: int32(p.number(o, "priority")),
		Tenant: o["tenant"], ClassID: o["class"], Resumes: resumes,
		Length: p.number(o, "length"), Context: p.number(o, "atleast"),
	}}
	if _, stated := o["sequences"]; stated {
		w.request.Sequences = p.number(o, "sequences")
	}
	if o["exclude"] != "" {
		w.request.Exclude = []string{o["exclude"]}
	}
	if o["unloaded"] != "" {
		w.request.Unloaded = []string{o["unloaded"]}
	}
	if o["arrived"] != "" {
		w.request.Arrived = p.begun.Add(time.Duration(p.number(o, "arrived")) * time.Second).UnixNano()
	}
	if o["deadline"] != "" {
		w.deadline = p.begun.Add(time.Duration(p.number(o, "deadline")) * time.Second)
	}
	p.names, p.waiters[name] = append(p.names, name), w
	if p.queue.len() == 0 || resumes && len(p.queue.resuming) == 0 {
		if lease, err := p.acquire(w); err == nil {
			w.granted <- grant{lease: lease}
			p.report()
			return
		}
	}
	rate := 0.0
	for n := range p.workers {
		rate += p.workers[n].Models[0].PrefillRate
	}
	if err := p.queue.push(w, rate, p.now); err != nil {
		w.granted <- grant{err: err}
	}
	p.dispatch()
}

func (p *player) acquire(w *waiter) (*Lease, error) {
	s := route.NewSnapshot(true, p.workers)
	choice, err := route.Pick(&s, w.request)
	if w.reach = choice.Reach; err != nil {
		w.mayReturn = w.request.Pinned() && len(w.request.Exclude)+len(w.request.Unloaded) == 0 &&
			slices.ContainsFunc(p.workers, func(x route.Worker) bool { return !x.Connected && copyFor(&w.request)(&x.Models[0]) })
		return nil, err
	}
	require.True(p, choice.Reserve())
	return &Lease{WorkerID: s.Workers[choice.Index].ID, choice: choice, class: w.class(), left: w.request.Tokens}, nil
}

func (p *player) dispatch() {
	again := p.queue.dispatch(p.now, p.grace, p.acquire)
	p.report()
	if !again.IsZero() {
		fmt.Fprintf(&p.out, "-> again at %v\n", again.Sub(p.begun).Seconds())
	}
}

// report prints the waiters whose wait has ended.
func (p *player) report() {
	p.names = slices.DeleteFunc(p.names, func(name string) bool {
		select {
		case g := <-p.waiters[name].granted:
			if g.err != nil {
				var refusal *route.Refusal
				errors.As(g.err, &refusal)
				fmt.Fprintf(&p.out, "-> %s refused: %v (retry after %v)\n", name, g.err, time.Duration(refusal.RetryMillis)*time.Millisecond)
				return true
			}
			p.leases[name] = g.lease
			fmt.Fprintf(&p.out, "-> %s on %s\n", name, g.lease.WorkerID)
			return true
		default:
			return false
		}
	})
}

// expire withdraws waiters that have waited for too long, as their timers do.
func (p *player) expire() {
	for _, name := range p.names {
		w := p.waiters[name]
		if w.until.IsZero() || p.now.Before(w.until) {
			continue
		}
		if removed, err := p.queue.withdraw(w, nil, p.now); removed {
			w.granted <- grant{err: err}
		}
	}
	p.report()
}

func (p *player) find(id string) int {
	return slices.IndexFunc(p.workers, func(w route.Worker) bool { return w.ID == id })
}

func (p *player) worker(id string, o map[string]string) {
	_, lost := o["lost"]
	class := o["class"]
	if class == "" {
		class = "c"
	}
	w := route.Worker{ID: id, Address: id, Connected: !lost, State: route.Ready, Load: &route.Load{}, Models: []route.Model{{
		Name: "m", Digest: "d", ClassID: class, Ready: true, MaxSequences: p.number(o, "places"), PrefillRate: float64(p.number(o, "rate")),
		CacheTokens: p.number(o, "cache"), FreeTokens: p.number(o, "free"), ContextLength: p.number(o, "context"),
	}}}
	p.workers = slices.Clone(p.workers)
	if at := p.find(id); at >= 0 {
		w.Load = p.workers[at].Load
		p.workers[at] = w
		return
	}
	p.workers = append(p.workers, w)
}

func options(words []string) map[string]string {
	o := map[string]string{}
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		o[key] = value
	}
	return o
}

func (p *player) number(o map[string]string, key string) int64 {
	p.Helper()
	if o[key] == "" {
		return 0
	}
	n, err := strconv.ParseInt(o[key], 10, 64)
	require.NoError(p, err)
	return n
}
