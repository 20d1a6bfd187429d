package faults

import (
	"math/rand/v2"
	"strings"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// Mix makes requests that together set every option that a continuation must honour. Request i is a
// function of the fields and i.
type Mix struct {
	Model      string
	Vocabulary int
	Text       bool // the model has a tokenizer: prompts are texts and stop strings are used
	Chat       bool // it has a chat template too
	Prompt     int  // tokens of the longest prompts
	Answer     int  // tokens of the longest answers
	Seed       uint64
}

// Beginnings of stories, text that makes a prompt longer, and stop strings.
var (
	beginnings = []string{
		"Once upon a time", "Tom had a big red", "Lily and her mom went to the park.", "One day, a little dog",
		"The sun was warm and the birds", "\"Look!\" said the cat.", "Ben did not like",
	}
	padding = "The little girl and her friend went to the big tree and they played all day. "
	stops   = []string{" happy", ". The", "\n", " said", "never to be seen"}
)

// paddingTokens is more than the tokens of padding in a tokenizer of words, so that no prompt is
// too long.
const paddingTokens = 20

// Request makes request i. Every request has a seed, because a stream without one cannot be
// continued.
func (m *Mix) Request(i int) *pb.GenerateRequest {
	d := dice{rand.New(rand.NewPCG(m.Seed, uint64(i)))}
	seed, answer := d.Uint64(), int32(m.Answer/2+d.IntN(m.Answer-m.Answer/2+1))
	r := &pb.GenerateRequest{
		Model: m.Model, Sampling: m.sampling(d), Response: m.response(d),
		Stopping: &pb.Stopping{MaxTokens: &answer, IgnoreEos: ptr(d.one(2))},
	}
	r.Sampling.Seed = &seed
	if d.one(6) {
		r.Cache = &pb.CacheOptions{BypassPrefixCache: ptr(true)}
	}
	m.input(d, r)
	if d.one(6) {
		r.Stopping.StopTokenIds = []uint32{d.id(m.Vocabulary), d.id(m.Vocabulary)}
	}
	if d.one(6) {
		r.Stopping.MinTokens = ptr(answer / 4)
	}
	if m.Text && !r.GetResponse().GetTokenIdsOnly() && d.one(3) {
		for range 1 + d.IntN(2) {
			r.Stopping.Stop = append(r.Stopping.Stop, stops[d.IntN(len(stops))])
		}
		r.Stopping.IncludeStopInOutput = ptr(d.one(2))
	}
	return r
}

func (m *Mix) sampling(d dice) *pb.Sampling {
	s := &pb.Sampling{Temperature: ptr([]float32{0, 0.7, 1, 1.3}[d.IntN(4)])}
	if d.one(3) {
		s.TopP = ptr(float32(0.9))
	}
	if d.one(4) {
		s.TopK = ptr(int32(min(40, m.Vocabulary)))
	}
	if d.one(4) {
		s.MinP = ptr(float32(0.05))
	}
	if d.one(8) {
		s.TypicalP = ptr(float32(0.95))
	}
	if d.one(4) {
		s.RepetitionPenalty = ptr(float32(1.1))
	}
	if d.one(4) {
		s.PresencePenalty, s.FrequencyPenalty = ptr(float32(0.5)), ptr(float32(0.25))
	}
	if d.one(6) {
		s.PenaltyWindow = ptr(int32(16))
	}
	if d.one(4) {
		s.LogitBias = map[int32]float32{int32(d.id(m.Vocabulary)): 3, int32(d.id(m.Vocabulary)): -3}
	}
	if d.one(10) {
		s.AllowedTokens = &pb.TokenIds{}
		for range 64 {
			s.AllowedTokens.Ids = append(s.AllowedTokens.Ids, d.id(m.Vocabulary))
		}
	}
	if d.one(8) {
		s.NumSequences = ptr(int32(2 + d.IntN(2)))
	}
	return s
}

func (m *Mix) response(d dice) *pb.ResponseOptions {
	r := &pb.ResponseOptions{}
	if !m.Text || d.one(8) {
		r.TokenIdsOnly = ptr(true)
	}
	if d.one(3) {
		r.OutputLogprobs = ptr(true)
	}
	if d.one(5) {
		r.OutputCandidates = ptr(int32(min(3, m.Vocabulary)))
	}
	if d.one(10) {
		r.PromptLogprobs, r.EchoPrompt = ptr(int32(1)), ptr(true)
	}
	return r
}

// input sets the prompt; one in four is long.
func (m *Mix) input(d dice, r *pb.GenerateRequest) {
	tokens := 8 + d.IntN(24)
	if d.one(4) {
		tokens = m.Prompt/2 + d.IntN(m.Prompt-m.Prompt/2+1)
	}
	tokens = max(min(tokens, m.Prompt), 1)
	if !m.Text || d.one(5) {
		ids := &pb.TokenIds{}
		for range tokens {
			ids.Ids = append(ids.Ids, d.id(m.Vocabulary))
		}
		r.Input = &pb.GenerateRequest_TokenIds{TokenIds: ids}
		return
	}
	text := beginnings[d.IntN(len(beginnings))]
	if n := tokens/paddingTokens - 1; n > 0 {
		text = strings.Repeat(padding, n) + text
	}
	if m.Chat && d.one(2) {
		r.Input = &pb.GenerateRequest_Chat{Chat: &pb.Chat{Messages: []*pb.ChatMessage{{Role: "user", Content: text}}}}
		return
	}
	r.Input = &pb.GenerateRequest_Prompt{Prompt: text}
}

// dice is the random numbers of one request.
type dice struct{ *rand.Rand }

// one returns true one time in n.
func (d dice) one(n int) bool { return d.IntN(n) == 0 }

func (d dice) id(vocabulary int) uint32 { return d.Uint32N(uint32(vocabulary)) }

func ptr[T any](v T) *T { return &v }

// story makes request i of streams that all have the same length: exactly tokens tokens, each of
// them drawn.
func story(model string, tokens, i int) *pb.GenerateRequest {
	return &pb.GenerateRequest{
		Model: model, Input: &pb.GenerateRequest_Prompt{Prompt: beginnings[i%len(beginnings)]},
		Sampling: &pb.Sampling{
			Seed: ptr(uint64(i)), Temperature: ptr(float32(0.9)), TopP: ptr(float32(0.95)), RepetitionPenalty: ptr(float32(1.1)),
		},
		Stopping: &pb.Stopping{MaxTokens: ptr(int32(tokens)), IgnoreEos: ptr(true)},
	}
}
