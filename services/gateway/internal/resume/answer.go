package resume

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/target"
	"github.com/millrace/millrace/services/gateway/internal/translate"
	"github.com/millrace/millrace/services/internal/reason"
)

// header is the header with which a client continues a stream.
const header = "Last-Event-ID"

// errOutput reports an event of an output that was not requested.
var errOutput = errors.New("the server sent tokens of a continuation that was not requested")

// Answer is the answer to a request. If it is streamed, its events have ids, and those that the
// client has already are dropped. One goroutine may use it.
type Answer struct {
	ticket  Ticket  // of the events so far
	seen    []Sent  // what the servers sent of each output, events without text too
	from    *Ticket // of the last event that the client has; nil: it has none
	outputs int     // 0: events have no ids
	ids     sealer
	parts   []*pb.GenerateResponse // see part
	x       *httpapi.Exchange
	streams bool
	out     *httpapi.Stream // nil: nothing is written yet
	pending []byte          // events that are not written yet
}

// Open begins the answer to a request of the given number of outputs. stream reports whether it is
// streamed. Events of several prompts have no ids, because a ticket of all their outputs would be
// long: outputs is 0 for them.
func Open(x *httpapi.Exchange, at time.Time, stream bool, outputs int) (*Answer, error) {
	a := &Answer{x: x, streams: stream, ticket: Ticket{Origin: Origin{Name: x.ID, Created: at.Unix()}}}
	id := x.Request.Header.Get(header)
	if id != "" && (!stream || outputs == 0) {
		return nil, httpapi.Refuse(codes.InvalidArgument, header, "the header %s continues a stream of one prompt, and this request is not one: leave it out", header)
	}
	if !stream || outputs == 0 {
		return a, nil
	}
	a.outputs, a.ids.mac = outputs, hmac.New(sha256.New, x.StreamKey())
	a.ticket.Outputs, a.seen = make([]Sent, outputs+1), make([]Sent, outputs)
	if id == "" {
		return a, nil
	}
	from, err := unseal(id, a.ids.mac, outputs)
	if err != nil {
		return nil, httpapi.Refuse(codes.InvalidArgument, header, "the header %s is not the id of an event of this request: send the same body and token, "+
			"to gateways that share a key (--resume-key-file), or begin again without it", header)
	}
	if from.Inexact {
		return nil, mismatch("the stream had continued in another class, so its tokens cannot be generated again")
	}
	x.Annotate("resumed_events", from.Events)
	a.from, a.ticket.Origin, a.ticket.Events = from, from.Origin, from.Events
	a.ids.begin(&a.ticket.Origin)
	return a, nil
}

// mismatch refuses to continue a stream.
func mismatch(why string) *httpapi.Failure {
	f := httpapi.Refuse(codes.FailedPrecondition, header, "%s: begin again without the header %s", why, header)
	f.Reason = reason.ResumeMismatch
	return f
}

// Name returns the request id that the ids in the answer are made of: that of the first connection.
func (a *Answer) Name() string { return a.ticket.Name }

// Created returns the time of the answer in seconds.
func (a *Answer) Created() int64 { return a.ticket.Created }

// Streams reports whether the answer is streamed.
func (a *Answer) Streams() bool { return a.streams }

// Events returns the number of the next event.
func (a *Answer) Events() int64 { return int64(a.ticket.Events) }

// Prepare makes the request of a stream one that can be repeated, or that repeats the first one. It
// returns the seed, which is used if the client gave none.
func (a *Answer) Prepare(in *pb.GenerateRequest, seed *translate.Seed) *translate.Seed {
	if a.outputs == 0 {
		return seed
	}
	if in.GetChat() != nil {
		in.AcceptedAt = &timestamppb.Timestamp{Seconds: a.ticket.Created}
	}
	if a.from == nil {
		return seed
	}
	in.ExpectClassId = &a.from.ClassID
	if a.from.ContextLength > 0 {
		in.ContextLength = &a.from.ContextLength
	}
	if seed.Bits != a.from.Seed { // drawn for this connection; a client's is in the request, which is the same
		seed = &translate.Seed{Bits: a.from.Seed, Text: strconv.FormatUint(a.from.Seed, 10)}
		in.Sampling.Seed = &seed.Bits
	}
	return seed
}

// Each calls handle with each event of a generation, and writes what handle adds.
func (a *Answer) Each(g *target.Generation, handle func(e *pb.GenerateResponse) error) error {
	return g.Each(func(e *pb.GenerateResponse) error {
		if a.outputs == 0 {
			return errors.Join(handle(e), a.Flush())
		}
		parts, err := a.part(e)
		if err != nil {
			return err
		}
		for _, e := range parts {
			a.count(e.GetTokens())
			if err := handle(e); err != nil {
				return err
			}
		}
		return a.Flush()
	})
}

// count adds tokens to those seen.
func (a *Answer) count(t *pb.Tokens) {
	if i := t.GetOutputIndex(); t != nil {
		a.seen[i].Tokens = uint64(t.GetTokenIndex()) + uint64(len(t.GetTokenIds()))
		a.seen[i].Bytes += uint64(len(t.GetText()))
		a.seen[i].Calls += target.Calls(t)
	}
}

// part compares an event with the client's position, and divides it if it lies across. Tokens of several kinds of text are
// divided too, because dialects write an event for each, after any of which a client may break off. The result is valid until
// the next call.
func (a *Answer) part(e *pb.GenerateResponse) ([]*pb.GenerateResponse, error) {
	switch event := e.GetEvent().(type) {
	case *pb.GenerateResponse_Started:
		return a.whole(e), a.start(event.Started)
	case *pb.GenerateResponse_Tokens:
		if int(event.Tokens.GetOutputIndex()) >= a.outputs {
			return nil, errOutput
		}
		return a.divide(e, event.Tokens)
	case *pb.GenerateResponse_Finished:
		i := int(event.Finished.GetOutputIndex())
		if i >= a.outputs {
			return nil, errOutput
		}
		if a.from != nil && (a.seen[i].Tokens < a.from.Outputs[i].Tokens || a.seen[i].Bytes < a.from.Outputs[i].Bytes) {
			return nil, mismatch("the answer has fewer tokens than before")
		}
	}
	return a.whole(e), nil
}

// start records the start of a generation, or compares it with that of the first connection.
func (a *Answer) start(s *pb.Started) error {
	if s.Exact != nil {
		if a.ticket.Inexact = true; a.behind() {
			return mismatch("the servers continued in another class")
		}
		return nil
	}
	o := Origin{Name: a.ticket.Name, Created: a.ticket.Created, Seed: s.GetSeed(), ClassID: s.GetClassId(), Check: check(s), CachedTokens: s.GetCachedTokens()}
	if s.MaxTokens != nil {
		o.ContextLength = s.GetPromptTokens() + s.GetMaxTokens()
	}
	if a.from == nil {
		a.ticket.Origin = o
		a.ids.begin(&o)
		return nil
	}
	if o.Check != a.from.Check || o.Seed != a.from.Seed {
		return mismatch("the model, its class or the prompt's tokens are not those of the first connection")
	}
	s.CachedTokens = a.from.CachedTokens
	// The client gets headers now, because the tokens that it has may take long.
	a.pending = append(a.pending, ": continued\n\n"...)
	return nil
}

// check identifies the class, model and prompt of an answer. They and the sampling decide its
// tokens.
func check(s *pb.Started) (sum [checkBytes]byte) {
	all := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s", s.GetClassId(), s.GetModelDigest(), s.GetPromptDigest()))
	copy(sum[:], all[:])
	return sum
}

// behind reports whether events are still dropped.
func (a *Answer) behind() bool {
	if a.from == nil {
		return false
	}
	for i, had := range a.from.Outputs {
		if a.ticket.Outputs[i].Steps < had.Steps || i < a.outputs && a.seen[i].Tokens < had.Tokens {
			return true
		}
	}
	return false
}

// divide returns the tokens of an event that the client has, and those that it lacks, each by kind of text.
func (a *Answer) divide(e *pb.GenerateResponse, t *pb.Tokens) ([]*pb.GenerateResponse, error) {
	a.parts = a.parts[:0]
	if a.from != nil {
		before, after, err := a.cut(t)
		if err != nil {
			return nil, err
		}
		if before != nil {
			a.byKind(nil, before)
			e, t = nil, after
		}
	}
	a.byKind(e, t)
	return a.parts, nil
}

// byKind adds an event for each kind of text of some tokens: the last one has the tokens. Tokens with details are one event, as
// the one dialect with details writes them. e is the event of t, nil if there is none.
func (a *Answer) byKind(e *pb.GenerateResponse, t *pb.Tokens) {
	parts, text := t.GetParts(), t.GetText()
	if len(parts) < 2 || len(t.GetDetails()) > 0 {
		if e == nil {
			e = &pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{Tokens: t}}
		}
		a.parts = append(a.parts, e)
		return
	}
	for i, p := range parts {
		n := min(int(p.GetTextBytes()), len(text)) // more would be an error of the server
		one := &pb.Tokens{OutputIndex: t.GetOutputIndex(), TokenIndex: t.GetTokenIndex(), Text: text[:n], Parts: []*pb.Part{p}}
		if text = text[n:]; i == len(parts)-1 {
			one.TokenIds = t.GetTokenIds()
		}
		a.parts = append(a.parts, &pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{Tokens: one}})
	}
}

// cut divides tokens at the client's position. It returns none if the position is not within them.
func (a *Answer) cut(t *pb.Tokens) (before, after *pb.Tokens, err error) {
	i := t.GetOutputIndex()
	had, sent := a.from.Outputs[i], a.seen[i]
	first := uint64(t.GetTokenIndex())
	end, bytes := first+uint64(len(t.GetTokenIds())), sent.Bytes+uint64(len(t.GetText()))
	switch {
	case first >= had.Tokens && sent.Bytes >= had.Bytes && sent.Calls >= had.Calls, // the client has nothing of it
		end <= had.Tokens && bytes <= had.Bytes, // or all
		end > had.Tokens && bytes < had.Bytes:   // or all of its text
		return nil, nil, nil
	case first < had.Tokens && sent.Bytes > had.Bytes, end <= had.Tokens && bytes > had.Bytes:
		return nil, nil, mismatch("the answer has another text than before")
	}
	tokens, cut, calls := had.Tokens-min(first, had.Tokens), had.Bytes-min(sent.Bytes, had.Bytes), had.Calls-min(sent.Calls, had.Calls)
	if cut < uint64(len(t.GetText())) && !utf8.RuneStart(t.GetText()[cut]) {
		return nil, nil, mismatch("the answer has another text than before")
	}
	before = &pb.Tokens{OutputIndex: i, TokenIndex: t.GetTokenIndex(), TokenIds: t.GetTokenIds()[:tokens], Text: t.GetText()[:cut]}
	after = &pb.Tokens{OutputIndex: i, TokenIndex: uint32(first + tokens), TokenIds: t.GetTokenIds()[tokens:], Text: t.GetText()[cut:]}
	before.Parts, after.Parts = target.CutParts(t.GetParts(), uint32(cut), calls)
	if len(t.GetDetails()) > int(tokens) {
		before.Details, after.Details = t.GetDetails()[:tokens], t.GetDetails()[tokens:]
	}
	return before, after, nil
}

// whole returns an event that is not divided.
func (a *Answer) whole(e *pb.GenerateResponse) []*pb.GenerateResponse {
	a.parts = append(a.parts[:0], e)
	return a.parts
}

// Text adds the event of tokens that Each has given, which the client gets unless it has it.
func (a *Answer) Text(t *pb.Tokens, event []byte) {
	if a.outputs > 0 {
		i := t.GetOutputIndex()
		s := &a.ticket.Outputs[i]
		s.Tokens, s.Bytes, s.Calls = a.seen[i].Tokens, a.seen[i].Bytes, a.seen[i].Calls
		if a.from != nil && a.from.Outputs[i].has(s, t) {
			return
		}
	}
	a.add(event)
}

// has reports whether a client at the position had has an event of tokens, after which the position is now.
func (had Sent) has(now *Sent, t *pb.Tokens) bool {
	shows := t.GetText() != "" || target.Calls(t) > 0 // otherwise it has details alone
	return now.Bytes <= had.Bytes && now.Calls <= had.Calls && (shows || now.Tokens <= had.Tokens)
}

// Step adds an event that opens or closes an output, which the client gets unless it has it.
func (a *Answer) Step(output int, event []byte) {
	if a.outputs == 0 {
		a.add(event)
		return
	}
	s := &a.ticket.Outputs[output]
	if s.Steps++; a.from == nil || s.Steps > a.from.Outputs[output].Steps {
		a.add(event)
	}
}

// Tail adds an event after all outputs.
func (a *Answer) Tail(event []byte) { a.Step(a.outputs, event) }

// End adds the last event, which has no id because nothing follows it, and writes.
func (a *Answer) End(event []byte) error {
	a.pending = append(a.pending, event...)
	return a.Flush()
}

// add adds an event with its id.
func (a *Answer) add(event []byte) {
	a.ticket.Events++
	if a.outputs > 0 {
		a.pending = append(a.ids.seal(append(a.pending, "id: "...), &a.ticket.Position), '\n')
	}
	a.pending = append(a.pending, event...)
}

// Flush writes the events that were added.
func (a *Answer) Flush() error {
	if len(a.pending) == 0 {
		return nil
	}
	if a.out == nil {
		a.out = a.x.Stream(httpapi.EventStream)
	}
	err := a.out.Write(a.pending)
	a.pending = a.pending[:0]
	return err
}
