package engine

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/services/bench/internal/device"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// Mix is a load of a model: a number of concurrent sequences, each with a prompt and with tokens
// generated. When one ends, another begins.
type Mix struct {
	Sequences int `json:"sequences"`
	Prompt    int `json:"prompt_tokens"`
	Tokens    int `json:"generated_tokens"`
}

var mixShape = regexp.MustCompile(`^([0-9]{1,7})x([0-9]{1,7})/([0-9]{1,7})$`)

// ParseMix parses the format of String. Every number must be at least 1.
func ParseMix(s string) (Mix, error) {
	m, numbers := Mix{}, mixShape.FindStringSubmatch(s)
	if numbers == nil {
		return m, fmt.Errorf("mix %q: want SEQUENCESxPROMPT/TOKENS, such as 64x128/256", s)
	}
	for i, field := range []*int{&m.Sequences, &m.Prompt, &m.Tokens} {
		if *field, _ = strconv.Atoi(numbers[i+1]); *field < 1 { // digits, and few
			return m, fmt.Errorf("mix %q: every number must be at least 1", s)
		}
	}
	return m, nil
}

// String returns SEQUENCESxPROMPT/TOKENS.
func (m Mix) String() string { return fmt.Sprintf("%dx%d/%d", m.Sequences, m.Prompt, m.Tokens) }

// mixPhase is the work and time of the steps of a mix.
type mixPhase struct {
	phase
	Generated int           // tokens
	Device    time.Duration // the part of Time with a step on the device
}

// mixPlayer computes a mix on one runner with two steps in flight and without a step loop. Its
// rate is the upper bound of a server with that mix.
type mixPlayer struct {
	cfg        playConfig // of the mix; its Tokens may be 1
	runner     engine.Runner
	prompts    map[int][]int32 // by index of the sequence
	slots      []slot
	generation uint32
	next       int // index of the sequence that begins next
	flights    [][]int
	first      []int32 // tokens of sequence 0
}

// slot is where one sequence after another is computed, with its own KV blocks.
type slot struct {
	sequence   int // -1: empty
	generation uint32
	done       int // positions of the prompt computed
	sampled    int // tokens sampled
}

// mixConfig returns the configuration of a mixPlayer. Its sequence i has the same prompt as in a
// batchPlayer.
func mixConfig(mix Mix, vocabulary int, seed uint64, kv engine.Type, stepTokens int) playConfig {
	return playConfig{
		Prompt: mix.Prompt, Tokens: mix.Tokens, Batch: mix.Sequences, Vocabulary: vocabulary, Seed: seed, KVType: kv, Depth: 2,
		StepTokens: stepTokens,
	}
}

// newMixPlayer returns a player on a runner made with cfg.Runner(), which it does not close.
func newMixPlayer(cfg playConfig, runner engine.Runner) *mixPlayer {
	return &mixPlayer{cfg: cfg, runner: runner, prompts: map[int][]int32{}, slots: make([]slot, cfg.Batch)}
}

// Play computes count sequences, as many at once as the mix has, and returns the work of the steps
// and the tokens of sequence 0, which are valid until the next Play. The player must not be used
// after an error.
func (m *mixPlayer) Play(ctx context.Context, count int) (did mixPhase, first []int32, err error) {
	m.next, m.first = 0, m.first[:0]
	for i := range m.slots {
		m.slots[i].sequence = -1
	}
	for i := range count {
		if m.prompts[i] == nil {
			m.prompts[i] = randomPrompt(m.cfg.Seed, i, m.cfg.Prompt, m.cfg.Vocabulary)
		}
	}
	begin := time.Now()
	for more := true; more || len(m.flights) > 0; {
		for more && len(m.flights) < m.cfg.Depth {
			if err := ctx.Err(); err != nil {
				return did, nil, err
			}
			step, samples := m.step(count)
			if more = len(step.Segments) > 0; !more {
				break
			}
			if err := m.runner.Submit(step); err != nil {
				return did, nil, fmt.Errorf("submit step: %w", err)
			}
			m.flights = append(m.flights, samples)
			did.count(step)
		}
		if len(m.flights) == 0 {
			break
		}
		if err := m.wait(&did); err != nil {
			return did, nil, err
		}
	}
	did.Time = time.Since(begin)
	return did, m.first, nil
}

func (d *mixPhase) count(step *engine.Step) {
	for i := range step.Segments {
		d.Positions += len(step.Segments[i].Tokens)
	}
	d.Samples += len(step.Samples)
	d.Steps++
}

// step returns the next step: one token of every sequence that decodes, then as much of the
// prompts as fits. It needs no result, because the runner itself takes the tokens that the step
// before sampled. It also returns the sequence index of each sample.
func (m *mixPlayer) step(count int) (step *engine.Step, samples []int) {
	step = &engine.Step{}
	room := m.cfg.Runner().MaxBatchedTokens
	add := func(i, n int, s engine.Segment) {
		p := &m.slots[i]
		s.Slot, s.SlotGeneration = int32(i), p.generation
		s.Blocks = m.table(i, int(s.FirstPosition)+len(s.Tokens))
		step.Segments = append(step.Segments, s)
		room -= n
		if p.done < m.cfg.Prompt {
			return
		}
		step.Samples = append(step.Samples, engine.SampleRow{
			TokenIndex: int32(m.cfg.Runner().MaxBatchedTokens - room - 1), Slot: int32(i), SlotGeneration: p.generation,
			Position: s.FirstPosition + int32(len(s.Tokens)),
		})
		samples = append(samples, p.sequence)
		if p.sampled++; p.sampled == m.cfg.Tokens {
			p.sequence = -1
		}
	}
	for i := range m.slots {
		if p := &m.slots[i]; p.sequence >= 0 && p.done == m.cfg.Prompt {
			add(i, 1, engine.Segment{
				Class: engine.Decode, FirstPosition: int32(m.cfg.Prompt + p.sampled - 1), Tokens: []int32{engine.PreviousSample},
			})
		}
	}
	decoded := len(step.Segments)
	inStep := make([]bool, len(m.slots))
	for _, s := range step.Segments[:decoded] {
		inStep[s.Slot] = true
	}
	for i := range m.slots {
		p := &m.slots[i]
		if room <= 0 {
			break
		}
		if inStep[i] {
			continue // a sequence that ends in this step frees its slot for the next
		}
		if p.sequence < 0 {
			if m.next == count {
				continue
			}
			m.generation++
			*p = slot{sequence: m.next, generation: m.generation}
			m.next++
			step.PreOps = append(step.PreOps, engine.PreOp{Slot: int32(i), SlotGeneration: p.generation, Params: greedy(m.cfg.Prompt)})
		}
		from, n := p.done, min(room, m.cfg.Prompt-p.done)
		p.done += n
		add(i, n, engine.Segment{
			Class: engine.Prefill, FirstPosition: int32(from), Tokens: m.prompts[p.sequence][from : from+n],
		})
	}
	return step, samples
}

// table returns the part of a slot's block table that covers the first positions.
func (m *mixPlayer) table(slot, positions int) []int32 {
	out := make([]int32, (positions+blockSize-1)/blockSize)
	for i := range out {
		out[i] = int32(slot*m.cfg.blocks() + i)
	}
	return out
}

// wait receives the results of the oldest step.
func (m *mixPlayer) wait(did *mixPhase) error {
	result, err := m.runner.Wait(stepTimeout)
	if err != nil {
		return fmt.Errorf("wait for step: %w", err)
	}
	sequences := m.flights[0]
	m.flights = append(m.flights[:0], m.flights[1:]...)
	did.Bytes += result.BytesRead
	did.Device += result.DeviceTime
	did.Generated += len(result.Samples)
	for i := range result.Samples {
		row := &result.Samples[i]
		if row.Status != engine.RowOK {
			return fmt.Errorf("%w: sequence %d, position %d, status %d", errRow, sequences[i], row.Position, row.Status)
		}
		if sequences[i] == 0 {
			m.first = append(m.first, row.Token)
		}
	}
	return nil
}

// mixRounds is the number of sequences in each slot of a mix in a repeat. The second one begins
// while others decode.
const mixRounds = 2

// mixed is the measurements of one mix.
type mixed struct {
	mix     Mix
	repeats []mixPhase
	read    []float64 // roof of reading around each repeat, bytes a second; 0: unknown
}

// mix plays mix i on its own runner. tokensErr is set if sequence 0 has other tokens than
// generate.Run gives.
func (r *run) mix(ctx context.Context, model engine.Model, i int) (out mixed, tokensErr, err error) {
	out.mix = r.cfg.Mixes[i]
	cfg := mixConfig(out.mix, r.spec.Desc.Vocab, r.cfg.Seed, r.kv, r.stepTokens)
	runner, err := model.NewRunner(cfg.Runner())
	if err != nil {
		return out, nil, fmt.Errorf("mix %s: %w", out.mix, err)
	}
	defer func() { err = errors.Join(err, runner.Close()) }()
	m := newMixPlayer(cfg, runner)
	r.progress("mix %s: warming up", out.mix)
	if _, _, err := m.Play(ctx, out.mix.Sequences); err != nil {
		return out, nil, fmt.Errorf("mix %s: %w", out.mix, err)
	}
	beside, err := r.readRoof()
	if err != nil {
		return out, nil, err
	}
	for n := range r.cfg.Repeat {
		r.progress("mix %s: %d of %d", out.mix, n+1, r.cfg.Repeat)
		did, tokens, err := m.Play(ctx, mixRounds*out.mix.Sequences)
		if err != nil {
			return out, nil, fmt.Errorf("mix %s: %w", out.mix, err)
		}
		if want := r.mixTokens[i]; !slices.Equal(tokens, want) {
			tokensErr = fmt.Errorf("%w: sequence 0 of mix %s has digest %.16s, Generate gives %.16s", ErrTokens, out.mix,
				digestTokens(tokens), digestTokens(want))
		}
		earlier := beside
		if beside, err = r.readRoof(); err != nil {
			return out, nil, err
		}
		out.repeats, out.read = append(out.repeats, did), append(out.read, max(earlier, beside))
	}
	return out, tokensErr, nil
}

// figure summarises the repeats.
func (m *mixed) figure(work Work, roofs device.Roofs, cache uint64) MixResult {
	phases := make([]phase, len(m.repeats))
	rates, idle := make([]float64, len(m.repeats)), make([]float64, len(m.repeats))
	for i, did := range m.repeats {
		phases[i] = did.phase
		rates[i] = float64(did.Generated) / did.Time.Seconds()
		idle[i] = max(1-did.Device.Seconds()/did.Time.Seconds(), 0)
	}
	return MixResult{
		Mix: m.mix, Generated: stats.SpreadOf(rates), Idle: stats.SpreadOf(idle).Median,
		Line: line("mix", m.mix.Sequences, phases, m.read, work, roofs, cache),
	}
}
