package generate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/tools"
)

// scripted samples script[i] as the i-th token of every sequence; tokens are bytes.
type scripted struct {
	script string
	prompt int
	flight []*engine.StepResult // the oldest first
}

func (r *scripted) Submit(step *engine.Step) error {
	result := &engine.StepResult{}
	for _, row := range step.Samples {
		at := int(row.Position) - r.prompt
		result.Samples = append(result.Samples, engine.RowResult{Token: int32(r.script[at%len(r.script)])})
	}
	for _, row := range step.Scores {
		result.Scores = append(result.Scores, engine.RowResult{Token: row.Target, Logprob: -1})
	}
	r.flight = append(r.flight, result)
	return nil
}

func (r *scripted) Wait(time.Duration) (*engine.StepResult, error) {
	result := r.flight[0]
	r.flight = r.flight[1:]
	return result, nil
}

func (r *scripted) Progress() engine.Progress { return engine.Progress{} }
func (r *scripted) Close() error              { return nil }

// bytesDecoder uses ids as bytes; '$' is a control token.
type bytesDecoder struct{ special bool }

func (d bytesDecoder) Push(id int32) (string, error) {
	if id == '$' && !d.special {
		return "", nil
	}
	return string(id), nil
}
func (d bytesDecoder) Flush() string { return "" }

type recorder struct {
	text     map[int]*strings.Builder
	ids      map[int]int
	finished map[int]Finished
	started  []Started
	first    map[int]int        // index of the first delivered token, by output; 0 unless resumed
	kinds    map[tools.Kind]int // bytes of parts
	log      []string
	fail     error
}

func newRecorder() *recorder {
	return &recorder{text: map[int]*strings.Builder{}, ids: map[int]int{}, finished: map[int]Finished{}, kinds: map[tools.Kind]int{tools.Reasoning: 0, tools.Content: 0}}
}

func (r *recorder) Started(s Started) error {
	r.started = append(r.started, s)
	r.log = append(r.log, "started")
	return r.fail
}
func (r *recorder) Prefilled(int) error { r.log = append(r.log, "prefilled"); return r.fail }
func (r *recorder) Scored(from int, rows []engine.RowResult) error {
	r.log = append(r.log, "scored")
	return r.fail
}

func (r *recorder) Tokens(t Tokens) error {
	if r.text[t.OutputIndex] == nil {
		r.text[t.OutputIndex] = &strings.Builder{}
	}
	if len(r.started) != 1 {
		return errors.New("tokens came before the start")
	}
	if r.ids[t.OutputIndex] == 0 {
		r.ids[t.OutputIndex] = r.first[t.OutputIndex]
	}
	if t.TokenIndex != r.ids[t.OutputIndex] {
		return errors.New("a token index is not the count of tokens before it")
	}
	bytes := 0
	for _, n := range t.TextBytes {
		bytes += n
	}
	if len(t.TextBytes) != len(t.Rows) || bytes != len(t.Text) {
		return fmt.Errorf("tokens bring %v bytes of %q", t.TextBytes, t.Text)
	}
	for i, p := range t.Parts {
		r.kinds[p.Kind] += p.Bytes
		if bytes -= p.Bytes; i == len(t.Parts)-1 && bytes != 0 {
			return fmt.Errorf("parts %v of %q", t.Parts, t.Text)
		}
	}
	r.ids[t.OutputIndex] += len(t.Rows)
	r.text[t.OutputIndex].WriteString(t.Text)
	r.log = append(r.log, "tokens")
	return r.fail
}

// textOf is the text of an output, "" if it had none.
func (r *recorder) textOf(output int) string {
	if r.text[output] == nil {
		return ""
	}
	return r.text[output].String()
}

func (r *recorder) Finished(f Finished) error { r.finished[f.OutputIndex] = f; return r.fail }

// runScript generates from a script after a prompt of five tokens.
func runScript(t *testing.T, script string, r Request, sink Sink) (Totals, error) {
	t.Helper()
	return runScriptIn(t.Context(), t, script, r, sink)
}

func runScriptIn(within context.Context, t *testing.T, script string, r Request, sink Sink) (Totals, error) {
	t.Helper()
	r.Prompt = []int32{1, 2, 3, 4, 5}
	if r.Sequences == 0 {
		r.Sequences = 1
	}
	cfg := batch.Config{Context: 400, Runner: engine.RunnerConfig{
		KVBlocks: 200, BlockSize: 16, MaxSequences: 4, MaxBatchedTokens: 64, MaxSampleRows: 4, MaxScoreRows: 16,
	}}
	loop := batch.New(cfg, &scripted{script: script, prompt: 5}, hclog.NewNullLogger())
	if w, ok := sink.(*scoreWaiter); ok {
		w.loop = loop
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = loop.Run(ctx) }()
	defer func() { stop(); <-ended }()
	decoders := func(special bool) TextDecoder { return bytesDecoder{special} }
	return Run(within, loop, decoders, r, sink)
}

func TestTextAndEndOfAContinuation(t *testing.T) {
	for name, tc := range map[string]struct {
		script  string
		request Request
		text    string
		want    Finished
	}{
		"ends at max_tokens with all its text": {
			"hello world", Request{MaxTokens: 7}, "hello w", Finished{Reason: batch.Length, Generated: 7},
		},
		"shows what was held for a stop string that never came": {
			"hello wor", Request{MaxTokens: 9, Stop: []string{"world"}}, "hello wor", Finished{Reason: batch.Length, Generated: 9},
		},
		"leaves the stop string out": {
			"one. two. three", Request{MaxTokens: 15, Stop: []string{"three", ". t"}}, "one",
			Finished{Reason: batch.Stop, Stop: ". t", Generated: 6},
		},
		"keeps the stop string when asked": {
			"one. two", Request{MaxTokens: 8, Stop: []string{". t"}, IncludeStop: true}, "one. t",
			Finished{Reason: batch.Stop, Stop: ". t", Generated: 6},
		},
		"looks for stop strings behind min_tokens only": {
			"ab ab ab", Request{MaxTokens: 8, Stop: []string{"ab"}, Params: engine.SlotParams{MinTokens: 4}}, "ab ab ",
			Finished{Reason: batch.Stop, Stop: "ab", Generated: 8},
		},
		"ends at a stop token and hides it": {
			"story$more", Request{MaxTokens: 10, StopIDs: []int32{'$'}}, "story",
			Finished{Reason: batch.Stop, StopID: '$', Generated: 6},
		},
		"ends at a stop token and shows it when asked": {
			"story$more", Request{MaxTokens: 10, StopIDs: []int32{'$'}, IncludeStop: true}, "story$",
			Finished{Reason: batch.Stop, StopID: '$', Generated: 6},
		},
		"gives no text when none is wanted": {
			"story", Request{MaxTokens: 5, NoText: true}, "", Finished{Reason: batch.Length, Generated: 5},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tc.request.PromptTopN = -1
			sink := newRecorder()
			n, err := runScript(t, tc.script, tc.request, sink)
			require.NoError(t, err)
			got := sink.finished[0]
			got.Timings = batch.Timings{}
			require.Equal(t, tc.want, got)
			require.Equal(t, tc.text, sink.text[0].String())
			require.Positive(t, n.Timings.Steps)
			require.Positive(t, n.Timings.Queue)
			n.Timings = batch.Timings{}
			require.Equal(t, Totals{Generated: tc.want.Generated}, n)
			require.Equal(t, tc.want.Generated, sink.ids[0])
		})
	}
}

func TestPromptScoresPrecedeAllTokens(t *testing.T) {
	sink := newRecorder()
	n, err := runScript(t, "abcdef", Request{MaxTokens: 6, Sequences: 3, PromptTopN: 0}, sink)
	require.NoError(t, err)
	require.Equal(t, 18, n.Generated)
	require.Len(t, sink.finished, 3)
	require.Equal(t, []string{"started", "scored"}, sink.log[:2])
	require.NotContains(t, sink.log[2:], "scored")
}

// scoreWaiter accepts the first scores only when both other continuations have paused.
type scoreWaiter struct {
	*recorder
	loop      *batch.Loop
	generated uint64 // by then
}

func (s *scoreWaiter) Scored(from int, rows []engine.RowResult) error {
	for end := time.Now().Add(time.Minute); s.loop.Stats().Paused < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return errors.New("the other continuations generate on")
		}
	}
	s.generated = s.loop.Stats().GeneratedTokens
	return s.recorder.Scored(from, rows)
}

// A caller that reads no scores bounds what its other continuations generate: the tokens that a run
// and a stream buffer.
func TestContinuationsPauseWhileScoresWait(t *testing.T) {
	// A caller that reads no scores bounds what its other continuations generate: each holds as
	// many tokens as a run keeps, a stream holds, and a step or two may bring.
	sink := &scoreWaiter{recorder: newRecorder()}
	n, err := runScript(t, "abcdef", Request{MaxTokens: 300, Sequences: 3, PromptTopN: 0}, sink)
	require.NoError(t, err)
	require.LessOrEqual(t, sink.generated, uint64(3*(heldRows+64+64)))
	require.Equal(t, 900, n.Generated)
	require.Equal(t, []string{"started", "scored"}, sink.log[:2])
	for i := range 3 {
		require.Equal(t, 300, sink.ids[i])
		require.Equal(t, 300, sink.finished[i].Generated)
	}
}

func TestASinkThatFailsEndsTheRun(t *testing.T) {
	sink := newRecorder()
	sink.fail = errors.New("the client has gone")
	_, err := runScript(t, "abcdef", Request{MaxTokens: 300, Sequences: 2, PromptTopN: -1}, sink)
	require.ErrorIs(t, err, sink.fail)
}

// slowSink ends the context at its first tokens while more pile up.
type slowSink struct {
	*recorder
	end func()
}

func (s slowSink) Tokens(t Tokens) error {
	s.end()
	time.Sleep(20 * time.Millisecond)
	return s.recorder.Tokens(t)
}

func TestEndedContextEndsAFastRun(t *testing.T) {
	// An ended context ends a run whose loop is faster than its sink.
	cause := errors.New("the deadline is near")
	ctx, stop := context.WithCancelCause(t.Context())
	sink := slowSink{newRecorder(), func() { stop(cause) }}
	n, err := runScriptIn(ctx, t, "abcdef", Request{MaxTokens: 300, PromptTopN: -1}, sink)
	require.ErrorIs(t, err, cause)
	require.Equal(t, []string{"started", "tokens"}, sink.log, "nothing is delivered after the end")
	require.Equal(t, sink.ids[0], n.Generated)
}

func TestTheCauseOfAnEndedContextIsTheError(t *testing.T) {
	cause := errors.New("the deadline is near")
	ctx, stop := context.WithCancelCause(t.Context())
	stop(cause)
	loop := batch.New(batch.Config{Context: 100, Runner: engine.RunnerConfig{KVBlocks: 9, BlockSize: 16, MaxSequences: 1}},
		&scripted{}, hclog.NewNullLogger())
	_, err := Run(ctx, loop, nil, Request{Prompt: []int32{1}, Sequences: 1, MaxTokens: 5, NoText: true, PromptTopN: -1}, newRecorder())
	require.ErrorIs(t, err, cause)
}
