package tokenizer_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/gpuworker/tokenizer"
)

// prose is about 1 MB of mixed text: English, code, digits, other scripts and emoji.
var prose = func() string {
	const page = `One day, a little girl named Amy went to the park with her mom. She'd seen 12345 birds, 3.14 cats & "dogs"!
func (t *Table) get(left, right int32) (rank uint32, merged int32) {
	if s := t.slot(key); s.key != 0 { return s.rank, s.merged } // see https://example.org/a?b=c#d
}
Нещо на български, café naïve Äpfel, Việt Nam; 日本語のテキストと中文文本。한국어도 있습니다. 🚀🙂👩‍🚀 été — “quotes” …
| column | value |
|--------|------:|
| tokens | 1,024 |

`
	return strings.Repeat(page, 1<<20/len(page)+1)
}()

func BenchmarkEncode(b *testing.B) {
	files := map[string]func(testing.TB) *tokenizer.Tokenizer{
		"stories": stories,
		"gpt-2": func(t testing.TB) *tokenizer.Tokenizer {
			t.Helper()
			return open(t, shared(t, "ggml-vocab-gpt-2.gguf"))
		},
		"deepseek-coder": func(t testing.TB) *tokenizer.Tokenizer {
			t.Helper()
			return open(t, shared(t, "ggml-vocab-deepseek-coder.gguf"))
		},
		"llama-spm": func(t testing.TB) *tokenizer.Tokenizer {
			t.Helper()
			return open(t, shared(t, "ggml-vocab-llama-spm.gguf"))
		},
	}
	for _, name := range []string{"stories", "gpt-2", "deepseek-coder", "llama-spm"} {
		for text, s := range map[string]string{"prose": prose, "letters": strings.Repeat("a", 1<<20)} {
			b.Run(name+"/"+text, func(b *testing.B) {
				tok := files[name](b)
				b.SetBytes(int64(len(s)))
				b.ReportAllocs()
				for b.Loop() {
					tok.Encode(s, plain)
				}
			})
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	tok := stories(b)
	ids := tok.Encode(prose, plain)
	b.SetBytes(int64(len(prose)))
	for b.Loop() {
		if _, err := tok.Decode(ids, whole); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		open(b, filepath.Join("..", "..", "testdata", "models", "stories-5m-q8_0.gguf"))
	}
}
