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

// TestScripts plays golden scripts: commands to a fleet without sockets and without time. The lines
// "-> ..." after a command are its outcome, and -update rewrites them. A message has the next
// number, unless number=N states another one.
//
//	ADDRESS opens                              a health stream begins
//	ADDRESS full ID/INCARNATION STATE MODEL:DIGEST[:STATE]... [bound=D] [age=D]
//	ADDRESS delta [STATE] [models MODEL:DIGEST[:STATE]...] [bound=D] [age=D]
//	ADDRESS beat [bound=D] [age=D]             a heartbeat; age is of the running step
//	ADDRESS keys MODEL:DIGEST KEY...           cached prefixes, all of them
//	ADDRESS says MESSAGE                       any message, in protobuf's text format
//	ADDRESS ends WORDS                         the stream breaks
//	ADDRESS request                            a request acquires the worker's link
//	ADDRESS served MODEL DIGEST                an answer states its digest
//	ADDRESS leaves                             no configured name has the address any more
//	ticks N [ADDRESS[?|!]]...                  N ticks. In each, a frame of the addresses is
//	                                           read, and their servers answer; "?": only the
//	                                           frame, "!": only the answer
//	clock D                                    this machine's clock is set forward by D
//	connection most=N TICK...                  a connection without a health stream: "-" silence,
//	                                           "+" an answer
func TestScripts(t *testing.T) {
	scripttest.Run(t, play)
}

// play runs a script and returns it with its outcomes.
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
	left     []*playedSession // their addresses have left, and requests hold their links
	last     string           // the last rows shown
	out      strings.Builder
}

// playedSession is the state of an address's goroutine.
type playedSession struct {
	m     *member
	link  *Link
	held  []*Link // those of requests
	open  bool
	probe probe
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
		m := newMember(address, tracker{index: &p.f.prefixes})
		s = &playedSession{m: m}
		p.sessions[address] = s
		p.follow(m)
	}
	switch verb {
	case "opens":
		require.False(p, s.open, "%s: the last stream has not ended", line)
		s.link, s.open = newLink(nil, nil, p.f.cfg), true
		s.link.mu.conns[0].asking.Store(true) // the script answers instead
		s.m.mu.links = append(s.m.mu.links, s.link)
		s.m.begin()
	case "ends":
		p.end(s, errors.New(strings.Join(words, " ")))
	case "request":
		link, load := s.m.mu.entry.Link, s.m.mu.entry.Load
		require.NotNil(p, link, "%s", line)
		require.True(p, link.Acquire())
		require.True(p, load.Begin(100, 0))
		s.held = append(s.held, link)
	case "served":
		s.m.observeDigest(s.link, words[0], words[1])
	case "leaves":
		s.link.reporting.Store(false)
		if s.open = false; len(s.held) > 0 {
			p.left = append(p.left, s)
		}
		delete(p.f.mu.members, address)
		delete(p.sessions, address)
		p.f.mu.order, p.f.mu.shadowed = sorted(p.f.mu.members), nil
	default:
		require.True(p, s.open, "%s: no stream is open", line)
		p.message(s, p.parse(s, verb, words, line))
	}
}

// follow adds a member.
func (p *player) follow(m *member) {
	p.f.mu.members[m.address] = m
	p.f.mu.addresses[m.address] = []string{m.address}
	p.f.mu.order, p.f.mu.shadowed = sorted(p.f.mu.members), nil
}

// message applies a message to the fleet, and handles the effect as a session does.
func (p *player) message(s *playedSession, in *pb.HealthResponse) {
	before, kept := s.m.mu.tracker.report, proto.CloneOf(s.m.mu.tracker.report)
	s.link.reported.Store(true)
	e := p.f.apply(s.m, s.link, in, p.now, &s.probe)
	require.True(p, before == nil || proto.Equal(before, kept), "a report was changed")
	switch {
	case e.lose != nil:
		s.m.loseLinks(s.link.incarnation, e.lose)
		p.end(s, e.lose)
	case e.end != nil:
		p.end(s, e.end)
	case e.resync:
		p.say("asks %s for a full report", s.m.address)
	}
	if (e.changed || e.numbers) && strings.Contains(p.Name(), "merge") {
		p.say("changed")
	}
}

// end ends a session as its goroutine does.
func (p *player) end(s *playedSession, why error) {
	s.m.end()
	s.m.setFailure(why)
	s.link.reporting.Store(false)
	s.open = false
	p.say("the stream of %s ends: %v", s.m.address, why)
	p.giveUp(s)
	s.held = nil
}

// giveUp prints the requests that are given up.
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
			link.mu.conns[0].answered.Store(!mute)
		}
		for _, m := range p.f.mu.order {
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

// connection plays a connection without a health stream.
func (p *player) connection(words []string) {
	most, silence := 0, silenceDetector{}
	for i, word := range words {
		if value, found := strings.CutPrefix(word, "most="); found {
			most = p.number(value)
			continue
		}
		switch ask, lost := silence.tick(word == "+", most); {
		case lost:
			p.say("lost at tick %d", i)
			return
		case ask:
			p.say("asked at tick %d", i)
		}
	}
	p.say("open")
}

// parse returns the message of a command.
func (p *player) parse(s *playedSession, verb string, words []string, line string) *pb.HealthResponse {
	in := &pb.HealthResponse{Sequence: s.m.mu.tracker.sequence + 1}
	if verb == "says" {
		_, text, _ := strings.Cut(line, " says ")
		require.NoError(p, prototext.UnmarshalOptions{}.Unmarshal([]byte(text), in), "%s", line)
		in.Sequence = s.m.mu.tracker.sequence + 1
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

// model parses MODEL:DIGEST[:STATE].
func (p *player) model(word string) *pb.ModelStatus {
	parts := strings.Split(word+":READY", ":")
	state, known := pb.ModelState_value["MODEL_STATE_"+parts[2]]
	require.True(p, known, "%s", word)
	return &pb.ModelStatus{Name: parts[0], ModelDigest: parts[1], State: pb.ModelState(state)}
}

// show prints the newest snapshot if it differs from the last one.
func (p *player) show() {
	p.f.publish()
	var out strings.Builder
	snapshot, now := p.f.Snapshot(), p.f.Members()
	for i := range snapshot.Members {
		out.WriteString("-> " + p.row(&snapshot.Members[i], &snapshot.Route.Workers[i], now[i].Report) + "\n")
	}
	if out.String() == p.last {
		return
	}
	p.last = out.String()
	p.out.WriteString(p.last)
}

// row prints one member.
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
	if m.Link != nil && m.Link.drain.mu.draining {
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

// details prints the numbers of a report.
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
