package enginebench

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/model"
)

// Rows is what the rows of a run begin with, as floors name them: the name of the model's file without its extension, where
// several GPUs hold the model with @ and their number behind it, the type of the KV cache and the tokens of a prompt.
func Rows(model string, devices int, kv string, prompt int) string {
	return fmt.Sprintf("%s/%s/%d/", held(model, devices), kv, prompt)
}

// MixRows is what the rows of a run's mixes begin with; the mix itself follows.
func MixRows(model string, devices int, kv string) string {
	return fmt.Sprintf("%s/%s/mix/", held(model, devices), kv)
}

func held(model string, devices int) string {
	name := strings.TrimSuffix(filepath.Base(model), extension)
	if devices > 1 {
		return fmt.Sprintf("%s@%d", name, devices)
	}
	return name
}

// CacheType is the type of the KV cache that a run has on a device: what a worker takes there, unless the configuration chose.
func (c *Config) CacheType(info engine.DeviceInfo) engine.Type {
	if c.KV != nil {
		return *c.KV
	}
	return model.DefaultKV(info)
}

// CacheName is a type of cache as floors and reports name it.
func CacheName(kv engine.Type) string { return strings.ToLower(gguf.Type(kv).String()) }

// Figure is a metric of a row: tokens, read_share and ops_share of CLASS/BATCH; verified_gbps and ready_gbps of load; generated
// (tokens a second) and busy (a share) of a mix.
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
