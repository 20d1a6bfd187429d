package gauge

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Mix is how a model is used: so many sequences at once, each of a prompt and of tokens generated; another begins when one ends.
type Mix struct {
	Sequences int `json:"sequences"`
	Prompt    int `json:"prompt_tokens"`
	Tokens    int `json:"generated_tokens"`
}

var mixShape = regexp.MustCompile(`^([0-9]{1,7})x([0-9]{1,7})/([0-9]{1,7})$`)

// ParseMix reads a mix as String writes it; every number is at least 1.
func ParseMix(s string) (Mix, error) {
	m, numbers := Mix{}, mixShape.FindStringSubmatch(s)
	if numbers == nil {
		return m, fmt.Errorf("mix %q: want SEQUENCESxPROMPT/TOKENS, such as 64x128/256", s)
	}
	for i, to := range []*int{&m.Sequences, &m.Prompt, &m.Tokens} {
		if *to, _ = strconv.Atoi(numbers[i+1]); *to < 1 { // digits, and few
			return m, fmt.Errorf("mix %q: every number must be at least 1", s)
		}
	}
	return m, nil
}

// String is SEQUENCESxPROMPT/TOKENS.
func (m Mix) String() string { return fmt.Sprintf("%dx%d/%d", m.Sequences, m.Prompt, m.Tokens) }

// Mixed is what steps of a mix did.
type Mixed struct {
	Phase
	Generated int           // tokens
	Device    time.Duration // of Time, that in which a step was on the device
}

// Mixture plays a mix on one runner, two steps in flight, without a step loop: what a server of the mix might reach.
type Mixture struct {
	cfg        Config // of the mix; its Tokens may be 1
	runner     engine.Runner
	prompts    map[int][]int32 // by number of the sequence
	places     []place
	generation uint32
	next       int // number of the sequence that begins next
	flights    [][]int
	first      []int32 // tokens of sequence 0
}

// place is where one sequence after another is computed; its blocks are its own.
type place struct {
	sequence   int // -1: empty
	generation uint32
	done       int // positions of the prompt computed
	sampled    int // tokens sampled
}

// MixConfig is the configuration whose Runner a Mixture wants: sequence i of it has the prompt that it has in a Gauge.
func MixConfig(mix Mix, vocabulary int, seed uint64, kv engine.Type, stepTokens int) Config {
	return Config{
		Prompt: mix.Prompt, Tokens: mix.Tokens, Batch: mix.Sequences, Vocabulary: vocabulary, Seed: seed, KVType: kv, Depth: 2,
		StepTokens: stepTokens,
	}
}

// NewMixture returns a Mixture on a runner made with cfg.Runner(), which it does not close.
func NewMixture(cfg Config, runner engine.Runner) *Mixture {
	return &Mixture{cfg: cfg, runner: runner, prompts: map[int][]int32{}, places: make([]place, cfg.Batch)}
}

// Play computes count sequences, as many at once as there may be, and gives what the steps did and the tokens of sequence 0,
// which are valid until the next Play. After an error the Mixture is of no more use.
func (m *Mixture) Play(ctx context.Context, count int) (did Mixed, first []int32, err error) {
	m.next, m.first = 0, m.first[:0]
	for i := range m.places {
		m.places[i].sequence = -1
	}
	for i := range count {
		if m.prompts[i] == nil {
			m.prompts[i] = Prompt(m.cfg.Seed, i, m.cfg.Prompt, m.cfg.Vocabulary)
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

func (d *Mixed) count(step *engine.Step) {
	for i := range step.Segments {
		d.Positions += len(step.Segments[i].Tokens)
	}
	d.Samples += len(step.Samples)
	d.Steps++
}

// step makes the next step: a token of every sequence that decodes, then as much of prompts as it holds. No result is needed for
// that: the tokens are those that the step before sampled. It gives the number of the sequence of each sample, too.
func (m *Mixture) step(count int) (step *engine.Step, samples []int) {
	step = &engine.Step{}
	room := m.cfg.Runner().MaxBatchedTokens
	add := func(i, n int, s engine.Segment) {
		p := &m.places[i]
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
	for i := range m.places {
		if p := &m.places[i]; p.sequence >= 0 && p.done == m.cfg.Prompt {
			add(i, 1, engine.Segment{
				Class: engine.Decode, FirstPosition: int32(m.cfg.Prompt + p.sampled - 1), Tokens: []int32{engine.PreviousSample},
			})
		}
	}
	decoded := len(step.Segments)
	inStep := make([]bool, len(m.places))
	for _, s := range step.Segments[:decoded] {
		inStep[s.Slot] = true
	}
	for i := range m.places {
		p := &m.places[i]
		if room <= 0 {
			break
		}
		if inStep[i] {
			continue // one that ended in this step leaves its place in the next
		}
		if p.sequence < 0 {
			if m.next == count {
				continue
			}
			m.generation++
			*p = place{sequence: m.next, generation: m.generation}
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

// table is the part of a place's block table that covers so many positions.
func (m *Mixture) table(place, positions int) []int32 {
	out := make([]int32, (positions+blockSize-1)/blockSize)
	for i := range out {
		out[i] = int32(place*m.cfg.blocks() + i)
	}
	return out
}

// wait takes the oldest step's results.
func (m *Mixture) wait(did *Mixed) error {
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
			return fmt.Errorf("%w: sequence %d, position %d, status %d", ErrRow, sequences[i], row.Position, row.Status)
		}
		if sequences[i] == 0 {
			m.first = append(m.first, row.Token)
		}
	}
	return nil
}
