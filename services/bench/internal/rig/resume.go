package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// resumes takes how long streams take to go on when nothing else runs: all are broken off in their middle, and then resumed at
// once, as those of a worker that is lost.
func (r *rig) resumes(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	begun, errs := make([]asked, len(r.stories)), make([]error, len(r.stories))
	each := func(do func(i int, on *entry, a *asked) error) error {
		var all sync.WaitGroup
		for i := range begun {
			all.Go(func() {
				on := r.entries[i%len(r.entries)]
				if err := do(i, on, &begun[i]); err != nil {
					errs[i] = fmt.Errorf("seed %d through %s: %w", i, on.name, plain(err))
				}
			})
		}
		all.Wait()
		return errors.Join(errs...)
	}
	if err := each(func(i int, on *entry, a *asked) error {
		return a.until(ctx, on, r.stories[i].request, r.cfg.Tokens/2)
	}); err != nil {
		return err
	}
	took := make([]time.Duration, len(begun))
	err := each(func(i int, on *entry, a *asked) error {
		began := time.Now()
		err := a.until(ctx, on, r.stories[i].request, len(a.ids)+1)
		took[i] = time.Since(began)
		return err
	})
	for _, d := range took {
		r.resume = max(r.resume, d)
	}
	return err
}

// until asks for what the answer lacks and breaks off as soon as it has so many tokens.
func (a *asked) until(ctx context.Context, on *entry, in *pb.GenerateRequest, tokens int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	had := len(a.ids)
	stream, err := on.infer.Generate(ctx, a.rest(in))
	for err == nil && len(a.ids) < tokens {
		var event *pb.GenerateResponse
		if event, err = stream.Recv(); err == nil {
			err = a.add(event, had)
		}
	}
	if errors.Is(err, io.EOF) && a.finished != nil {
		return nil
	}
	return err
}
