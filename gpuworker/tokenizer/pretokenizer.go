package tokenizer

import (
	"fmt"
	"slices"
)

// pretokenizer is how a family of byte-level vocabularies splits text into words before merging.
type pretokenizer struct {
	split        splitter
	ignoreMerges bool // a word that is a piece is encoded as that piece
	addBOS       bool // unless the metadata says otherwise
}

var (
	gpt2      = splitter{gpt2Word}
	digitWise = splitter{runs(ofClass(number), false, 1), gpt2Word}
	llama3    = splitter{llama3Word(3, letter, true)}
	qwen2     = splitter{llama3Word(1, letter, true)}
	gpt4o     = splitter{cased{digits: 3, contractions: true, slash: true}.word}
	deepseek3 = splitter{runs(ofClass(number), false, 3), runs(ofRanges([]rune{0x3040, 0x30FF, 0x4E00, 0x9FA5}), false, 0), deepseek3Word}
	tinyAya   = splitter{wholeNumbers, threesFromTheRight, gpt4o[0]}

	lineBreak = runs(func(r rune) bool { return r == '\r' || r == '\n' }, false, 1)
	signs     = func(more string) matcher {
		in := map[rune]bool{}
		for _, r := range more {
			in[r] = true
		}
		return runs(func(r rune) bool { return classOf(r)&punct != 0 || in[r] }, false, 0)
	}

	pretokenizers = withFamilies(map[string]pretokenizer{
		"default": {split: splitter{signs("$+<=>^~|"), gpt2Word, runs(ofClass(number), false, 0), threeDigits}},
		"falcon":  {split: splitter{signs("$+<=>^~|`"), gpt2Word, threeDigits}},
		"deepseek-llm": {split: splitter{
			lineBreak, runs(ofRanges(deepseekLetters), true, 0), runs(ofRanges(deepseekSigns), true, 0), trailingSpace,
			runs(ofRanges(eastAsian), false, 0), runs(ofClass(number), false, 1),
		}},
		"deepseek-coder": {split: splitter{
			lineBreak, runs(ofClass(letter), true, 0), runs(ofClass(punct), true, 0),
			runs(ofRanges(eastAsian), false, 0), runs(ofClass(number), false, 1),
		}},
		"qwen35":     {split: splitter{llama3Word(1, letter|mark, true)}},
		"seed-coder": {split: splitter{llama3Word(1, letter, false)}},
		"viking":     {split: splitter{phrases, runs(ofClass(number), false, 1)}},
		"tekken":     {split: splitter{cased{digits: 1, slash: true}.word}, ignoreMerges: true, addBOS: true},
		"kimi-k2":    {split: splitter{cased{digits: 3, contractions: true, apart: han}.word}},
		"laguna":     {split: splitter{beforeBreaks, qwen2[0]}},
		"minicpm5":   {split: splitter{runs(ofClass(number), false, 3), llama3[0]}, ignoreMerges: true},
		"jais-2":     {split: splitter{llama3[0], blanks}},
		"exaone-moe": {split: splitter{sentenceWord}},
	})
)

// withFamilies adds the pre-tokenizers that have several names.
func withFamilies(all map[string]pretokenizer) map[string]pretokenizer {
	for _, family := range []struct {
		pretokenizer
		names []string
	}{
		{pretokenizer{split: gpt2}, []string{"gpt-2", "phi-2", "mpt", "olmo", "jais", "gigachat", "exaone4", "trillion", "granite-docling", "mellum", "a.x-4.0"}},
		{pretokenizer{split: digitWise}, []string{"starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"}},
		{pretokenizer{split: llama3, ignoreMerges: true, addBOS: true}, []string{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"}},
		{pretokenizer{split: llama3}, []string{"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"}},
		{pretokenizer{split: qwen2}, []string{
			"qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "kormo", "hunyuan", "grok-2", "bailingmoe", "bailingmoe2", "llada-moe",
		}},
		{pretokenizer{split: splitter{phrases}}, []string{"bloom", "poro-chat", "gpt3-finnish"}},
		{pretokenizer{split: gpt4o}, []string{"gpt-4o", "llama4", "kanana2", "minimax-m2"}},
		{pretokenizer{split: deepseek3}, []string{"deepseek-v3", "hunyuan-dense", "joyai-llm"}},
		{pretokenizer{split: tinyAya}, []string{"tiny_aya", "cohere2moe"}},
	} {
		for _, name := range family.names {
			all[name] = family.pretokenizer
		}
	}
	return all
}

func readPretokenizer(src Source) (pretokenizer, error) {
	name, ok, err := src.String(keyPre)
	if err != nil {
		return pretokenizer{}, fmt.Errorf("%w: %w", ErrVocab, err)
	}
	if !ok || name == "" {
		name = "default" // files older than the key
	}
	pre, ok := pretokenizers[name]
	if !ok {
		reason := "it is unknown here: a newer version may have it"
		for _, r := range refused {
			if slices.Contains(r.names, name) {
				reason = r.reason
			}
		}
		return pretokenizer{}, fmt.Errorf("pre-tokenizer %.64q (%s): %w: %s", name, keyPre, ErrUnsupported, reason)
	}
	return pre, nil
}

// refused are the names that llama.cpp knows and this package does not take. A split that differs
// from the one in training would change answers without an error.
var refused = []struct {
	reason string
	names  []string
}{
	{
		"its splits could not be held to the pattern that its model was trained with",
		[]string{"afmoe", "chameleon", "f2llmv2", "mellum2", "sarvam-moe", "solar-open", "superbpe", "talkie", "youtu"},
	},
	{
		"it belongs to models that compute embeddings, whose tokenizers add separators",
		[]string{
			"granite-embed-multi-97m", "granite-embed-multi-311m", "jina-v1-en", "jina-v2-code", "jina-v2-de", "jina-v2-es", "jina-de",
			"jina-es", "jina-v5-nano", "modern-bert", "roberta-bpe", "whitespace",
		},
	},
	{`it belongs to tokenizer.ggml.model "gemma4": the tool that wrote the file is at fault, get the model from elsewhere`, []string{"gemma4"}},
}
