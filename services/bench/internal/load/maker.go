package load

import (
	"math/rand/v2"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// Size is the length of a request.
type Size struct {
	Prompt int // tokens; not used if the prompt is a text
	Output int // tokens at most
}

// Maker makes requests. Request i depends only on the fields, i and the size.
type Maker struct {
	Model       string
	Vocabulary  int    // of the random ids
	Text        string // the prompt; empty: random token ids
	IDsOnly     bool   // request no text
	Seed        uint64
	Temperature float32
	StopAtEnd   bool // end streams at the model's end tokens; else every stream has Output tokens
	Shared      int  // number of leading ids that are equal in every request
	Tenant      string
	Bypass      bool // bypass the prefix cache
}

// Request returns request i.
func (m *Maker) Request(i uint64, s Size) *pb.GenerateRequest {
	seed, output := m.Seed+i, int32(s.Output)
	ignore := !m.StopAtEnd
	r := &pb.GenerateRequest{
		Model:    m.Model,
		Sampling: &pb.Sampling{Temperature: &m.Temperature, Seed: &seed},
		Stopping: &pb.Stopping{MaxTokens: &output, IgnoreEos: &ignore},
	}
	if m.Tenant != "" {
		r.FairnessId = &m.Tenant
	}
	if m.Bypass {
		r.Cache = &pb.CacheOptions{BypassPrefixCache: &m.Bypass}
	}
	if m.IDsOnly {
		r.Response = &pb.ResponseOptions{TokenIdsOnly: &m.IDsOnly}
	}
	if m.Text != "" {
		r.Input = &pb.GenerateRequest_Prompt{Prompt: m.Text}
		return r
	}
	ids := make([]uint32, s.Prompt)
	fill := func(part []uint32, random *rand.Rand) {
		for j := range part {
			part[j] = random.Uint32N(uint32(m.Vocabulary))
		}
	}
	shared := min(m.Shared, s.Prompt)
	fill(ids[:shared], rand.New(rand.NewPCG(m.Seed, 1<<63)))
	fill(ids[shared:], rand.New(rand.NewPCG(m.Seed, i)))
	r.Input = &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: ids}}
	return r
}
