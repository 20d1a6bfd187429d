package route_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/scripttest"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// A script is lines of commands; the line after a pick, "-> ...", is its outcome, and -update rewrites it.
//
//	fleet known|unknown
//	worker ID [lost] [state=S] [model=NAME:DIGEST:CLASS:ready|loading]... [context=N] [file=NAME]... [sequences=N]
//	gone ID
//	pick MODEL [digest=D] [class=C] [prompt=N] [tokens=N] [exclude=ID]... [unloaded=ID]... [max=N] [tie=N]
//	end ID tokens=N
func TestScripts(t *testing.T) {
	scripttest.Run(t, play)
}

// play runs a script and returns it with the outcomes that are.
func play(t *testing.T, script string) string {
	t.Helper()
	s := &route.Snapshot{Known: true}
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
		switch words[0] {
		case "fleet":
			s.Known = words[1] == "known"
		case "worker":
			setWorker(t, s, words[1], options(words[2:]))
		case "gone":
			s.Workers = slices.DeleteFunc(s.Workers, func(w route.Worker) bool { return w.ID == words[1] })
		case "end":
			find(t, s, words[1]).Load.End(number(t, options(words[2:]), "tokens"))
		case "pick":
			fmt.Fprintf(&out, "-> %s\n", pick(t, s, words[1], options(words[2:])))
		default:
			require.FailNow(t, "unknown command", line)
		}
	}
	return out.String()
}

func pick(t *testing.T, s *route.Snapshot, model string, o map[string][]string) string {
	t.Helper()
	r := route.Request{
		Model: model, Digest: one(o, "digest"), ClassID: one(o, "class"), Exclude: o["exclude"], Unloaded: o["unloaded"],
		PromptTokens: number(t, o, "prompt"), Tokens: number(t, o, "tokens"),
		MaxInFlight: number(t, o, "max"), Tie: uint64(number(t, o, "tie")),
	}
	i, err := route.Pick(s, r)
	if err != nil {
		var refusal *route.Refusal
		require.ErrorAs(t, err, &refusal)
		require.ErrorIs(t, err, refusal.Err)
		if refusal.Loadable {
			return err.Error() + strings.TrimRight(" (a load would help "+refusal.Digest, " ") + ")"
		}
		return err.Error()
	}
	w := &s.Workers[i]
	w.Load.Begin(r.Tokens, 0)
	return fmt.Sprintf("%s, now %d in flight with %d tokens", w.ID, w.Load.InFlight(), w.Load.Tokens())
}

func setWorker(t *testing.T, s *route.Snapshot, id string, o map[string][]string) {
	t.Helper()
	states := map[string]route.State{"": route.Ready, "starting": route.Starting, "ready": route.Ready,
		"degraded": route.Degraded, "draining": route.Draining, "not_ready": route.NotReady}
	_, lost := o["lost"]
	state, known := states[one(o, "state")]
	require.True(t, known, "state of %s", id)
	w := route.Worker{ID: id, Address: id + ":1", Connected: !lost, State: state, Files: o["file"], Unusable: o["unusable"],
		Sequences: number(t, o, "sequences"), Load: &route.Load{}}
	for _, m := range o["model"] {
		parts := append(strings.Split(m, ":"), "", "", "")
		w.Models = append(w.Models, route.Model{Name: parts[0], Digest: parts[1], ClassID: parts[2],
			Ready: parts[3] != "loading", ContextLength: number(t, o, "context")})
	}
	for i := range s.Workers {
		if s.Workers[i].ID == id {
			w.Load = s.Workers[i].Load
			s.Workers[i] = w
			return
		}
	}
	s.Workers = append(s.Workers, w)
	slices.SortFunc(s.Workers, func(a, b route.Worker) int { return strings.Compare(a.Address, b.Address) })
}

func find(t *testing.T, s *route.Snapshot, id string) *route.Worker {
	t.Helper()
	for i := range s.Workers {
		if s.Workers[i].ID == id {
			return &s.Workers[i]
		}
	}
	require.FailNow(t, "no worker "+id)
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

func number(t *testing.T, o map[string][]string, key string) int64 {
	t.Helper()
	if len(o[key]) == 0 {
		return 0
	}
	n, err := strconv.ParseInt(o[key][0], 10, 64)
	require.NoError(t, err)
	return n
}
