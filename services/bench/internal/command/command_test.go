package command_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/synth"
	"github.com/millrace/millrace/internal/cputest"
	"github.com/millrace/millrace/services/bench/internal/command"
	bench "github.com/millrace/millrace/services/bench/internal/engine"
	"github.com/millrace/millrace/services/bench/internal/modelfile"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/internal/version"
)

// tiny is a shape whose rows suit every weight type and whose heads are grouped.
var tiny = synth.Shape{Name: "tiny", Architecture: "llama", Desc: engine.Uniform{
	Layers: 2, Hidden: 256, Heads: 4, KVHeads: 2, FFN: 512, Vocab: 500, Context: 2048,
}}

func run(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	err = command.Run(t.Context(), args, &stdout, &stderr)
	return stdout.String(), err
}

func engineReport(t *testing.T, args ...string) bench.Report {
	t.Helper()
	rpctest.NoLeaks(t)
	out, err := run(t, append([]string{"engine", "--json", "--prompt", "33", "--tokens", "9", "--batch", "1,3", "--repeat", "2"},
		append(cputest.Flags(), args...)...)...)
	if err != nil { // a share is timing, and no subject of these tests
		require.ErrorIs(t, err, bench.ErrTooFast)
		require.NotErrorIs(t, err, bench.ErrTokens)
	}
	var report bench.Report
	require.NoError(t, json.Unmarshal([]byte(out), &report))
	return report
}

// The CPU engine computes what Generate gives, by any number of threads and at both depths, or the
// command fails.
func TestEngineComputesTheTokensOfGenerate(t *testing.T) {
	for _, typ := range []gguf.Type{gguf.Q8_0, gguf.Q4K, gguf.BF16} {
		t.Run(typ.String(), func(t *testing.T) {
			path, err := modelfile.Ensure(t.TempDir(), tiny, synth.Only(typ), 1, nil)
			require.NoError(t, err)
			one := engineReport(t, "--model", path, "--device", "cpu", "--threads", "2", "--roof-time", "20ms")
			two := engineReport(t, "--model", path, "--device", "cpu", "--threads", "1", "--depth", "2", "--roof-time", "20ms")
			require.Equal(t, one.Digest, two.Digest)
			require.Equal(t, one.Model.Digest, two.Model.Digest)
			require.NotNil(t, one.Roofs)
			require.Len(t, one.Lines, 4)
			for _, l := range one.Lines {
				require.Positive(t, l.OpsShare)
			}
			require.Positive(t, one.Load.Verified.Median)
		})
	}
}

func TestEngineMeasuresEvenAndSkewedRouters(t *testing.T) {
	out, err := run(t, "engine", "--json", "--shape", "small-qwen3moe", "--type", "f32", "--skew", "1", "--cache", t.TempDir(),
		"--device", "sim:step=0s,prefill=0s,decode=0s", "--prompt", "5", "--tokens", "3", "--repeat", "1", "--roof-time", "1ms")
	require.NoError(t, err)
	var reports struct{ Even, Skewed bench.Report }
	require.NoError(t, json.Unmarshal([]byte(out), &reports))
	require.Equal(t, 1.0/16, reports.Even.Model.LoadedShare)
	require.InDelta(t, 0.45/4, reports.Skewed.Model.LoadedShare, 1e-9)
	require.Equal(t, "small-qwen3moe-f32-seed1.gguf", filepath.Base(reports.Even.Model.File))
	require.Equal(t, "small-qwen3moe-skew1-f32-seed1.gguf", filepath.Base(reports.Skewed.Model.File))
	require.NotEqual(t, reports.Even.Model.Digest, reports.Skewed.Model.Digest)
	for _, args := range [][]string{{"--shape", "llama-0.1b"}, {"--shape", "small-qwen3moe", "--skew", "5"}, {"--model", "x.gguf"}} {
		_, err := run(t, append([]string{"engine", "--cache", t.TempDir(), "--skew", "1"}, args...)...)
		require.ErrorIs(t, err, command.ErrUsage)
		require.ErrorContains(t, err, "--skew")
	}
}

func TestEngineWritesAndKeepsItsModel(t *testing.T) {
	cache := t.TempDir()
	report := engineReport(t, "--shape", "llama-0.1b", "--type", "q4_0", "--cache", cache, "--device", "sim:step=0s,prefill=0s,decode=0s")
	require.Equal(t, filepath.Join(cache, "llama-0.1b-q4_0-seed1.gguf"), report.Model.File)
	require.EqualValues(t, 134105856, report.Model.Parameters)
	require.Nil(t, report.Roofs)
}

func TestSynthWritesAFileOfTheShape(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	_, err := run(t, "synth", "--shape", "llama-0.1b", "--type", "Q4_0", "--seed", "3", "-o", path)
	require.NoError(t, err)
	f, err := gguf.Open(path)
	require.NoError(t, err)
	m, err := arch.Parse(f)
	require.NoError(t, err)
	require.Equal(t, 768, m.Desc.Hidden)
	require.Equal(t, "Q4_0", m.Quantization)
	require.NoError(t, f.Close())
}

func TestSynthListsShapesAndTypes(t *testing.T) {
	out, err := run(t, "synth", "--list")
	require.NoError(t, err)
	for _, want := range append(synth.Names(), modelfile.Types()...) {
		require.Contains(t, out, want)
	}
	out, err = run(t, "synth", "--list", "--json")
	require.NoError(t, err)
	var entries []struct {
		Shape, Type string
		Bytes       uint64
	}
	require.NoError(t, json.Unmarshal([]byte(out), &entries))
	require.Len(t, entries, len(synth.Names())*len(modelfile.Types()))
	require.Positive(t, entries[0].Bytes)
}

func TestWrongCommandLineIsErrUsage(t *testing.T) {
	notes := filepath.Join(t.TempDir(), "notes.txt")
	require.NoError(t, os.WriteFile(notes, []byte("no trace"), 0o600))
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"an unknown flag":        {[]string{"engine", "--fast"}, "unknown flag"},
		"an argument":            {[]string{"engine", "model.gguf"}, `unexpected argument "model.gguf"`},
		"an unknown shape":       {[]string{"engine", "--shape", "gpt"}, "llama-0.1b"},
		"an unknown type":        {[]string{"engine", "--type", "q9"}, "q4_k"},
		"a KV type of weights":   {[]string{"engine", "--kv", "q8_0"}, "--kv"},
		"a fleet of one":         {[]string{"chaos", "--workers", "1"}, "--workers 1: want 2 to 64"},
		"an unknown fault":       {[]string{"chaos", "--faults", "kill,burn"}, `--faults: fault "burn"`},
		"a batch of none":        {[]string{"engine", "--batch", "0"}, "--batch 0"},
		"a mix of nothing":       {[]string{"engine", "--mix", "0x1/1"}, "--mix"},
		"a level":                {[]string{"engine", "--log-level", "loud"}, "--log-level"},
		"a mix of words":         {[]string{"load", "--mix", "many"}, "--mix"},
		"joiners of no period":   {[]string{"load", "--join", "4096"}, "want PROMPTxPERIOD"},
		"an open loop of a mix":  {[]string{"load", "--rate", "3", "--engine", notes}, "closed loop"},
		"no report of a mix":     {[]string{"load", "--engine", notes}, "millrace-bench engine --mix"},
		"no output":              {[]string{"synth"}, "-o"},
		"two ways to send":       {[]string{"load", "--rate", "3", "--trace", "x.csv"}, "exclude each other"},
		"a negative rate":        {[]string{"load", "--rate", "-3"}, "--rate -3"},
		"a trace that is absent": {[]string{"load", "--trace", "/nonexistent.csv"}, "no such file"},
		"a trace that is none":   {[]string{"load", "--trace", notes}, "no column TIMESTAMP"},
		"no calls":               {[]string{"load", "--concurrency", "0"}, "--concurrency 0"},
		"a size without number":  {[]string{"memory", "--largest", "big"}, `want a number of bytes`},
		"too small a piece":      {[]string{"memory", "--piece", "1KiB"}, "--piece 1KiB"},
		"a width of no heads":    {[]string{"ops", "--width", "100"}, "--width 100"},
		"floors that are absent": {[]string{"ops", "--floors", "/nonexistent.txt"}, "no such file"},
		"floors that are none":   {[]string{"ops", "--floors", notes}, "line 1"},
		"no singles":             {[]string{"fairness", "--singles", "0"}, "--singles 0"},
		"a factor of nothing":    {[]string{"overload", "--factor", "0"}, "--factor 0"},
		"no time of overload":    {[]string{"overload", "--duration", "0s"}, "--duration 0s"},
		"one token to cancel in": {[]string{"cancel", "--max-tokens", "1"}, "--max-tokens 1"},
		"no shared beginning":    {[]string{"prefix", "--shared", "0"}, "--shared 0"},
		"floors of no prefix":    {[]string{"prefix", "--floors", notes}, "line 1"},
		"too many streams":       {[]string{"relay", "--burst", "5000"}, "--burst 5000"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := run(t, tc.args...)
			require.ErrorIs(t, err, command.ErrUsage)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestMissingDeviceIsNotErrUsage(t *testing.T) {
	path, err := modelfile.Ensure(t.TempDir(), tiny, synth.Only(gguf.Q8_0), 1, nil)
	require.NoError(t, err)
	_, err = run(t, "engine", "--model", path, "--device", "cuda:77")
	require.ErrorIs(t, err, engine.ErrNoDevice)
	require.NotErrorIs(t, err, command.ErrUsage)
}

func TestVersionAndHelpSucceed(t *testing.T) {
	out, err := run(t, "--version")
	require.NoError(t, err)
	require.Equal(t, "millrace-bench "+version.String()+"\n", out)
	out, err = run(t, "--help")
	require.NoError(t, err)
	for _, want := range []string{"engine", "load", "prefix", "cancel", "overload", "fairness", "memory", "ops", "relay", "synth"} {
		require.Contains(t, out, want)
	}
}
