package metrics

import (
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/health"
)

// ofWorker are read from the worker's last look at itself.
var ofWorker = []reading[*health.Look]{
	{name: "millrace_worker_ready", kind: gauge, help: "1 while the worker asks for requests, else 0.",
		read: func(l *health.Look) float64 { return truth(serves(l.State)) }},
	{name: "millrace_failed_checks", kind: gauge, help: "Checks of health that do not hold; /readyz and the log name them.",
		read: func(l *health.Look) float64 {
			n := 0.0
			for _, c := range l.Checks {
				n += truth(!c.OK)
			}
			return n
		}},
	{name: "millrace_device_memory_bytes", kind: gauge, help: helpMemory, label: "purpose", value: "weights", read: purpose(engine.Weights)},
	{name: "millrace_device_memory_bytes", kind: gauge, help: helpMemory, label: "purpose", value: "kv", read: purpose(engine.KV)},
	{name: "millrace_device_memory_bytes", kind: gauge, help: helpMemory, label: "purpose", value: "workspace",
		read: purpose(engine.Workspace)},
	{name: "millrace_device_memory_bytes", kind: gauge, help: helpMemory, label: "purpose", value: "staging", read: purpose(engine.Staging)},
	{name: "millrace_device_memory_bytes", kind: gauge, help: helpMemory, label: "purpose", value: "pooled",
		read: func(l *health.Look) float64 { return float64(l.Device.BytesPooled) }},
	{name: "millrace_device_memory_limit_bytes", kind: gauge, help: "Device memory that the worker may use.",
		read: func(l *health.Look) float64 { return float64(l.Device.BytesTotal) }},
	{name: "millrace_device_memory_free_bytes", kind: gauge, help: "Device memory that the worker may still take.",
		read: func(l *health.Look) float64 { return float64(l.Device.BytesFree) }},
	{name: "millrace_device_physical_bytes", kind: gauge, help: "Memory of the whole device, whoever uses it. Unknown of a CPU.",
		read: func(l *health.Look) float64 { return known(l.Device.PhysicalTotal) }},
	{name: "millrace_device_physical_free_bytes", kind: gauge, help: "Memory of the whole device that nobody uses. Unknown of a CPU.",
		read: func(l *health.Look) float64 { return known(l.Device.PhysicalFree) }},
	{name: "millrace_device_pool_total", kind: counter, help: "Allocations by whether freed memory was there for them.",
		label: "result", value: "hit", read: func(l *health.Look) float64 { return float64(l.Device.PoolHits) }},
	{name: "millrace_device_pool_total", kind: counter, help: "Allocations by whether freed memory was there for them.",
		label: "result", value: "miss", read: func(l *health.Look) float64 { return float64(l.Device.PoolMisses) }},
	{name: "millrace_device_buffers", kind: gauge, help: "Buffers that are allocated.",
		read: func(l *health.Look) float64 { return float64(l.Device.LiveBuffers) }},
	{name: "millrace_device_leaked_buffers", kind: gauge, help: "Buffers that nobody holds and that could not be freed.",
		read: func(l *health.Look) float64 { return float64(l.Leaked) }},
	{name: "millrace_device_failed_frees_total", kind: counter, help: "Frees that the driver refused.",
		read: func(l *health.Look) float64 { return float64(l.Device.FailedFrees) }},
	{name: "millrace_device_memory_errors_total", kind: counter, help: helpErrors, label: "kind", value: "uncorrected",
		read: func(l *health.Look) float64 { return known(l.Device.Errors) }},
	{name: "millrace_device_memory_errors_total", kind: counter, help: helpErrors, label: "kind", value: "corrected",
		read: func(l *health.Look) float64 { return known(l.Device.CorrectedErrors) }},
	{name: "millrace_device_temperature_celsius", kind: gauge, help: "Temperature of the device. Unknown of a CPU.",
		read: func(l *health.Look) float64 { return known(l.Device.TemperatureC) }},
	{name: "millrace_device_power_watts", kind: gauge, help: "Power that the device draws. Unknown of a CPU.",
		read: func(l *health.Look) float64 { return known(l.Device.PowerMW) / 1000 }},
}

const (
	helpMemory = "Device memory by what it is for. pooled: freed, and kept for the next allocation."
	helpErrors = "Memory errors of the device since its driver was loaded. Unknown of a CPU."
)

// serves says whether requests are asked for in a state.
func serves(s health.State) bool { return s == health.Ready || s == health.Degraded }

func purpose(p engine.Purpose) func(*health.Look) float64 {
	return func(l *health.Look) float64 { return float64(l.Device.BytesUsed[p]) }
}

// known is the number that n points to.
func known[N int | uint64](n *N) float64 {
	if n == nil {
		return unknown
	}
	return float64(*n)
}

// counts are what is counted of the worker as a whole.
type counts struct{ loaded, failed uint64 }

// ofCounts are read from them.
var ofCounts = []reading[counts]{
	{name: "millrace_model_loads_total", kind: counter, help: helpLoads, label: "result", value: "loaded",
		read: func(c counts) float64 { return float64(c.loaded) }},
	{name: "millrace_model_loads_total", kind: counter, help: helpLoads, label: "result", value: "failed",
		read: func(c counts) float64 { return float64(c.failed) }},
}

const helpLoads = "Loads of models by how they ended; calls that join one load count once."
