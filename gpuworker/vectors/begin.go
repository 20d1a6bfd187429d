package vectors

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Begin reserves all the memory of a training. If it cannot, it returns why and holds none. The
// caller must close the training.
func (m *Manager) Begin(job Job) (*Training, error) {
	if err := m.usable(); err != nil {
		return nil, err
	}
	if job.SaveAs != "" {
		if err := m.nameFree(job); err != nil {
			return nil, err
		}
	}
	if job.ResumeBytes > 0 && !job.canResume(job.ResumeBytes) {
		return nil, fmt.Errorf("%w: no state of it has %d bytes", ErrCheckpoint, job.ResumeBytes)
	}
	if m.cfg.MaxTrainings == 0 {
		return nil, ErrNoTrainings
	}
	cfg := job.Trainer
	cfg.Rows = job.Sampled()
	t := &Training{m: m, job: job, prologueLeft: job.prologue(), begun: time.Now(), pace: pace{share: m.cfg.Share},
		ended: errUnfinished,
	}
	if job.Sampled() < job.Rows {
		t.sample = newSampler(cfg.Seed, cfg.Rows, job.Rows)
	}
	if err := m.enter(t, cfg); err != nil {
		return nil, err
	}
	return t, nil
}

// nameFree refuses a job whose name certainly belongs to another codebook. Whether the bytes are
// the same is known only when the codebook is trained.
func (m *Manager) nameFree(job Job) error {
	if err := CheckName(job.SaveAs); err != nil {
		return err
	}
	found, err := m.files.read(job.SaveAs)
	switch {
	case errors.Is(err, ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("%w: %q: %w", ErrExists, job.SaveAs, err)
	case found.Desc != job.Trainer.Codebook:
		return fmt.Errorf("%w: %q is a codebook of another shape", ErrExists, job.SaveAs)
	}
	return nil
}

// enter counts a training and makes its trainer.
func (m *Manager) enter(t *Training, cfg engine.TrainerConfig) error {
	m.admission.Lock()
	defer m.admission.Unlock()
	m.mu.Lock()
	running, free := m.mu.trainings, m.cfg.SpoolSpace-m.mu.spool
	m.mu.Unlock()
	if running >= m.cfg.MaxTrainings {
		return fmt.Errorf("%w: %d", ErrTooMany, running)
	}
	cfg.SpoolBytes = free
	cost, err := m.engine.TrainerCost(cfg)
	if err != nil {
		return err
	}
	if err := m.fit("the training", cost.DeviceBytes, cost.SpoolBytes, free); err != nil {
		return err
	}
	if t.trainer, err = m.engine.NewTrainer(cfg); err != nil {
		if short := m.fit("the training", cost.DeviceBytes, cost.SpoolBytes, free); errors.Is(err, engine.ErrOutOfMemory) && short != nil {
			return short
		}
		return err
	}
	t.cost = cost
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.trainings++
	m.mu.bytes += cost.DeviceBytes
	m.mu.spool += cost.SpoolBytes
	return nil
}

// fit returns a *FitError if that much memory is not free.
func (m *Manager) fit(what string, device, spool, freeSpool uint64) error {
	info, err := m.device.Info()
	if err != nil {
		return err
	}
	if free := info.FreeOnOne(); device > free || spool > freeSpool {
		return &FitError{What: what, Needed: device, Free: free, Spool: spool, FreeSpool: freeSpool}
	}
	return nil
}

// leave uncounts a training whose memory has been freed.
func (m *Manager) leave(t *Training) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.trainings--
	m.mu.bytes -= t.cost.DeviceBytes
	m.mu.spool -= t.cost.SpoolBytes
	c := &m.counted
	switch {
	case t.ended == nil:
		c.finished.Add(1)
	case errors.Is(t.ended, context.Canceled):
		c.cancelled.Add(1)
	default:
		c.failed.Add(1)
	}
}
