package relaybench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// loop runs the closed loop of all callers on a way: caller i sends over connection i, and its next prompt at once when its call has
// ended. Callers begin at times drawn from the span of one first token, equal for all ways of a round, and
// the first call of each is not counted; a second one is made and counted however late it is by then.
func (m *measurement) loop(ctx context.Context, c *PromptsConfig, w *way, kind string, round int) (stats.Histogram, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	end := time.Now().Add(c.Duration)
	each := make([]stats.Histogram, c.Callers)
	var work sync.WaitGroup
	for i := range c.Callers {
		work.Go(func() {
			if err := m.caller(ctx, c, w, kind, uint64(round*c.Callers+i), i, end, &each[i]); err != nil {
				cancel(fmt.Errorf("%w: caller %d through %s: %w", ErrFailed, i, w.name, err))
			}
		})
	}
	work.Wait()
	if ctx.Err() != nil {
		return stats.Histogram{}, context.Cause(ctx)
	}
	var all stats.Histogram
	for i := range each {
		all.Merge(&each[i])
	}
	return all, nil
}

// caller is one caller until end, for two calls at least.
func (m *measurement) caller(ctx context.Context, c *PromptsConfig, w *way, kind string, stream uint64, i int, end time.Time,
	times *stats.Histogram) error {
	prompts, err := m.prompter(c, c.modelOf(i), kind, stream)
	if err != nil {
		return err
	}
	phase := time.Duration(prompts.random.Int64N(int64(c.FirstToken)))
	select {
	case <-time.After(phase):
	case <-ctx.Done():
		return nil
	}
	for n := 0; n < 2 || time.Now().Before(end); n++ {
		in := prompts.next()
		out := load.CallEncoded(ctx, w.conns[i%len(w.conns)], in, time.Now())
		switch {
		case out.Cut:
			return nil
		case out.Tokens != 1:
			return errors.Join(fmt.Errorf("%d tokens, %v", out.Tokens, out.Code), errors.New(out.Message))
		case n > 0:
			times.Add(out.FirstToken)
		}
	}
	return nil
}
