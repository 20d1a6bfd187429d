package sametest

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/gpuworker/engine"
)

// bed is a device with the models and runners that scenarios want, each made when it is first asked for and kept. One goroutine
// uses it.
type bed struct {
	device  engine.Device
	cache   engine.Type // of every runner; zero = each model's own
	models  [len(models)]engine.Model
	runners map[[2]int]engine.Runner // by model and layout
	alone   map[int]*solo            // by model
}

func newBed(device engine.Device, cache engine.Type) *bed {
	return &bed{device: device, cache: cache, runners: map[[2]int]engine.Runner{}, alone: map[int]*solo{}}
}

func (b *bed) model(i int) (engine.Model, error) {
	if b.models[i] != nil {
		return b.models[i], nil
	}
	w := models[i].weights(uint64(i))
	m, err := b.device.NewModel(w.Desc)
	if err != nil {
		return nil, err
	}
	b.models[i] = m // closed with the bed, whole or not
	for _, t := range w.Tensors {
		buffer, err := b.device.Alloc(uint64(len(t.Bytes)), engine.Staging)
		if err != nil {
			return nil, err
		}
		if _, err := buffer.WriteAt(t.Bytes, 0); err != nil {
			return nil, err
		}
		if err := m.Bind(t.TensorDesc, buffer); err != nil {
			return nil, err
		}
	}
	return m, m.Seal()
}

// computed returns the models of [first, end) that the device does not refuse. No engine has a cache
// of f8 for latents.
func (b *bed) computed(first, end int) (computed []int, err error) {
	for i := first; i < end; i++ {
		if b.cache == engine.F8 && models[i].latent() {
			continue
		}
		m, err := b.device.NewModel(models[i].desc)
		if errors.Is(err, engine.ErrUnsupported) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := m.Close(); err != nil {
			return nil, err
		}
		computed = append(computed, i)
	}
	return computed, nil
}

func (b *bed) runner(model, layout int) (engine.Runner, error) {
	at := [2]int{model, layout}
	if r := b.runners[at]; r != nil {
		return r, nil
	}
	m, err := b.model(model)
	if err != nil {
		return nil, fmt.Errorf("model %q: %w", models[model].name, err)
	}
	cfg := b.sizes(model, layout)
	r, err := m.NewRunner(cfg)
	if err != nil {
		return nil, fmt.Errorf("model %q, layout %d: %w", models[model].name, layout, err)
	}
	b.runners[at] = r
	return r, nil
}

func (b *bed) sizes(model, layout int) engine.RunnerConfig {
	cfg := sized(layout, &models[model])
	if b.cache != engine.F32 {
		cfg.KVType = b.cache
	}
	return cfg
}

// solve gives what an ask gives alone.
func (b *bed) solve(a *ask) (answer, error) {
	s := b.alone[a.model]
	if s == nil {
		r, err := b.runner(a.model, layoutAlone)
		if err != nil {
			return answer{}, err
		}
		s = &solo{runner: r, cfg: b.sizes(a.model, layoutAlone)}
		b.alone[a.model] = s
	}
	return s.solve(a)
}

// close takes everything down; the device must be empty then.
func (b *bed) close() error {
	for _, r := range b.runners {
		if err := r.Close(); err != nil {
			return err
		}
	}
	for _, m := range b.models {
		if m == nil {
			continue
		}
		if err := m.Close(); err != nil {
			return err
		}
	}
	return b.device.Close()
}
