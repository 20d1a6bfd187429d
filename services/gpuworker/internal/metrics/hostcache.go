package metrics

import (
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/services/internal/monitor"
)

const (
	helpHostBlocks  = "KV blocks of evicted prefixes in host memory, by state, without those of layers with a window; 0 without --host-cache."
	helpHostBytes   = "Host memory for evicted prefixes, by state. free: without a prefix, also memory that is not taken from the system yet."
	helpHostDropped = "Blocks and states that the device evicted without a copy, because a step or the host had no room for it. They are computed when they are needed again."
	helpHostCopied  = "Bytes of prefixes copied between the device and host memory, by direction. out: evicted; in: of a request that begins with them."
)

// hostCacheReadings are those of the host tier of the prefix cache.
var hostCacheReadings = []monitor.Reading[model.Status]{
	{Name: "millrace_host_cache_blocks", Kind: monitor.Gauge, Help: helpHostBlocks, Label: "state", Value: "free",
		Read: func(m model.Status) float64 { return float64(m.Steps.TotalTierBlocks - m.Steps.TierBlocks) }},
	{Name: "millrace_host_cache_blocks", Kind: monitor.Gauge, Help: helpHostBlocks, Label: "state", Value: "used",
		Read: func(m model.Status) float64 { return float64(m.Steps.TierBlocks) }},
	{Name: "millrace_host_cache_bytes", Kind: monitor.Gauge, Help: helpHostBytes, Label: "state", Value: "free",
		Read: func(m model.Status) float64 { return float64(m.Steps.TotalTierBytes - m.Steps.TierBytes) }},
	{Name: "millrace_host_cache_bytes", Kind: monitor.Gauge, Help: helpHostBytes, Label: "state", Value: "used",
		Read: func(m model.Status) float64 { return float64(m.Steps.TierBytes) }},
	{Name: "millrace_host_cache_copied_bytes_total", Kind: monitor.Counter, Help: helpHostCopied, Label: "direction", Value: "out",
		Read: func(m model.Status) float64 { return float64(m.Steps.TierOutBytes) }},
	{Name: "millrace_host_cache_copied_bytes_total", Kind: monitor.Counter, Help: helpHostCopied, Label: "direction", Value: "in",
		Read: func(m model.Status) float64 { return float64(m.Steps.TierInBytes) }},
	{Name: "millrace_host_cache_dropped_total", Kind: monitor.Counter, Help: helpHostDropped,
		Read: func(m model.Status) float64 { return float64(m.Steps.TierDropped) }},
	{Name: "millrace_host_cache_evictions_total", Kind: monitor.Counter, Help: "Blocks and states in host memory that gave way to others.",
		Read: func(m model.Status) float64 { return float64(m.Steps.TierEvictions) }},
	{Name: "millrace_host_cache_hits_total", Kind: monitor.Counter,
		Help: "Sequences that began with copies from host memory; all others in millrace_prefix_hits_total found their prefix on the device.",
		Read: func(m model.Status) float64 { return float64(m.Steps.TierRecalls) }},
	{Name: "millrace_host_cache_tokens_total", Kind: monitor.Counter,
		Help: "Tokens that these copies saved; those of prompts are in millrace_prefix_tokens_total too.",
		Read: func(m model.Status) float64 { return float64(m.Steps.TierTokens) }},
}
