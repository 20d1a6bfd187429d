package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millrace/millrace/internal/scripttest"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// A script is lines of commands to a fleet without sockets and without time; the lines after each, "-> ...", are what comes of it,
// and -update rewrites them. A message has the number that is due unless number=N says another.
//
//	ADDRESS opens                              a health stream begins
//	ADDRESS full ID/INCARNATION STATE MODEL:DIGEST[:STATE]... [bound=D] [age=D]
//	ADDRESS delta [STATE] [models MODEL:DIGEST[:STATE]...] [bound=D] [age=D]
//	ADDRESS beat [bound=D] [age=D]             a heartbeat; age is of the running step
//	ADDRESS keys MODEL:DIGEST KEY...           cached prefixes, all of them
//	ADDRESS says MESSAGE                       any message, in protobuf's text format
//	ADDRESS ends WORDS                         the stream breaks
//	ADDRESS request                            a request holds the worker's link
//	ADDRESS served MODEL DIGEST                an answer says what it is of
//	ADDRESS leaves                             no name has the address any more
//	ticks N [ADDRESS[?|!]]...                  as many pass; the addresses given have a frame read and answer in each; "?": only a frame
//	                                           is read, "!": they only answer
//	clock D                                    this machine's clock is set by so much
//	connection most=N TICK...                  one beside a health stream: "-" quiet, "+" an answer
func TestScripts(t *testing.T) {
	scripttest.Run(t, play)
}

// play runs a script and returns it with the outcomes that are.
func play(t *testing.T, script string) string {
	t.Helper()
	f, err := New(Config{Dial: func(string) (*grpc.ClientConn, error) { return nil, errors.New("no network") }}, hclog.NewNullLogger())
	require.NoError(t, err)
	return (&player{T: t, f: f, now: time.Unix(1e9, 0), sessions: map[string]*playedSession{}}).play(script)
}

// player plays a script on a fleet that does not run.
type player struct {
	*testing.T
	f        *Fleet
	now      time.Time
	sessions map[string]*playedSession
	left     []*playedSession // no name has their addresses any more, and requests hold their links
	shown    string
	out      strings.Builder
}

// playedSession is what an address's goroutine would have.
type playedSession struct {
	m     *member
	link  *Link
	held  []*Link // by requests
	open  bool
	probe probing
}

func (p *player) play(script string) string {
	for line := range strings.Lines(script) {
		if strings.HasPrefix(line, "-> ") {
			continue
		}
		p.out.WriteString(line)
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || strings.HasPrefix(line, "#"):
			continue
		case words[0] == "clock":
			p.now = p.now.Add(p.duration(words[1]))
		case words[0] == "ticks":
			p.ticks(words[1:])
		case words[0] == "connection":
			p.connection(words[1:])
		default:
			require.Greater(p, len(words), 1, "%s", line)
			p.command(words[0], words[1], words[2:], strings.TrimSpace(line))
		}
		p.show()
	}
	return p.out.String()
}

func (p *player) say(format string, args ...any) { fmt.Fprintf(&p.out, "-> "+format+"\n", args...) }

func (p *player) command(address, verb string, words []string, line string) {
	s := p.sessions[address]
	if s == nil {
		require.Equal(p, "opens", verb, "%s: nothing was opened there", line)
		m := &member{address: address, leave: func() {}, load: &told{}, changed: true, tracker: tracker{index: &p.f.prefixes}}
		s = &playedSession{m: m}
		p.sessions[address] = s
		p.follow(m)
	}
	switch verb {
	case "opens":
		require.False(p, s.open, "%s: the last stream has not ended", line)
		s.link, s.open = newLink(nil, nil, p.f.cfg), true
		s.link.conns[0].asking.Store(true) // by nobody: the script answers
		s.m.open = append(s.m.open, s.link)
		s.m.begin()
	case "ends":
		p.end(s, errors.New(strings.Join(words, " ")))
	case "request":
		link, load := s.m.entry.Link, s.m.entry.Load
		require.NotNil(p, link, "%s", line)
		require.True(p, link.Acquire())
		require.True(p, load.Begin(100, 0))
		s.held = append(s.held, link)
	case "served":
		s.m.served(s.link, words[0], words[1])
	case "leaves":
		s.link.reporting.Store(false)
		if s.open = false; len(s.held) > 0 {
			p.left = append(p.left, s)
		}
		delete(p.f.members, address)
		delete(p.sessions, address)
		p.f.order, p.f.shadowed = sorted(p.f.members), nil
	default:
		require.True(p, s.open, "%s: no stream is open", line)
		p.message(s, p.parse(s, verb, words, line))
	}
}

// follow puts a member among the others.
func (p *player) follow(m *member) {
	p.f.members[m.address] = m
	p.f.entries[m.address] = []string{m.address}
	p.f.order, p.f.shadowed = sorted(p.f.members), nil
}

// message gives a message to the fleet, and does with what comes of it as a session does.
func (p *player) message(s *playedSession, in *pb.HealthResponse) {
	before, kept := s.m.tracker.report, proto.CloneOf(s.m.tracker.report)
	s.link.reported.Store(true)
	did := p.f.take(s.m, s.link, in, p.now, &s.probe)
	require.True(p, before == nil || proto.Equal(before, kept), "a report was changed")
	switch {
	case did.lose != nil:
		s.m.loseAll(s.link.incarnation, did.lose)
		p.end(s, did.lose)
	case did.end != nil:
		p.end(s, did.end)
	case did.resync:
		p.say("asks %s for a full report", s.m.address)
	}
	if (did.changed || did.counts) && strings.Contains(p.Name(), "merge") {
		p.say("changed")
	}
}

// end ends a session as its goroutine does.
func (p *player) end(s *playedSession, why error) {
	s.m.end()
	s.m.failed(why)
	s.link.reporting.Store(false)
	s.open = false
	p.say("the stream of %s ends: %v", s.m.address, why)
	p.giveUp(s)
	s.held = nil
}

// giveUp says which requests are given up.
func (p *player) giveUp(s *playedSession) {
	for _, l := range s.held {
		if l.lost.Err() != nil {
			p.say("requests on %s are given up: %v", s.m.address, context.Cause(l.lost))
		}
	}
}

func (p *player) ticks(words []string) {
	for range p.number(words[0]) {
		for _, address := range words[1:] {
			address, mute := strings.CutSuffix(address, "?")
			address, idle := strings.CutSuffix(address, "!")
			link := p.sessions[address].link
			if !idle {
				link.Heard()
			}
			link.conns[0].answered.Store(!mute)
		}
		for _, m := range p.f.order {
			s := p.sessions[m.address]
			if !s.open {
				continue
			}
			if s.link.tick(); s.link.lost.Err() != nil {
				p.end(s, context.Cause(s.link.lost))
			}
		}
		p.left = slices.DeleteFunc(p.left, func(s *playedSession) bool {
			s.link.tick()
			p.giveUp(s)
			return s.link.lost.Err() != nil
		})
	}
}

// connection plays one that has no health stream.
func (p *player) connection(words []string) {
	most, w := 0, watch{}
	for i, word := range words {
		if value, is := strings.CutPrefix(word, "most="); is {
			most = p.number(value)
			continue
		}
		switch ask, lost := w.tick(word == "+", most); {
		case lost:
			p.say("lost at tick %d", i)
			return
		case ask:
			p.say("asked at tick %d", i)
		}
	}
	p.say("open")
}

// parse makes a message of a command.
func (p *player) parse(s *playedSession, verb string, words []string, line string) *pb.HealthResponse {
	in := &pb.HealthResponse{Sequence: s.m.tracker.sequence + 1}
	if verb == "says" {
		_, text, _ := strings.Cut(line, " says ")
		require.NoError(p, prototext.UnmarshalOptions{}.Unmarshal([]byte(text), in), "%s", line)
		in.Sequence = s.m.tracker.sequence + 1
		return in
	}
	var progress *pb.StepProgress
	var models []*pb.ModelStatus
	var keys []uint64
	state, who, listed := pb.WorkerState_WORKER_STATE_UNSPECIFIED, "", false
	for _, word := range words {
		key, value, option := strings.Cut(word, "=")
		number, notNumber := strconv.ParseUint(word, 10, 64)
		known, isState := pb.WorkerState_value["WORKER_STATE_"+word]
		switch {
		case key == "number":
			in.Sequence = uint64(p.number(value))
		case option && progress == nil:
			progress = &pb.StepProgress{}
			fallthrough
		case option:
			p.progress(progress, key, value)
		case isState:
			state = pb.WorkerState(known)
		case notNumber == nil:
			keys = append(keys, number)
		case word == "models":
			listed = true
		case strings.Contains(word, "/"):
			who = word
		default:
			models = append(models, p.model(word))
		}
	}
	id, incarnation, _ := strings.Cut(who, "/")
	switch verb {
	case "full":
		in.Event = &pb.HealthResponse_Full{Full: &pb.WorkerReport{WorkerId: id, Incarnation: incarnation, State: state, Models: models, Progress: progress}}
	case "delta":
		in.Event = &pb.HealthResponse_Delta{Delta: &pb.WorkerDelta{State: state, Models: models, ModelsChanged: listed, Progress: progress}}
	case "beat":
		in.Event = &pb.HealthResponse_Heartbeat{Heartbeat: &pb.Heartbeat{Progress: progress}}
	case "keys":
		in.Event = &pb.HealthResponse_PrefixKeys{PrefixKeys: &pb.PrefixKeys{
			Model: models[0].GetName(), ModelDigest: models[0].GetModelDigest(), Reset_: true, Added: keys}}
	default:
		require.FailNow(p, "unknown command", line)
	}
	return in
}

func (p *player) progress(to *pb.StepProgress, key, value string) {
	switch key {
	case "age":
		to.RunningStepAge = durationpb.New(p.duration(value))
	case "bound":
		to.StepBound = durationpb.New(p.duration(value))
	default:
		require.FailNow(p, "unknown option", key)
	}
}

// model is MODEL:DIGEST[:STATE].
func (p *player) model(word string) *pb.ModelStatus {
	parts := strings.Split(word+":READY", ":")
	state, known := pb.ModelState_value["MODEL_STATE_"+parts[2]]
	require.True(p, known, "%s", word)
	return &pb.ModelStatus{Name: parts[0], ModelDigest: parts[1], State: pb.ModelState(state)}
}

// show writes the newest snapshot if it says something else than the one before.
func (p *player) show() {
	p.f.publish()
	var out strings.Builder
	snapshot, now := p.f.Snapshot(), p.f.Members()
	for i := range snapshot.Members {
		out.WriteString("-> " + p.row(&snapshot.Members[i], &snapshot.Route.Workers[i], now[i].Report) + "\n")
	}
	if out.String() == p.shown {
		return
	}
	p.shown = out.String()
	p.out.WriteString(p.shown)
}

// row is one member.
func (p *player) row(m *Member, w *route.Worker, now *pb.WorkerReport) string {
	require.Equal(p, m.Connected, w.Connected)
	require.Equal(p, m.Connected, m.Link != nil)
	out := m.Address
	if m.Report == nil {
		return out + " has not reported" + problem(m)
	}
	r := m.Report
	out += fmt.Sprintf(" %s/%s %s", r.GetWorkerId(), r.GetIncarnation(), strings.TrimPrefix(r.GetState().String(), "WORKER_STATE_"))
	for i, model := range r.GetModels() {
		out += fmt.Sprintf(" %s:%s", model.GetName(), model.GetModelDigest())
		if state := strings.TrimPrefix(model.GetState().String(), "MODEL_STATE_"); state != "READY" {
			out += ":" + state
		}
		if n := w.Models[i].Prefixes.Len(); n > 0 {
			out += fmt.Sprintf("(%d keys)", n)
		}
	}
	if strings.Contains(p.Name(), "merge") {
		out += details(now)
	}
	if n := m.Load.InFlight(); n > 0 {
		out += fmt.Sprintf(" in_flight=%d", n)
	}
	if m.Link != nil && m.Link.drains.is {
		out += " [drains]"
	}
	return out + problem(m)
}

func problem(m *Member) string {
	switch {
	case m.Connected:
		return ""
	case m.Problem == "":
		return " | not connected"
	}
	return " | " + m.Problem
}

// details are the numbers of a report.
func details(r *pb.WorkerReport) (out string) {
	for _, f := range r.GetFiles() {
		out += " file=" + f.GetName()
	}
	for _, c := range r.GetChecks() {
		out += fmt.Sprintf(" %s=%v", c.GetName(), c.GetOk())
	}
	return out + fmt.Sprintf(" running=%d free=%d steps=%d", r.GetLoad().GetRunning(), r.GetDevice().GetBytesFree(), r.GetProgress().GetSteps())
}

func (p *player) number(text string) int {
	n, err := strconv.Atoi(text)
	require.NoError(p, err)
	return n
}

func (p *player) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	require.NoError(p, err)
	return d
}
