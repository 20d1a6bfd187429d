package prefixhash

import (
	"encoding/binary"
	"math/bits"

	"github.com/cespare/xxhash/v2"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// chunkBytes is the length of a chunk.
const chunkBytes = 256

// dense is the number of chunks from which only some have a key; a power of two.
const dense = 64

// Kinds of input, the seeds of state 0.
const (
	ofPrompt uint64 = iota + 1
	ofTokens
	ofChat
)

// Separators of a chat's parts.
const (
	afterRole    = "\x1f"
	afterContent = "\x1e"
)

// Prefix is a prefix of a request.
type Prefix struct {
	Key   uint64
	Bytes int // length in canonical bytes
}

// Of returns the prefixes of a request that have keys, the shortest first, and the number of its
// canonical bytes. It returns no prefixes for a request that bypasses the cache or has no input.
func Of(in *pb.GenerateRequest) (prefixes []Prefix, total int) {
	c := chain{}
	salt := in.GetCache().GetSalt()
	switch input := in.GetInput().(type) {
	case *pb.GenerateRequest_Prompt:
		c.begin(ofPrompt, salt)
		c.add(input.Prompt)
	case *pb.GenerateRequest_TokenIds:
		c.begin(ofTokens, salt)
		c.addIDs(input.TokenIds.GetIds())
	case *pb.GenerateRequest_Chat:
		c.begin(ofChat, salt)
		c.choose(input.Chat)
		c.tools(input.Chat.GetTools())
		for _, m := range input.Chat.GetMessages() {
			c.add(m.GetRole())
			c.add(afterRole)
			c.add(m.GetContent())
			c.add(afterContent)
			c.calls(m)
		}
	}
	if in.GetCache().GetBypassPrefixCache() {
		return nil, c.total
	}
	return c.prefixes, c.total
}

// Tokens returns how many tokens a prefix covers, given the request's canonical bytes and tokens.
// For token ids it is exact. For text it is the share of the bytes, rounded down. That is an
// estimate: token boundaries are not looked up, and the text of a chat template is assumed to be
// spread evenly.
func (p Prefix) Tokens(total, tokens int) int {
	if total <= 0 {
		return 0
	}
	return int(int64(tokens) * int64(p.Bytes) / int64(total))
}

// chain computes states over canonical bytes. Invariant: digest holds the last total % chunkBytes
// of them.
type chain struct {
	digest   xxhash.Digest
	total    int
	prefixes []Prefix
}

// begin sets state 0.
func (c *chain) begin(kind uint64, salt string) {
	c.digest.ResetWithSeed(kind)
	_, _ = c.digest.WriteString(salt) // never fails
	c.digest.ResetWithSeed(c.digest.Sum64())
}

// add appends canonical bytes.
func (c *chain) add(s string) {
	for len(s) > 0 {
		n := min(chunkBytes-c.total%chunkBytes, len(s))
		_, _ = c.digest.WriteString(s[:n]) // never fails
		s = s[n:]
		c.count(n)
	}
}

// addIDs appends token ids.
func (c *chain) addIDs(ids []uint32) {
	var buffer [chunkBytes]byte
	for len(ids) > 0 {
		raw := buffer[:0]
		n := min(chunkBytes/4, len(ids))
		for _, id := range ids[:n] {
			raw = binary.LittleEndian.AppendUint32(raw, id)
		}
		_, _ = c.digest.Write(raw) // never fails
		ids = ids[n:]
		c.count(len(raw))
	}
}

// count ends the chunk if n more bytes have filled it. They must not exceed it.
func (c *chain) count(n int) {
	c.total += n
	if c.total%chunkBytes != 0 {
		return
	}
	state := c.digest.Sum64()
	c.digest.ResetWithSeed(state)
	if hasKey(c.total / chunkBytes) {
		c.prefixes = append(c.prefixes, Prefix{Key: state, Bytes: c.total})
	}
}

// hasKey reports whether the first n chunks have a key. The distance between two that have doubles
// whenever n does.
func hasKey(n int) bool {
	step := 1 << max(0, bits.Len(uint(n))-bits.Len(uint(dense-1)))
	return n&(step-1) == 0
}
