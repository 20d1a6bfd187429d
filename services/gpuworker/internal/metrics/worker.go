package metrics

import (
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/health"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/services/internal/monitor"
)

// workerReadings are read from the worker's last assessment.
var workerReadings = []monitor.Reading[*health.Look]{
	{Name: "millrace_worker_ready", Kind: monitor.Gauge, Help: "1 while the worker accepts requests, else 0.",
		Read: func(l *health.Look) float64 { return monitor.Truth(serves(l.State)) }},
	{Name: "millrace_failed_checks", Kind: monitor.Gauge, Help: "Health checks that fail; /readyz and the log name them.",
		Read: func(l *health.Look) float64 {
			n := 0.0
			for _, c := range l.Checks {
				n += monitor.Truth(!c.OK)
			}
			return n
		}},
	{Name: "millrace_device_memory_bytes", Kind: monitor.Gauge, Help: helpMemory, Label: "purpose", Value: "weights", Read: purpose(engine.Weights)},
	{Name: "millrace_device_memory_bytes", Kind: monitor.Gauge, Help: helpMemory, Label: "purpose", Value: "kv", Read: purpose(engine.KV)},
	{Name: "millrace_device_memory_bytes", Kind: monitor.Gauge, Help: helpMemory, Label: "purpose", Value: "workspace",
		Read: purpose(engine.Workspace)},
	{Name: "millrace_device_memory_bytes", Kind: monitor.Gauge, Help: helpMemory, Label: "purpose", Value: "staging", Read: purpose(engine.Staging)},
	{Name: "millrace_device_memory_bytes", Kind: monitor.Gauge, Help: helpMemory, Label: "purpose", Value: "pooled",
		Read: func(l *health.Look) float64 { return float64(l.Device.BytesPooled) }},
	{Name: "millrace_device_memory_limit_bytes", Kind: monitor.Gauge, Help: "Device memory that the worker may use.",
		Read: func(l *health.Look) float64 { return float64(l.Device.BytesTotal) }},
	{Name: "millrace_device_memory_free_bytes", Kind: monitor.Gauge, Help: "Device memory that the worker may still allocate.",
		Read: func(l *health.Look) float64 { return float64(l.Device.BytesFree) }},
	{Name: "millrace_device_physical_bytes", Kind: monitor.Gauge, Help: "Memory of the whole device, with that of other processes. Unknown of a CPU.",
		Read: func(l *health.Look) float64 { return known(l.Device.PhysicalTotal) }},
	{Name: "millrace_device_physical_free_bytes", Kind: monitor.Gauge, Help: "Memory of the whole device that no process uses. Unknown of a CPU.",
		Read: func(l *health.Look) float64 { return known(l.Device.PhysicalFree) }},
	{Name: "millrace_device_pool_total", Kind: monitor.Counter, Help: "Allocations by whether the pool of freed memory served them.",
		Label: "result", Value: "hit", Read: func(l *health.Look) float64 { return float64(l.Device.PoolHits) }},
	{Name: "millrace_device_pool_total", Kind: monitor.Counter, Help: "Allocations by whether the pool of freed memory served them.",
		Label: "result", Value: "miss", Read: func(l *health.Look) float64 { return float64(l.Device.PoolMisses) }},
	{Name: "millrace_device_buffers", Kind: monitor.Gauge, Help: "Buffers that are allocated.",
		Read: func(l *health.Look) float64 { return float64(l.Device.LiveBuffers) }},
	{Name: "millrace_device_leaked_buffers", Kind: monitor.Gauge, Help: "Buffers without an owner that could not be freed.",
		Read: func(l *health.Look) float64 { return float64(l.Leaked) }},
	{Name: "millrace_device_failed_frees_total", Kind: monitor.Counter, Help: "Frees that the driver refused.",
		Read: func(l *health.Look) float64 { return float64(l.Device.FailedFrees) }},
	{Name: "millrace_device_memory_errors_total", Kind: monitor.Counter, Help: helpErrors, Label: "kind", Value: "uncorrected",
		Read: func(l *health.Look) float64 { return known(l.Device.Errors) }},
	{Name: "millrace_device_memory_errors_total", Kind: monitor.Counter, Help: helpErrors, Label: "kind", Value: "corrected",
		Read: func(l *health.Look) float64 { return known(l.Device.CorrectedErrors) }},
	{Name: "millrace_device_temperature_celsius", Kind: monitor.Gauge, Help: "Temperature of the device. Unknown of a CPU.",
		Read: func(l *health.Look) float64 { return known(l.Device.TemperatureC) }},
	{Name: "millrace_device_power_watts", Kind: monitor.Gauge, Help: "Power that the device draws. Unknown of a CPU.",
		Read: func(l *health.Look) float64 { return known(l.Device.PowerMW) / 1000 }},
}

const (
	helpMemory = "Device memory by purpose. pooled: freed, and kept for the next allocation."
	helpErrors = "Memory errors of the device since its driver was loaded. Unknown of a CPU."
)

// serves reports whether a worker in a state accepts requests.
func serves(s health.State) bool { return s == health.Ready || s == health.Degraded }

// purpose returns the reading of the device memory of a purpose.
func purpose(p engine.Purpose) func(*health.Look) float64 {
	return func(l *health.Look) float64 { return float64(l.Device.BytesUsed[p]) }
}

// known returns the number that n points to, and monitor.Unknown for nil.
func known[N int | uint64](n *N) float64 {
	if n == nil {
		return monitor.Unknown
	}
	return float64(*n)
}

// Counts are the counters of a worker as a whole.
type Counts struct {
	// Loaded and Failed count loads of models by their end, Unloaded counts unloads.
	Loaded, Failed, Unloaded uint64
	// Subscribers is how many schedulers hold a health stream.
	Subscribers int64
	// Resyncs counts the full reports that schedulers requested after their first.
	Resyncs uint64
}

// countReadings are read from Counts.
var countReadings = []monitor.Reading[Counts]{
	{Name: "millrace_model_loads_total", Kind: monitor.Counter, Help: helpLoads, Label: "result", Value: "loaded",
		Read: func(c Counts) float64 { return float64(c.Loaded) }},
	{Name: "millrace_model_loads_total", Kind: monitor.Counter, Help: helpLoads, Label: "result", Value: "failed",
		Read: func(c Counts) float64 { return float64(c.Failed) }},
	{Name: "millrace_model_unloads_total", Kind: monitor.Counter,
		Help: "Models unloaded, by a call, for being idle, or for another one.",
		Read: func(c Counts) float64 { return float64(c.Unloaded) }},
	{Name: "millrace_health_followers", Kind: monitor.Gauge, Help: "Health streams that are open: the schedulers that follow this worker.",
		Read: func(c Counts) float64 { return float64(c.Subscribers) }},
	{Name: "millrace_health_resyncs_total", Kind: monitor.Counter,
		Help: "Full reports that a scheduler requested because it missed a message of its stream.",
		Read: func(c Counts) float64 { return float64(c.Resyncs) }},
}

const helpLoads = "Loads of models by how they ended; calls that join one load count once."

// stateReadings are read from all models together.
var stateReadings = []monitor.Reading[[]model.Status]{
	{Name: "millrace_models", Kind: monitor.Gauge, Help: helpModels, Label: "state", Value: "loading", Read: inState(model.Loading)},
	{Name: "millrace_models", Kind: monitor.Gauge, Help: helpModels, Label: "state", Value: "ready", Read: inState(model.Ready)},
	{Name: "millrace_models", Kind: monitor.Gauge, Help: helpModels, Label: "state", Value: "draining", Read: inState(model.Draining)},
	{Name: "millrace_models", Kind: monitor.Gauge, Help: helpModels, Label: "state", Value: "failed", Read: inState(model.Failed)},
}

const helpModels = "Models that are loaded or being loaded, by state."

// inState returns the reading of the number of models in a state.
func inState(state model.State) func([]model.Status) float64 {
	return func(all []model.Status) float64 {
		n := 0
		for i := range all {
			if all[i].State == state {
				n++
			}
		}
		return float64(n)
	}
}
