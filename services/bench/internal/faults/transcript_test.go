package faults

import (
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

func started(worker string, resumed ...uint32) *pb.GenerateResponse {
	return &pb.GenerateResponse{Event: &pb.GenerateResponse_Started{Started: &pb.Started{
		ModelDigest: "m", PromptDigest: "p", ClassId: "c", PromptTokens: 3, Seed: 7, WorkerId: worker, ResumedTokens: resumed,
	}}}
}

func tokens(output, at uint32, text string, ids ...uint32) *pb.GenerateResponse {
	t := &pb.Tokens{OutputIndex: output, TokenIndex: at, Text: text, TokenIds: ids}
	for _, id := range ids {
		t.Details = append(t.Details, &pb.TokenDetail{Logprob: ptr(-float32(id)), Rank: ptr(uint32(1)),
			Candidates: []*pb.Candidate{{TokenId: id, Logprob: -1}}})
	}
	return &pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{Tokens: t}}
}

func promptRun(at uint32, ids ...uint32) *pb.GenerateResponse {
	return &pb.GenerateResponse{Event: &pb.GenerateResponse_Prompt{Prompt: &pb.PromptTokens{TokenIndex: at, TokenIds: ids}}}
}

func finished(output, completion uint32) *pb.GenerateResponse {
	return &pb.GenerateResponse{Event: &pb.GenerateResponse_Finished{Finished: &pb.Finished{
		OutputIndex: output, Reason: pb.FinishReason_FINISH_REASON_STOP, Matched: &pb.Finished_Stop{Stop: "."},
		Usage: &pb.Usage{PromptTokens: 3, CompletionTokens: completion},
	}}}
}

// stream adds events to a transcript until one is wrong.
func stream(events ...*pb.GenerateResponse) (*Transcript, error) {
	t := &Transcript{}
	for _, e := range events {
		if err := t.Add(e); err != nil {
			return t, err
		}
	}
	return t, nil
}

// events returns a correct stream of two continuations.
func events() []*pb.GenerateResponse {
	return []*pb.GenerateResponse{
		started("w1"), promptRun(0, 1, 2), promptRun(2, 3), tokens(0, 0, "ab", 10, 11), tokens(1, 0, "c", 20), tokens(0, 2, "d", 12),
		finished(0, 3), tokens(1, 1, "", 21), finished(1, 2),
	}
}

func TestTranscriptIgnoresFraming(t *testing.T) {
	want, err := stream(events()...)
	require.NoError(t, err)
	got, err := stream(started("w2"), promptRun(0, 1), promptRun(1, 2, 3), tokens(0, 0, "", 10), tokens(0, 1, "abd", 11, 12), finished(0, 3),
		tokens(1, 0, "c", 20, 21), finished(1, 2))
	require.NoError(t, err)
	require.NoError(t, got.Same(want))
}

func TestTranscriptClassifiesErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		events []*pb.GenerateResponse
		want   error
	}{
		"a token is left out":              {append(events()[:6:6], tokens(0, 4, "", 14)), errLost},
		"a token comes twice":              {append(events()[:6:6], tokens(0, 2, "d", 12)), errRepeated},
		"started comes twice":              {append(events()[:6:6], started("w2")), errRepeated},
		"the prompt comes twice":           {append(events()[:3:3], promptRun(0, 1, 2)), errRepeated},
		"the prompt comes after a token":   {append(events()[:6:6], promptRun(3, 4)), errRepeated},
		"a piece of the prompt is missing": {append(events()[:2:2], promptRun(3, 4)), errLost},
		"an end comes twice":               {append(events(), finished(0, 3)), errRepeated},
		"a token after the end":            {append(events(), tokens(0, 3, "", 9)), errDifferent},
		"tokens without started":           {events()[3:4], errLost},
		"an impossible output":             {append(events()[:6:6], tokens(1<<31, 0, "", 9)), errDifferent},
		"the end of an impossible output":  {append(events()[:6:6], finished(16, 9)), errDifferent},
		"it continues inexactly": {append(events()[:6:6], &pb.GenerateResponse{Event: &pb.GenerateResponse_Started{
			Started: &pb.Started{Exact: ptr(false)}}}), errDifferent},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := stream(tc.events...)
			require.ErrorIs(t, err, tc.want)
		})
	}
}

func TestTranscriptComparesEveryBit(t *testing.T) {
	for name, tc := range map[string]struct {
		change func([]*pb.GenerateResponse) []*pb.GenerateResponse
		want   error
	}{
		"an id":            {func(e []*pb.GenerateResponse) []*pb.GenerateResponse { e[5].GetTokens().TokenIds[0]++; return e }, errDifferent},
		"a letter":         {func(e []*pb.GenerateResponse) []*pb.GenerateResponse { e[5].GetTokens().Text = "e"; return e }, errDifferent},
		"a letter too few": {func(e []*pb.GenerateResponse) []*pb.GenerateResponse { e[5].GetTokens().Text = ""; return e }, errDifferent},
		"a rank": {func(e []*pb.GenerateResponse) []*pb.GenerateResponse {
			e[5].GetTokens().Details[0].Rank = ptr(uint32(2))
			return e
		}, errDifferent},
		"a prompt token": {func(e []*pb.GenerateResponse) []*pb.GenerateResponse { e[2].GetPrompt().TokenIds[0]++; return e }, errDifferent},
		"a class":        {func(e []*pb.GenerateResponse) []*pb.GenerateResponse { e[0].GetStarted().ClassId = "d"; return e }, errDifferent},
		"a seed":         {func(e []*pb.GenerateResponse) []*pb.GenerateResponse { e[0].GetStarted().Seed++; return e }, errDifferent},
		"what matched":   {func(e []*pb.GenerateResponse) []*pb.GenerateResponse { e[8].GetFinished().Matched = nil; return e }, errDifferent},
		"usage": {func(e []*pb.GenerateResponse) []*pb.GenerateResponse {
			e[8].GetFinished().Usage.CompletionTokens++
			return e
		}, errDifferent},
		"no end":          {func(e []*pb.GenerateResponse) []*pb.GenerateResponse { return e[:8] }, errLost},
		"no last token":   {func(e []*pb.GenerateResponse) []*pb.GenerateResponse { return append(e[:7], e[8]) }, errLost},
		"no continuation": {func(e []*pb.GenerateResponse) []*pb.GenerateResponse { return append(e[:4], e[5:7]...) }, errLost},
		"nothing":         {func([]*pb.GenerateResponse) []*pb.GenerateResponse { return nil }, errLost},
		"the same":        {func(e []*pb.GenerateResponse) []*pb.GenerateResponse { return e }, nil},
		"another worker":  {func(e []*pb.GenerateResponse) []*pb.GenerateResponse { e[0].GetStarted().WorkerId = "w9"; return e }, nil},
		"tokens of a cache": {func(e []*pb.GenerateResponse) []*pb.GenerateResponse {
			e[8].GetFinished().Usage.CachedTokens = 3
			return e
		}, nil},
		"the last bit of a logprob": {func(e []*pb.GenerateResponse) []*pb.GenerateResponse {
			*e[5].GetTokens().Details[0].Logprob = -12.000001
			return e
		}, errDifferent},
		"the last bit of a candidate": {func(e []*pb.GenerateResponse) []*pb.GenerateResponse {
			e[5].GetTokens().Details[0].Candidates[0].Logprob = -1.0000001
			return e
		}, errDifferent},
	} {
		t.Run(name, func(t *testing.T) {
			want, err := stream(events()...)
			require.NoError(t, err)
			got, err := stream(tc.change(events())...)
			require.NoError(t, err)
			require.ErrorIs(t, got.Same(want), tc.want)
		})
	}
}
