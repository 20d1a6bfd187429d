package tokenizer

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/dlclark/regexp2/v2"
	"github.com/stretchr/testify/require"
)

const (
	gpt2Pattern   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	llama3Pattern = `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	qwen2Pattern  = `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	seedPattern   = `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+`
	phrasePattern = ` ?[^(\s|.,!?…。，、।۔،)]+`
	qwen35Pattern = `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	ending        = `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?`
	bothCases     = `\p{Lm}\p{Lo}\p{M}`
	gpt4oPattern  = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}` + bothCases + `]*[\p{Ll}` + bothCases + `]+` + ending +
		`|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}` + bothCases + `]+[\p{Ll}` + bothCases + `]*` + ending +
		`|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	tekkenPattern = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}` + bothCases + `]*[\p{Ll}` + bothCases + `]+` +
		`|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}` + bothCases + `]+[\p{Ll}` + bothCases + `]*` +
		`|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	deepseek3Pattern = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)

// families says which names split as another does.
var families = map[string][]string{
	"gpt-2":     {"phi-2", "mpt", "olmo", "jais", "gigachat", "exaone4", "trillion", "granite-docling", "mellum", "a.x-4.0"},
	"smollm":    {"starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"},
	"llama-bpe": {"llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "dbrx", "smaug-bpe", "glm4", "chatglm-bpe"},
	"qwen2":     {"deepseek-r1-qwen", "megrez", "stablelm2", "kormo"},
	"bloom":     {"poro-chat", "gpt3-finnish"},
	"gpt-4o":    {"llama4", "kanana2"},
}

// patternsOf are the regular expressions of every name that is served.
func patternsOf(t *testing.T) map[string][]*regexp2.Regexp {
	t.Helper()
	all := map[string][]*regexp2.Regexp{}
	for first, exprs := range patterns {
		var res []*regexp2.Regexp
		for _, e := range exprs {
			res = append(res, regexp2.MustCompile(e))
		}
		for _, name := range append(families[first], first) {
			all[name] = res
		}
	}
	return all
}

// patterns says in regular expressions what the pre-tokenizers do; names of one family share an entry.
var patterns = map[string][]string{
	"gpt-2":          {gpt2Pattern},
	"smollm":         {`\p{N}`, gpt2Pattern},
	"llama-bpe":      {llama3Pattern},
	"bloom":          {phrasePattern},
	"viking":         {phrasePattern, `\p{N}`},
	"seed-coder":     {seedPattern},
	"qwen2":          {qwen2Pattern},
	"qwen35":         {qwen35Pattern},
	"gpt-4o":         {gpt4oPattern},
	"tekken":         {tekkenPattern},
	"default":        {`[\p{P}\$\+<=>\^~\|]+`, gpt2Pattern, `\p{N}+`, `[0-9][0-9][0-9]`},
	"falcon":         {"[\\p{P}\\$\\+<=>\\^~\\|`]+", gpt2Pattern, `[0-9][0-9][0-9]`},
	"deepseek-coder": {`[\r\n]`, `\s?\p{L}+`, `\s?\p{P}+`, `[一-龥ࠀ-一가-` + "\ud7ff" + `]+`, `\p{N}`},
	"deepseek-llm": {
		`[\r\n]`, `\s?[` + ranges(deepseekLetters) + `]+`, `\s?[!-/:-~！-／：-～‘-‟` + "\u3000" + `-。]+`, `\s+\z`,
		`[一-龥ࠀ-一가-` + "\ud7ff" + `]+`, `\p{N}`,
	},
	"deepseek-v3": {`\p{N}{1,3}`, "[一-龥\u3040-ゟ゠-ヿ]+", deepseek3Pattern},
}

func ranges(bounds []rune) string {
	var b strings.Builder
	for i := 0; i < len(bounds); i += 2 {
		b.WriteString(string(bounds[i]) + "-" + string(bounds[i+1]))
	}
	return b.String()
}

// splitByPatterns is the slow and obvious way.
func splitByPatterns(t *testing.T, res []*regexp2.Regexp, words []string) []string {
	t.Helper()
	for _, re := range res {
		var out []string
		for _, w := range words {
			found, err := re.FindAllStringIndex(w, -1)
			require.NoError(t, err)
			done := 0
			for _, m := range found {
				if m[0] > done {
					out = append(out, w[done:m[0]])
				}
				if m[1] > m[0] {
					out = append(out, w[m[0]:m[1]])
				}
				done = m[1]
			}
			if done < len(w) {
				out = append(out, w[done:])
			}
		}
		words = out
	}
	return words
}

// alphabet holds characters of every class and the ones that patterns name.
var alphabet = []string{
	"a", "b", "Z", "S", "s", "t", "L", "l", "re", "VE", "'", "'", "'s", "'LL", "é", "É", "ß", "ж", "Ж", "ǅ", "ʰ", "中", "文", "の", "カ", "한", "ก",
	"0", "1", "9", "٣", "½", "Ⅷ", " ", " ", " ", "  ", "\t", "\n", "\r", "\r\n", "\u00a0", "\u3000", "\u2028", "\u0085", "\v", ".", ",", "!", "?", "-", "_",
	"(", ")", "…", "।", "$", "+", "<", "=", "^", "~", "|", "`", "/", "«", "。", "！", "¿", "€", "🙂", "\u200d", "\u0301", "\u0e31", "\ufe0f", "\x00", "\x7f", "\u200b", "𝐀", "𐐀", "𠀀", "\u2fff", "\u0800", "µ", "\ufffd",
}

func TestSplittersEqualTheirRegularExpressions(t *testing.T) {
	all := patternsOf(t)
	require.ElementsMatch(t, Pretokenizers(), slices.Collect(maps.Keys(all)), "every name that is served has its patterns here")
	for name, res := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(1, 2))
			for range 600 {
				var b strings.Builder
				few := 1 + rng.IntN(len(alphabet))
				for range 1 + rng.IntN(24) {
					b.WriteString(alphabet[(rng.IntN(few)+few*7)%len(alphabet)])
				}
				text := b.String()
				var got []string
				pretokenizers[name].split.each(text, func(w string) bool { got = append(got, w); return true })
				require.Equal(t, splitByPatterns(t, res, []string{text}), got, "%q", text)
			}
		})
	}
}

func TestSplittersKeepEveryByteOfAnyInput(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for name, pre := range pretokenizers {
		for range 300 {
			raw := make([]byte, rng.IntN(40))
			for i := range raw {
				raw[i] = byte(rng.IntN(256))
			}
			var got string
			pre.split.each(string(raw), func(w string) bool {
				require.NotEmpty(t, w)
				got += w
				return true
			})
			require.Equal(t, string(raw), got, name)
		}
	}
}

func TestHeapAndScanMergeAlike(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 500 {
		symbols := int32(2 + rng.IntN(5))
		pairs := newPairTable(200)
		merged := symbols
		for rank := range uint32(1 + rng.IntN(100)) {
			// Some merges share a rank, as equal scores do.
			pairs.add(rng.Int32N(merged), rng.Int32N(merged), rank/2, merged)
			merged++
		}
		scan, heap := &merger{pairs: pairs}, &merger{pairs: pairs}
		for range 1 + rng.IntN(120) {
			s := rng.Int32N(symbols+1) - 1
			scan.syms, heap.syms = append(scan.syms, s), append(heap.syms, s)
		}
		scan.mergeShort()
		heap.mergeLong()
		require.Equal(t, scan.syms, heap.syms)
	}
}
