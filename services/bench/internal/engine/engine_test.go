package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/synth"
	"github.com/millrace/millrace/services/bench/internal/modelfile"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// tiny is a shape whose rows suit every weight type and whose heads are grouped.
func tiny() synth.Shape {
	return synth.Shape{Name: "tiny", Architecture: "llama", Desc: engine.Uniform{
		Layers: 2, Hidden: 256, Heads: 4, KVHeads: 2, FFN: 512, Vocab: 500, Context: 2048,
	}}
}

func file(t *testing.T, typ gguf.Type) string {
	t.Helper()
	path, err := modelfile.Ensure(t.TempDir(), tiny(), synth.Only(typ), 1, nil)
	require.NoError(t, err)
	return path
}

func configOf(model string) Config {
	return Config{
		Model: model, Prompt: 33, Tokens: 9, Batches: []int{3, 1},
		Repeat: 2, Depth: 1, Seed: 4, RoofTime: time.Millisecond,
	}
}

func quiet(string, ...any) {}

// openDevice opens a sim device, closed when the test ends.
func openDevice(t *testing.T, options string) engine.Device {
	t.Helper()
	o, err := sim.ParseOptions(options)
	require.NoError(t, err)
	device, err := sim.Open(o, hclog.NewNullLogger())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, device.Close(), "everything on the device was given back") })
	return device
}

func measured(t *testing.T, device string, cfg Config) *Report {
	t.Helper()
	rpctest.NoLeaks(t)
	report, err := Run(t.Context(), openDevice(t, device), cfg, quiet, rpctest.Logger(t))
	require.NoError(t, err)
	return report
}

func TestSimDeviceIsMeasuredWithoutRoofs(t *testing.T) {
	report := measured(t, "sim:step=1ms,prefill=0s,decode=0s", configOf(file(t, gguf.Q8_0)))
	require.Nil(t, report.Roofs)
	require.Len(t, report.Digest, 64)
	require.Len(t, report.Lines, 4)
	for i, want := range []struct {
		class string
		batch int
	}{{"prefill", 1}, {"prefill", 3}, {"decode", 1}, {"decode", 3}} {
		l := report.Lines[i]
		require.Equal(t, want.class, l.Class)
		require.Equal(t, want.batch, l.Batch)
		require.Positive(t, l.TokensPerSecond.Min)
		require.LessOrEqual(t, l.TokensPerSecond.Median, l.TokensPerSecond.Max)
		require.Positive(t, l.BytesPerStep)
		require.Zero(t, l.ReadShare)
		require.Zero(t, l.OpsShare)
	}
	m := report.Load.Memory
	require.Positive(t, m.HostPeak)
	require.Positive(t, m.Tensor)
	require.GreaterOrEqual(t, m.DevicePeak, m.Model+m.KV+m.Workspace)
	require.LessOrEqual(t, m.DevicePeak, m.Model+m.Tensor+m.KV+m.Workspace)
	// A step takes at least the device's time, so no rate can be higher.
	require.Less(t, report.Lines[2].TokensPerSecond.Max, 1000.0)
	require.Less(t, report.Lines[3].TokensPerSecond.Max, 3000.0)
}

func TestMixesAreMeasuredWithOrWithoutBatches(t *testing.T) {
	cfg := configOf(file(t, gguf.Q8_0))
	cfg.Mixes = []Mix{{Sequences: 3, Prompt: 40, Tokens: 7}, {Sequences: 1, Prompt: 5, Tokens: 1}}
	report := measured(t, "sim:step=1ms,prefill=0s,decode=0s", cfg)
	require.Len(t, report.Lines, 4)
	require.Len(t, report.Mixes, 2)
	for i, m := range report.Mixes {
		require.Equal(t, cfg.Mixes[i], m.Mix)
		require.Positive(t, m.Generated.Min)
		require.Less(t, m.Generated.Max, 1000*float64(m.Sequences), "no step is shorter than the device's")
		require.GreaterOrEqual(t, m.Line.TokensPerSecond.Median, m.Generated.Median, "prompts count as positions")
		require.GreaterOrEqual(t, m.Idle, 0.0)
		require.Less(t, m.Idle, 1.0)
	}
	cfg.Batches = nil
	report = measured(t, "sim:step=0s", cfg)
	require.Empty(t, report.Lines)
	require.Len(t, report.Mixes, 2)
	var text bytes.Buffer
	report.Print(&text)
	require.Contains(t, text.String(), "3x40/7")
	require.NotContains(t, text.String(), "class  batch")
	cfg.Mixes = nil
	require.ErrorContains(t, cfg.Validate(), "--batch lists no size")
}

// Run fails if a batch computes other tokens than the step loop does.
func TestTokensAreTheSameAtEveryDepth(t *testing.T) {
	cfg := configOf(file(t, gguf.Q8_0))
	one := measured(t, "sim:step=0s", cfg)
	cfg.Depth = 2
	require.Equal(t, one.Digest, measured(t, "sim:step=0s", cfg).Digest)
}

// forgetful is a device whose runners beyond the first, which the step loop has, sample another
// token in every step of more than one sequence.
type forgetful struct{ engine.Device }

func (d forgetful) NewModel(desc engine.ModelDesc) (engine.Model, error) {
	m, err := d.Device.NewModel(desc)
	return forgetfulModel{m}, err
}

type forgetfulModel struct{ engine.Model }

func (m forgetfulModel) NewRunner(cfg engine.RunnerConfig) (engine.Runner, error) {
	r, err := m.Model.NewRunner(cfg)
	return forgetfulRunner{r}, err
}

type forgetfulRunner struct{ engine.Runner }

func (r forgetfulRunner) Wait(timeout time.Duration) (*engine.StepResult, error) {
	result, err := r.Runner.Wait(timeout)
	if err == nil && len(result.Samples) > 1 {
		result.Samples[0].Token ^= 1
	}
	return result, err
}

func TestRunFailsIfABatchChangesTokens(t *testing.T) {
	report, err := Run(t.Context(), forgetful{openDevice(t, "sim:step=0s")}, configOf(file(t, gguf.Q8_0)), quiet, rpctest.Logger(t))
	require.ErrorIs(t, err, ErrTokens)
	require.ErrorContains(t, err, "in a batch of 3, 1 sequences have other tokens")
	require.ErrorContains(t, err, "sequence 0 from token 0 on")
	require.ErrorContains(t, err, "so 2 of 2 times")
	require.NotNil(t, report)
	cfg := configOf(file(t, gguf.Q8_0))
	cfg.Batches, cfg.Mixes = nil, []Mix{{Sequences: 2, Prompt: 9, Tokens: 5}}
	_, err = Run(t.Context(), forgetful{openDevice(t, "sim:step=0s")}, cfg, quiet, rpctest.Logger(t))
	require.ErrorIs(t, err, ErrTokens)
	require.ErrorContains(t, err, "mix 2x9/5")
}

func TestAnotherSeedGivesOtherTokens(t *testing.T) {
	cfg := configOf(file(t, gguf.Q8_0))
	one := measured(t, "sim:step=0s", cfg)
	cfg.Seed++
	require.NotEqual(t, one.Digest, measured(t, "sim:step=0s", cfg).Digest)
}

func TestReportIsPrintedAndEncoded(t *testing.T) {
	report := measured(t, "sim", configOf(file(t, gguf.Q8_0)))
	var text bytes.Buffer
	report.Print(&text)
	for _, want := range []string{"llama Q8_0", "not measured", "load ", "prefill", "decode", report.Digest[:16]} {
		require.Contains(t, text.String(), want)
	}
	encoded, err := json.Marshal(report)
	require.NoError(t, err)
	var back Report
	require.NoError(t, json.Unmarshal(encoded, &back))
	require.Equal(t, report.Lines, back.Lines)
}

func TestRunRefusesWrongConfigs(t *testing.T) {
	good := file(t, gguf.Q8_0)
	for name, tc := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"no batch":              {func(c *Config) { c.Batches = nil }, "--batch lists no size"},
		"a batch of none":       {func(c *Config) { c.Batches = []int{1, 0} }, "--batch 0"},
		"no repeat":             {func(c *Config) { c.Repeat = 0 }, "--repeat 0"},
		"an empty prompt":       {func(c *Config) { c.Prompt = 0 }, "--prompt 0"},
		"one token":             {func(c *Config) { c.Tokens = 1 }, "--tokens 1"},
		"depth 3":               {func(c *Config) { c.Depth = 3 }, "--depth 3"},
		"a file that is absent": {func(c *Config) { c.Model = filepath.Join(t.TempDir(), "x.gguf") }, "no such file"},
		"beyond the context":    {func(c *Config) { c.Prompt = 2040; c.Tokens = 20 }, "prompt too long"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := configOf(good)
			tc.change(&cfg)
			_, err := Run(t.Context(), openDevice(t, "sim"), cfg, quiet, hclog.NewNullLogger())
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestInterruptEndsTheRun(t *testing.T) {
	rpctest.NoLeaks(t)
	cfg := configOf(file(t, gguf.Q8_0))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	cfg.Tokens = 500
	_, err := Run(ctx, openDevice(t, "sim:step=20ms"), cfg, quiet, hclog.NewNullLogger())
	require.ErrorIs(t, err, context.DeadlineExceeded)
}
