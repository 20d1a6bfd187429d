package vectors

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/semaphore"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Manager owns the codebooks and trainings of one device. Safe for concurrent use.
type Manager struct {
	cfg       Config
	device    engine.Device
	engine    engine.Vectors // nil if the device supports none
	files     *catalog
	logger    hclog.Logger
	ctx       context.Context
	stop      context.CancelFunc
	work      sync.WaitGroup
	change    *semaphore.Weighted // held while a codebook is loaded or unloaded: one at a time
	calls     *semaphore.Weighted // one for each Encode or Decode on the device
	computing *semaphore.Weighted // held by the training that computes while models have work
	counted   counters

	admission sync.Mutex    // held while memory is measured and reserved, because that asks the device
	arriving  atomic.Uint64 // bytes of codebooks in the middle of a put, on the device and on the host: <= PutSpace; written under admission

	mu struct {
		sync.Mutex
		stopped   bool
		trainings int
		bytes     uint64               // device bytes of trainings
		spool     uint64               // host bytes of trainings
		books     map[string]*Codebook // loaded ones, by name
		refused   []closer             // memory that the device did not take back
	}
}

type closer interface{ Close() error }

// NewManager returns a manager over a device, which it does not close. Close it. If the device does
// not support vector codebooks, every method returns engine.ErrUnsupported.
func NewManager(cfg Config, device engine.Device, logger hclog.Logger) *Manager {
	cfg.Share = cmp.Or(cfg.Share, defaultShare)
	cfg.PutSpace = cmp.Or(cfg.PutSpace, defaultPutSpace)
	if cfg.Tokens == nil {
		cfg.Tokens = func() Tokens { return Tokens{} }
	}
	m := &Manager{
		cfg: cfg, device: device, engine: ability(device), files: newCatalog(cfg.Dir), logger: logger.Named("vectors"),
		change: semaphore.NewWeighted(1), calls: semaphore.NewWeighted(int64(runtime.GOMAXPROCS(0))), computing: semaphore.NewWeighted(1),
	}
	m.ctx, m.stop = context.WithCancel(context.Background())
	m.mu.books = map[string]*Codebook{}
	if m.engine != nil {
		m.work.Go(m.files.sweep)
	}
	if m.engine != nil && cfg.VerifyInterval > 0 {
		m.work.Go(func() { m.watch(m.ctx) })
	}
	return m
}

// ability returns the device's vectors, or nil. A device that implements them may still not support
// them.
func ability(device engine.Device) engine.Vectors {
	v, ok := device.(engine.Vectors)
	if !ok {
		return nil
	}
	_, err := v.TrainerCost(engine.TrainerConfig{
		Codebook: engine.CodebookDesc{Dimension: 1, Codewords: 2, Subspaces: 1}, Rows: 2, StableRounds: 1, EnergyTolerance: -1, MinChanges: -1,
	})
	if errors.Is(err, engine.ErrUnsupported) {
		return nil
	}
	return v
}

// Supported reports whether the device supports vector codebooks.
func (m *Manager) Supported() bool { return m.engine != nil }

// usable returns an error if the manager is closed or unsupported.
func (m *Manager) usable() error {
	if m.engine == nil {
		return fmt.Errorf("vector codebooks: %w", engine.ErrUnsupported)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.stopped {
		return ErrStopped
	}
	return nil
}

// discard closes an unused object. If the device does not take its memory back, Close tries again.
func (m *Manager) discard(what string, c closer) {
	if err := c.Close(); err != nil {
		m.logger.Error("the device does not take memory back", "of", what, "error", err)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.mu.refused = append(m.mu.refused, c)
	}
}

// Refused returns how many trainings and codebooks hold memory although they are unused, because
// the device did not take it back.
func (m *Manager) Refused() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.mu.refused)
}

// Close frees the memory of the codebooks. Every training must have been closed and every codebook
// released. If the device does not take some of it back, Close may be called again.
func (m *Manager) Close() error {
	m.mu.Lock()
	m.mu.stopped = true
	m.mu.Unlock()
	m.stop()
	m.work.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, c := range m.mu.books {
		m.mu.refused = append(m.mu.refused, c.book)
		delete(m.mu.books, name)
	}
	var errs []error
	var left []closer
	for _, c := range m.mu.refused {
		if err := c.Close(); err != nil {
			errs, left = append(errs, err), append(left, c)
		}
	}
	m.mu.refused = left
	return errors.Join(errs...)
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
