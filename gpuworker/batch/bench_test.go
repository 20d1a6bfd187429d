package batch

import (
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// nothing is a runner that computes nothing in no time, so a step on it costs only the loop's own
// time.
type nothing struct{ results []*engine.StepResult }

func (r *nothing) Submit(s *engine.Step) error {
	result := &engine.StepResult{Samples: make([]engine.RowResult, len(s.Samples)), DeviceTime: time.Millisecond}
	for i, row := range s.Samples {
		result.Samples[i] = engine.RowResult{Slot: row.Slot, Position: row.Position, Token: 7}
	}
	r.results = append(r.results, result)
	return nil
}

func (r *nothing) Wait(time.Duration) (*engine.StepResult, error) {
	result := r.results[0]
	r.results = r.results[1:]
	return result, nil
}

func (r *nothing) Progress() engine.Progress { return engine.Progress{} }
func (r *nothing) Close() error              { return nil }

// The loop's own cost of a step with this many decoding sequences, and as many in the queue.
func BenchmarkRound(b *testing.B) {
	for _, n := range []int{1, 64, 256} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			cfg := Config{Context: 1 << 20, Runner: engine.RunnerConfig{
				KVBlocks: 1 << 16, BlockSize: 16, MaxSequences: n, MaxBatchedTokens: 8192, MaxSampleRows: n,
			}}
			l := New(cfg, &nothing{}, hclog.NewNullLogger())
			var streams []*Stream
			for i := range 2 * n {
				s, err := submit(l, Request{
					Prompt: prompt(500, int32(i)), MaxTokens: 1 << 19, PromptTopN: -1, Tenant: fmt.Sprint(i % 7),
				})
				require.NoError(b, err)
				streams = append(streams, s)
			}
			var events []Event
			for l.Stats().GeneratedTokens < uint64(2*n) {
				_, err := l.round(b.Context())
				require.NoError(b, err)
			}
			for b.Loop() {
				if _, err := l.round(b.Context()); err != nil {
					b.Fatal(err)
				}
				for _, s := range streams[:n] {
					s.mu.Lock()
					events = append(events[:0], s.mu.events...)
					s.mu.events = s.mu.events[:0]
					s.mu.Unlock()
				}
			}
		})
	}
}

// The loop's own cost of a step of 512 tokens of a long prompt, while this many others wait.
func BenchmarkWaiting(b *testing.B) {
	for _, n := range []int{1, 64, 256} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			cfg := Config{Context: 1 << 20, Chunk: 512, Runner: engine.RunnerConfig{
				KVBlocks: 1 << 16, BlockSize: 16, MaxSequences: 256, MaxBatchedTokens: 8192, MaxSampleRows: 256,
			}}
			rounds := 0
			for b.Loop() {
				l := New(cfg, &nothing{}, hclog.NewNullLogger())
				for i := range n + 1 {
					_, err := submit(l, Request{Prompt: append(prompt(100_000, 1), int32(i)), MaxTokens: 1, PromptTopN: -1})
					require.NoError(b, err)
				}
				for l.Stats().PrefilledTokens < 100_000 {
					_, err := l.round(b.Context())
					require.NoError(b, err)
					rounds++
				}
			}
			b.ReportMetric(float64(b.Elapsed())/float64(rounds), "ns/round")
		})
	}
}
