package resume

import (
	"crypto/hmac"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash"
)

// Ticket is the content of an event's id: all that another gateway needs to send the events after
// it, apart from the request itself.
type Ticket struct {
	Origin
	Position
}

// Origin is how an answer began. It is the same in all ids of a stream.
type Origin struct {
	// Name is the request id that the answer's own ids are made of.
	Name string
	// Created is the time of the answer in seconds, also that of the model's template.
	Created int64
	Seed    uint64
	ClassID string
	// Check identifies class, model and prompt.
	Check [checkBytes]byte
	// ContextLength makes an answer without max_tokens equally long on a worker with another context.
	ContextLength uint32
	// CachedTokens are those of the first run, for the usage at the end.
	CachedTokens uint32
}

// Position is how much of an answer was sent.
type Position struct {
	// Inexact: the stream continued in another class. It cannot be generated again.
	Inexact bool
	// Events is the number of events.
	Events uint64
	// Outputs are those of each output; the last entry is for events after all of them.
	Outputs []Sent
}

// Sent is how much of an output was sent.
type Sent struct {
	// Steps is the number of events without text of the model: those that open and close the output.
	Steps uint32
	// Tokens are the tokens whose text was sent as a whole, Bytes the bytes of text, which may be more than theirs, and Calls
	// the calls that have begun.
	Tokens, Bytes uint64
	Calls         uint32
}

const (
	checkBytes = 16
	macBytes   = 16
	version    = 2
	// maxOutputs bounds the outputs of a stream with ids, as the contract does.
	maxOutputs = 16
	// maxText bounds the texts of a ticket. A request id has at most as many bytes.
	maxText = 128
	// maxTicket is the largest content: version and flag, two texts with a byte of length, six numbers
	// of which two are of 32 bits, the check, and outputs of four numbers.
	maxTicket = 2 + 2*(1+maxText) + 4*binary.MaxVarintLen64 + 2*binary.MaxVarintLen32 + checkBytes +
		(maxOutputs+1)*(2*binary.MaxVarintLen32+2*binary.MaxVarintLen64)
	// MaxIDLength is the length of the longest id.
	MaxIDLength = (maxTicket + macBytes) * 4 / 3
)

// errTicket reports an id that was not made with this key.
var errTicket = errors.New("the id was not made for this request with this key")

// sealer makes the ids of a stream's events.
type sealer struct {
	mac     hash.Hash // keyed for the request
	origin  int       // bytes of content that are those of the origin
	content []byte
}

// begin sets the origin, which all ids have.
func (s *sealer) begin(o *Origin) {
	s.content = o.append(append(s.content[:0], version))
	s.origin = len(s.content)
}

// seal appends the id of a position to to.
func (s *sealer) seal(to []byte, p *Position) []byte {
	b := p.append(s.content[:s.origin])
	s.mac.Reset()
	_, _ = s.mac.Write(b) // never fails
	s.content = s.mac.Sum(b)
	return base64.RawURLEncoding.AppendEncode(to, s.content[:len(b)+macBytes])
}

func (o *Origin) append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(o.Created))
	b = binary.AppendUvarint(b, o.Seed)
	b = binary.AppendUvarint(b, uint64(o.ContextLength))
	b = binary.AppendUvarint(b, uint64(o.CachedTokens))
	for _, text := range []string{o.Name, o.ClassID} {
		text = text[:min(len(text), maxText)] // a longer class id, which no server has, would be no class later
		b = append(append(b, byte(len(text))), text...)
	}
	return append(b, o.Check[:]...)
}

func (p *Position) append(b []byte) []byte {
	inexact := byte(0)
	if p.Inexact {
		inexact = 1
	}
	b = append(b, inexact)
	b = binary.AppendUvarint(b, p.Events)
	b = binary.AppendUvarint(b, uint64(len(p.Outputs)))
	for _, s := range p.Outputs {
		b = binary.AppendUvarint(b, uint64(s.Steps))
		b = binary.AppendUvarint(b, s.Tokens)
		b = binary.AppendUvarint(b, s.Bytes)
		b = binary.AppendUvarint(b, uint64(s.Calls))
	}
	return b
}

// unseal returns the ticket of an id for a request of n outputs.
func unseal(id string, mac hash.Hash, n int) (*Ticket, error) {
	if len(id) > MaxIDLength {
		return nil, errTicket
	}
	raw, err := base64.RawURLEncoding.DecodeString(id)
	if err != nil || len(raw) < macBytes+1 {
		return nil, errTicket
	}
	body, sum := raw[:len(raw)-macBytes], raw[len(raw)-macBytes:]
	mac.Reset()
	_, _ = mac.Write(body) // never fails
	if !hmac.Equal(mac.Sum(nil)[:macBytes], sum) || body[0] != version {
		return nil, errTicket
	}
	r := reader{rest: body[1:]}
	t := &Ticket{}
	t.Created, t.Seed = int64(r.number()), r.number()
	t.ContextLength, t.CachedTokens = uint32(r.number()), uint32(r.number())
	t.Name, t.ClassID = string(r.bytes(int(r.byte()))), string(r.bytes(int(r.byte())))
	copy(t.Check[:], r.bytes(checkBytes))
	t.Inexact, t.Events = r.byte() == 1, r.number()
	if int(r.number()) != n+1 {
		return nil, errTicket
	}
	for range n + 1 {
		t.Outputs = append(t.Outputs, Sent{Steps: uint32(r.number()), Tokens: r.number(), Bytes: r.number(), Calls: uint32(r.number())})
	}
	if r.short || len(r.rest) > 0 {
		return nil, errTicket
	}
	return t, nil
}

// reader reads the content of a ticket.
type reader struct {
	rest  []byte
	short bool // it ended too early
}

func (r *reader) number() uint64 {
	n, size := binary.Uvarint(r.rest)
	if size <= 0 {
		r.short, r.rest = true, nil
		return 0
	}
	r.rest = r.rest[size:]
	return n
}

func (r *reader) bytes(n int) []byte {
	if n > len(r.rest) {
		r.short, r.rest = true, nil
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) byte() byte {
	if b := r.bytes(1); b != nil {
		return b[0]
	}
	return 0
}
