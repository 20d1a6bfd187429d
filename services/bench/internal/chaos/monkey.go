package chaos

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"
)

// monkey hurts programs of a fleet.
type monkey struct {
	fleet *fleet
	*Config
	dice  *rand.Rand
	began time.Time
	kinds []Kind // left of this round: every kind comes once in each

	wg     sync.WaitGroup
	mu     sync.Mutex
	faults []Fault      // guarded by mu; in the order made
	hurt   map[int]bool // guarded by mu; workers that are not let go on yet
	errs   []error      // guarded by mu
}

func newMonkey(f *fleet, c *Config, began time.Time) *monkey {
	return &monkey{fleet: f, Config: c, dice: rand.New(rand.NewPCG(c.Seed, 1<<63)), began: began, hurt: map[int]bool{}}
}

// workersStage hurts a busy worker every so often until the duration is over or there were enough, and returns when all were
// let go on. skipped is how often there was none to hurt: none that had a sequence, with another one that serves beside it.
func (m *monkey) workersStage(ctx context.Context) (faults []Fault, skipped int, err error) {
	over := time.After(m.Duration)
	ticker := time.NewTicker(m.Every)
	defer ticker.Stop()
	for m.AtMost == 0 || len(m.faults) < m.AtMost {
		select {
		case <-ticker.C:
			if !m.hurtOne(ctx) {
				skipped++
			}
			continue
		case <-over:
		case <-ctx.Done():
		}
		break
	}
	m.wg.Wait()
	return m.faults, skipped, errors.Join(m.errs...)
}

// hurtOne hurts a random busy worker.
func (m *monkey) hurtOne(ctx context.Context) bool {
	busy, serving := m.look(ctx)
	if len(busy) == 0 || serving < 2 {
		return false
	}
	if len(m.kinds) == 0 {
		for _, i := range m.dice.Perm(len(m.Kinds)) {
			m.kinds = append(m.kinds, m.Kinds[i])
		}
	}
	victim := busy[m.dice.IntN(len(busy))]
	kind := m.kinds[0]
	m.kinds = m.kinds[1:]
	m.mu.Lock()
	defer m.mu.Unlock()
	node, at := m.fleet.workers[victim.worker], len(m.faults)
	m.faults = append(m.faults, Fault{Kind: kind, Node: node.name, At: time.Since(m.began), Busy: victim.sequences})
	m.hurt[victim.worker] = true
	if err := m.hit(victim.worker, kind); err != nil {
		m.errs = append(m.errs, err)
	}
	m.wg.Go(func() {
		err := m.mend(ctx, victim.worker, kind)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.faults[at].Over = time.Since(m.began)
		delete(m.hurt, victim.worker)
		if err != nil {
			m.errs = append(m.errs, err)
		}
	})
	return true
}

// victim is a worker that might be hurt.
type victim struct {
	worker    int
	sequences uint32
}

// look asks every worker that is not hurt, all at once; serving counts those that serve, busy ones included.
func (m *monkey) look(ctx context.Context) (busy []victim, serving int) {
	running := make([]int64, len(m.fleet.workers)) // -1: does not serve
	var wg sync.WaitGroup
	for i, n := range m.fleet.workers {
		running[i] = -1
		m.mu.Lock()
		hurt := m.hurt[i]
		m.mu.Unlock()
		if hurt {
			continue
		}
		wg.Go(func() {
			if report, err := n.report(ctx); err == nil && serves(report, m.Model) {
				running[i] = int64(report.GetLoad().GetRunning())
			}
		})
	}
	wg.Wait()
	for i, n := range running {
		if n >= 0 {
			serving++
		}
		if n > 0 {
			busy = append(busy, victim{worker: i, sequences: uint32(n)})
		}
	}
	return busy, serving
}

// hit makes a fault.
func (m *monkey) hit(worker int, kind Kind) error {
	switch kind {
	case Kill:
		return m.fleet.workers[worker].kill()
	case Freeze:
		return m.fleet.workers[worker].signal(syscall.SIGSTOP)
	case Cut:
		m.fleet.proxies[worker].Cut()
	}
	return nil
}

// mend takes a fault back when its time has come, or at once when ctx ends.
func (m *monkey) mend(ctx context.Context, worker int, kind Kind) error {
	wait := m.Restore
	if kind == Kill {
		wait = m.Restart
	}
	select {
	case <-time.After(wait):
	case <-ctx.Done():
	}
	switch kind {
	case Kill:
		return m.fleet.workers[worker].start(ctx)
	case Freeze:
		return m.fleet.workers[worker].signal(syscall.SIGCONT)
	case Cut:
		m.fleet.proxies[worker].Heal()
	}
	return nil
}

// schedulersStage kills one scheduler after the other, each when the one before is back and knows its fleet.
func (m *monkey) schedulersStage(ctx context.Context) ([]Fault, error) {
	for i := range m.SchedulerKills {
		select {
		case <-time.After(m.Every):
		case <-ctx.Done():
			return m.faults, nil
		}
		n := m.fleet.schedulers[i%schedulers]
		m.faults = append(m.faults, Fault{Kind: Kill, Node: n.name, At: time.Since(m.began)})
		if err := n.kill(); err != nil {
			return m.faults, err
		}
		select {
		case <-time.After(m.Restart):
		case <-ctx.Done():
		}
		if err := n.start(ctx); err != nil {
			return m.faults, err
		}
		m.faults[i].Over = time.Since(m.began)
		if err := m.fleet.schedulerReady(ctx, i%schedulers); err != nil {
			return m.faults, err
		}
	}
	return m.faults, nil
}
