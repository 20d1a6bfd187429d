package tokenizer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/tokenizer"
)

// extended is smallBPE with further pieces of one kind, the first of which is 268.
func extended(kind int64, names ...string) metadata {
	src := smallBPE()
	tokens, kinds := src["tokenizer.ggml.tokens"].([]string), src["tokenizer.ggml.token_type"].([]int64)
	for _, n := range names {
		tokens, kinds = append(tokens, n), append(kinds, kind)
	}
	return src.with(metadata{"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds})
}

// phi3 is a SentencePiece vocabulary typed as that of phi-3: "<s>" is control and "</s>"
// user-defined.
func phi3() metadata {
	src := smallSPM()
	kinds := append([]int64{}, src["tokenizer.ggml.token_type"].([]int64)...)
	kinds[2] = user
	return src.with(metadata{"tokenizer.ggml.token_type": kinds, "general.name": "Phi3", "tokenizer.ggml.eos_token_id": uint64(0)})
}

func TestStructureThatAFileTypesAsTextIsControl(t *testing.T) {
	const first = 268
	for name, tc := range map[string]struct {
		src    metadata
		id     int32
		text   string
		isText bool
		ends   bool
	}{
		"phi-3's end of text":                {src: phi3(), id: 2, text: "</s>", ends: true},
		"the tag of struck text":             {src: extended(user, "<s>", "</s>"), id: first + 1, text: "</s>", isText: true},
		"an end typed as text":               {src: extended(normal, "<|end|>"), id: first, text: "<|end|>", ends: true},
		"an end typed as user-defined":       {src: extended(user, "<end_of_turn>"), id: first, text: "<end_of_turn>", ends: true},
		"the end of a message":               {src: extended(user, "<|eom_id|>"), id: first, text: "<|eom_id|>", ends: true},
		"the deepseek coder's end of turn":   {src: extended(user, "<|EOT|>"), id: first, text: "<|EOT|>", ends: true},
		"an end that may be learned text":    {src: extended(normal, "[EOS]"), id: first, text: "[EOS]", isText: true},
		"a hole to fill":                     {src: extended(user, "<｜fim▁hole｜>"), id: first, text: "<｜fim▁hole｜>"},
		"a boundary between files":           {src: extended(user, "<|file_sep|>"), id: first, text: "<|file_sep|>", ends: true},
		"granite's padding for holes":        {src: extended(normal, "<fim_pad>"), id: first, text: "<fim_pad>", ends: true},
		"the name of a repository":           {src: extended(ctrl, "<reponame>"), id: first, text: "<reponame>", ends: true},
		"a tag that may be learned text":     {src: extended(normal, "<reponame>"), id: first, text: "<reponame>", isText: true},
		"gemma's end beside its end of turn": {src: extended(user, "<eos>"), id: first, text: "<eos>", ends: true},
		"gemma's wait for a tool":            {src: extended(user, "<|tool_response>"), id: first, text: "<|tool_response>", ends: true},
		"minimax's end":                      {src: extended(ctrl, "[e~["), id: first, text: "[e~[", ends: true},
		"kimi's padding":                     {src: extended(ctrl, "[PAD]"), id: first, text: "[PAD]", ends: true},
		"padding typed as user-defined":      {src: extended(user, "[PAD]"), id: first, text: "[PAD]", ends: true},
		"padding that is learned text":       {src: extended(normal, "[PAD]"), id: first, text: "[PAD]", isText: true},
		"the end of kimi's message":          {src: extended(user, "<|end_of_msg|>"), id: first, text: "<|end_of_msg|>", ends: true},
		"kimi's user":                        {src: extended(user, "<|im_user|>"), id: first, text: "<|im_user|>"},
		"minimax's beginning of a turn":      {src: extended(user, "]~b]"), id: first, text: "]~b]"},
		"a beginning of a turn":              {src: extended(user, "<|im_start|>"), id: first, text: "<|im_start|>"},
		"gemma's beginning of a turn":        {src: extended(user, "<start_of_turn>"), id: first, text: "<start_of_turn>"},
		"phi-3's user":                       {src: extended(user, "<|user|>"), id: first, text: "<|user|>"},
		"a beginning that is learned text":   {src: extended(normal, "<|user|>"), id: first, text: "<|user|>", isText: true},
		"a row that a converter filled in":   {src: extended(user, "[PAD268]"), id: first, text: "[PAD268]"},
		"a piece that looks like such a row": {src: extended(user, "[PAD7]"), id: first, text: "[PAD7]", isText: true},
		"an EOS typed as user-defined": {
			src: extended(user, "~stop~").with(metadata{"tokenizer.ggml.eos_token_id": uint64(first)}), id: first, text: "~stop~", ends: true,
		},
		"an EOS typed as text that is a marker": {
			src: extended(normal, "<|stop|>").with(metadata{"tokenizer.ggml.eos_token_id": uint64(first)}), id: first, text: "<|stop|>", ends: true,
		},
		"padding for holes by metadata": {
			src: extended(ctrl, "<hole>").with(metadata{"tokenizer.ggml.fim_pad_token_id": uint64(first)}), id: first, text: "<hole>", ends: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			tok := mustNew(t, tc.src)
			require.Equal(t, tc.isText, tok.KindOf(tc.id) != tokenizer.KindControl)
			if !tc.isText {
				require.NotContains(t, tok.Encode("h"+tc.text+"h", plain), tc.id, "text from outside is no structure")
				require.Contains(t, tok.Encode("h"+tc.text+"h", tokenizer.EncodeOptions{ParseSpecial: true}), tc.id)
				shown, err := tok.Decode([]int32{tc.id}, whole)
				require.NoError(t, err)
				require.Empty(t, shown, "structure leaves no trace in a text")
			}
			require.Equal(t, tc.ends, tok.IsEndOfGeneration(tc.id))
		})
	}
}

func TestCommaAsBOSStaysAComma(t *testing.T) {
	// A comma that the metadata names as BOS stays a comma.
	comma := int32(',')
	tok := mustNew(t, smallBPE().with(metadata{"tokenizer.ggml.bos_token_id": uint64(comma)}))
	require.Equal(t, tokenizer.KindNormal, tok.KindOf(comma))
	require.Contains(t, tok.Encode("a,b", plain), comma)
}

func TestChannelsOfTheSecondFamilyDoNotEndAnAnswer(t *testing.T) {
	tok := mustNew(t, extended(ctrl, "<|end|>", "<|flush|>", "<|calls|>"))
	require.False(t, tok.IsEndOfGeneration(268))
	require.True(t, tok.IsEndOfGeneration(269))
	require.True(t, tok.IsEndOfGeneration(270))
}

func TestAKeyForHolesOutsideTheVocabularyIsRefused(t *testing.T) {
	_, err := tokenizer.New(smallBPE().with(metadata{"tokenizer.ggml.fim_sep_token_id": uint64(9999)}))
	require.ErrorIs(t, err, tokenizer.ErrVocab)
	require.ErrorContains(t, err, "fim_sep_token_id is 9999")
}
