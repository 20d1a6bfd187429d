package guide

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// largeVocabulary has 128k tokens: the bytes, words as a model has them, with and without a space before,
// numbers, and runs of punctuation.
func largeVocabulary() *Vocabulary {
	rng := rand.New(rand.NewPCG(1, 1))
	syllables := []string{"an", "er", "in", "th", "re", "on", "st", "al", "ti", "co", "me", "de", "ing", "é", "ка", "字"}
	seen, texts := map[string]bool{}, make([]string, 0, 1<<17)
	add := func(s string) {
		if !seen[s] {
			seen[s] = true
			texts = append(texts, s)
		}
	}
	for c := range 256 {
		add(string([]byte{byte(c)}))
	}
	for i := range 1000 {
		add(strings.TrimLeft(string(rune('0'+i/100))+string(rune('0'+i/10%10))+string(rune('0'+i%10)), "0"))
	}
	for len(texts) < 4000 {
		var s strings.Builder
		for range 1 + rng.IntN(4) {
			s.WriteByte("{}[]:,\"\\ \n.;()"[rng.IntN(14)])
		}
		add(s.String())
	}
	for len(texts) < 128000 {
		var s strings.Builder
		if rng.IntN(2) == 0 {
			s.WriteByte(' ')
		}
		for range 1 + rng.IntN(5) {
			s.WriteString(syllables[rng.IntN(len(syllables))])
		}
		add(s.String())
	}
	return NewVocabulary(len(texts)+1, func(id int32) []byte {
		if int(id) == len(texts) {
			return nil
		}
		return []byte(texts[id])
	}, 64<<20)
}

// invoice is a schema as applications have: nested objects, enums, patterns, bounds, dates.
const invoice = `{"type":"object","properties":{"id":{"type":"string","pattern":"^INV-[0-9]{6}$"},"date":{"type":"string","format":"date"},
	"status":{"enum":["draft","sent","paid","void"]},"customer":{"type":"object","properties":{"name":{"type":"string","minLength":1,"maxLength":100},
	"email":{"type":"string","format":"email"},"address":{"type":"object","properties":{"street":{"type":"string"},"city":{"type":"string"},
	"zip":{"type":"string","pattern":"^[0-9]{5}$"}},"required":["street","city"]}},"required":["name"]},"lines":{"type":"array","minItems":1,
	"items":{"type":"object","properties":{"sku":{"type":"string","maxLength":20},"quantity":{"type":"integer","minimum":1,"maximum":9999},
	"price":{"type":"number","minimum":0}},"required":["sku","quantity","price"],"additionalProperties":false}},
	"notes":{"anyOf":[{"type":"string","maxLength":500},{"type":"null"}]}},"required":["id","date","status","customer","lines"]}`

// BenchmarkMask prints the time of a mask along random texts, first visits of a state included: mean,
// median and 99th of a hundred. llguidance publishes 64, 46 and 533 us over its own schemas.
func BenchmarkMask(b *testing.B) {
	v := largeVocabulary()
	for name, source := range map[string]Source{
		"object": {Kind: JSONSchema, Text: `{"type":"object"}`}, "invoice": {Kind: JSONSchema, Text: invoice},
	} {
		b.Run(name, func(b *testing.B) {
			rng := rand.New(rand.NewPCG(2, 2))
			began := time.Now()
			g, err := Compile(source, v)
			if err != nil {
				b.Fatal(err)
			}
			compiled := time.Since(began)
			var took []time.Duration
			mask, end := make([]uint32, v.Words()), int32(v.size-1)
			s := g.Start([]int32{end})
			for b.Loop() {
				began := time.Now()
				if err := s.Mask(mask); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(began))
				ids := setBits(mask)
				if id := ids[rng.IntN(len(ids))]; id == end {
					s = g.Start([]int32{end})
				} else if s, err = s.Advance(id); err != nil {
					b.Fatal(err)
				}
				if len(took)%200 == 0 {
					s = g.Start([]int32{end})
				}
			}
			b.ReportMetric(float64(compiled.Microseconds()), "compile-us")
			slices.Sort(took)
			sum := time.Duration(0)
			for _, d := range took {
				sum += d
			}
			b.ReportMetric(float64(sum.Nanoseconds())/1e3/float64(len(took)), "mean-us")
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-us")
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-us")
		})
	}
}
