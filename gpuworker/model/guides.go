package model

import (
	"bytes"
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/millrace/millrace/gpuworker/guide"
	"github.com/millrace/millrace/gpuworker/tokenizer"
	"github.com/millrace/millrace/gpuworker/tools"
)

const (
	// maskBytes bounds the masks that a model remembers.
	maskBytes = 64 << 20
	// grammarBytes bounds the grammars that a model remembers. Those of running requests that were
	// dropped live as long as these.
	grammarBytes = 128 << 20
)

// grammars compiles the constraints of a model's requests and remembers the results. Requests with one
// source share one compilation. If the results are too large, the least recently used of the tenant with
// the most is dropped: a tenant with ten thousand sources costs the others nothing.
type grammars struct {
	vocabulary func() *guide.Vocabulary
	marks      map[int32]string // see marksOf
	mu         struct {
		sync.Mutex
		known map[grammarKey]*list.Element
		order list.List // of *compilation, most recently used first
	}
}

type grammarKey [sha256.Size]byte

// compilation is a source on its way. Its results may be read once done is closed.
type compilation struct {
	key     grammarKey
	tenant  string // of the first caller
	callers int    // that wait for it, guarded by grammars.mu
	working sync.Mutex
	done    chan struct{}
	grammar *guide.Grammar
	err     error
}

// bytes estimates the memory of a finished compilation.
func (c *compilation) bytes() int {
	if c.grammar == nil {
		return refusedBytes
	}
	return c.grammar.Bytes()
}

func (c *compilation) finished() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// newGrammars returns the grammars of a model whose ids are those of t, and more if size is above its
// vocabulary. Tokens that are control tokens, end tokens or never generated are no text. A control token that is a mark
// of tool calls or reasoning has its name behind guide.Control as text. No other token contains that byte, which is in
// no valid text.
func newGrammars(t *tokenizer.Tokenizer, f Facts) *grammars {
	marks := marksOf(t, f)
	return &grammars{marks: marks, vocabulary: sync.OnceValue(func() *guide.Vocabulary {
		v := guide.NewVocabulary(f.Vocabulary, func(id int32) []byte {
			_, suppressed := slices.BinarySearch(f.SuppressedIDs, id)
			if suppressed || slices.Contains(f.EndIDs, id) {
				return nil
			}
			piece, _ := t.Piece(id)
			switch {
			case marks[id] != "":
				return []byte(guide.Control + marks[id])
			case t.IsSpecial(id) || bytes.Contains(piece, []byte(guide.Control)):
				return nil
			}
			return piece
		}, maskBytes)
		v.SetSpelling(func(text string) []int32 { return t.Encode(text, tokenizer.EncodeOptions{Continues: true}) })
		return v
	})}
}

// marksOf returns the control tokens of a vocabulary that are marks of reasoning or tool calls.
func marksOf(t *tokenizer.Tokenizer, f Facts) map[int32]string {
	marks := map[int32]string{}
	for _, tag := range tools.Marks() {
		ids := t.Encode(tag, tokenizer.EncodeOptions{ParseSpecial: true})
		if len(ids) != 1 || !t.IsSpecial(ids[0]) || slices.Contains(f.EndIDs, ids[0]) || slices.Contains(f.SuppressedIDs, ids[0]) {
			continue
		}
		marks[ids[0]] = tag
	}
	return marks
}

// Mark returns the name of a control token that is a mark of reasoning or tool calls; "" for others. The model must have
// a tokenizer.
func (i *Instance) Mark(id int32) string { return i.grammars.marks[id] }

// IsControl reports whether a mark is a control token of the vocabulary. The model must have a tokenizer.
func (i *Instance) IsControl(tag string) bool {
	for _, name := range i.grammars.marks {
		if name == tag {
			return true
		}
	}
	return false
}

// Slot waits for leave to use a processor for a compilation, until ctx ends.
type Slot func(ctx context.Context) (release func(), err error)

// Compile returns the grammar of a tenant's source, or a *guide.Error. slot is called unless the result is
// known. The model must have a tokenizer.
func (i *Instance) Compile(ctx context.Context, tenant string, s guide.Source, slot Slot) (*guide.Grammar, error) {
	return i.grammars.get(ctx, tenant, s, slot)
}

// get returns the result of a source. Each caller waits for a slot of its own, because the slots of
// another tenant may be taken: the first that gets one compiles, and the others stop waiting.
func (g *grammars) get(ctx context.Context, tenant string, s guide.Source, slot Slot) (*guide.Grammar, error) {
	c := g.join(keyOf(s), tenant)
	defer g.leave(c)
	if c.finished() {
		return c.grammar, c.err
	}
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		select {
		case <-c.done:
			stop()
		case <-waiting.Done():
		}
	}()
	release, err := slot(waiting)
	if err == nil {
		defer release()
		c.compile(s, g.vocabulary)
	}
	switch {
	case c.finished():
		return c.grammar, c.err
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	default:
		return nil, err
	}
}

// compile does the compilation, or waits for the caller that does it.
func (c *compilation) compile(s guide.Source, vocabulary func() *guide.Vocabulary) {
	c.working.Lock()
	defer c.working.Unlock()
	if c.finished() {
		return
	}
	c.grammar, c.err = guide.Compile(s, vocabulary())
	close(c.done)
}

// join returns the compilation of a source, for which leave must be called.
func (g *grammars) join(key grammarKey, tenant string) *compilation {
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.mu.known[key]
	if e == nil {
		if g.mu.known == nil {
			g.mu.known = map[grammarKey]*list.Element{}
		}
		e = g.mu.order.PushFront(&compilation{key: key, tenant: tenant, done: make(chan struct{})})
		g.mu.known[key] = e
	}
	g.mu.order.MoveToFront(e)
	c := e.Value.(*compilation)
	c.callers++
	return c
}

// refusedBytes is what a remembered refusal counts as. It needs less, but each call walks over all results that are
// remembered, so that there may be a few thousand.
const refusedBytes = 64 << 10

// leave counts a caller that no longer waits. A compilation without a result that nobody waits for is
// forgotten. It then drops results until those that are left are small enough.
func (g *grammars) leave(c *compilation) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.callers--; c.callers == 0 && !c.finished() {
		g.drop(c)
		return
	}
	all, of := 0, map[string]int{}
	for _, e := range g.mu.known {
		if other := e.Value.(*compilation); other.finished() {
			n := other.bytes()
			all += n
			of[other.tenant] += n
		}
	}
	for all > grammarBytes {
		old := g.oldest(largest(of), c)
		if old == nil {
			return
		}
		g.drop(old)
		all -= old.bytes()
		of[old.tenant] -= old.bytes()
	}
}

// oldest returns the least recently used result of a tenant, but not except; nil if there is none.
func (g *grammars) oldest(tenant string, except *compilation) *compilation {
	for e := g.mu.order.Back(); e != nil; e = e.Prev() {
		if c := e.Value.(*compilation); c != except && c.tenant == tenant && c.finished() {
			return c
		}
	}
	return nil
}

// largest returns the tenant with the most bytes, the first by name among several.
func largest(of map[string]int) (tenant string) {
	for name, n := range of {
		if most := of[tenant]; n > most || n == most && name < tenant {
			tenant = name
		}
	}
	return tenant
}

// drop forgets a compilation. Running requests may have its grammar as long as they last.
func (g *grammars) drop(c *compilation) {
	if e := g.mu.known[c.key]; e != nil && e.Value == any(c) {
		g.mu.order.Remove(e)
		delete(g.mu.known, c.key)
	}
}

// keyOf is the digest of a source. A source that several terms share counts once, as it does when it is compiled:
// written out, it may be exponentially large.
func keyOf(s guide.Source) grammarKey {
	d := digester{shared: map[*guide.Source]int{}}
	d.source(&s)
	return sha256.Sum256(d.text)
}

type digester struct {
	text   []byte
	shared map[*guide.Source]int // their order
}

func (d *digester) source(s *guide.Source) {
	flag := map[bool]int{true: 1}
	d.numbers(int(s.Kind), flag[s.Lenient], flag[s.AnyOrder], len(s.Options), len(s.Ignored), flag[s.Term != nil], flag[s.Limit != nil])
	d.texts(s.Text)
	d.texts(s.Options...)
	d.texts(s.Ignored...)
	if l := s.Limit; l != nil {
		d.texts(l.Open, l.Close)
		d.numbers(l.Tokens)
	}
	if s.Term != nil {
		d.term(s.Term)
	}
}

func (d *digester) term(t *guide.Term) {
	d.numbers(int(t.Op), t.Low, t.High, len(t.Without), len(t.NotFirst), len(t.Of), map[bool]int{true: 1}[t.Source != nil])
	d.texts(t.Text, t.Path)
	d.texts(t.Without...)
	d.texts(t.NotFirst...)
	for i := range t.Of {
		d.term(&t.Of[i])
	}
	if t.Source == nil {
		return
	}
	number, again := d.shared[t.Source]
	if d.numbers(number); again {
		return
	}
	d.shared[t.Source] = len(d.shared) + 1
	d.source(t.Source)
}

func (d *digester) numbers(numbers ...int) {
	for _, n := range numbers {
		d.text = binary.LittleEndian.AppendUint64(d.text, uint64(n))
	}
}

func (d *digester) texts(texts ...string) {
	for _, text := range texts {
		d.numbers(len(text))
		d.text = append(d.text, text...)
	}
}
