package tokenizer_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/tokenizer"
)

func TestEncodeStopsAboveMaxIDs(t *testing.T) {
	// A text with at most MaxIDs ids is encoded whole; of a longer one Encode returns more than
	// MaxIDs ids, and not many more.
	for name, src := range map[string]metadata{"byte level": smallBPE(), "sentencepiece": smallSPM()} {
		t.Run(name, func(t *testing.T) {
			tok := mustNew(t, src)
			text := strings.Repeat("hello world <tool> a1 \u0416", 300)
			all := tok.Encode(text, plain)
			for _, most := range []int{1, 2, 7, 100, len(all) - 1, len(all), len(all) + 1} {
				got := tok.Encode(text, tokenizer.EncodeOptions{MaxIDs: most})
				if len(all) <= most {
					require.Equal(t, all, got)
					continue
				}
				require.Greater(t, len(got), most)
				require.Less(t, len(got), most+30, "of %d", len(all))
			}
		})
	}
}
