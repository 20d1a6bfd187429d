package engine

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/services/bench/internal/device"
	"github.com/millrace/millrace/services/bench/internal/proc"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// Report is the result of a run. Rates are a second. Shares are 0 if the device cannot measure the
// roof.
type Report struct {
	Machine proc.Machine `json:"machine"`
	Model   Model        `json:"model"`
	Device  Device       `json:"device"`
	Prompt  int          `json:"prompt_tokens"`
	Tokens  int          `json:"generated_tokens"`
	Repeat  int          `json:"repeat"`
	Depth   int          `json:"depth"`
	Roofs   *RoofTable   `json:"roofs,omitempty"` // nil: the device does not measure itself
	Load    Load         `json:"load"`
	Lines   []Line       `json:"lines"`
	Mixes   []MixResult  `json:"mixes,omitempty"`
	// Stolen is the share of the processor time that other virtual machines used during the run.
	Stolen float64 `json:"stolen_share"`
	// Digest is BLAKE3 of the tokens of sequence 0 by generate.Run. A run with other tokens is
	// void.
	Digest string         `json:"tokens_blake3"`
	Floors *stats.Verdict `json:"floors,omitempty"`
}

// Model is the file that was run.
type Model struct {
	File         string `json:"file"`
	Architecture string `json:"architecture"`
	Type         string `json:"type"`
	Parameters   uint64 `json:"parameters"`
	Bytes        uint64 `json:"bytes"`
	Digest       string `json:"digest"`
	// LoadedShare is the share of choices of the most loaded expert of a layer, which the routers of a
	// synthetic mixture are made for; 0: not known.
	LoadedShare float64 `json:"loaded_expert_share,omitempty"`
}

// Device is the device that was measured.
type Device struct {
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Path    string `json:"path"`
	Threads int    `json:"threads"` // of a CPU; multiprocessors of a GPU
	Devices int    `json:"devices"` // GPUs that hold the model together; 1 for a CPU
	KV      string `json:"kv"`
	Class   string `json:"class_id"`
}

// RoofTable is the roofs, measured before and after the model ran. The larger ones are used,
// except for reading, which is measured around each repeat.
type RoofTable struct {
	Before Rates        `json:"before"`
	After  Rates        `json:"after"`
	Used   Rates        `json:"used"`
	Beside stats.Spread `json:"read_bytes_beside_repeats"`
}

// Rates are roofs by name.
type Rates struct {
	Read float64 `json:"read_bytes"`
	Int8 float64 `json:"int8_ops"`
	BF16 float64 `json:"bf16_ops"`
	F32  float64 `json:"f32_ops"`
}

func ratesOf(r device.Roofs) Rates {
	return Rates{Read: r.Read, Int8: r.Ops[device.KindInt8], BF16: r.Ops[device.KindBF16], F32: r.Ops[device.KindF32]}
}

// String returns one line.
func (r Rates) String() string {
	return fmt.Sprintf("read %.1f GB/s, int8 %.0f, bf16 %.0f, f32 %.0f GOPS", r.Read/1e9, r.Int8/1e9, r.BF16/1e9, r.F32/1e9)
}

// Load is the rate of loading the model from page cache, verification included.
type Load struct {
	Verified stats.Spread `json:"bytes_per_second_verified"` // until every digest is compared
	Ready    stats.Spread `json:"bytes_per_second_ready"`    // until requests are served: with the KV cache and a first step
	Seconds  float64      `json:"seconds"`                   // until ready; median
	Stages   []Stage      `json:"stages"`                    // of the last of these loads
	Memory   Memory       `json:"memory"`
}

// Stage is one part of a load.
type Stage struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}

// Line is one class at one batch size.
type Line struct {
	Class           string       `json:"class"` // prefill or decode
	Batch           int          `json:"batch"`
	TokensPerSecond stats.Spread `json:"tokens_per_second"`
	BytesPerStep    float64      `json:"bytes_per_step"`
	BytesPerSecond  float64      `json:"bytes_per_second"`
	ReadShare       float64      `json:"read_share"` // median; 0 if the bytes of a step fit the processor's cache
	OpsPerSecond    float64      `json:"ops_per_second"`
	OpsKind         string       `json:"ops_kind"` // of most operations
	OpsShare        float64      `json:"ops_share"`
}

// MixResult is one mix with two steps in flight. Its line has the class mix and counts every
// position, prompts included.
type MixResult struct {
	Mix
	Generated stats.Spread `json:"generated_tokens_per_second"`
	// Idle is the median share of the time without a step on the device, by the device's own clock.
	Idle float64 `json:"idle_share"`
	Line Line    `json:"line"`
}

// check returns ErrTooFast if a share is above 100 %, or ErrMemory.
func (r *Report) check() error {
	if err := r.Load.Memory.check(); err != nil {
		return err
	}
	lines := slices.Clone(r.Lines)
	for _, m := range r.Mixes {
		lines = append(lines, m.Line)
	}
	for _, l := range lines {
		for _, share := range []struct {
			of    string
			value float64
		}{{"read", l.ReadShare}, {l.OpsKind, l.OpsShare}} {
			if share.value > 1 {
				return fmt.Errorf("%w: %s at batch %d reaches %.1f %% of the %s roof; the machine was disturbed while the roof "+
					"was measured (raise --roof-time), or work was counted that was not done",
					ErrTooFast, l.Class, l.Batch, 100*share.value, share.of)
			}
		}
	}
	return nil
}

// Rows returns the prefix of the rows of a run in floors: the name of the model file without its
// extension, @ and the number of GPUs if several hold the model, the type of the KV cache, and the
// prompt length.
func Rows(model string, devices int, kv string, prompt int) string {
	return fmt.Sprintf("%s/%s/%d/", modelRow(model, devices), kv, prompt)
}

// MixRows returns the prefix of the rows of mixes. The mix follows.
func MixRows(model string, devices int, kv string) string {
	return fmt.Sprintf("%s/%s/mix/", modelRow(model, devices), kv)
}

// modelRow returns the model's part of a row.
func modelRow(model string, devices int) string {
	name := strings.TrimSuffix(filepath.Base(model), extension)
	if devices > 1 {
		return fmt.Sprintf("%s@%d", name, devices)
	}
	return name
}

// CacheType returns the type of the KV cache on a device: the configured one, else the default of
// a worker.
func (c *Config) CacheType(info engine.DeviceInfo) engine.Type {
	if c.KV != nil {
		return *c.KV
	}
	return model.DefaultKV(info)
}

// CacheName returns the name of a cache type in floors and reports.
func CacheName(kv engine.Type) string { return strings.ToLower(gguf.Type(kv).String()) }

// Figure returns a metric of a row: tokens, read_share and ops_share of CLASS/BATCH; verified_gbps
// and ready_gbps of load; generated (tokens a second) and busy (a share) of a mix.
func (r *Report) Figure(row, metric string) (float64, bool) {
	figures := map[string]float64{}
	rows := Rows(r.Model.File, r.Device.Devices, r.Device.KV, r.Prompt)
	if row == rows+"load" {
		figures = map[string]float64{"verified_gbps": r.Load.Verified.Median / 1e9, "ready_gbps": r.Load.Ready.Median / 1e9}
	}
	for _, l := range r.Lines {
		if row == fmt.Sprintf("%s%s/%d", rows, l.Class, l.Batch) {
			figures = map[string]float64{"tokens": l.TokensPerSecond.Median, "read_share": l.ReadShare, "ops_share": l.OpsShare}
		}
	}
	for _, m := range r.Mixes {
		if row == MixRows(r.Model.File, r.Device.Devices, r.Device.KV)+m.Mix.String() {
			figures = map[string]float64{"generated": m.Generated.Median, "busy": 1 - m.Idle}
		}
	}
	value := figures[metric]
	return value, value > 0
}

// Print writes the report as text.
func (r *Report) Print(w io.Writer) {
	fmt.Fprintf(w, "machine  %s; %.1f %% of its time stolen\n", r.Machine, 100*r.Stolen)
	fmt.Fprintf(w, "model    %s %s, %.1f M weights, %.1f MB, digest %.16s\n", r.Model.Architecture, r.Model.Type,
		float64(r.Model.Parameters)/1e6, float64(r.Model.Bytes)/1e6, r.Model.Digest)
	if r.Model.LoadedShare > 0 {
		fmt.Fprintf(w, "experts  routers made for %s of the choices at the most loaded expert of a layer\n", percent(r.Model.LoadedShare))
	}
	fmt.Fprintf(w, "device   %s, path %s, %d threads, kv %s, class %s\n", r.Device.Name, r.Device.Path, r.Device.Threads,
		r.Device.KV, r.Device.Class)
	if r.Roofs == nil {
		fmt.Fprintf(w, "roof     not measured: a %s device has none\n", r.Device.Kind)
	} else {
		fmt.Fprintf(w, "roof     %s\n", r.Roofs.Used)
		fmt.Fprintf(w, "         the larger of before (%s) and after (%s)\n", r.Roofs.Before, r.Roofs.After)
		fmt.Fprintf(w, "         read during the repeats, the base of shares: %.1f GB/s (%.1f..%.1f)\n",
			r.Roofs.Beside.Median/1e9, r.Roofs.Beside.Min/1e9, r.Roofs.Beside.Max/1e9)
	}
	fmt.Fprintf(w, "load     %.2f GB/s (%.2f..%.2f) from page cache until verified, %.2f GB/s until ready; %.0f ms:",
		r.Load.Verified.Median/1e9, r.Load.Verified.Min/1e9, r.Load.Verified.Max/1e9, r.Load.Ready.Median/1e9, 1e3*r.Load.Seconds)
	for _, s := range r.Load.Stages {
		fmt.Fprintf(w, " %s %.0f", s.Name, 1e3*s.Seconds)
	}
	m := &r.Load.Memory
	fmt.Fprintf(w, "\nmemory   device %.2f GB at most in a load (model %.2f + largest tensor %.2f + KV %.2f + workspace %.2f = %.2f GB), "+
		"host %.2f GB above the page cache", float64(m.DevicePeak)/1e9, float64(m.Model)/1e9, float64(m.Tensor)/1e9,
		float64(m.KV)/1e9, float64(m.Workspace)/1e9, float64(m.bound())/1e9, float64(m.HostPeak)/1e9)
	fmt.Fprintf(w, "\ntokens   blake3 %.16s of sequence 0 by Generate; every sequence is held to its own in every batch\n", r.Digest)
	if len(r.Lines) > 0 {
		fmt.Fprintf(w, "\nprompts of %d tokens, %d tokens generated each, median of %d (min..max), %d step(s) in flight\n\n",
			r.Prompt, r.Tokens, r.Repeat, r.Depth)
		printLines(w, r.Lines)
	}
	if len(r.Mixes) > 0 {
		r.printMixes(w)
	}
	r.Floors.Print(w)
}

func printLines(w io.Writer, lines []Line) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "class\tbatch\ttokens/s\t(min..max)\tMB/step\tGB/s\tof read\tGOPS\tof\troof\t\n")
	for _, l := range lines {
		fmt.Fprintf(table, "%s\t%d\t%.1f\t(%.1f..%.1f)\t%.1f\t%.2f\t%s\t%.1f\t%s\t%s\t\n", l.Class, l.Batch,
			l.TokensPerSecond.Median, l.TokensPerSecond.Min, l.TokensPerSecond.Max, l.BytesPerStep/1e6,
			l.BytesPerSecond/1e9, percent(l.ReadShare), l.OpsPerSecond/1e9, l.OpsKind, percent(l.OpsShare))
	}
	_ = table.Flush() // the writer is a terminal or a buffer
}

func (r *Report) printMixes(w io.Writer) {
	fmt.Fprintf(w, "\nsequences x prompt / tokens, as many at once, another when one ends; median of %d (min..max), 2 steps in flight\n\n",
		r.Repeat)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "mix\tgenerated/s\t(min..max)\tpositions/s\tidle\tMB/step\tGB/s\tof read\tGOPS\tof\troof\t\n")
	for _, m := range r.Mixes {
		l := &m.Line
		fmt.Fprintf(table, "%s\t%.1f\t(%.1f..%.1f)\t%.1f\t%s\t%.1f\t%.2f\t%s\t%.1f\t%s\t%s\t\n", m.Mix, m.Generated.Median,
			m.Generated.Min, m.Generated.Max, l.TokensPerSecond.Median, percent(m.Idle), l.BytesPerStep/1e6, l.BytesPerSecond/1e9,
			percent(l.ReadShare), l.OpsPerSecond/1e9, l.OpsKind, percent(l.OpsShare))
	}
	_ = table.Flush()
}

func percent(share float64) string {
	if share == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*share)
}
