package enginetest

import (
	"fmt"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

func (d *device) vectors() (engine.Vectors, error) {
	if own, ok := d.Device.(engine.Vectors); ok {
		return own, nil
	}
	return nil, fmt.Errorf("vector codebooks: %w", engine.ErrUnsupported)
}

func (d *device) TrainerCost(cfg engine.TrainerConfig) (engine.TrainerCost, error) {
	own, err := d.vectors()
	if err != nil {
		return engine.TrainerCost{}, err
	}
	return own.TrainerCost(cfg)
}

func (d *device) NewTrainer(cfg engine.TrainerConfig) (engine.Trainer, error) {
	own, err := d.vectors()
	if err != nil {
		return nil, err
	}
	if d.hooks.NewTrainer != nil {
		if err := d.hooks.NewTrainer(cfg); err != nil {
			return nil, err
		}
	}
	tr, err := own.NewTrainer(cfg)
	if err != nil || d.hooks.Trained == nil {
		return tr, err
	}
	return &trainer{Trainer: tr, hooks: d.hooks}, nil
}

func (d *device) NewCodebook(desc engine.CodebookDesc, codewords []byte) (engine.Codebook, error) {
	own, err := d.vectors()
	if err != nil {
		return nil, err
	}
	book, err := own.NewCodebook(desc, codewords)
	if err != nil || d.hooks.Encoded == nil {
		return book, err
	}
	return &codebook{Codebook: book, hooks: d.hooks}, nil
}

// trainer is a trainer with a hook on the end of each slice and on each result.
type trainer struct {
	engine.Trainer
	hooks Hooks
}

func (t *trainer) Wait(timeout time.Duration) (engine.Training, error) {
	told, err := t.Trainer.Wait(timeout)
	t.hooks.Trained(&Outcome{Rounds: told.Rounds})
	return told, err
}

func (t *trainer) IDs() ([]uint32, error) {
	ids, err := t.Trainer.IDs()
	t.hooks.Trained(&Outcome{IDs: ids})
	return ids, err
}

func (t *trainer) Loads() ([]uint64, error) {
	loads, err := t.Trainer.Loads()
	t.hooks.Trained(&Outcome{Loads: loads})
	return loads, err
}

func (t *trainer) Variances() ([]float64, error) {
	variances, err := t.Trainer.Variances()
	t.hooks.Trained(&Outcome{Variances: variances})
	return variances, err
}

func (t *trainer) Codewords() ([]byte, error) {
	codewords, err := t.Trainer.Codewords()
	t.hooks.Trained(&Outcome{Codewords: codewords})
	return codewords, err
}

func (t *trainer) State() ([]byte, error) {
	state, err := t.Trainer.State()
	t.hooks.Trained(&Outcome{State: state})
	return state, err
}

type codebook struct {
	engine.Codebook
	hooks Hooks
}

func (b *codebook) Encode(e engine.Encoding) (engine.Codes, error) {
	codes, err := b.Codebook.Encode(e)
	if err == nil {
		b.hooks.Encoded(&codes)
	}
	return codes, err
}
