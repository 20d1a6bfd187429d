package metrics

import (
	"time"

	"github.com/millrace/millrace/gpuworker/model"
)

// ofModel are read from each model that has a step loop.
var ofModel = []reading[model.Status]{
	{name: "millrace_running_sequences", kind: gauge, help: "Sequences in the batch.",
		read: func(m model.Status) float64 { return float64(m.Steps.Running) }},
	{name: "millrace_waiting_sequences", kind: gauge, help: "Sequences that wait for a slot or for KV blocks: the queue's depth.",
		read: func(m model.Status) float64 { return float64(m.Steps.Waiting) }},
	{name: "millrace_queue_age_seconds", kind: gauge,
		help: "Time that the sequence which waits for its first place for longest has waited; 0 while none does.",
		read: func(m model.Status) float64 { return m.Steps.QueueAge.Seconds() }},
	{name: "millrace_paused_sequences", kind: gauge, help: "Of the running sequences, those whose readers must catch up first.",
		read: func(m model.Status) float64 { return float64(m.Steps.Paused) }},
	{name: "millrace_waiting_prompt_tokens", kind: gauge,
		help: "Tokens of running and waiting sequences that must be computed before their next token can be.",
		read: func(m model.Status) float64 { return float64(m.Steps.WaitingPrefillTokens) }},
	{name: "millrace_max_sequences", kind: gauge, help: "Sequences that the batch has places for.",
		read: func(m model.Status) float64 { return float64(m.Runner.MaxSequences) }},
	{name: "millrace_prompt_tokens_total", kind: counter, help: "Prompt tokens computed, again after a preemption included.",
		read: func(m model.Status) float64 { return float64(m.Steps.PrefilledTokens) }},
	{name: "millrace_prefix_lookups_total", kind: counter,
		help: "Sequences whose prompts were looked for in the prefix cache when they got their first place.",
		read: func(m model.Status) float64 { return float64(m.Steps.PrefixLookups) }},
	{name: "millrace_prefix_hits_total", kind: counter, help: "Of these, those that found a block at least.",
		read: func(m model.Status) float64 { return float64(m.Steps.PrefixHits) }},
	{name: "millrace_prefix_tokens_total", kind: counter,
		help: "Prompt tokens taken from the prefix cache instead of being computed; not in millrace_prompt_tokens_total.",
		read: func(m model.Status) float64 { return float64(m.Steps.CachedTokens) }},
	{name: "millrace_generated_tokens_total", kind: counter, help: "Tokens generated.",
		read: func(m model.Status) float64 { return float64(m.Steps.GeneratedTokens) }},
	{name: "millrace_cancelled_sequences_total", kind: counter, help: "Sequences whose callers cancelled them or went away.",
		read: func(m model.Status) float64 { return float64(m.Steps.Cancelled) }},
	{name: "millrace_steps_after_cancel_total", kind: counter,
		help: "Steps that a cancelled sequence was in beyond those under way when it was cancelled. Anything but 0 is a defect.",
		read: func(m model.Status) float64 { return float64(m.Steps.StepsAfterCancel) }},
	{name: "millrace_steps_total", kind: counter, help: "Steps done.",
		read: func(m model.Status) float64 { return float64(m.Steps.Steps) }},
	{name: "millrace_refused_steps_total", kind: counter,
		help: "Steps that the engine refused. They ran in smaller ones, or ended the one sequence that was refused alone.",
		read: func(m model.Status) float64 { return float64(m.Steps.RefusedSteps) }},
	{name: "millrace_running_step_age_seconds", kind: gauge, help: "Age of the step on the device; 0 while there is none.",
		read: func(m model.Status) float64 { return m.Steps.RunningStepAge.Seconds() }},
	{name: "millrace_step_bound_seconds", kind: gauge, help: "Age beyond which the step on the device counts as hung.",
		read: func(m model.Status) float64 { return m.Steps.StepBound.Seconds() }},
	{name: "millrace_kv_blocks", kind: gauge, help: helpBlocks, label: "state", value: "free",
		read: func(m model.Status) float64 { return float64(m.Steps.FreeBlocks - m.Steps.CachedBlocks) }},
	{name: "millrace_kv_blocks", kind: gauge, help: helpBlocks, label: "state", value: "cached",
		read: func(m model.Status) float64 { return float64(m.Steps.CachedBlocks) }},
	{name: "millrace_kv_blocks", kind: gauge, help: helpBlocks, label: "state", value: "held",
		read: func(m model.Status) float64 { return float64(m.Steps.TotalBlocks - m.Steps.FreeBlocks) }},
	{name: "millrace_swap_blocks", kind: gauge, help: helpSwap, label: "state", value: "free",
		read: func(m model.Status) float64 { return float64(m.Steps.FreeHostBlocks) }},
	{name: "millrace_swap_blocks", kind: gauge, help: helpSwap, label: "state", value: "held",
		read: func(m model.Status) float64 { return float64(m.Steps.TotalHostBlocks - m.Steps.FreeHostBlocks) }},
	{name: "millrace_kv_block_tokens", kind: gauge, help: "Tokens that a KV block holds.",
		read: func(m model.Status) float64 { return float64(m.Runner.BlockSize) }},
	{name: "millrace_model_ready", kind: gauge, help: "1 while the model takes requests, else 0: it drains, or has failed.",
		read: func(m model.Status) float64 { return truth(m.State == model.Ready) }},
	{name: "millrace_model_device_bytes", kind: gauge, help: "Device memory of weights, KV cache and workspace.",
		read: func(m model.Status) float64 { return float64(m.DeviceBytes) }},
	{name: "millrace_model_idle_seconds", kind: gauge,
		help: "Time since the model's last request ended, or since it was loaded; 0 while a request holds it, or it takes none.",
		read: func(m model.Status) float64 { return m.IdleAge.Seconds() }},
	{name: "millrace_model_pinned", kind: gauge, help: "1 where the model stays however long no request uses it, else 0.",
		read: func(m model.Status) float64 { return truth(m.Pinned) }},
	{name: "millrace_model_verified_age_seconds", kind: gauge,
		help: "Time since the last complete check of the model's bytes on the device, or since it was loaded.",
		read: func(m model.Status) float64 {
			if m.VerifiedAge == 0 {
				return unknown
			}
			return m.VerifiedAge.Seconds()
		}},
}

const helpBlocks = "KV blocks by state; their sum is the size of the cache. free: holds nothing; cached: holds a prefix and is " +
	"given up when others need it; held: of sequences that run."

const helpSwap = "KV blocks of host memory by state: held ones are of preempted sequences."

// hasLoop says whether a model has a step loop: one that is being loaded has none, nor has one whose load failed.
func hasLoop(m model.Status) bool { return m.Steps.StepBound > time.Duration(0) }

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
