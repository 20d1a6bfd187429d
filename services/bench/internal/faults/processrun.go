package faults

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/proc"
)

// ProcessConfig configures RunProcesses.
type ProcessConfig struct {
	Scheduler, Worker string   // paths of the programs
	Models, Model     string   // folder of model files, and the model to serve
	Devices           []string // of the workers, in turn; as the worker's --device
	Workers           int
	MaxSequences      int // slots of each worker
	Streams           int // always open
	Requests          int // different ones, used in turn
	Prompt, Answer    int // tokens of the longest prompts and answers

	Duration time.Duration // of faults on workers
	Every    time.Duration // between faults
	AtMost   int           // faults; 0: no limit but the duration
	Kinds    []Kind
	Restart  time.Duration // after a kill
	Restore  time.Duration // after a freeze or a partition

	SchedulerKills int           // of the schedulers in turn, while clients resume on the other one
	Grace          time.Duration // in which the last streams must end
	Seed           uint64
}

// Validate returns everything that is wrong.
func (c *ProcessConfig) Validate() error {
	var wrong []error
	count := func(name string, value, low, high int) {
		if value < low || value > high {
			wrong = append(wrong, fmt.Errorf("%s %d: want %d to %d", name, value, low, high))
		}
	}
	length := func(name string, value, low, high time.Duration) {
		if value < low || value > high {
			wrong = append(wrong, fmt.Errorf("%s %v: want %v to %v", name, value, low, high))
		}
	}
	count("--workers", c.Workers, 2, 64)
	count("--max-sequences", c.MaxSequences, 1, 1024)
	count("--streams", c.Streams, 1, 10_000)
	count("--requests", c.Requests, 1, 100_000)
	count("--prompt-tokens", c.Prompt, 1, 1<<20)
	count("--max-tokens", c.Answer, 4, 1<<20)
	count("--at-most", c.AtMost, 0, 1<<20)
	count("--scheduler-kills", c.SchedulerKills, 0, 1000)
	length("--duration", c.Duration, 0, 24*time.Hour)
	length("--every", c.Every, 100*time.Millisecond, time.Hour)
	length("--restart", c.Restart, 0, time.Hour)
	length("--restore", c.Restore, 0, time.Hour)
	length("--grace", c.Grace, time.Second, time.Hour)
	if c.Model == "" {
		wrong = append(wrong, errors.New("--model is empty: name a file of the models folder, without .gguf"))
	}
	if len(c.Kinds) == 0 && c.Duration > 0 {
		wrong = append(wrong, fmt.Errorf("--faults is empty: want some of %v, or --duration 0", Kinds))
	}
	if c.Duration == 0 && c.SchedulerKills == 0 {
		wrong = append(wrong, errors.New("--duration 0 and --scheduler-kills 0: there would be no fault"))
	}
	return errors.Join(wrong...)
}

// RunProcesses starts a fleet of processes and runs every stage. The report is complete when the
// error is nil or ErrBroken.
func RunProcesses(ctx context.Context, c ProcessConfig, progress func(format string, args ...any)) (r *Report, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	r = &Report{Machine: proc.ThisMachine(), Config: c.summary()}
	progress("starting %d workers and %d schedulers", c.Workers, schedulerCount)
	p, err := startProcesses(ctx, &c)
	defer func() { err = errors.Join(err, p.stop()) }()
	if err != nil {
		return nil, err
	}
	mix, err := c.mix(ctx, p)
	if err != nil {
		return nil, err
	}
	w := workload{streams: c.Streams, requests: c.Requests, request: mix.Request, grace: c.Grace}
	progress("%d requests, undisturbed", c.Requests)
	var truth []*Transcript
	if r.Undisturbed, truth, err = p.truth(ctx, w, p.schedulers); err != nil {
		return nil, err
	}
	m := &monkey{ProcessConfig: &c, processes: p, random: rand.New(rand.NewPCG(c.Seed, 1<<63))}
	for _, stage := range []struct {
		name    string
		enabled bool
		resumes bool // by the clients
		hurt    func(context.Context, *client, *Stage) error
	}{
		{"workers", c.Duration > 0, false, m.hurtWorkers},
		{"schedulers", c.SchedulerKills > 0, true, m.killSchedulers},
	} {
		if !stage.enabled {
			continue
		}
		progress("faults on %s", stage.name)
		before := p.resumes.count()
		s, err := p.stage(ctx, stage.name, w, stage.resumes, truth, func(cl *client, s *Stage) error { return stage.hurt(ctx, cl, s) })
		if err != nil {
			return nil, err
		}
		s.Told = p.resumes.count() - before
		r.Stages = append(r.Stages, s)
	}
	err = r.err()
	return r, err
}

// mix returns requests that the model can serve.
func (c *ProcessConfig) mix(ctx context.Context, p *processes) (*Mix, error) {
	target, err := load.FindTarget(ctx, p.schedulers[0].conn, c.Model)
	if err != nil {
		return nil, err
	}
	if c.Prompt+c.Answer > target.Context {
		return nil, fmt.Errorf("--prompt-tokens %d and --max-tokens %d do not fit the context of %s, which has %d tokens",
			c.Prompt, c.Answer, c.Model, target.Context)
	}
	return &Mix{
		Model: c.Model, Vocabulary: target.Vocabulary, Text: target.Tokenizer, Chat: target.Chat, Prompt: c.Prompt, Answer: c.Answer, Seed: c.Seed,
	}, nil
}

// monkey injects faults into a fleet of processes.
type monkey struct {
	*ProcessConfig
	*processes
	random *rand.Rand
	queue  []Kind // left of this round: every kind comes once in each

	mu   sync.Mutex
	hurt map[string]bool // guarded by mu; workers that are not restored yet
	errs []error         // guarded by mu
}

// hurtWorkers injects a fault into a busy worker at every interval until the duration is over or
// there were enough, and returns when all are restored.
func (m *monkey) hurtWorkers(ctx context.Context, c *client, s *Stage) error {
	m.hurt = map[string]bool{}
	var restoring sync.WaitGroup
	for end := c.began.Add(m.Duration); m.AtMost == 0 || len(s.Faults) < m.AtMost; {
		if !sleep(ctx, min(m.Every, time.Until(end))) || !time.Now().Before(end) {
			break
		}
		victim, streams := m.victim(c)
		if victim == "" {
			s.Skipped++
			continue
		}
		kind := m.next()
		since, err := m.inject(ctx, kind, victim)
		m.mu.Lock()
		i := len(s.Faults)
		s.Faults = append(s.Faults, Fault{Kind: kind, Node: victim, At: since.Sub(c.began), Busy: uint32(streams)})
		m.hurt[victim] = true
		m.errs = append(m.errs, err)
		m.mu.Unlock()
		restoring.Go(func() {
			wait := m.Restore
			if kind == Kill {
				wait = m.Restart
			}
			sleep(ctx, wait)
			err := m.restore(ctx, kind, victim)
			m.mu.Lock()
			defer m.mu.Unlock()
			s.Faults[i].Over = time.Since(c.began)
			delete(m.hurt, victim)
			m.errs = append(m.errs, err)
		})
	}
	restoring.Wait()
	return errors.Join(m.errs...)
}

// victim returns a random worker that has streams, if another worker serves too, and the number of
// its streams; else "".
func (m *monkey) victim(c *client) (worker string, streams int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.schedulers[0].serving(m.workers, m.hurt) < 2 {
		return "", 0
	}
	busy := c.live.busy(math.MaxInt)
	idle := func(id string) bool {
		return busy[id] == 0 || m.hurt[id] || m.schedulers[0].serving([]string{id}, nil) == 0
	}
	candidates := slices.DeleteFunc(slices.Clone(m.workers), idle)
	if len(candidates) == 0 {
		return "", 0
	}
	worker = candidates[m.random.IntN(len(candidates))]
	return worker, busy[worker]
}

// next returns the kind of the next fault.
func (m *monkey) next() Kind {
	if len(m.queue) == 0 {
		for _, i := range m.random.Perm(len(m.Kinds)) {
			m.queue = append(m.queue, m.Kinds[i])
		}
	}
	kind := m.queue[0]
	m.queue = m.queue[1:]
	return kind
}

// killSchedulers kills one scheduler after the other, each when the fleet is whole again for the
// one before.
func (m *monkey) killSchedulers(ctx context.Context, c *client, s *Stage) error {
	for i := range m.SchedulerKills {
		if !sleep(ctx, m.Every) {
			return nil
		}
		name := m.schedulers[i%schedulerCount].name
		since, err := m.inject(ctx, Kill, name)
		if err != nil {
			return err
		}
		s.Faults = append(s.Faults, Fault{Kind: Kill, Node: name, At: since.Sub(c.began)})
		sleep(ctx, m.Restart)
		if err := m.restore(ctx, Kill, name); err != nil {
			return err
		}
		s.Faults[i].Over = time.Since(c.began)
		if err := m.whole(ctx); err != nil {
			return err
		}
	}
	return nil
}
