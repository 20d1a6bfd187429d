package enginebench

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/services/bench/internal/gauge"
	"github.com/millrace/millrace/services/bench/internal/roof"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// mixRounds is how many sequences each place of a mix computes in a repeat: the second begins beside others that decode.
const mixRounds = 2

// mixed is what was taken of one mix.
type mixed struct {
	mix     gauge.Mix
	repeats []gauge.Mixed
	read    []float64 // roof of reading beside each repeat, bytes a second; 0 = not known
}

// mix plays mix number i on a runner of its own. tokensErr says that sequence 0 has not the tokens that Generate gives.
func (r *run) mix(ctx context.Context, model engine.Model, i int) (out mixed, tokensErr, err error) {
	out.mix = r.cfg.Mixes[i]
	cfg := gauge.MixConfig(out.mix, r.spec.Desc.Vocab, r.cfg.Seed, r.kv, r.stepTokens)
	runner, err := model.NewRunner(cfg.Runner())
	if err != nil {
		return out, nil, fmt.Errorf("mix %s: %w", out.mix, err)
	}
	defer func() { err = errors.Join(err, runner.Close()) }()
	m := gauge.NewMixture(cfg, runner)
	r.tell("mix %s: warming up", out.mix)
	if _, _, err := m.Play(ctx, out.mix.Sequences); err != nil {
		return out, nil, fmt.Errorf("mix %s: %w", out.mix, err)
	}
	beside, err := r.readRoof()
	if err != nil {
		return out, nil, err
	}
	for n := range r.cfg.Repeat {
		r.tell("mix %s: %d of %d", out.mix, n+1, r.cfg.Repeat)
		did, tokens, err := m.Play(ctx, mixRounds*out.mix.Sequences)
		if err != nil {
			return out, nil, fmt.Errorf("mix %s: %w", out.mix, err)
		}
		if want := r.mixTokens[i]; !slices.Equal(tokens, want) {
			tokensErr = fmt.Errorf("%w: sequence 0 of mix %s has digest %.16s, Generate gives %.16s", ErrTokens, out.mix,
				gauge.Digest(tokens), gauge.Digest(want))
		}
		earlier := beside
		if beside, err = r.readRoof(); err != nil {
			return out, nil, err
		}
		out.repeats, out.read = append(out.repeats, did), append(out.read, max(earlier, beside))
	}
	return out, tokensErr, nil
}

// figure sums the repeats up.
func (m *mixed) figure(work roof.Work, roofs roof.Roofs, cache uint64) Mix {
	phases := make([]gauge.Phase, len(m.repeats))
	rates, idle := make([]float64, len(m.repeats)), make([]float64, len(m.repeats))
	for i, did := range m.repeats {
		phases[i] = did.Phase
		rates[i] = float64(did.Generated) / did.Time.Seconds()
		idle[i] = max(1-did.Device.Seconds()/did.Time.Seconds(), 0)
	}
	return Mix{
		Mix: m.mix, Generated: stats.SpreadOf(rates), Idle: stats.SpreadOf(idle).Median,
		Line: line("mix", m.mix.Sequences, phases, m.read, work, roofs, cache),
	}
}
