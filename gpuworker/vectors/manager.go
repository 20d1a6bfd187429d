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

// Manager owns the codebooks and trainings of one device. Its methods may be called from any goroutine.
type Manager struct {
	cfg     Config
	device  engine.Device
	engine  engine.Vectors // nil: the device has none
	files   *catalog
	logger  hclog.Logger
	ctx     context.Context
	stop    context.CancelFunc
	work    sync.WaitGroup
	change  *semaphore.Weighted // held by who brings a codebook in or takes one out: one at a time
	calls   *semaphore.Weighted // one for each Encode or Decode on the device
	turn    *semaphore.Weighted // held by the training that computes while models have work
	counted counters

	admission sync.Mutex    // held while it is decided whether something fits, which asks the device
	arriving  atomic.Uint64 // written under admission; bytes of codebooks on their way here, of the device and of the host: <= PutSpace

	mu struct {
		sync.Mutex
		stopped   bool
		trainings int
		bytes     uint64               // device bytes of trainings
		spool     uint64               // host bytes of trainings
		books     map[string]*Codebook // loaded ones, by name
		refused   []closer             // what the device did not take back
	}
}

type closer interface{ Close() error }

// NewManager returns a manager over a device that it does not close. Close ends it. A device without vector codebooks gets one that
// refuses everything with engine.ErrUnsupported.
func NewManager(cfg Config, device engine.Device, logger hclog.Logger) *Manager {
	cfg.Share = cmp.Or(cfg.Share, defaultShare)
	cfg.PutSpace = cmp.Or(cfg.PutSpace, defaultPutSpace)
	if cfg.Tokens == nil {
		cfg.Tokens = func() Tokens { return Tokens{} }
	}
	m := &Manager{
		cfg: cfg, device: device, engine: ability(device), files: newCatalog(cfg.Dir), logger: logger.Named("vectors"),
		change: semaphore.NewWeighted(1), calls: semaphore.NewWeighted(int64(runtime.GOMAXPROCS(0))), turn: semaphore.NewWeighted(1),
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

// ability is a device's vectors, nil where it has none: also one that could have them may say so only when it is asked.
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

// Supported says whether the device has vector codebooks.
func (m *Manager) Supported() bool { return m.engine != nil }

// usable is nil while the manager can be asked for something.
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

// discard closes what nobody uses any more. What the device refuses to take back is kept for Close to try again.
func (m *Manager) discard(what string, c closer) {
	if err := c.Close(); err != nil {
		m.logger.Error("the device does not take memory back", "of", what, "error", err)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.mu.refused = append(m.mu.refused, c)
	}
}

// Refused is how many trainings and codebooks hold memory for nobody, because the device did not take it back.
func (m *Manager) Refused() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.mu.refused)
}

// Close gives the codebooks' memory back. Every training must have been closed and every codebook released. Where the device refuses
// some of it, Close may be called again.
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

// pause waits, until ctx ends at most.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
