package selfcheck

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/synth"
)

// shape is a short model with every feature of a long one.
var shape = synth.Shape{Name: "self-test", Architecture: "llama", Desc: engine.Uniform{
	Layers: 2, Hidden: 256, Heads: 4, KVHeads: 2, FFN: 512, Vocab: 1000, Context: 128,
}}

// bounds of logprobs, in nats: rounding of f32 for types computed exactly, of int8 activations for
// the others.
var bounds = map[engine.Type]float64{engine.F16: 2e-3, engine.Q8_0: 0.15, engine.Q4_K: 0.15}

// checkModel scores a prompt on a short model of random weights.
func checkModel(device engine.Device, t engine.Type) Row {
	row := Row{Name: fmt.Sprintf("model %v", gguf.Type(t)), Shape: "2 layers x 256", Bound: bounds[t], Error: math.Inf(1)}
	weights, err := weightsOf(t)
	if err == nil {
		err = row.score(device, weights)
	}
	if err != nil {
		row.Note = err.Error()
		return row
	}
	row.OK = row.Error <= row.Bound
	return row
}

func weightsOf(t engine.Type) (*reference.Weights, error) {
	var file bytes.Buffer
	if err := synth.Write(&file, shape, synth.Only(gguf.Type(t)), 1); err != nil {
		return nil, err
	}
	f, err := gguf.Parse(file.Bytes())
	if err != nil {
		return nil, err
	}
	m, err := arch.Parse(f)
	if err != nil {
		return nil, err
	}
	w := &reference.Weights{Desc: m.Desc}
	for _, b := range m.Bindings {
		w.Tensors = append(w.Tensors, reference.Tensor{TensorDesc: b.Desc, Bytes: f.Bytes(b.Tensor)})
	}
	return w, nil
}

func (r *Row) score(device engine.Device, w *reference.Weights) (err error) {
	m, err := device.NewModel(w.Desc)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	for _, t := range w.Tensors {
		b, err := device.Alloc(uint64(len(t.Bytes)), engine.Staging)
		if err != nil {
			return err
		}
		if _, err := b.WriteAt(t.Bytes, 0); err != nil {
			return errors.Join(err, b.Free())
		}
		if err := m.Bind(t.TensorDesc, b); err != nil {
			return err
		}
	}
	if err := m.Seal(); err != nil {
		return err
	}
	const tokens = 48
	info, err := device.Info()
	if err != nil {
		return err
	}
	if info.Kind == "cuda" {
		r.Bound = max(r.Bound, 2e-2) // activations, keys and values are F16 there
	}
	runner, err := m.NewRunner(engine.RunnerConfig{
		KVBlocks: 4, BlockSize: 16, MaxSequences: 1, MaxBatchedTokens: tokens, MaxSampleRows: 1, MaxScoreRows: tokens, KVType: cacheOf(info),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, runner.Close()) }()
	step := engine.Step{PreOps: []engine.PreOp{{SlotGeneration: 1, Params: &engine.SlotParams{
		PromptLength: tokens, TopP: 1, TypicalP: 1, RepetitionPenalty: 1,
	}}}}
	prompt := make([]int32, tokens)
	for i := range prompt {
		prompt[i] = int32(i*i*7+3) % int32(w.Desc.Vocab)
		if i > 0 {
			step.Scores = append(step.Scores, engine.ScoreRow{TokenIndex: int32(i - 1), Target: prompt[i]})
		}
	}
	step.Segments = []engine.Segment{{SlotGeneration: 1, Tokens: prompt, Blocks: []int32{2, 0, 3, 1}}}
	if err := runner.Submit(&step); err != nil {
		return err
	}
	result, err := runner.Wait(time.Minute)
	if err != nil {
		return err
	}
	decoder, err := reference.NewDecoder(w)
	if err != nil {
		return err
	}
	logits := decoder.NewSequence().Append(prompt)
	r.Error = 0
	for i, got := range result.Scores {
		d := math.Abs(float64(got.Logprob) - reference.LogSoftmax(logits[i])[prompt[i+1]])
		if got.Status != engine.RowOK || math.IsNaN(d) {
			d = math.Inf(1)
		}
		r.Error = max(r.Error, d)
	}
	r.Time = result.DeviceTime
	r.Note = fmt.Sprintf("%.0f tokens/s", tokens/max(result.DeviceTime.Seconds(), 1e-9))
	return nil
}

// cacheOf is the most exact type of KV cache of a device.
func cacheOf(info engine.DeviceInfo) engine.Type {
	if info.Kind == "cuda" {
		return engine.F16
	}
	return engine.F32
}
