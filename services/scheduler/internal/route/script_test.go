package route_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/scripttest"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// TestScripts plays golden scripts. A script is lines of commands. The line "-> ..." after a pick
// is its outcome, and -update rewrites it.
//
//	fleet known|unknown
//	worker ID [lost] [state=S] [model=NAME:DIGEST:CLASS:ready|loading]... [context=N] [places=N]
//	       [cache=N] [free=N] [file=NAME]...
//	gone ID
//	report ID [sequences=N] [waiting=N] [stalled=N] [prefill=N]     of model m
//	told ID [add=K,...] [remove=K,...]       reported prefix keys of model m
//	pick MODEL [digest=D] [class=C] [prompt=N] [length=N|all] [atleast=N] [tokens=N] [sequences=N]
//	     [keys=K:TOKENS,...] [key=S] [resumes] [exclude=ID]... [unloaded=ID]... [max=N] [tie=N]
//	started ID, end ID                       for the oldest request there
func TestScripts(t *testing.T) {
	scripttest.Run(t, func(t *testing.T, text string) string {
		t.Helper()
		return (&player{T: t, s: route.Snapshot{Known: true}, reserved: map[string][]*route.Choice{}}).play(text)
	})
}

// player plays one script.
type player struct {
	*testing.T
	s        route.Snapshot
	reserved map[string][]*route.Choice // by worker, the oldest first
	indexes  route.Indexes
}

// play runs a script and returns it with its outcomes.
func (p *player) play(script string) string {
	p.Helper()
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
		o := options(words[2:])
		switch words[0] {
		case "fleet":
			p.s.Known = words[1] == "known"
		case "worker":
			p.setWorker(words[1], o)
		case "gone":
			p.s.Workers = slices.DeleteFunc(p.s.Workers, func(w route.Worker) bool { return w.ID == words[1] })
		case "report":
			p.find(words[1]).Load.Of("m").SetReport(route.Report{Running: p.number(o, "sequences"), Waiting: p.number(o, "waiting"),
				Stalled: p.number(o, "stalled"), Prefill: p.number(o, "prefill")})
		case "told":
			p.find(words[1]).Models[0].Prefixes.Change(p.numbers(o, "add"), p.numbers(o, "remove"))
		case "started":
			p.reserved[words[1]][0].Started()
		case "end":
			p.reserved[words[1]][0].End()
			p.reserved[words[1]] = p.reserved[words[1]][1:]
		case "pick":
			fmt.Fprintf(&out, "-> %s\n", p.pick(words[1], o))
		default:
			require.FailNow(p, "unknown command", words)
		}
	}
	return out.String()
}

func (p *player) pick(model string, o map[string][]string) string {
	p.Helper()
	_, resumes := o["resumes"]
	r := route.Request{
		Model: model, Digest: one(o, "digest"), ClassID: one(o, "class"), Exclude: o["exclude"], Unloaded: o["unloaded"],
		Length: p.length(o), Context: p.number(o, "atleast"), Prompt: p.number(o, "prompt"), Tokens: p.number(o, "tokens"), Sequences: 1,
		MaxInFlight: p.number(o, "max"), Tie: uint64(p.number(o, "tie")), RoutingKey: one(o, "key"), Resumes: resumes,
	}
	if len(o["sequences"]) > 0 {
		r.Sequences = p.number(o, "sequences")
	}
	for _, pair := range strings.FieldsFunc(one(o, "keys"), func(c rune) bool { return c == ',' }) {
		key, tokens, _ := strings.Cut(pair, ":")
		r.Keys = append(r.Keys, route.Key{Key: uint64(p.parse(key)), Tokens: p.parse(tokens)})
	}
	s := route.NewSnapshot(p.s.Known, p.s.Workers)
	c, err := route.Pick(&s, r)
	if err != nil {
		var refusal *route.Refusal
		require.True(p, errors.Is(err, route.ErrWorkersFull) || errors.Is(err, route.ErrTooLarge) || errors.As(err, &refusal) && errors.Is(err, refusal.Err))
		if refusal != nil && refusal.Loadable {
			later := ""
			if refusal.Returns {
				later = ", later"
			}
			return err.Error() + strings.TrimRight(" (a load would help "+refusal.Digest, " ") + later + ")"
		}
		return err.Error()
	}
	require.True(p, c.Reserve())
	w := &s.Workers[c.Index]
	p.reserved[w.ID] = append(p.reserved[w.ID], &c)
	m := w.Load.Of(model)
	return fmt.Sprintf("%s has %d cached, now %d sequences and %d of others, %d prompt tokens", w.ID, c.Cached,
		m.Sequences(), m.Foreign(), m.Prefill())
}

func (p *player) setWorker(id string, o map[string][]string) {
	p.Helper()
	states := map[string]route.State{"": route.Ready, "starting": route.Starting, "ready": route.Ready,
		"degraded": route.Degraded, "draining": route.Draining, "not_ready": route.NotReady}
	_, lost := o["lost"]
	state, known := states[one(o, "state")]
	require.True(p, known, "state of %s", id)
	w := route.Worker{ID: id, Address: id + ":1", Connected: !lost, State: state, Files: o["file"], Unusable: o["unusable"],
		Load: &route.Load{}}
	for _, m := range o["model"] {
		parts := append(strings.Split(m, ":"), "", "", "")
		w.Models = append(w.Models, route.Model{Name: parts[0], Digest: parts[1], ClassID: parts[2],
			Ready: parts[3] != "loading", ContextLength: p.number(o, "context"), MaxSequences: p.number(o, "places"),
			CacheTokens: p.number(o, "cache"), FreeTokens: p.number(o, "free"),
			Prefixes: p.indexes.Prefixes(parts[0], parts[1])})
	}
	for i := range p.s.Workers {
		if old := &p.s.Workers[i]; old.ID == id {
			w.Load = old.Load
			for j := range w.Models {
				if j < len(old.Models) && old.Models[j].Digest == w.Models[j].Digest {
					w.Models[j].Prefixes = old.Models[j].Prefixes
				}
			}
			p.s.Workers = slices.Clone(p.s.Workers)
			p.s.Workers[i] = w
			return
		}
	}
	p.s.Workers = append(slices.Clone(p.s.Workers), w)
	slices.SortFunc(p.s.Workers, func(a, b route.Worker) int { return strings.Compare(a.Address, b.Address) })
}

func (p *player) find(id string) *route.Worker {
	p.Helper()
	for i := range p.s.Workers {
		if p.s.Workers[i].ID == id {
			return &p.s.Workers[i]
		}
	}
	require.FailNow(p, "no worker "+id)
	return nil
}

func options(words []string) map[string][]string {
	o := map[string][]string{}
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		o[key] = append(o[key], value)
	}
	return o
}

func one(o map[string][]string, key string) string {
	if len(o[key]) == 0 {
		return ""
	}
	return o[key][0]
}

// length returns the longest sequence of a request, which is its prompt's by default.
func (p *player) length(o map[string][]string) int64 {
	p.Helper()
	switch one(o, "length") {
	case "":
		return p.number(o, "prompt")
	case "all":
		return route.Unbounded
	}
	return p.number(o, "length")
}

func (p *player) number(o map[string][]string, key string) int64 {
	p.Helper()
	if len(o[key]) == 0 {
		return 0
	}
	return p.parse(o[key][0])
}

func (p *player) numbers(o map[string][]string, key string) (all []uint64) {
	p.Helper()
	for _, n := range strings.FieldsFunc(one(o, key), func(c rune) bool { return c == ',' }) {
		all = append(all, uint64(p.parse(n)))
	}
	return all
}

func (p *player) parse(n string) int64 {
	p.Helper()
	v, err := strconv.ParseInt(n, 10, 64)
	require.NoError(p, err)
	return v
}
