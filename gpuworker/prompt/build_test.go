package prompt

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/generate"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/template"
	"github.com/millrace/millrace/gpuworker/tokenizer"
)

// room is a step loop whose cache holds this many tokens.
func room(tokens int) Loop {
	return batch.New(batch.Config{Context: tokens, Runner: engine.RunnerConfig{KVBlocks: tokens, BlockSize: 1, MaxSequences: 1}},
		nil, hclog.NewNullLogger())
}

// rendering is a template by hand.
type rendering func(template.Input) (template.Prompt, error)

func (r rendering) Render(_ context.Context, in template.Input) (template.Prompt, error) {
	return r(in)
}

// owned is a prompt that the template wrote as a whole.
func owned(text string) template.Prompt {
	return template.Prompt{Text: text, Own: [][2]int{{0, len(text)}}}
}

func (rendering) WritesMessages(context.Context) bool { return true }

// stories is the shipped model with a context of 16 tokens.
func stories(t *testing.T) Model {
	t.Helper()
	f, err := gguf.Open(filepath.Join("..", "..", "testdata", "models", "stories-5m-q8_0.gguf"))
	require.NoError(t, err)
	tok, err := tokenizer.New(f.Metadata())
	require.NoError(t, err)
	require.NoError(t, f.Close())
	return Model{Name: "stories", Tokenizer: tok, BOS: tok.Special().BOS, EOS: tok.Special().EOS,
		EndIDs: tok.EndOfGeneration(), Context: 16, Loop: room(16)}
}

func build(t *testing.T, m Model, in Input, o Options) (generate.Request, error) {
	t.Helper()
	return Build(t.Context(), NewEncoder(1), m, in, o)
}

func ids(n int) []int32 { return make([]int32, n) }

func TestAnEmptyRequestHasEveryDefault(t *testing.T) {
	m := stories(t)
	r, err := build(t, m, Input{IDs: []int32{5, 6}}, Defaults())
	require.NoError(t, err)
	require.NotZero(t, r.Params.Seed, "one is drawn")
	again, err := build(t, m, Input{IDs: []int32{5, 6}}, Defaults())
	require.NoError(t, err)
	require.NotEqual(t, r.Params.Seed, again.Params.Seed, "and another one for each request")
	r.Params.Seed = 0
	require.Equal(t, generate.Request{
		Prompt: []int32{5, 6}, Digest: Digest([]int32{5, 6}), Sequences: 1, MaxTokens: 14, StopIDs: m.EndIDs, PromptTopN: -1,
		Params: engine.SlotParams{Temperature: 1, TopP: 1, TypicalP: 1, RepetitionPenalty: 1, PenaltyWindow: -1},
	}, r)
}

func TestEveryOptionArrives(t *testing.T) {
	m := stories(t)
	m.EndIDs = []int32{9, 2}
	seed, text := uint64(0), uint64(3)
	o := Options{
		Temperature: 0.5, TopP: 0.6, MinP: 0.7, TypicalP: 0.8, RepetitionPenalty: 1.1, PresencePenalty: 1.2, FrequencyPenalty: 1.3,
		TopK: 4, PenaltyWindow: 5, Bias: map[int32]float32{7: 1, 3: -1}, Allowed: []int32{8, 6, 8}, Seed: &seed,
		MaxTokens: 6, MinTokens: 2, Stop: []string{"x"}, StopIDs: []int32{4, 9}, IncludeStop: true,
		Sequences: 3, Candidates: 7, PromptTopN: 8, NoText: true, Progress: true, Class: engine.Decode,
		Schedule: generate.Schedule{Priority: -1, Tenant: "t", Salt: "s", Bypass: true, Keys: []batch.PrefixKey{{Key: 1, Tokens: 2}}},
		Resume:   []generate.Resume{{OutputIndex: 1, IDs: []int32{1, 2}, TextBytes: &text}},
	}
	r, err := build(t, m, Input{IDs: []int32{5}}, o)
	require.NoError(t, err)
	stops := []int32{2, 4, 9}
	require.Equal(t, generate.Request{
		Prompt: []int32{5}, Digest: Digest([]int32{5}), Class: engine.Decode, Sequences: 3, MaxTokens: 6,
		Stop: []string{"x"}, StopIDs: stops, IncludeStop: true, NoText: true, PromptTopN: 8, Progress: true,
		Schedule: o.Schedule, Resume: o.Resume,
		Params: engine.SlotParams{
			MinTokens: 2, TopN: 7, Temperature: 0.5, TopK: 4, TopP: 0.6, MinP: 0.7, TypicalP: 0.8, RepetitionPenalty: 1.1,
			PresencePenalty: 1.2, FrequencyPenalty: 1.3, PenaltyWindow: 5, BiasIDs: []int32{3, 7}, BiasValues: []float32{-1, 1},
			Allowed: []int32{6, 8}, Suppressed: stops,
		},
	}, r)
	require.Equal(t, []int32{8, 6, 8}, o.Allowed, "the caller's lists stay as they are")
	o.IgnoreEnds = true
	r, err = build(t, m, Input{IDs: []int32{5}}, o)
	require.NoError(t, err)
	require.Equal(t, []int32{4, 9}, r.StopIDs)
}

func TestALengthIsDecidedOnce(t *testing.T) {
	m := stories(t)
	for name, tc := range map[string]struct {
		in   Input
		want int // max_tokens
		most int // -1: refused
	}{
		"one token in a context of sixteen":         {Input{IDs: ids(1)}, math.MaxInt32, 15},
		"fewer are wanted than fit":                 {Input{IDs: ids(1)}, 14, 14},
		"as many are wanted as fit":                 {Input{IDs: ids(1)}, 15, 15},
		"room for one more":                         {Input{IDs: ids(15)}, math.MaxInt32, 1},
		"no room for an answer":                     {Input{IDs: ids(16)}, 1, -1},
		"no room, and no answer wanted":             {Input{IDs: ids(16)}, 0, 0},
		"beyond the context":                        {Input{IDs: ids(17)}, 0, -1},
		"a text that is too long as tokens":         {Input{Text: strings.Repeat("Tom ", 20)}, 1, -1},
		"a text that is not worth encoding":         {Input{Text: strings.Repeat("a", 1<<20)}, 1, -1},
		"a conversation that is not worth encoding": {Input{Chat: &Chat{}}, 1, -1},
		"a text that fits":                          {Input{Text: "Tom"}, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			m.Template = rendering(func(template.Input) (template.Prompt, error) { return owned(strings.Repeat("b", 1<<20)), nil })
			o := Defaults()
			o.MaxTokens = tc.want
			r, err := build(t, m, tc.in, o)
			if tc.most < 0 {
				require.ErrorIs(t, err, batch.ErrTooLong)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.most, r.MaxTokens)
		})
	}
}

// The request's context replaces the model's, of 16 tokens: lengths and refusals follow from it.
func TestBuildFitsTheContextOfTheRequest(t *testing.T) {
	m := stories(t)
	for name, tc := range map[string]struct {
		in      Input
		wanted  int
		context int
		most    int
		err     error
		text    string // of the error
	}{
		"a shorter one shortens":               {Input{IDs: ids(4)}, math.MaxInt32, 10, 6, nil, ""},
		"a shorter one refuses a prompt":       {Input{IDs: ids(11)}, 0, 10, 0, batch.ErrTooLong, "it has 11 tokens; this model serves at most 10"},
		"a longer one that this worker holds":  {Input{IDs: ids(4)}, 12, 32, 12, nil, ""},
		"one token more than it holds":         {Input{IDs: ids(4)}, 13, 32, 0, ErrContext, "it may have 17 tokens, and \"stories\" has a context of 16 here"},
		"as many as a longer one allows":       {Input{IDs: ids(4)}, math.MaxInt32, 32, 0, ErrContext, "may have 32 tokens"},
		"a prompt that only a longer one has":  {Input{IDs: ids(20)}, 1, 32, 0, ErrContext, "may have 21 tokens"},
		"a prompt that fills this worker":      {Input{IDs: ids(16)}, 1, 32, 0, ErrContext, "may have 17 tokens"},
		"a prompt that no such context has":    {Input{IDs: ids(33)}, 1, 32, 0, batch.ErrTooLong, "it has 33 tokens; this model serves at most 32"},
		"a text that is not worth encoding":    {Input{Text: strings.Repeat("a", 1<<20)}, 1, 32, 0, ErrContext, "may have more tokens"},
		"such a text and a shorter context":    {Input{Text: strings.Repeat("a", 1<<20)}, 1, 10, 0, batch.ErrTooLong, "at most 16 tokens"},
		"no answer, and a prompt that fits":    {Input{IDs: ids(16)}, 0, 32, 0, nil, ""},
		"the same context as the worker's own": {Input{IDs: ids(1)}, math.MaxInt32, 16, 15, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := Defaults()
			o.MaxTokens, o.Context = tc.wanted, tc.context
			r, err := build(t, m, tc.in, o)
			if tc.err != nil {
				require.ErrorIs(t, err, tc.err)
				require.ErrorContains(t, err, tc.text)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.most, r.MaxTokens)
		})
	}
}

func TestMoreResumedTokensThanMayBeAreRefused(t *testing.T) {
	o := Defaults()
	o.MaxTokens = 4
	for n, fits := range map[int]bool{0: true, 3: true, 4: true, 5: false, 500: false} {
		o.Resume = []generate.Resume{{}, {OutputIndex: 1, IDs: ids(n), Finished: n == 500}}
		_, err := build(t, stories(t), Input{IDs: ids(1)}, o)
		if fits {
			require.NoError(t, err)
			continue
		}
		var refused *generate.ResumeError
		require.ErrorAs(t, err, &refused)
		require.ErrorIs(t, err, generate.ErrResume)
		require.ErrorIs(t, err, generate.ErrResumeTooLong)
		require.Equal(t, 1, refused.Entry)
		require.Equal(t, 4, refused.Token)
	}
}

func TestTextsAndTemplatesBecomeTokens(t *testing.T) {
	m := stories(t)
	bos := m.Tokenizer.Special().BOS
	plain := m.Tokenizer.Encode("Tom", tokenizer.EncodeOptions{})
	now := time.Unix(1, 0)
	m.Template = rendering(func(in template.Input) (template.Prompt, error) {
		if in.Messages[0].Content == "forged" {
			return template.Prompt{Text: in.BOS + in.BOS, Own: [][2]int{{0, len(in.BOS)}}}, nil
		}
		require.Equal(t, template.Input{Messages: []template.Message{{Role: "user", Content: "hi"}}, AddGenerationPrompt: true,
			BOS: m.piece(m.BOS), EOS: m.piece(m.EOS), Now: now}, in)
		return owned(in.BOS + "Tom"), nil
	})
	chat := &Chat{Messages: []template.Message{{Role: "user", Content: "hi"}}, AddGenerationPrompt: true, Now: now}
	forged := &Chat{Messages: []template.Message{{Role: "user", Content: "forged"}}}
	allowed := &Chat{Messages: forged.Messages, ParseSpecial: true}
	for name, tc := range map[string]struct {
		in   Input
		want []int32
	}{
		"a text gets the model's special tokens":    {Input{Text: "Tom"}, append([]int32{bos}, plain...)},
		"a template's special tokens are read":      {Input{Chat: chat}, append([]int32{bos}, plain...)},
		"a message's special tokens are letters":    {Input{Chat: forged}, append([]int32{bos}, m.Tokenizer.Encode(m.piece(bos), tokenizer.EncodeOptions{})...)},
		"unless the request allows them":            {Input{Chat: allowed}, []int32{bos, bos}},
		"token ids are taken as they are":           {Input{IDs: []int32{7}}, []int32{7}},
		"special tokens in a text are mere letters": {Input{Text: "<s>"}, append([]int32{bos}, m.Tokenizer.Encode("<s>", tokenizer.EncodeOptions{})...)},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := build(t, m, tc.in, Defaults())
			require.NoError(t, err)
			require.Equal(t, tc.want, r.Prompt)
			require.Equal(t, Digest(tc.want), r.Digest)
		})
	}
}

func TestWhatAModelLacksIsNamed(t *testing.T) {
	textless, o := Model{Name: "synthetic", Context: 16, Loop: room(16)}, Defaults()
	broken := errors.New("line 3 ends too early")
	o.NoText = true
	for name, tc := range map[string]struct {
		m    Model
		in   Input
		o    Options
		want error
	}{
		"no tokenizer for a text":             {textless, Input{Text: "a"}, o, ErrNoTokenizer},
		"no tokenizer for a conversation":     {textless, Input{Chat: &Chat{}}, o, ErrNoTokenizer},
		"no tokenizer for the answer's text":  {textless, Input{IDs: ids(1)}, Defaults(), ErrNoTokenizer},
		"no template":                         {stories(t), Input{Chat: &Chat{}}, o, ErrNoTemplate},
		"a template that is none":             {Model{Tokenizer: stories(t).Tokenizer, TemplateProblem: broken}, Input{Chat: &Chat{}}, o, broken},
		"ids where no text is wanted: served": {textless, Input{IDs: ids(1)}, o, nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := build(t, tc.m, tc.in, tc.o)
			require.ErrorIs(t, err, tc.want)
		})
	}
	_, err := NewEncoder(1).Encode(t.Context(), textless, "", "a", tokenizer.EncodeOptions{})
	require.ErrorIs(t, err, ErrNoTokenizer)
	textless.Template = rendering(func(template.Input) (template.Prompt, error) { return template.Prompt{}, nil })
	_, err = textless.Render(t.Context(), "", Chat{})
	require.ErrorIs(t, err, ErrNoTokenizer)
}

// deaf is a template that leaves messages out.
type deaf struct{ rendering }

func (deaf) WritesMessages(context.Context) bool { return false }

func TestALargeChatIsRefusedBeforeItIsRendered(t *testing.T) {
	m, rendered := stories(t), 0
	render := rendering(func(template.Input) (template.Prompt, error) { rendered++; return template.Prompt{Text: "Tom"}, nil })
	long, fits := strings.Repeat("a", 1<<20), 2*(m.Context+1)*m.Tokenizer.LongestPiece()
	for name, tc := range map[string]struct {
		template Template
		message  template.Message
		refused  bool
	}{
		"too long":                            {render, template.Message{Role: "user", Content: long}, true},
		"one byte too long":                   {render, template.Message{Role: "user", Content: long[:fits+1]}, true},
		"as long as may be":                   {render, template.Message{Role: "user", Content: long[:fits]}, false},
		"white space around it":               {render, template.Message{Role: "user", Content: strings.Repeat(" ", 1<<20) + "hi\n"}, false},
		"reasoning that a template takes out": {render, template.Message{Role: "assistant", Content: "<think>" + long + "</think>hi"}, false},
		"reasoning of a user":                 {render, template.Message{Role: "user", Content: "<think>" + long + "</think>hi"}, true},
		"a template that leaves messages out": {deaf{render}, template.Message{Role: "user", Content: long}, false},
	} {
		t.Run(name, func(t *testing.T) {
			rendered = 0
			m.Template = tc.template
			_, err := build(t, m, Input{Chat: &Chat{Messages: []template.Message{tc.message}}}, Defaults())
			if tc.refused {
				require.ErrorIs(t, err, batch.ErrTooLong)
				require.Zero(t, rendered)
				return
			}
			require.NoError(t, err)
			require.Equal(t, 1, rendered)
		})
	}
}

func TestATextThatBecomesNoTokenIsRefused(t *testing.T) {
	m := stories(t)
	m.Template = rendering(func(template.Input) (template.Prompt, error) { return template.Prompt{}, nil })
	_, err := build(t, m, Input{Chat: &Chat{}}, Defaults())
	require.ErrorIs(t, err, ErrNoTokens)
}

func TestTextsWaitForTheirTurn(t *testing.T) {
	e := NewEncoder(1)
	release, err := e.Acquire(t.Context(), "", 1)
	require.NoError(t, err)
	cause := errors.New("too late")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	_, err = Build(ctx, e, stories(t), Input{Text: "Tom"}, Defaults())
	require.ErrorIs(t, err, cause)
	_, err = Build(ctx, e, stories(t), Input{IDs: ids(1)}, Defaults())
	require.NoError(t, err, "ids need no turn")
	release()
	_, err = Build(t.Context(), e, stories(t), Input{Text: "Tom"}, Defaults())
	require.NoError(t, err)
}

func TestALargeTextDoesNotDelayASmallOne(t *testing.T) {
	e := NewEncoder(2)
	release, err := e.Acquire(t.Context(), "large", largeText) // the only slot for large texts
	require.NoError(t, err)
	defer release()
	_, err = e.Encode(t.Context(), stories(t), "small", strings.Repeat("a", largeText-1), tokenizer.EncodeOptions{})
	require.NoError(t, err)
}

func TestAPromptOfManyContextsIsNotEncoded(t *testing.T) {
	// Its refusal states a bound instead of the number of its tokens: up to four contexts the
	// number is exact.
	m := stories(t)
	fits := 2 * (m.Context + 1) * m.Tokenizer.LongestPiece()
	_, err := build(t, m, Input{Text: strings.Repeat("\x01", fits)}, Defaults())
	require.ErrorIs(t, err, batch.ErrTooLong)
	require.ErrorContains(t, err, "more than 68 tokens")
	_, err = build(t, m, Input{Text: strings.Repeat("\x01", 30)}, Defaults())
	require.ErrorIs(t, err, batch.ErrTooLong)
	require.ErrorContains(t, err, "has 31 tokens")
}

func TestAnEncoderThatPanicsGivesItsTurnBack(t *testing.T) {
	e, m := NewEncoder(1), stories(t)
	m.Tokenizer = &tokenizer.Tokenizer{} // knows no vocabulary
	require.Panics(t, func() { _, _ = e.Encode(t.Context(), m, "", "Tom", tokenizer.EncodeOptions{}) })
	_, err := e.Encode(t.Context(), stories(t), "", "Tom", tokenizer.EncodeOptions{})
	require.NoError(t, err)
}

func TestADigestIsOfTheIdsAsLittleEndianNumbers(t *testing.T) {
	require.Equal(t, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262", Digest(nil), "of no bytes")
	require.NotEqual(t, Digest([]int32{1, 0}), Digest([]int32{1}))
	require.NotEqual(t, Digest([]int32{256}), Digest([]int32{1}))
}
