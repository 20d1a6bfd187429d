package chaos

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/machine"
)

// Run runs every stage. The report is complete when the error is nil or ErrBroken.
func Run(ctx context.Context, c Config, tell func(format string, args ...any)) (r *Report, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	r = &Report{Machine: machine.Look(), Config: c.summary()}
	tell("starting %d workers and %d schedulers", c.Workers, schedulers)
	f, err := startFleet(ctx, &c)
	defer func() { err = errors.Join(err, f.stop()) }()
	if err != nil {
		return nil, err
	}
	mix, err := c.mix(ctx, f)
	if err != nil {
		return nil, err
	}
	undisturbed, err := c.undisturbed(ctx, f, mix, r, tell)
	if err != nil {
		return nil, err
	}
	if c.Duration > 0 {
		s, err := c.hurtWorkers(ctx, f, mix, undisturbed, tell)
		if err != nil {
			return nil, err
		}
		r.Stages = append(r.Stages, s)
	}
	if c.SchedulerKills > 0 {
		s, err := c.hurtSchedulers(ctx, f, mix, undisturbed, tell)
		if err != nil {
			return nil, err
		}
		r.Stages = append(r.Stages, s)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	err = r.err()
	return r, err
}

// mix asks what the model can do.
func (c *Config) mix(ctx context.Context, f *fleet) (*Mix, error) {
	target, err := load.FindTarget(ctx, f.conns[0], c.Model)
	if err != nil {
		return nil, err
	}
	m := &Mix{Model: c.Model, Vocabulary: target.Vocabulary, Text: target.Tokenizer, Prompt: c.Prompt, Answer: c.Answer, Seed: c.Seed}
	if n := c.Prompt + c.Answer; n > target.Context {
		return nil, fmt.Errorf("--prompt-tokens %d and --max-tokens %d are more than the %d tokens that %s has room for",
			c.Prompt, c.Answer, target.Context, c.Model)
	}
	list, err := pb.NewModelServiceClient(f.conns[0]).ListModels(ctx, &pb.ListModelsRequest{})
	if err != nil {
		return nil, err
	}
	for _, model := range list.GetModels() {
		m.Chat = m.Chat || model.GetName() == c.Model && model.GetCapabilities().GetChatTemplate()
	}
	return m, nil
}

// undisturbed runs every request once, as many at once as later, while nobody is hurt.
func (c *Config) undisturbed(ctx context.Context, f *fleet, mix *Mix, r *Report, tell func(string, ...any)) ([]*Transcript, error) {
	tell("%d requests, undisturbed", c.Requests)
	began := time.Now()
	l := loop{
		client:  &client{conns: f.conns, mix: mix, began: began},
		streams: c.Streams, requests: c.Requests, limit: c.Requests, grace: c.Grace,
	}
	records := l.run(ctx, nil)
	if err := errors.Join(ctx.Err(), f.check()); err != nil {
		return nil, err
	}
	s, p := &Stage{Name: "undisturbed", Seconds: time.Since(began).Seconds()}, &problems{}
	s.judge(records, nil, p)
	s.Problems = p.all()
	r.Undisturbed = s
	transcripts := make([]*Transcript, len(records))
	for i, rec := range records {
		if rec.err != nil {
			return nil, fmt.Errorf("request %d fails undisturbed: %s", i, failure(rec.err))
		}
		transcripts[i] = &rec.transcript
	}
	return transcripts, nil
}

// hurtWorkers is the stage in which nobody but the schedulers continues a stream.
func (c *Config) hurtWorkers(ctx context.Context, f *fleet, mix *Mix, undisturbed []*Transcript, tell func(string, ...any)) (*Stage, error) {
	tell("%v of faults on workers", c.Duration)
	s, p := &Stage{Name: "workers"}, &problems{}
	cl := &client{conns: f.conns, mix: mix, began: time.Now()}
	m := newMonkey(f, c, cl.began)
	before := f.said.count()
	records, err := c.under(ctx, cl, s, func() (err error) {
		s.Faults, s.Skipped, err = m.workersStage(ctx)
		return err
	})
	if err := errors.Join(err, ctx.Err(), f.check()); err != nil {
		return nil, err
	}
	s.Told = f.said.count() - before
	s.judge(records, undisturbed, p)
	tell("the same resumes, undisturbed")
	if err := f.ready(ctx); err != nil {
		return nil, err
	}
	err = s.pauses(ctx, cl, records, p)
	s.Problems = p.all()
	return s, err
}

// hurtSchedulers is the stage in which clients go to the other scheduler with what they have.
func (c *Config) hurtSchedulers(ctx context.Context, f *fleet, mix *Mix, undisturbed []*Transcript, tell func(string, ...any)) (*Stage, error) {
	tell("%d kills of schedulers", c.SchedulerKills)
	s, p := &Stage{Name: "schedulers"}, &problems{}
	cl := &client{conns: f.conns, mix: mix, began: time.Now(), resumes: true}
	m := newMonkey(f, c, cl.began)
	before := f.said.count()
	records, err := c.under(ctx, cl, s, func() (err error) {
		s.Faults, err = m.schedulersStage(ctx)
		return err
	})
	if err := errors.Join(err, ctx.Err(), f.check()); err != nil {
		return nil, err
	}
	s.Told = f.said.count() - before
	s.judge(records, undisturbed, p)
	s.Gaps = append(s.Gaps, ownGaps(records, len(s.Faults)))
	s.Resumes = s.Gaps[0].Resumes
	s.Problems = p.all()
	return s, nil
}

// under keeps the streams open while hurt runs, and waits for their ends.
func (c *Config) under(ctx context.Context, cl *client, s *Stage, hurt func() error) ([]*record, error) {
	more, done := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(more)
		done <- hurt()
	}()
	l := loop{client: cl, streams: c.Streams, requests: c.Requests, grace: c.Grace}
	records := l.run(ctx, more)
	s.Seconds = time.Since(cl.began).Seconds()
	return records, <-done
}
