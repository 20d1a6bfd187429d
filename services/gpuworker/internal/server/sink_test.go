package server

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/generate"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// eventLog is a stream that records its messages.
type eventLog struct {
	grpc.ServerStream
	events []*pb.GenerateResponse
}

func (l *eventLog) SendMsg(m any) error {
	l.events = append(l.events, m.(*pb.GenerateResponse))
	return nil
}

// costly returns n rows with candidates whose numbers take the most bytes on the wire.
func costly(n, candidates int) []engine.RowResult {
	rows := make([]engine.RowResult, n)
	for i := range rows {
		rows[i] = engine.RowResult{Token: int32(1<<23 + i), Logprob: -1, Rank: 1<<31 - 1}
		for range candidates {
			rows[i].Candidates = append(rows[i].Candidates, engine.Candidate{Token: 1 << 30, Logprob: -2})
		}
	}
	return rows
}

func TestTokensAreSplitAboveTheLimit(t *testing.T) {
	const n, candidates = 3000, 64
	log := &eventLog{}
	s := &sink{stream: log, response: &pb.ResponseOptions{OutputCandidates: proto.Int32(candidates)}}
	run := generate.Tokens{OutputIndex: 1, TokenIndex: 7, Rows: costly(n, candidates), TextBytes: make([]int, n)}
	for i := range run.TextBytes {
		run.TextBytes[i] = i % 3
		run.Text += strings.Repeat("x", i%3)
	}
	require.NoError(t, s.Tokens(run))
	require.Greater(t, len(log.events), 2)
	at, text := 7, ""
	for _, e := range log.events {
		require.LessOrEqual(t, proto.Size(e), maxEventBytes)
		got := e.GetTokens()
		require.EqualValues(t, 1, got.GetOutputIndex())
		require.EqualValues(t, at, got.GetTokenIndex())
		bytes := 0
		for i, d := range got.GetDetails() {
			require.EqualValues(t, run.Rows[at-7+i].Token, got.GetTokenIds()[i])
			bytes += int(d.GetTextBytes())
		}
		require.Len(t, got.GetText(), bytes, "each event has the text of its tokens")
		at, text = at+len(got.GetTokenIds()), text+got.GetText()
	}
	require.Equal(t, n, at-7)
	require.Equal(t, run.Text, text)
}

func TestPromptTokensAreSplitAboveTheLimit(t *testing.T) {
	prompt := make([]int32, 700_000)
	for i := range prompt {
		prompt[i] = int32(1<<23 + i)
	}
	for name, tc := range map[string]struct {
		send   func(*sink) error
		tokens int
	}{
		"an echo":     {func(s *sink) error { return s.sendPrompt(0, nil, len(prompt)) }, len(prompt)},
		"many scores": {func(s *sink) error { return s.Scored(0, costly(2500, 64)) }, 2500},
	} {
		t.Run(name, func(t *testing.T) {
			log := &eventLog{}
			s := &sink{stream: log, request: generate.Request{Prompt: prompt},
				response: &pb.ResponseOptions{EchoPrompt: proto.Bool(true), PromptLogprobs: proto.Int32(64)}}
			require.NoError(t, tc.send(s))
			require.Greater(t, len(log.events), 1)
			at := 0
			for _, e := range log.events {
				require.LessOrEqual(t, proto.Size(e), maxEventBytes)
				got := e.GetPrompt()
				require.EqualValues(t, at, got.GetTokenIndex())
				require.EqualValues(t, prompt[at], got.GetTokenIds()[0])
				if got.GetDetails() != nil {
					require.Len(t, got.GetDetails(), len(got.GetTokenIds()))
				}
				at += len(got.GetTokenIds())
			}
			require.Equal(t, tc.tokens, at)
		})
	}
}
