package model

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/engine"
)

// fit decides, before any tensor is read, whether the model fits and how large its KV cache is.
func (l *loader) fit(inst *Instance, spec *arch.Model, info engine.DeviceInfo) error {
	var weights, staging uint64
	for _, b := range spec.Bindings {
		size, err := l.device.ResidentSize(b.Desc)
		if err != nil {
			return fmt.Errorf("model %q: tensor %q: %w", l.name, b.Tensor.Name, err)
		}
		inst.sizes = append(inst.sizes, size)
		weights += size
		staging = max(staging, b.Bytes())
	}
	kv := DefaultKV(info)
	if l.options.KVType != nil {
		kv = *l.options.KVType
	}
	context := spec.Desc.Context
	if l.cfg.MaxBatchedTokens == 0 && spec.Desc.WholeTexts() {
		l.cfg.MaxBatchedTokens = context // a text is computed in one step
	}
	if l.cfg.MaxBatchedTokens == 0 {
		l.cfg.MaxBatchedTokens = DefaultBatchedTokens(info)
	}
	if spec.Desc.WholeTexts() {
		context = min(context, l.cfg.MaxBatchedTokens)
		if int64(l.options.Context) > int64(context) {
			return fmt.Errorf("model %q: %w: context_length %d; a text of this model is computed in one step, which has at most %d tokens here",
				l.name, ErrOption, l.options.Context, context)
		}
	}
	if l.cfg.StepTarget == 0 {
		l.cfg.StepTarget = DefaultStepTarget(info)
	}
	free := info.BytesFree
	p := planner{
		cfg: l.cfg, options: l.options, maxContext: context, kv: kv, free: free - min(free, weights), cost: inst.model.RunnerCost,
	}
	if spec.Desc.StateFloats() == 0 {
		p.window = spec.Desc.GroupWindow()
	}
	if info.HiddenRows {
		p.hiddenRows = max(1, min(l.cfg.MaxBatchedTokens, maxHiddenBytes/(4*spec.Desc.Hidden)))
		if spec.Desc.WholeTexts() {
			p.hiddenRows = l.cfg.MaxBatchedTokens // the mean needs all of them in the one step
		}
	}
	sequences := cmp.Or(int(l.options.MaxSequences), l.cfg.MaxSequences)
	var price engine.RunnerCost
	var err error
	inst.Runner, inst.Context, price, err = p.plan(cmp.Or(sequences, DefaultSequences(info)), sequences != 0)
	if err != nil {
		return fmt.Errorf("model %q: %w", l.name, err)
	}
	l.shareHost(inst, price)
	if inst.Runner.WindowBlocks > 0 {
		inst.window = p.window
	}
	inst.oneClass = info.OneClass
	if l.cfg.SamplingDefaults && !inst.Facts.Sampling.Empty() {
		inst.Defaults = &inst.Facts.Sampling
	}
	if unapplied := inst.Facts.Sampling.Unapplied; l.cfg.SamplingDefaults && len(unapplied) > 0 {
		l.logger.Warn("not every recommendation for sampling is followed", "model", l.name, "keys", strings.Join(unapplied, "; "))
	}
	var choices []string
	if inst.Defaults != nil {
		choices = append(choices, fileSampling)
	}
	if inst.Tokenizer != nil {
		choices = append(choices, grammarVersion)
	}
	if desc, short := spec.Serving(inst.Context); short {
		choices = append(choices, shortFactors)
		if err := inst.replaceModel(l.device, desc); err != nil {
			return fmt.Errorf("model %q: %w", l.name, err)
		}
	}
	inst.ClassID = classID(info, kv, l.options.ActType, choices...)
	inst.cache = price.KVBytes + price.WorkspaceBytes
	inst.DeviceBytes = weights + inst.cache
	// Staging lies on the first of several GPUs, while free counts all of them as that with the least.
	staging *= uint64(max(1, info.Devices))
	// The staging buffer is freed before the KV cache is allocated, so only the larger one counts.
	if needed := weights + max(price.KVBytes+price.WorkspaceBytes, staging); needed > free {
		return &FitError{
			Name: l.name, Needed: needed, Free: free, Weights: weights, KV: price.KVBytes,
			States:    price.BytesPerState * uint64(inst.Runner.MaxSequences+inst.Runner.SavedStates),
			Workspace: price.WorkspaceBytes, Staging: staging,
		}
	}
	return nil
}

// FitError is ErrNoFit with its numbers.
type FitError struct {
	Name          string
	Needed, Free  uint64 // bytes
	Weights       uint64 // of Needed
	KV, Workspace uint64 // of Needed, for the smallest useful cache
	States        uint64 // of KV, for layers that carry a state
	Staging       uint64 // of Needed, during the load; of several GPUs, times their number
	// Idle are the loaded models without a request or a pin, longest unused first.
	Idle []Idle
	// RoomIn is when a load may unload enough of them if they stay unused; 0: never.
	RoomIn time.Duration
}

// Idle is a loaded model without a request.
type Idle struct {
	Name  string
	Bytes uint64        // of device memory
	Age   time.Duration // since its last request
}

func (e *FitError) Error() string {
	states, advice := "", "fewer kv_tokens or a smaller context_length"
	if e.States > 0 {
		states = fmt.Sprintf(" with states %d", e.States)
		if e.Needed-min(e.Needed, e.States) <= e.Free {
			advice = "fewer max_sequences, each of which has a state, " + advice
		}
	}
	text := fmt.Sprintf("%v: %q needs %d bytes (weights %d, cache %d%s, workspace %d, staging %d) and %d are free; "+
		"unload a model, request %s, or raise the memory limit",
		ErrNoFit, e.Name, e.Needed, e.Weights, e.KV, states, e.Workspace, e.Staging, e.Free, advice)
	if len(e.Idle) == 0 {
		return text
	}
	var idle []string
	for _, i := range e.Idle {
		idle = append(idle, fmt.Sprintf("%q (%d bytes, unused for %v)", i.Name, i.Bytes, i.Age.Round(time.Millisecond)))
	}
	return text + "; idle and not pinned: " + strings.Join(idle, ", ")
}

// Unwrap returns ErrNoFit.
func (e *FitError) Unwrap() error { return ErrNoFit }

const (
	// defaultContexts is how many contexts the default KV cache holds, within a quarter of the free
	// memory: other models need memory too.
	defaultContexts = 8
	// wantedShare is how many tokens the default KV cache has for each sequence, within the same
	// quarter.
	wantedShare = 1024
	// minShare is how many it must have for each sequence if there are more than minSequences.
	minShare = 256
	// minSequences is the number of sequences that is planned for even if the cache is small.
	minSequences = 16
	// stateShare is the part of the free memory that the states of all sequences may take if there
	// are more than minSequences, and savedShare the part that saved ones may take of it, and of the
	// memory that the cache leaves, at most savedPerSequence of them for each sequence.
	stateShare, savedShare, savedPerSequence = 4, 8, 4
	// windowShare is how many windows of tokens the cache has for each sequence that the window
	// group is sized for, at least wantedShare tokens.
	windowShare = 4
	// minContext is the shortest useful sequence, in tokens, if no context was requested.
	minContext = 2048
	// maxBlocks keeps block ids within 32 bits.
	maxBlocks = 1 << 30
)

// planner chooses the configuration of a model's runner.
type planner struct {
	cfg        Config
	options    Options
	maxContext int         // longest sequence of the model, in tokens
	kv         engine.Type // type of the cache
	free       uint64      // bytes left for KV cache and workspace
	hiddenRows int         // of a step
	window     int         // of the window group, in positions; 0: no layer is in it
	cost       func(engine.RunnerConfig) (engine.RunnerCost, error)
}

// plan returns the runner's configuration without host blocks, and the longest sequence that it
// serves. If the number of sequences was not chosen by a person, plan halves it until the cache has
// minShare tokens for each: a batch that the cache cannot feed would waste workspace.
func (p *planner) plan(sequences int, chosen bool) (engine.RunnerConfig, int, engine.RunnerCost, error) {
	if !chosen {
		sequences = min(sequences, p.cfg.MaxBatchedTokens)
	}
	for {
		r, context, price, err := p.planFor(sequences)
		fits := r.KVBlocks >= sequences*p.blocks(min(context, minShare)) && price.BytesPerState*uint64(sequences) <= p.free/stateShare
		if err != nil || chosen || sequences <= minSequences || fits {
			return r, context, price, err
		}
		sequences = max(sequences/2, minSequences)
	}
}

// blocks is how many blocks hold this many tokens.
func (p *planner) blocks(tokens int) int { return (tokens + p.cfg.BlockSize - 1) / p.cfg.BlockSize }

// planFor is plan for a fixed number of sequences.
func (p *planner) planFor(sequences int) (engine.RunnerConfig, int, engine.RunnerCost, error) {
	r := engine.RunnerConfig{
		KVBlocks: 1, BlockSize: p.cfg.BlockSize, MaxSequences: sequences, MaxBatchedTokens: max(p.cfg.MaxBatchedTokens, sequences),
		MaxSampleRows: sequences, MaxScoreRows: maxScoreRows, MaxTopN: maxTopN, KVType: p.kv, ActType: p.options.ActType,
		MaxHiddenRows: p.hiddenRows,
	}
	price, err := p.priceGroups(&r)
	if err != nil {
		return r, 0, price, err
	}
	asked := p.options.KVTokens > 0 || p.options.Context > 0
	room := func() int { return p.room(r, price, asked) }
	context := p.maxContext
	if p.options.Context > 0 {
		context = int(p.options.Context)
	}
	want := p.blocks(context)
	wish := min(max(want*defaultContexts, sequences*p.blocks(min(context, wantedShare))), room()/4)
	switch {
	case p.options.KVTokens > 0:
		want = p.blocks(int(p.options.KVTokens))
	case p.options.Context > 0:
		want = max(want, wish)
	default:
		// The full context is desired but not required: a smaller cache serves shorter sequences.
		want = max(min(want, room()), wish, min(p.blocks(minContext), want))
	}
	r.KVBlocks = min(want, maxBlocks)
	price, err = p.cost(r)
	if err == nil && !asked && r.KVBlocks > room() {
		// The workspace grows with the positions that a cache holds, so room was that of a smaller one.
		r.KVBlocks = max(min(r.KVBlocks, room()), min(p.blocks(minContext), want))
		price, err = p.cost(r)
	}
	if err == nil && r.WindowBlocks > 0 {
		price, err = p.sizeWindows(&r, price)
	}
	// Saved states only save work, so they get what the cache leaves.
	if used := price.KVBytes + price.WorkspaceBytes; err == nil && price.BytesPerState > 0 && used < p.free {
		r.SavedStates = int(min(min(p.free/savedShare, p.free-used)/price.BytesPerState, uint64(savedPerSequence*sequences)))
		price, err = p.cost(r)
	}
	return r, min(context, r.KVBlocks*p.cfg.BlockSize), price, err
}

// priceGroups returns the cost of a runner of one block, with the least window group if the layers
// and the engine have one.
func (p *planner) priceGroups(r *engine.RunnerConfig) (engine.RunnerCost, error) {
	if p.window > 0 {
		r.WindowBlocks = p.windowBlocks(1)
		price, err := p.cost(*r)
		if !errors.Is(err, engine.ErrUnsupported) {
			return price, err
		}
		r.WindowBlocks = 0
	}
	return p.cost(*r)
}

// windowBlocks is how many blocks the window group needs for that many sequences: a window and a
// block each, and one prefill chunk.
func (p *planner) windowBlocks(sequences int) int {
	return sequences*(p.blocks(p.window)+1) + p.blocks(min(p.cfg.MaxBatchedTokens, max(wantedShare, p.window)))
}

// sizeWindows gives the window group the blocks for the sequences that the cache has tokens for, as
// far as there is memory. Price is the cost with the least group. If it had as many blocks as the
// other group, one group is as good.
func (p *planner) sizeWindows(r *engine.RunnerConfig, price engine.RunnerCost) (engine.RunnerCost, error) {
	share := max(wantedShare, windowShare*p.window)
	want := p.windowBlocks(min(max(r.KVBlocks*p.cfg.BlockSize/share, 1), r.MaxSequences))
	if used := price.KVBytes + price.WorkspaceBytes; used < p.free {
		more := (p.free - used) / max(price.BytesPerWindowBlock, 1)
		r.WindowBlocks += int(min(uint64(max(want-r.WindowBlocks, 0)), more))
	}
	if r.WindowBlocks >= r.KVBlocks {
		r.WindowBlocks = 0
	}
	return p.cost(*r)
}

// room returns the number of blocks that fit into the memory that the workspace and the states of a
// runner leave, and its least window group. If no size of the cache was requested, it also leaves
// the part of saved states, and a quarter for the window group if that can use it.
func (p *planner) room(r engine.RunnerConfig, price engine.RunnerCost, asked bool) int {
	taken := price.WorkspaceBytes + price.BytesPerState*uint64(r.MaxSequences)
	if !asked && price.BytesPerState > 0 {
		taken += min(p.free/savedShare, price.BytesPerState*uint64(savedPerSequence*r.MaxSequences))
	}
	if r.WindowBlocks > 0 {
		least := uint64(r.WindowBlocks+1) * price.BytesPerWindowBlock
		taken += least
		if all := uint64(p.windowBlocks(r.MaxSequences)) * price.BytesPerWindowBlock; !asked {
			taken += min(all-min(all, least), p.free/4)
		}
	}
	if p.free <= taken {
		return 0
	}
	return int(min((p.free-taken)/max(price.BytesPerBlock, 1), maxBlocks))
}
