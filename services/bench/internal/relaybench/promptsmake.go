package relaybench

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/bench/internal/load"
)

// What the prompts of a caller begin with and no other prompt does: as much as the first key of a prefix covers.
const (
	freshIDs  = 64
	freshText = 256
)

// prompter makes a caller's requests. Their ends are the same and encoded once: making 55 000 ids anew takes as much processor time as
// relaying them, which would be taken from the programs that are measured.
type prompter struct {
	random     *rand.Rand
	vocabulary int
	kind       string
	fresh      int    // ids or bytes of text that differ
	options    []byte // the request without its prompt
	rest       []byte // the encoded prompt behind what differs
	tokens     int    // of a prompt of ids
}

// prompter makes requests to a model for one token, all different as far as seed and stream do.
func (m *measurement) prompter(c *PromptsConfig, model, kind string, stream uint64) (*prompter, error) {
	p := &prompter{random: rand.New(rand.NewPCG(c.Seed, stream)), vocabulary: m.maker.Vocabulary, kind: kind}
	maker := m.maker
	maker.Model, maker.Seed = model, p.random.Uint64()
	request := maker.Request(0, load.Size{Output: 1})
	request.Input = nil
	var err error
	if p.options, err = proto.Marshal(request); err != nil {
		return nil, fmt.Errorf("encode a request: %w", err)
	}
	if kind == kindText {
		p.fresh = min(c.Bytes, freshText)
		p.rest = []byte(words(c.Bytes-p.fresh, p.random))
		return p, nil
	}
	p.tokens = c.ids()
	p.fresh = min(p.tokens, freshIDs)
	p.rest = p.ids(p.tokens - p.fresh)
	return p, nil
}

// Fields of a request that its prompt is in.
var (
	promptField = fieldOf(&pb.GenerateRequest{}, "prompt")
	idsField    = fieldOf(&pb.GenerateRequest{}, "token_ids")
	listField   = fieldOf(&pb.TokenIds{}, "ids")
)

func fieldOf(m proto.Message, name protoreflect.Name) protowire.Number {
	return m.ProtoReflect().Descriptor().Fields().ByName(name).Number()
}

// next is the next request.
func (p *prompter) next() load.Encoded {
	head := append([]byte(nil), p.options...)
	if p.kind == kindText {
		head = protowire.AppendTag(head, promptField, protowire.BytesType)
		head = protowire.AppendVarint(head, uint64(p.fresh+len(p.rest)))
		head = append(head, words(p.fresh, p.random)...)
	} else {
		fresh := p.ids(p.fresh)
		list := protowire.AppendTag(nil, listField, protowire.BytesType)
		list = protowire.AppendVarint(list, uint64(len(fresh)+len(p.rest)))
		head = protowire.AppendTag(head, idsField, protowire.BytesType)
		head = protowire.AppendVarint(head, uint64(len(list)+len(fresh)+len(p.rest)))
		head = append(append(head, list...), fresh...)
	}
	return load.Encoded{Data: mem.BufferSlice{mem.SliceBuffer(head), mem.SliceBuffer(p.rest)}, Prompt: p.tokens}
}

// ids are n random ids, packed.
func (p *prompter) ids(n int) (packed []byte) {
	for range n {
		packed = protowire.AppendVarint(packed, uint64(p.random.Uint32N(uint32(p.vocabulary))))
	}
	return packed
}

// common are frequent English words, most of which are one token in most vocabularies.
var common = strings.Fields("the of and to in a is that for it as was with be by on not he his but at are this have from or had they which one you were")

// words is a text of so many bytes.
func words(bytes int, random *rand.Rand) string {
	var text strings.Builder
	text.Grow(bytes + 16)
	for text.Len() < bytes {
		text.WriteString(common[random.IntN(len(common))])
		text.WriteByte(' ')
	}
	return text.String()[:bytes]
}
