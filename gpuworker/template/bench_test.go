package template_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/template"
)

// BenchmarkRender renders ten messages, the way to the child and back included.
func BenchmarkRender(b *testing.B) {
	in := template.Input{AddGenerationPrompt: true, BOS: "<s>", EOS: "</s>", Now: noon}
	for range 5 {
		in.Messages = append(in.Messages, template.Message{Role: "user", Content: "Tell me a story."}, template.Message{Role: "assistant", Content: "Once upon a time."})
	}
	for _, family := range families {
		b.Run(family.name, func(b *testing.B) {
			tmpl := parse(b, family.source, patient)
			for b.Loop() {
				_, err := tmpl.Render(context.Background(), in)
				require.NoError(b, err)
			}
		})
	}
}

// BenchmarkNew starts a child and parses.
func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		tmpl, err := template.New(families[0].source, patient)
		require.NoError(b, err)
		require.NoError(b, tmpl.Close())
	}
}
