package tokenizer

import (
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/dlclark/regexp2/v2"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/repotest"
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

// published holds the expressions of later families as their models publish them: in tokenizer.json,
// or in the Python file of a tokenizer. Spelling is theirs.
var published = map[string][]string{
	// tokenization_kimi.py of moonshotai/Kimi-K2-Instruct
	"kimi-k2": {`[\p{Han}]+` +
		`|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?` +
		`|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?` +
		`|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`},
	// tokenizer.json of MiniMaxAI/MiniMax-M2
	"minimax-m2": {o200k},
	// tokenization_hy.py of tencent/Hunyuan-A13B-Instruct
	"hunyuan": {hunyuan},
	// tokenizer.json of xAI's Grok 2
	"grok-2": {hunyuan},
	// tokenizer.json of inclusionAI/Ling
	"bailingmoe":  {ling},
	"bailingmoe2": {ling},
	"llada-moe":   {ling},
	// tokenizer.json of poolside/Laguna-XS.2; its first step merges matches with the text after them
	"laguna": {`(?:\r?\n)+(?!\r?\n)`, hunyuan},
	// tokenizer.json of openbmb/MiniCPM5-1B
	"minicpm5": {`\p{N}{1,3}`, `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`},
	// tokenizer.json of inceptionai/Jais-2
	"jais-2": {`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+` +
		`|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}`},
	// tokenizer.json of LGAI-EXAONE/K-EXAONE-236B-A23B
	"exaone-moe": {`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}` +
		`| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+`},
	// tokenizer.json of deepseek-ai/DeepSeek-V3. DeepSeek V4 keeps it under the name joyai-llm. Hunyuan's
	// maker states the same for its dense models, in llama.cpp's pull request 14878.
	"deepseek-v3":   deepseek3Patterns,
	"joyai-llm":     deepseek3Patterns,
	"hunyuan-dense": deepseek3Patterns,
	// tokenizer.json of meta-llama/Meta-Llama-3-8B, Qwen/Qwen2-7B, Qwen/Qwen3.5 and openai/gpt-oss-20b
	"llama-bpe": {`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`},
	"qwen2":     {hunyuan},
	"qwen35":    {`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`},
	"gpt-4o":    {o200k},
	// tokenizer.json of CohereLabs/tiny-aya
	"tiny_aya":   {`\d{1,3}(?=(?:\d{3})*\b)`, o200k},
	"cohere2moe": {`\d{1,3}(?=(?:\d{3})*\b)`, o200k},
}

var deepseek3Patterns = []string{`\p{N}{1,3}`, "[一-龥\u3040-ゟ゠-ヿ]+", deepseek3Pattern}

const (
	hunyuan = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	ling    = `'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+`
	o200k   = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?` +
		`|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?` +
		`|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// splitByOracle splits words by one published expression after another. If merged is true, a match
// of the first is merged with the text after it.
func splitByOracle(steps []oracle, merged bool, words []string) []string {
	for k, o := range steps {
		var out []string
		for _, w := range words {
			done := 0 // start of the piece being made
			for i := 0; i < len(w); {
				start, end, ok := o.find(w, i)
				if !ok {
					break
				}
				if start > done {
					out = append(out, w[done:start])
				}
				if done = end; merged && k == 0 {
					done = start
				} else {
					out = append(out, w[start:end])
				}
				i = end
			}
			if done < len(w) {
				out = append(out, w[done:])
			}
		}
		words = out
	}
	return words
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

// patterns says in regular expressions what the pre-tokenizers do; names of one family share an
// entry.
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
	"deepseek-v3": deepseek3Patterns,
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
	for _, name := range Pretokenizers() {
		require.True(t, all[name] != nil || published[name] != nil, "%s is served and has no patterns here", name)
	}
	for name, res := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(600) {
				text := sample(seed)
				require.Equal(t, splitByPatterns(t, res, []string{text}), splitOf(name, text), "%q", text)
			}
		})
	}
}

func TestSplittersEqualPublishedPatterns(t *testing.T) {
	for name, exprs := range published {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var steps []oracle
			for _, e := range exprs {
				steps = append(steps, compile(e))
			}
			check := func(text string) {
				require.Equal(t, splitByOracle(steps, name == "laguna", []string{text}), splitOf(name, text), "%q", text)
			}
			for seed := range uint64(600) {
				check(sample(seed))
			}
			check("I'ſ it'ſx 'K")
			// Runs, which random texts do not have.
			for _, unit := range []string{" ", "\t ", "7", "世", "a ", "\n", "\r\n", "…", "e\u0301"} {
				for n := range 12 {
					check(strings.Repeat(unit, n))
					check("x" + strings.Repeat(unit, n) + "y")
					check(strings.Repeat(unit, n) + "1_!")
				}
			}
			for _, n := range []int{31, 32, 33, 64, 65, 511, 512, 513, 514, 700, 1200} {
				check(strings.Repeat(" ", n))
				check("x" + strings.Repeat(" ", n) + "y")
				check(strings.Repeat(" ", n) + "\n" + strings.Repeat(" ", n) + "1")
			}
		})
	}
}

func splitOf(name, text string) (words []string) {
	pretokenizers[name].split.each(text, func(w string) bool { words = append(words, w); return true })
	return words
}

// sample is a text of up to 24 elements of the alphabet, often of a few different ones.
func sample(seed uint64) string {
	rng := rand.New(rand.NewPCG(1, seed))
	var b strings.Builder
	few := 1 + rng.IntN(len(alphabet))
	for range 1 + rng.IntN(24) {
		b.WriteString(alphabet[(rng.IntN(few)+few*7)%len(alphabet)])
	}
	return b.String()
}

func TestSplitsByHand(t *testing.T) {
	// Computed by hand from the published expressions; words are separated by a bar.
	for name, vectors := range map[string]map[string]string{
		"kimi-k2": {
			"I'm  héLLo's":           "I'm| | hé|LLo's",
			"世界10台 abc世":             "世界|10|台| abc|世",
			" 世界a 〇12345":            " |世界|a| |〇|123|45", // 〇 is a number and Han
			"1〇2":                    "1〇2",
			"ok!!\n/ e\u0301\u0301🙂": "ok|!!\n|/| e\u0301\u0301|🙂",
			"a \r\n\n  b":            "a| \r\n\n| | b",
			"CAN'T wait 'til":        "CAN'T| wait| '|til",
		},
		"minimax-m2": {
			"I'm  héLLo's":    "I'm| | hé|LLo's",
			"世界10台 abc世":      "世界|10|台| abc世",
			"ok!!\n/ 1234567": "ok|!!\n/| |123|456|7",
			"🙂👩\u200d🚀 x":     "🙂👩\u200d🚀| x",
		},
		"joyai-llm":  {"I'LL 1234 世界x の! ": "I|'LL| |123|4| |世界|x| |の|!| "},
		"hunyuan":    {"I'LL don't 12 世界!\n\n x": "I|'LL| don|'t| |1|2| 世界|!\n\n| x", "e\u0301 a": "e|\u0301| a"},
		"bailingmoe": {"I'LL don't 12 世界!\n\n x": "I|'LL| don|'t| |1|2| 世界|!\n\n| x", "a \n \n  b": "a| \n \n| | b"},
		"laguna": {
			"a \n\n b\r\nc\rd": "a| |\n\n| b|\r\n|c|\r|d",
			"x!\n y":           "x|!|\n| y", // without the first step: "!\n"
			"\n\n":             "\n\n",
		},
		"minicpm5": {"x12345  9": "x|123|45|  |9", "It's  7": "It|'s|  |7"},
		"tiny_aya": {
			"1234567 12a 1234_": "1|234|567| |12|a| |123|4|_",
			"1234,5678":         "1|234|,|5|678",
			"12345":             "12|345",
			"١٢٣٤":              "١|٢٣٤",
		},
		"jais-2": {
			"a" + strings.Repeat(" ", 7) + "b": "a|    |  | b",
			"x" + strings.Repeat(" ", 6):       "x|    |  ",
			strings.Repeat(" ", 8) + "1":       "    |  | | |1",
			"   \n   y":                        "   \n|  | y",
			strings.Repeat("\t", 513):          strings.Repeat("\t", 512) + "|\t",
			strings.Repeat("\t", 513) + "1":    strings.Repeat("\t", 512) + "|\t|1",
		},
		"exaone-moe": {
			"Hello big world's e\u0301 x  y 12!\n\n": "Hello big world|'s| e\u0301 x| | y| |1|2|!\n|\n",
			"a b/c 世 界!/":                            "a b|/c 世 界|!/",
		},
	} {
		for text, want := range vectors {
			require.Equal(t, want, strings.Join(splitOf(name, text), "|"), "%s: %q", name, text)
		}
	}
}

func TestSplittersTakeLinearTime(t *testing.T) {
	// A text of one class must not take time that grows with its square: this would take long.
	for name := range pretokenizers {
		for _, unit := range []string{" ", "7", "a ", "\n", "世", "'", "e\u0301", "\r"} {
			text, n := strings.Repeat(unit, 1<<16/len(unit)), 0
			pretokenizers[name].split.each(text, func(w string) bool { n += len(w); return true })
			require.Equal(t, len(text), n, "%s: %q", name, unit)
		}
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

func TestDocsNameEveryPretokenizer(t *testing.T) {
	raw, err := os.ReadFile(repotest.Path("docs/models.md"))
	require.NoError(t, err)
	_, docs, _ := strings.Cut(string(raw), "### Pre-tokenizers")
	docs, _, _ = strings.Cut(docs, "###")
	supported, refusals, found := strings.Cut(docs, "Refused,")
	require.True(t, found)
	for name := range pretokenizers {
		require.Contains(t, supported, "`"+name+"`")
	}
	for _, name := range refused[0].names {
		require.Contains(t, refusals, "`"+name+"`")
	}
}
