package faults

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

func TestMixIsDeterministic(t *testing.T) {
	m, other := Mix{Model: "m", Vocabulary: 99, Text: true, Prompt: 64, Answer: 32, Seed: 1}, Mix{Model: "m", Vocabulary: 99, Text: true, Prompt: 64, Answer: 32, Seed: 2}
	require.True(t, proto.Equal(m.Request(5), m.Request(5)))
	require.False(t, proto.Equal(m.Request(5), m.Request(6)))
	require.False(t, proto.Equal(m.Request(5), other.Request(5)))
}

func TestMixSetsEveryOption(t *testing.T) {
	// Every option that a continuation must honour is in some requests and not in others.
	m := Mix{Model: "m", Vocabulary: 99, Text: true, Chat: true, Prompt: 256, Answer: 32, Seed: 1}
	const n = 1000
	set := map[protoreflect.FullName]int{}
	for i := range n {
		r := m.Request(i)
		for _, part := range []proto.Message{r, r.GetSampling(), r.GetStopping(), r.GetResponse()} {
			part.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
				set[f.FullName()]++
				return true
			})
		}
	}
	for part, all := range map[proto.Message][]protoreflect.Name{
		&pb.GenerateRequest{}: {"prompt", "token_ids", "chat", "cache"},
		&pb.Sampling{}: {"top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
			"penalty_window", "logit_bias", "allowed_tokens", "num_sequences"},
		&pb.Stopping{}:        {"min_tokens", "stop", "stop_token_ids", "include_stop_in_output"},
		&pb.ResponseOptions{}: {"output_logprobs", "output_candidates", "prompt_logprobs", "echo_prompt", "token_ids_only"},
	} {
		for _, field := range all {
			name := part.ProtoReflect().Descriptor().FullName().Append(field)
			require.Greater(t, set[name], n/50, "%s", name)
			require.Less(t, set[name], n*4/5, "%s", name)
		}
	}
	require.Equal(t, n, set["millrace.v1.Sampling.seed"], "nothing without a seed can be continued")
}

func TestMixUsesIDsWithoutATokenizer(t *testing.T) {
	for _, m := range []Mix{{Vocabulary: 1, Prompt: 1, Answer: 4}, {Vocabulary: 9, Prompt: 300, Answer: 5, Seed: 1 << 63}} {
		for i := range 500 {
			r := m.Request(i)
			require.NotEmpty(t, r.GetTokenIds().GetIds())
			require.LessOrEqual(t, len(r.GetTokenIds().GetIds()), m.Prompt)
			require.True(t, r.GetResponse().GetTokenIdsOnly())
			require.Empty(t, r.GetStopping().GetStop())
			require.GreaterOrEqual(t, int(r.GetStopping().GetMaxTokens()), m.Answer/2)
			require.LessOrEqual(t, int(r.GetStopping().GetMaxTokens()), m.Answer)
			require.LessOrEqual(t, int(r.GetSampling().GetTopK()), m.Vocabulary)
		}
	}
}
