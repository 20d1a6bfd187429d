package tokenizer_test

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/tokenizer"
)

func TestDamagedVocabulariesAreRefused(t *testing.T) {
	bpe, spm := smallBPE(), smallSPM()
	tokens := bpe["tokenizer.ggml.tokens"].([]string)
	scores := spm["tokenizer.ggml.scores"].([]float64)
	enormous := strings.Repeat("k", 100<<10)
	doubled := slices.Clone(tokens)
	doubled[7] = doubled[100]
	long := slices.Clone(tokens)
	long[3] = strings.Repeat("x", 5000)
	nan := slices.Clone(scores)
	nan[5] = math.NaN()
	badByte := slices.Clone(spm["tokenizer.ggml.tokens"].([]string))
	badByte[3] = "<0xGG>"
	kinds := slices.Clone(bpe["tokenizer.ggml.token_type"].([]int64))
	kinds[9] = 77
	broken := errors.New("value has another type")
	for name, tc := range map[string]struct {
		src  metadata
		want string
		is   error
	}{
		"no tokenizer at all":             {metadata{}, "no tokenizer", tokenizer.ErrVocab},
		"an unknown kind":                 {bpe.with(metadata{"tokenizer.ggml.model": "t5"}), `"t5"`, tokenizer.ErrUnsupported},
		"an unknown pre-tokenizer":        {bpe.with(metadata{"tokenizer.ggml.pre": "klingon"}), `"klingon"`, tokenizer.ErrUnsupported},
		"a kind of great length":          {bpe.with(metadata{"tokenizer.ggml.model": enormous}), `"kkk`, tokenizer.ErrUnsupported},
		"a long pre-tokenizer":            {bpe.with(metadata{"tokenizer.ggml.pre": enormous}), `"kkk`, tokenizer.ErrUnsupported},
		"a long merge of one piece":       {bpe.with(metadata{"tokenizer.ggml.merges": []string{enormous[:1500]}}), "merge 0", tokenizer.ErrVocab},
		"no pieces":                       {bpe.with(metadata{"tokenizer.ggml.tokens": nil}), "missing", tokenizer.ErrVocab},
		"an empty list of pieces":         {bpe.with(metadata{"tokenizer.ggml.tokens": []string{}}), "empty", tokenizer.ErrVocab},
		"two equal pieces":                {bpe.with(metadata{"tokenizer.ggml.tokens": doubled}), "pieces 7 and 100", tokenizer.ErrVocab},
		"an enormous piece":               {bpe.with(metadata{"tokenizer.ggml.tokens": long}), "piece 3 has 5000 bytes", tokenizer.ErrVocab},
		"too few types":                   {bpe.with(metadata{"tokenizer.ggml.token_type": []int64{1, 2}}), "2 entries", tokenizer.ErrVocab},
		"a type that does not exist":      {bpe.with(metadata{"tokenizer.ggml.token_type": kinds}), "type 77", tokenizer.ErrVocab},
		"no merges":                       {bpe.with(metadata{"tokenizer.ggml.merges": nil}), "merges is missing", tokenizer.ErrVocab},
		"a merge of one piece":            {bpe.with(metadata{"tokenizer.ggml.merges": []string{"ab"}}), "merge 0", tokenizer.ErrVocab},
		"a merge with an empty side":      {bpe.with(metadata{"tokenizer.ggml.merges": []string{"a b", "ab "}}), "merge 1", tokenizer.ErrVocab},
		"an empty merge":                  {bpe.with(metadata{"tokenizer.ggml.merges": []string{""}}), "merge 0", tokenizer.ErrVocab},
		"a BOS outside the vocabulary":    {bpe.with(metadata{"tokenizer.ggml.bos_token_id": uint64(9999)}), "bos_token_id is 9999", tokenizer.ErrVocab},
		"an EOS beyond 32 bits":           {bpe.with(metadata{"tokenizer.ggml.eos_token_id": uint64(1 << 40)}), "eos_token_id", tokenizer.ErrVocab},
		"a BOS wanted that is not there":  {bpe.with(metadata{"tokenizer.ggml.bos_token_id": nil, "tokenizer.ggml.add_bos_token": true}), "add_bos_token", tokenizer.ErrVocab},
		"an EOS wanted that is not there": {bpe.with(metadata{"tokenizer.ggml.eos_token_id": nil, "tokenizer.ggml.add_eos_token": true}), "add_eos_token", tokenizer.ErrVocab},
		"no scores":                       {spm.with(metadata{"tokenizer.ggml.scores": nil}), "scores is missing", tokenizer.ErrVocab},
		"too few scores":                  {spm.with(metadata{"tokenizer.ggml.scores": scores[1:]}), "entries for", tokenizer.ErrVocab},
		"a score that is no number":       {spm.with(metadata{"tokenizer.ggml.scores": nan}), "piece 5", tokenizer.ErrVocab},
		"a byte piece that is none":       {spm.with(metadata{"tokenizer.ggml.tokens": badByte}), "byte piece 3", tokenizer.ErrVocab},
		"pieces that cannot be read":      {bpe.with(metadata{"tokenizer.ggml.tokens": broken}), "another type", tokenizer.ErrVocab},
		"a flag that cannot be read":      {bpe.with(metadata{"tokenizer.ggml.add_bos_token": broken}), "another type", tokenizer.ErrVocab},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tokenizer.New(tc.src)
			require.ErrorIs(t, err, tc.is)
			require.ErrorContains(t, err, tc.want)
			require.Less(t, len(err.Error()), 300)
		})
	}
}

func TestEveryTokenThatEndsAGenerationIsFound(t *testing.T) {
	with := func(kind int64, names ...string) metadata {
		src := smallBPE()
		tokens, kinds := src["tokenizer.ggml.tokens"].([]string), src["tokenizer.ggml.token_type"].([]int64)
		for _, n := range names {
			tokens, kinds = append(tokens, n), append(kinds, kind)
		}
		return src.with(metadata{"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds})
	}
	const im, first = 265, 268 // <|im_end|> is EOS already
	for name, tc := range map[string]struct {
		src  metadata
		want []int32
		eot  int32
	}{
		"EOS by metadata":                 {smallBPE(), []int32{im}, im},
		"end of turn by name":             {with(ctrl, "<|eot_id|>", "<|eom_id|>"), []int32{im, first, first + 1}, first},
		"names typed as text":             {with(normal, "<|eot_id|>"), []int32{im, first}, first},
		"plain text that looks like EOS":  {with(normal, "</s>"), []int32{im}, im},
		"EOT by metadata":                 {smallBPE().with(metadata{"tokenizer.ggml.eot_token_id": uint64(3)}), []int32{3, im}, 3},
		"channels do not end an answer":   {with(ctrl, "<|end|>", "<|return|>", "<|call|>"), []int32{im, first + 1, first + 2}, im},
		"the end of the deepseek coder":   {with(user, "<|EOT|>"), []int32{im, first}, im},
		"minus one for no token":          {smallBPE().with(metadata{"tokenizer.ggml.eot_token_id": uint64(math.MaxUint32)}), []int32{im}, im},
		"sentencepiece ids by convention": {smallSPM(), []int32{2}, tokenizer.None},
	} {
		t.Run(name, func(t *testing.T) {
			tok := mustNew(t, tc.src)
			require.Equal(t, tc.want, tok.EndOfGeneration())
			require.Equal(t, tc.eot, tok.Special().EOT)
			for _, id := range tc.want {
				require.True(t, tok.IsEndOfGeneration(id))
			}
			require.False(t, tok.IsEndOfGeneration(1))
		})
	}
}

// signed is metadata in which a key holds the signed number -1.
type signed struct {
	metadata
	key string
}

func (s signed) Uint(key string) (uint64, bool, error) {
	if key == s.key {
		return 0, false, errors.New("negative")
	}
	return s.metadata.Uint(key)
}

func (s signed) Int(key string) (int64, bool, error) { return -1, key == s.key, nil }

func TestASignedMinusOneMeansNoToken(t *testing.T) {
	tok := mustNew(t, signed{smallBPE(), "tokenizer.ggml.bos_token_id"})
	require.Equal(t, tokenizer.None, tok.Special().BOS)
	require.Equal(t, int32(265), tok.Special().EOS)
}

func TestTheShippedModelEncodesItsGoldenTexts(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "testdata", "golden", "stories-5m-f16.json"))
	require.NoError(t, err)
	var golden map[string]struct {
		IDs  []int32 `json:"token_ids"`
		Text string  `json:"text"`
	}
	require.NoError(t, json.Unmarshal(raw, &golden))
	require.NotEmpty(t, golden)
	tok := stories(t)
	require.Equal(t, 2048, tok.VocabSize())
	require.Equal(t, tokenizer.Special{BOS: 0, EOS: 1, EOT: 1, EOM: -1, UNK: -1, PAD: -1}, tok.Special())
	for name, g := range golden {
		text, err := tok.Decode(g.IDs, whole)
		require.NoError(t, err)
		require.Equal(t, g.Text, text, name)
		if name == "odd" { // the others were sampled, not encoded
			require.Equal(t, g.IDs, tok.Encode(g.Text, tokenizer.EncodeOptions{AddSpecial: true}))
		}
	}
}

func TestPretokenizersAreListed(t *testing.T) {
	names := tokenizer.Pretokenizers()
	require.True(t, slices.IsSorted(names))
	for _, name := range names {
		mustNew(t, smallBPE().with(metadata{"tokenizer.ggml.pre": name}))
	}
	require.Subset(t, names, []string{"default", "gpt-2", "llama-bpe", "qwen2", "deepseek-coder", "deepseek-llm"})
	mustNew(t, smallBPE().with(metadata{"tokenizer.ggml.pre": nil}))
}
