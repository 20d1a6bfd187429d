package generate

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/tokenizer"
)

// scenario is a request and the ids that a model would generate for it for ever.
type scenario struct {
	tok     *tokenizer.Tokenizer
	request Request
	ids     []int32
}

// random is a scenario whose text is full of characters that tokens split, and of invalid bytes.
func random(rng *rand.Rand, tok *tokenizer.Tokenizer) scenario {
	var ids []int32
	for len(ids) < 60 {
		switch rng.IntN(3) {
		case 0:
			ids = append(ids, int32(rng.IntN(tok.VocabSize())))
		default:
			words := []string{"the", "a", "é", "漢字", "🙂", " the end", "ab", "\xe6\xbc"}
			ids = append(ids, tok.Encode(words[rng.IntN(len(words))], tokenizer.EncodeOptions{})...)
		}
	}
	r := Request{
		Sequences: 1, MaxTokens: 1 + rng.IntN(40), IncludeStop: rng.IntN(2) == 0,
		Params: engine.SlotParams{MinTokens: int32(max(0, rng.IntN(30)-20))},
	}
	if rng.IntN(3) > 0 {
		r.StopIDs = []int32{ids[rng.IntN(len(ids))], tok.EndOfGeneration()[0]}
		slices.Sort(r.StopIDs)
		// An end token is not sampled among the first.
		for i := range min(int(r.Params.MinTokens), len(ids)) {
			if slices.Contains(r.StopIDs, ids[i]) {
				ids[i] = ids[len(ids)-1]
				r.StopIDs = slices.DeleteFunc(r.StopIDs, func(id int32) bool { return id == ids[i] })
			}
		}
	}
	text, _ := tok.Decode(ids, tokenizer.DecodeOptions{Continues: true})
	runes := []rune(text)
	for range rng.IntN(4) {
		at := rng.IntN(len(runes))
		r.Stop = append(r.Stop, string(runes[at:min(len(runes), at+1+rng.IntN(6))]))
	}
	return scenario{tok: tok, request: r, ids: ids}
}

// whole is the naive implementation: it decodes the text of the first n ids again for each n, until
// a condition holds.
func (s scenario) whole(t *testing.T) (text string, n int, stop string) {
	t.Helper()
	r := s.request
	for n = 1; ; n++ {
		d, text, head := s.tok.NewDecoder(tokenizer.DecodeOptions{Continues: true}), "", "" // no stop string counts in head
		last := slices.Contains(r.StopIDs, s.ids[n-1])
		if last && (!r.IncludeStop || s.tok.IsSpecial(s.ids[n-1])) {
			text, err := s.tok.Decode(s.ids[:n-1], tokenizer.DecodeOptions{Continues: true})
			require.NoError(t, err)
			if r.IncludeStop {
				name, _ := s.tok.Piece(s.ids[n-1])
				text += string(name)
			}
			return text, n, ""
		}
		for i, id := range s.ids[:n] {
			piece, err := d.Push(id)
			require.NoError(t, err)
			if text += piece; i < int(r.Params.MinTokens) {
				head = text
			}
		}
		if last {
			return text + d.Flush(), n, ""
		}
		show, matched := cut(text[len(head):], r.Stop, r.IncludeStop)
		switch {
		case matched != "":
			return head + show, n, matched
		case n == r.MaxTokens:
			return text + d.Flush(), n, ""
		}
	}
}

func TestResumeAtEverySplitGivesTheWholeText(t *testing.T) {
	// The text before and after every split is the whole text.
	split, stopped, ended := 0, 0, 0
	for name, tok := range map[string]*tokenizer.Tokenizer{
		"byte level": byteLevel(t), "sentencepiece": sentencePiece(t), "shipped": shipped(t),
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(250) {
				s := random(rand.New(rand.NewPCG(seed, 8)), tok)
				wantText, n, wantStop := s.whole(t)
				c := newContinuation(&s.request, 0, s.request.MaxTokens, decodersOf(tok))
				shown := []string{""} // after k ids
				for c.end == nil {
					text, err := c.push(s.ids[c.count])
					require.NoError(t, err)
					shown = append(shown, shown[len(shown)-1]+text)
				}
				require.Equal(t, n, c.count, "seed %d: %q", seed, s.request.Stop)
				require.Equal(t, wantText, shown[n], "seed %d: %q", seed, s.request.Stop)
				require.Equal(t, wantStop, c.end.stop, "seed %d", seed)
				for k := range n + 1 {
					bytes := uint64(len(shown[k]))
					again := newContinuation(&s.request, 0, s.request.MaxTokens, decodersOf(tok))
					require.NoError(t, again.resume(Resume{IDs: s.ids[:k], TextBytes: &bytes}, 0), "seed %d, after %d of %d", seed, k, n)
					rest := ""
					for again.end == nil {
						text, err := again.push(s.ids[again.count])
						require.NoError(t, err)
						rest += text
					}
					require.Equal(t, wantText, shown[k]+rest, "seed %d, after %d of %d", seed, k, n)
					require.Equal(t, c.end, again.end)
					require.Equal(t, n, again.count)
					if decoded, _ := tok.Decode(s.ids[:k], tokenizer.DecodeOptions{Continues: true}); len(decoded) > len(shown[k]) {
						split++ // in the middle of a character or of a stop string
					}
				}
				if wantStop != "" {
					stopped++
				}
				if c.end.token != nil {
					ended++
				}
				s.refusesWrongResumes(t, n, uint64(len(wantText)))
			}
		})
	}
	require.Greater(t, split, 1000)
	require.Greater(t, stopped, 100)
	require.Greater(t, ended, 50)
}

// refusesWrongResumes: more ids than the stream has, another count of bytes.
func (s scenario) refusesWrongResumes(t *testing.T, n int, bytes uint64) {
	t.Helper()
	fresh := func() *continuation { return newContinuation(&s.request, 0, s.request.MaxTokens, decodersOf(s.tok)) }
	var beyond *ResumeError
	require.ErrorAs(t, fresh().resume(Resume{IDs: s.ids[:n+1]}, 3), &beyond)
	require.ErrorIs(t, beyond, ErrResume)
	require.Equal(t, 3, beyond.Entry)
	require.Equal(t, n, beyond.Token)
	bytes++
	var other *TextError
	require.ErrorAs(t, fresh().resume(Resume{IDs: s.ids[:n], TextBytes: &bytes}, 0), &other)
	require.ErrorIs(t, other, ErrResumeText)
	require.Equal(t, bytes-1, other.Give)
	require.Equal(t, bytes, other.Received)
	require.NoError(t, fresh().resume(Resume{IDs: s.ids[:n+1], Finished: true, TextBytes: &bytes}, 0), "one told as finished is not looked at")
}

func TestARunResumesAtEverySplit(t *testing.T) {
	const script = "one. two. three and more$"
	for name, r := range map[string]Request{
		"to its length":                  {MaxTokens: 12},
		"to a stop string":               {MaxTokens: 20, Stop: []string{"three", ". t"}},
		"to a stop string that is shown": {MaxTokens: 20, Stop: []string{"wo. th"}, IncludeStop: true},
		"to a stop token":                {MaxTokens: 30, StopIDs: []int32{'$'}},
		"without text":                   {MaxTokens: 12, NoText: true},
		"behind min_tokens":              {MaxTokens: 20, Stop: []string{"o", "e"}, Params: engine.SlotParams{MinTokens: 9}},
	} {
		t.Run(name, func(t *testing.T) {
			r.PromptTopN = -1
			whole := newRecorder()
			_, err := runScript(t, script, r, whole)
			require.NoError(t, err)
			n, end := whole.finished[0].Generated, whole.finished[0]
			end.Timings = batch.Timings{}
			for k := range n + 1 {
				var resumed []int32
				for _, b := range []byte(script[:k]) {
					resumed = append(resumed, int32(b))
				}
				r.Resume = []Resume{{IDs: resumed}}
				sink := newRecorder()
				sink.first = map[int]int{0: k}
				totals, err := runScript(t, script, r, sink)
				require.NoError(t, err, "after %d of %d", k, n)
				totals.Timings = batch.Timings{}
				require.Equal(t, Totals{Resumed: k, Generated: n - k}, totals)
				require.Equal(t, []Started{{Resumed: []int{k}}}, sink.started)
				got := sink.finished[0]
				got.Timings = batch.Timings{}
				require.Equal(t, end, got, "after %d of %d", k, n)
				require.True(t, strings.HasSuffix(whole.textOf(0), sink.textOf(0)))
				// The bytes before the split are the others, or the run is refused.
				before := uint64(len(whole.textOf(0)) - len(sink.textOf(0)))
				r.Resume[0].TextBytes = &before
				_, err = runScript(t, script, r, &recorder{text: map[int]*strings.Builder{}, ids: map[int]int{}, finished: map[int]Finished{}, first: sink.first})
				require.NoError(t, err)
				before++
				refused := newRecorder()
				_, err = runScript(t, script, r, refused)
				require.ErrorIs(t, err, ErrResumeText)
				require.Empty(t, refused.log)
			}
		})
	}
}

func TestContinuationsResumeIndependently(t *testing.T) {
	// Continuations of one run resume each from its own position.
	sink := newRecorder()
	sink.first = map[int]int{1: 3}
	totals, err := runScript(t, "abcdef", Request{
		MaxTokens: 6, Sequences: 4, PromptTopN: 2,
		Resume: []Resume{
			{OutputIndex: 1, IDs: []int32{'a', 'b', 'c'}}, {OutputIndex: 3, IDs: []int32{'a', 'b'}, Finished: true},
			{OutputIndex: 2, IDs: []int32{'a', 'b', 'c', 'd', 'e', 'f'}},
		},
	}, sink)
	require.NoError(t, err)
	totals.Timings = batch.Timings{}
	require.Equal(t, Totals{Resumed: 11, Generated: 9}, totals)
	require.Equal(t, []Started{{Resumed: []int{0, 3, 6, 2}}}, sink.started)
	require.Equal(t, "abcdef", sink.textOf(0))
	require.Equal(t, "def", sink.textOf(1))
	require.Empty(t, sink.textOf(2))
	require.Len(t, sink.finished, 3, "of the one that was told before, nothing is told")
	require.Equal(t, Finished{OutputIndex: 2, Reason: batch.Length, Generated: 6}, sink.finished[2])
	require.NotContains(t, sink.log, "scored", "the prompt was reported before")
}

// silentLoop is a loop that must not get a request.
type silentLoop struct {
	t     *testing.T
	taken []batch.Request
}

func (l *silentLoop) Fit(prompt, wanted int) (int, error) { return min(wanted, 100-prompt), nil }
func (l *silentLoop) Submit(r batch.Request) ([]*batch.Stream, error) {
	l.taken = append(l.taken, r)
	return nil, batch.ErrFull
}

func TestFinishedRequestNeedsNoLoop(t *testing.T) {
	for name, tc := range map[string]struct {
		request Request
		ends    map[int]Finished
	}{
		"at its length": {Request{MaxTokens: 2, Resume: []Resume{{IDs: []int32{'a', 'b'}}}},
			map[int]Finished{0: {Reason: batch.Length, Generated: 2}}},
		"at a stop token": {Request{MaxTokens: 9, StopIDs: []int32{'b'}, Resume: []Resume{{IDs: []int32{'a', 'b'}}}},
			map[int]Finished{0: {Reason: batch.Stop, StopID: 'b', Generated: 2}}},
		"at a stop string": {Request{MaxTokens: 9, Stop: []string{"ab"}, Resume: []Resume{{IDs: []int32{'a', 'b'}}}},
			map[int]Finished{0: {Reason: batch.Stop, Stop: "ab", Generated: 2}}},
		"at the end of the context": {Request{MaxTokens: 1000, NoText: true, Resume: []Resume{{IDs: make([]int32, 95)}}},
			map[int]Finished{0: {Reason: batch.Length, Generated: 95}}},
		"with no token wanted": {Request{MaxTokens: 0, Resume: []Resume{{}}}, map[int]Finished{0: {Reason: batch.Length}}},
		"told before":          {Request{MaxTokens: 9, Resume: []Resume{{Finished: true}}}, map[int]Finished{}},
		"one of each": {Request{MaxTokens: 2, Resume: []Resume{{Finished: true}, {OutputIndex: 1, IDs: []int32{'a', 'b'}}}, Sequences: 2},
			map[int]Finished{1: {OutputIndex: 1, Reason: batch.Length, Generated: 2}}},
	} {
		t.Run(name, func(t *testing.T) {
			tc.request.Prompt, tc.request.PromptTopN = make([]int32, 5), -1
			tc.request.Sequences = max(tc.request.Sequences, 1)
			loop, sink := &silentLoop{t: t}, newRecorder()
			_, err := Run(t.Context(), loop, func(special bool) TextDecoder { return bytesDecoder{special} }, tc.request, sink)
			require.NoError(t, err)
			require.Empty(t, loop.taken)
			require.Equal(t, []string{"started"}, sink.log)
			require.Equal(t, tc.ends, sink.finished)
		})
	}
}

func TestLoopGetsTheRemainingContinuations(t *testing.T) {
	loop := &silentLoop{t: t}
	r := Request{
		Prompt: []int32{1, 2}, Class: engine.Decode, Params: engine.SlotParams{Seed: 3}, Sequences: 3, MaxTokens: 5,
		StopIDs: []int32{4}, NoText: true, PromptTopN: 6, Progress: true,
		Schedule: Schedule{Priority: 7, Tenant: "t", Salt: "s", Bypass: true, Keys: []batch.PrefixKey{{Key: 8, Tokens: 1}}},
	}
	want := batch.Request{
		Prompt: r.Prompt, Class: r.Class, Params: r.Params, MaxTokens: 5, StopIDs: r.StopIDs, PromptTopN: 6, Progress: true,
		Priority: 7, Tenant: "t", Salt: "s", Bypass: true, Keys: r.Schedule.Keys,
		Continuations: []batch.Continuation{{OutputIndex: 0}, {OutputIndex: 1}, {OutputIndex: 2}},
	}
	sink := newRecorder()
	_, err := Run(t.Context(), loop, nil, r, sink)
	require.ErrorIs(t, err, batch.ErrFull)
	require.Empty(t, sink.log, "a refused request has not started")
	r.Resume = []Resume{{OutputIndex: 1, IDs: []int32{9}, Finished: true}, {OutputIndex: 2, IDs: []int32{9, 8}}}
	_, err = Run(t.Context(), loop, nil, r, sink)
	require.ErrorIs(t, err, batch.ErrFull)
	resumed := want
	resumed.PromptTopN, resumed.Resumed = -1, true
	resumed.Continuations = []batch.Continuation{{OutputIndex: 0}, {OutputIndex: 2, Resumed: []int32{9, 8}}}
	require.Equal(t, []batch.Request{want, resumed}, loop.taken)
}

func TestStartedWaitsForTheFirstEvent(t *testing.T) {
	// Started waits for the first event of a computed continuation.
	sink := newRecorder()
	_, err := runScript(t, "abcdef", Request{
		MaxTokens: 2, Sequences: 2, PromptTopN: -1, Progress: true, Resume: []Resume{{OutputIndex: 0, IDs: []int32{'a', 'b'}}},
	}, sink)
	require.NoError(t, err)
	require.Equal(t, "prefilled", sink.log[0], "the end of the other one goes with the start, and the start with the first token")
	require.Equal(t, "started", sink.log[1])
	require.Len(t, sink.finished, 2)
}
