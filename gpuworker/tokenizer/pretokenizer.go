package tokenizer

import (
	"fmt"
	"slices"
)

// pretokenizer is how a family of byte-level vocabularies cuts text into words before merging.
type pretokenizer struct {
	split        splitter
	ignoreMerges bool // a word that is a piece is taken whole
	addBOS       bool // unless the metadata says otherwise
}

var (
	gpt2      = splitter{gpt2Word}
	digitWise = splitter{runs(ofClass(number), false, 1), gpt2Word}
	llama3    = splitter{llama3Word(3, letter, true)}
	qwen2     = splitter{llama3Word(1, letter, true)}
	gpt4o     = splitter{casedWord(3, true)}

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
		"deepseek-v3": {split: splitter{runs(ofClass(number), false, 3), runs(ofRanges([]rune{0x3040, 0x30FF, 0x4E00, 0x9FA5}), false, 0), deepseek3Word}},
		"qwen35":      {split: splitter{llama3Word(1, letter|mark, true)}},
		"seed-coder":  {split: splitter{llama3Word(1, letter, false)}},
		"viking":      {split: splitter{phrases, runs(ofClass(number), false, 1)}},
		"tekken":      {split: splitter{casedWord(1, false)}, ignoreMerges: true, addBOS: true},
	})
)

// withFamilies adds the pre-tokenizers that go by several names.
func withFamilies(all map[string]pretokenizer) map[string]pretokenizer {
	for _, family := range []struct {
		pretokenizer
		names []string
	}{
		{pretokenizer{split: gpt2}, []string{"gpt-2", "phi-2", "mpt", "olmo", "jais", "gigachat", "exaone4", "trillion", "granite-docling", "mellum", "a.x-4.0"}},
		{pretokenizer{split: digitWise}, []string{"starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"}},
		{pretokenizer{split: llama3, ignoreMerges: true, addBOS: true}, []string{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"}},
		{pretokenizer{split: llama3}, []string{"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"}},
		{pretokenizer{split: qwen2}, []string{"qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "kormo"}},
		{pretokenizer{split: splitter{phrases}}, []string{"bloom", "poro-chat", "gpt3-finnish"}},
		{pretokenizer{split: gpt4o}, []string{"gpt-4o", "llama4", "kanana2"}},
	} {
		for _, name := range family.names {
			all[name] = family.pretokenizer
		}
	}
	return all
}

// Pretokenizers returns the values of tokenizer.ggml.pre that are served, sorted.
func Pretokenizers() []string {
	names := make([]string, 0, len(pretokenizers))
	for name := range pretokenizers {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
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
		return pretokenizer{}, fmt.Errorf("pre-tokenizer %.64q (%s): %w", name, keyPre, ErrUnsupported)
	}
	return pre, nil
}
