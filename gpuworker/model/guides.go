package model

import (
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/millrace/millrace/gpuworker/guide"
	"github.com/millrace/millrace/gpuworker/tokenizer"
)

const (
	// maskBytes bounds the masks that a model remembers.
	maskBytes = 64 << 20
	// grammarBytes bounds the grammars that a model remembers. Those of running requests that were
	// dropped live as long as these.
	grammarBytes = 128 << 20
)

// grammars compiles the constraints of a model's requests and remembers the results, the least recently
// used are dropped. Requests with one source share one compilation.
type grammars struct {
	vocabulary func() *guide.Vocabulary
	mu         struct {
		sync.Mutex
		known map[grammarKey]*list.Element
		order list.List // of *compilation, most recently used first
		bytes int
	}
}

type grammarKey [sha256.Size]byte

// compilation is a source on its way. Its results may be read once done is closed.
type compilation struct {
	key     grammarKey
	done    chan struct{}
	grammar *guide.Grammar
	err     error
	bytes   int // 0 until done
}

// newGrammars returns the grammars of a model whose ids are those of t, and more if size is above its
// vocabulary. Tokens that are control tokens, end tokens or never generated are no text.
func newGrammars(t *tokenizer.Tokenizer, f Facts) *grammars {
	return &grammars{vocabulary: sync.OnceValue(func() *guide.Vocabulary {
		return guide.NewVocabulary(f.Vocabulary, func(id int32) []byte {
			_, suppressed := slices.BinarySearch(f.SuppressedIDs, id)
			if suppressed || t.IsSpecial(id) || slices.Contains(f.EndIDs, id) {
				return nil
			}
			piece, _ := t.Piece(id)
			return piece
		}, maskBytes)
	})}
}

// Compile returns the grammar of a source, or a *guide.Error. slot waits for leave to use a processor
// for it, and is called unless the result is known or on its way. The model must have a tokenizer.
func (i *Instance) Compile(ctx context.Context, s guide.Source, slot func() (release func(), err error)) (*guide.Grammar, error) {
	return i.grammars.get(ctx, s, slot)
}

func (g *grammars) get(ctx context.Context, s guide.Source, slot func() (release func(), err error)) (*guide.Grammar, error) {
	key := keyOf(s)
	for {
		c, first := g.find(key)
		if !first {
			select {
			case <-c.done:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			if c.grammar != nil || c.err != nil {
				return c.grammar, c.err
			}
			continue // the caller that was first has left
		}
		return g.compile(c, s, slot)
	}
}

// find returns the compilation of a source. first states that it is new, and the caller's to do.
func (g *grammars) find(key grammarKey) (c *compilation, first bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e := g.mu.known[key]; e != nil {
		g.mu.order.MoveToFront(e)
		return e.Value.(*compilation), false
	}
	if g.mu.known == nil {
		g.mu.known = map[grammarKey]*list.Element{}
	}
	c = &compilation{key: key, done: make(chan struct{})}
	g.mu.known[key] = g.mu.order.PushFront(c)
	return c, true
}

// compile does a compilation. If it gets no slot, the compilation is forgotten and others try again.
func (g *grammars) compile(c *compilation, s guide.Source, slot func() (release func(), err error)) (*guide.Grammar, error) {
	defer func() { // also if compiling panics
		g.settle(c)
		close(c.done)
	}()
	release, err := slot()
	if err != nil {
		return nil, err
	}
	defer release()
	c.grammar, c.err = guide.Compile(s, g.vocabulary())
	return c.grammar, c.err
}

// refusedBytes is about the memory of a remembered refusal.
const refusedBytes = 1 << 10

// settle counts a finished compilation and drops the least recently used ones. One without a result is
// forgotten.
func (g *grammars) settle(c *compilation) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.mu.known[c.key]
	switch {
	case c.grammar != nil:
		c.bytes = c.grammar.Bytes()
	case c.err != nil:
		c.bytes = refusedBytes
	default:
		g.mu.order.Remove(e)
		delete(g.mu.known, c.key)
		return
	}
	g.mu.bytes += c.bytes
	for e := g.mu.order.Back(); e != nil && g.mu.bytes > grammarBytes; {
		old, before := e.Value.(*compilation), e.Prev()
		if old.bytes > 0 && old != c {
			g.mu.order.Remove(e)
			delete(g.mu.known, old.key)
			g.mu.bytes -= old.bytes
		}
		e = before
	}
}

// keyOf is the digest of a source.
func keyOf(s guide.Source) grammarKey {
	h := sha256.New()
	add := func(text string) {
		_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(text))))
		_, _ = h.Write([]byte(text))
	}
	lenient := "strict"
	if s.Lenient {
		lenient = "lenient"
	}
	add(string(rune(s.Kind)))
	add(lenient)
	add(s.Text)
	for _, o := range s.Options {
		add(o)
	}
	return grammarKey(h.Sum(nil))
}
