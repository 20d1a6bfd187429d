package enginebench

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/services/bench/internal/floor"
	"github.com/millrace/millrace/services/bench/internal/gauge"
	"github.com/millrace/millrace/services/bench/internal/machine"
	"github.com/millrace/millrace/services/bench/internal/roof"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// Report is what a run found. Rates are a second; shares are 0 where the device does not measure the roof.
type Report struct {
	Machine machine.Facts `json:"machine"`
	Model   Model         `json:"model"`
	Device  Device        `json:"device"`
	Prompt  int           `json:"prompt_tokens"`
	Tokens  int           `json:"generated_tokens"`
	Repeat  int           `json:"repeat"`
	Depth   int           `json:"depth"`
	Roofs   *RoofTable    `json:"roofs,omitempty"` // nil: the device does not measure itself
	Load    Load          `json:"load"`
	Lines   []Line        `json:"lines"`
	Mixes   []Mix         `json:"mixes,omitempty"`
	// Stolen is the share of the processors' time that other virtual machines took meanwhile: a disturbed run is known by it.
	Stolen float64 `json:"stolen_share"`
	// Digest is BLAKE3 of the tokens that Generate gives sequence 0. A run whose batches gave it, or any sequence, others is void.
	Digest string         `json:"tokens_blake3"`
	Floors *floor.Verdict `json:"floors,omitempty"`
}

// Model is the file that was run.
type Model struct {
	File         string `json:"file"`
	Architecture string `json:"architecture"`
	Type         string `json:"type"`
	Parameters   uint64 `json:"parameters"`
	Bytes        uint64 `json:"bytes"`
	Digest       string `json:"digest"`
}

// Device is what it was run on.
type Device struct {
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Path    string `json:"path"`
	Threads int    `json:"threads"` // of a CPU; multiprocessors of a GPU
	Devices int    `json:"devices"` // GPUs that hold the model together; 1 for a CPU
	KV      string `json:"kv"`
	Class   string `json:"class_id"`
}

// RoofTable is the roofs, measured before and after the model ran; the larger are used, but for reading, which is
// measured beside each repeat.
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

func ratesOf(r roof.Roofs) Rates {
	return Rates{Read: r.Read, Int8: r.Ops[roof.Int8], BF16: r.Ops[roof.BF16], F32: r.Ops[roof.F32]}
}

// String is one line without end.
func (r Rates) String() string {
	return fmt.Sprintf("read %.1f GB/s, int8 %.0f, bf16 %.0f, f32 %.0f GOPS", r.Read/1e9, r.Int8/1e9, r.BF16/1e9, r.F32/1e9)
}

// Load is how fast the model was loaded from page cache, verification included.
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
	ReadShare       float64      `json:"read_share"` // median; 0 also where a step's bytes fit the processor's cache
	OpsPerSecond    float64      `json:"ops_per_second"`
	OpsKind         string       `json:"ops_kind"` // of most operations
	OpsShare        float64      `json:"ops_share"`
}

// Mix is one mix of prompts and answers, two steps in flight. Its line is of class mix and counts every position, prompts too.
type Mix struct {
	gauge.Mix
	Generated stats.Spread `json:"generated_tokens_per_second"`
	// Idle is the median share of the time in which no step was on the device, by the device's own times of the steps.
	Idle float64 `json:"idle_share"`
	Line Line    `json:"line"`
}

// check returns ErrTooFast with a share that cannot be, or ErrMemory.
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
