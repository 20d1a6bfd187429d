package metrics

import (
	"slices"
	"time"

	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/services/internal/monitor"
)

// modelReadings are read from each model that has a step loop.
var modelReadings = slices.Concat(loopReadings, hostCacheReadings)

var loopReadings = []monitor.Reading[model.Status]{
	{Name: "millrace_running_sequences", Kind: monitor.Gauge, Help: "Sequences in the batch.",
		Read: func(m model.Status) float64 { return float64(m.Steps.Running) }},
	{Name: "millrace_waiting_sequences", Kind: monitor.Gauge, Help: "Sequences that wait for a slot or for KV blocks: the queue's depth.",
		Read: func(m model.Status) float64 { return float64(m.Steps.Waiting) }},
	{Name: "millrace_queue_age_seconds", Kind: monitor.Gauge,
		Help: "Longest wait of a sequence for its first slot in the batch, of those that wait; 0 if none does.",
		Read: func(m model.Status) float64 { return m.Steps.QueueAge.Seconds() }},
	{Name: "millrace_paused_sequences", Kind: monitor.Gauge, Help: "Of the running sequences, those that are paused because their callers are slow consumers.",
		Read: func(m model.Status) float64 { return float64(m.Steps.Paused) }},
	{Name: "millrace_held_back_sequences", Kind: monitor.Gauge,
		Help: "Of the running sequences, those whose prompts wait so that another tenant with few sequences keeps its pace.",
		Read: func(m model.Status) float64 { return float64(m.Steps.HeldBack) }},
	{Name: "millrace_held_back_seconds_total", Kind: monitor.Counter,
		Help: "Sum of the times that prompts waited so that another tenant with few sequences keeps its pace; its rate is how many wait on average.",
		Read: func(m model.Status) float64 { return m.Steps.HeldBackTime.Seconds() }},
	{Name: "millrace_waiting_prompt_tokens", Kind: monitor.Gauge,
		Help: "Tokens of running and waiting sequences that must be computed before their next token can be.",
		Read: func(m model.Status) float64 { return float64(m.Steps.WaitingPrefillTokens) }},
	{Name: "millrace_max_sequences", Kind: monitor.Gauge, Help: "Slots of the batch.",
		Read: func(m model.Status) float64 { return float64(m.Runner.MaxSequences) }},
	{Name: "millrace_prompt_tokens_total", Kind: monitor.Counter, Help: "Prompt tokens computed, including those computed again after a preemption.",
		Read: func(m model.Status) float64 { return float64(m.Steps.PrefilledTokens) }},
	{Name: "millrace_prefix_lookups_total", Kind: monitor.Counter,
		Help: "Sequences whose prompts were looked up in the prefix cache when they got their first slot.",
		Read: func(m model.Status) float64 { return float64(m.Steps.PrefixLookups) }},
	{Name: "millrace_prefix_hits_total", Kind: monitor.Counter, Help: "Of these, those that found at least one block.",
		Read: func(m model.Status) float64 { return float64(m.Steps.PrefixHits) }},
	{Name: "millrace_prefix_tokens_total", Kind: monitor.Counter,
		Help: "Prompt tokens taken from the prefix cache instead of being computed; not in millrace_prompt_tokens_total.",
		Read: func(m model.Status) float64 { return float64(m.Steps.CachedTokens) }},
	{Name: "millrace_generated_tokens_total", Kind: monitor.Counter, Help: "Tokens generated.",
		Read: func(m model.Status) float64 { return float64(m.Steps.GeneratedTokens) }},
	{Name: "millrace_forced_tokens_total", Kind: monitor.Counter, Help: "Generated tokens that a grammar forced: they were not sampled.",
		Read: func(m model.Status) float64 { return float64(m.Steps.ForcedTokens) }},
	{Name: "millrace_cancelled_sequences_total", Kind: monitor.Counter, Help: "Sequences whose callers cancelled them or disconnected.",
		Read: func(m model.Status) float64 { return float64(m.Steps.Cancelled) }},
	{Name: "millrace_steps_after_cancel_total", Kind: monitor.Counter,
		Help: "Steps with a cancelled sequence that were launched after it was cancelled. Anything but 0 is a defect.",
		Read: func(m model.Status) float64 { return float64(m.Steps.StepsAfterCancel) }},
	{Name: "millrace_steps_total", Kind: monitor.Counter, Help: "Steps done.",
		Read: func(m model.Status) float64 { return float64(m.Steps.Steps) }},
	{Name: "millrace_refused_steps_total", Kind: monitor.Counter,
		Help: "Steps that the engine refused. They ran again as smaller steps, or ended the one sequence that was refused alone.",
		Read: func(m model.Status) float64 { return float64(m.Steps.RefusedSteps) }},
	{Name: "millrace_running_step_age_seconds", Kind: monitor.Gauge, Help: "Age of the step on the device; 0 if there is none.",
		Read: func(m model.Status) float64 { return m.Steps.RunningStepAge.Seconds() }},
	{Name: "millrace_step_bound_seconds", Kind: monitor.Gauge, Help: "Age beyond which the step on the device counts as hung.",
		Read: func(m model.Status) float64 { return m.Steps.StepBound.Seconds() }},
	{Name: "millrace_kv_blocks", Kind: monitor.Gauge, Help: helpBlocks, Label: "state", Value: "free",
		Read: func(m model.Status) float64 { return float64(m.Steps.FreeBlocks - m.Steps.CachedBlocks) }},
	{Name: "millrace_kv_blocks", Kind: monitor.Gauge, Help: helpBlocks, Label: "state", Value: "cached",
		Read: func(m model.Status) float64 { return float64(m.Steps.CachedBlocks) }},
	{Name: "millrace_kv_blocks", Kind: monitor.Gauge, Help: helpBlocks, Label: "state", Value: "held",
		Read: func(m model.Status) float64 { return float64(m.Steps.TotalBlocks - m.Steps.FreeBlocks) }},
	{Name: "millrace_swap_blocks", Kind: monitor.Gauge, Help: helpSwap, Label: "state", Value: "free",
		Read: func(m model.Status) float64 { return float64(m.Steps.FreeHostBlocks) }},
	{Name: "millrace_swap_blocks", Kind: monitor.Gauge, Help: helpSwap, Label: "state", Value: "held",
		Read: func(m model.Status) float64 { return float64(m.Steps.TotalHostBlocks - m.Steps.FreeHostBlocks) }},
	{Name: "millrace_window_blocks", Kind: monitor.Gauge, Help: helpWindows, Label: "state", Value: "free",
		Read: func(m model.Status) float64 {
			return float64(m.Steps.FreeWindowBlocks - m.Steps.CachedWindowBlocks)
		}},
	{Name: "millrace_window_blocks", Kind: monitor.Gauge, Help: helpWindows, Label: "state", Value: "cached",
		Read: func(m model.Status) float64 { return float64(m.Steps.CachedWindowBlocks) }},
	{Name: "millrace_window_blocks", Kind: monitor.Gauge, Help: helpWindows, Label: "state", Value: "held",
		Read: func(m model.Status) float64 {
			return float64(m.Steps.TotalWindowBlocks - m.Steps.FreeWindowBlocks)
		}},
	{Name: "millrace_saved_states", Kind: monitor.Gauge, Help: helpStates, Label: "state", Value: "free",
		Read: func(m model.Status) float64 { return float64(m.Steps.FreeStates - m.Steps.CachedStates) }},
	{Name: "millrace_saved_states", Kind: monitor.Gauge, Help: helpStates, Label: "state", Value: "cached",
		Read: func(m model.Status) float64 { return float64(m.Steps.CachedStates) }},
	{Name: "millrace_saved_states", Kind: monitor.Gauge, Help: helpStates, Label: "state", Value: "held",
		Read: func(m model.Status) float64 { return float64(m.Steps.TotalStates - m.Steps.FreeStates) }},
	{Name: "millrace_kv_block_tokens", Kind: monitor.Gauge, Help: "Tokens that a KV block holds.",
		Read: func(m model.Status) float64 { return float64(m.Runner.BlockSize) }},
	{Name: "millrace_model_ready", Kind: monitor.Gauge, Help: "1 while the model accepts requests, else 0: it drains, or has failed.",
		Read: func(m model.Status) float64 { return monitor.Truth(m.State == model.Ready) }},
	{Name: "millrace_model_device_bytes", Kind: monitor.Gauge, Help: "Device memory of weights, KV cache and workspace.",
		Read: func(m model.Status) float64 { return float64(m.DeviceBytes) }},
	{Name: "millrace_model_idle_seconds", Kind: monitor.Gauge,
		Help: "Time since the model's last request ended, or since it was loaded; 0 while a request uses it or it is out of service.",
		Read: func(m model.Status) float64 { return m.IdleAge.Seconds() }},
	{Name: "millrace_model_pinned", Kind: monitor.Gauge, Help: "1 if the model is never unloaded for being idle, else 0.",
		Read: func(m model.Status) float64 { return monitor.Truth(m.Pinned) }},
	{Name: "millrace_model_verified_age_seconds", Kind: monitor.Gauge,
		Help: "Time since the last complete check of the model's bytes on the device, or since it was loaded.",
		Read: func(m model.Status) float64 {
			if m.VerifiedAge == 0 {
				return monitor.Unknown
			}
			return m.VerifiedAge.Seconds()
		}},
}

const helpBlocks = "KV blocks by state, without those of millrace_window_blocks; their sum is the size of the cache. " +
	"free: empty; cached: has a prefix, and is evicted when a sequence needs a block; held: of running sequences."

const helpWindows = "KV blocks of layers with a window, by state; 0 of models that keep all layers in one pool. cached: a request can start " +
	"there, and it is evicted when a sequence needs a block; held: of running sequences."

const helpStates = "Saved states of a model whose layers carry one, by state; 0 of other models. cached: a request can start there, and it is " +
	"evicted when another one is saved; held: sequences are about to write or read it."

const helpSwap = "KV blocks of host memory by state, without copies of millrace_window_blocks. held: of preempted sequences."

// hasLoop reports whether a model has a step loop. A model that is being loaded, or whose load
// failed, has none.
func hasLoop(m model.Status) bool { return m.Steps.StepBound > time.Duration(0) }
