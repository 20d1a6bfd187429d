package metrics

import (
	"github.com/millrace/millrace/gpuworker/vectors"
	"github.com/millrace/millrace/services/internal/monitor"
)

// vectorReadings are read from the statistics of codebooks. They are left out if the device has no
// support for them.
var vectorReadings = []monitor.Reading[vectors.Stats]{
	{Name: "millrace_vectors_trainings", Kind: monitor.Gauge, Help: "Running trainings of codebooks.",
		Read: func(s vectors.Stats) float64 { return float64(s.Trainings) }},
	{Name: "millrace_vectors_max_trainings", Kind: monitor.Gauge, Help: "Trainings that may run at once; 0: the worker accepts none.",
		Read: func(s vectors.Stats) float64 { return float64(s.MaxTrainings) }},
	{Name: "millrace_vectors_trainings_total", Kind: monitor.Counter, Help: helpTrainings, Label: "result", Value: "finished",
		Read: func(s vectors.Stats) float64 { return float64(s.Finished) }},
	{Name: "millrace_vectors_trainings_total", Kind: monitor.Counter, Help: helpTrainings, Label: "result", Value: "cancelled",
		Read: func(s vectors.Stats) float64 { return float64(s.Cancelled) }},
	{Name: "millrace_vectors_trainings_total", Kind: monitor.Counter, Help: helpTrainings, Label: "result", Value: "failed",
		Read: func(s vectors.Stats) float64 { return float64(s.Failed) }},
	{Name: "millrace_vectors_training_device_bytes", Kind: monitor.Gauge, Help: "Device memory that trainings hold.",
		Read: func(s vectors.Stats) float64 { return float64(s.TrainingBytes) }},
	{Name: "millrace_vectors_training_spool_bytes", Kind: monitor.Gauge, Help: helpSpool, Label: "state", Value: "held",
		Read: func(s vectors.Stats) float64 { return float64(s.SpoolBytes) }},
	{Name: "millrace_vectors_training_spool_bytes", Kind: monitor.Gauge, Help: helpSpool, Label: "state", Value: "free",
		Read: func(s vectors.Stats) float64 { return float64(s.FreeSpool) }},
	{Name: "millrace_vectors_put_bytes", Kind: monitor.Gauge, Help: helpPut, Label: "state", Value: "held",
		Read: func(s vectors.Stats) float64 { return float64(s.PutBytes) }},
	{Name: "millrace_vectors_put_bytes", Kind: monitor.Gauge, Help: helpPut, Label: "state", Value: "free",
		Read: func(s vectors.Stats) float64 { return float64(s.FreePut) }},
	{Name: "millrace_vectors_training_rows_total", Kind: monitor.Counter, Help: "Rows that trainings received.",
		Read: func(s vectors.Stats) float64 { return float64(s.Rows) }},
	{Name: "millrace_vectors_training_rounds_total", Kind: monitor.Counter, Help: "Rounds of trainings.",
		Read: func(s vectors.Stats) float64 { return float64(s.Rounds) }},
	{Name: "millrace_vectors_training_device_seconds_total", Kind: monitor.Counter, Help: "Time that the device worked for trainings.",
		Read: func(s vectors.Stats) float64 { return s.DeviceTime.Seconds() }},
	{Name: "millrace_vectors_training_ids_total", Kind: monitor.Counter, Help: helpIDs, Label: "by", Value: "bound",
		Read: func(s vectors.Stats) float64 { return float64(s.Computed - s.Recomputed) }},
	{Name: "millrace_vectors_training_ids_total", Kind: monitor.Counter, Help: helpIDs, Label: "by", Value: "recomputed",
		Read: func(s vectors.Stats) float64 { return float64(s.Recomputed) }},
	{Name: "millrace_vectors_encoded_rows_total", Kind: monitor.Counter, Help: "Rows encoded.",
		Read: func(s vectors.Stats) float64 { return float64(s.EncodedRows) }},
	{Name: "millrace_vectors_encoded_recomputed_total", Kind: monitor.Counter, Help: "Ids of encoded rows that float64 had to decide.",
		Read: func(s vectors.Stats) float64 { return float64(s.EncodedRecomputed) }},
	{Name: "millrace_vectors_decoded_rows_total", Kind: monitor.Counter, Help: "Rows decoded.",
		Read: func(s vectors.Stats) float64 { return float64(s.DecodedRows) }},
	{Name: "millrace_vectors_codebooks", Kind: monitor.Gauge, Help: "Codebooks that are loaded, by whether they serve.", Label: "state",
		Value: "ready", Read: func(s vectors.Stats) float64 { return float64(s.ReadyCodebooks) }},
	{Name: "millrace_vectors_codebooks", Kind: monitor.Gauge, Help: "Codebooks that are loaded, by whether they serve.", Label: "state",
		Value: "failed", Read: func(s vectors.Stats) float64 { return float64(s.FailedCodebooks) }},
	{Name: "millrace_vectors_codebook_device_bytes", Kind: monitor.Gauge, Help: "Device memory of loaded codebooks.",
		Read: func(s vectors.Stats) float64 { return float64(s.CodebookBytes) }},
	{Name: "millrace_vectors_damaged_codebooks_total", Kind: monitor.Counter,
		Help: "Codebooks whose bytes on the device were found to differ from the loaded ones.",
		Read: func(s vectors.Stats) float64 { return float64(s.DamagedCodebooks) }},
	{Name: "millrace_vectors_refused_frees", Kind: monitor.Gauge, Help: "Trainings and codebooks whose memory the device did not take back.",
		Read: func(s vectors.Stats) float64 { return float64(s.RefusedFrees) }},
}

const (
	helpTrainings = "Trainings by their end. cancelled: by their callers."
	helpPut       = "Host memory for codebooks that PutCodebook is sending."
	helpSpool     = "Host memory for rows of trainings that the device does not hold."
	helpIDs       = "Codewords found for rows of trainings, by what decided: the bound of the fast pass, or float64."
)
