package relaybench

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/services/bench/internal/process"
)

// still is the share of a processor below which nothing is relayed: what is left is the fleet's own news.
const still = 0.03

// settle waits until every stream has begun and the scheduler has been still for a while.
func (c *OpenConfig) settle(ctx context.Context, scheduler *process.Program, begun *atomic.Int64, tell func(format string, args ...any)) error {
	ticks := time.NewTicker(time.Second)
	defer ticks.Stop()
	var calm time.Duration
	last, before := time.Now(), time.Duration(0)
	for calm < c.Settle {
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := scheduler.Check(); err != nil {
			return err
		}
		now := time.Now()
		used, err := scheduler.CPU()
		if err != nil {
			return err
		}
		memory, err := scheduler.Memory()
		if err != nil {
			return err
		}
		share := float64(used-before) / float64(now.Sub(last))
		if begun.Load() == int64(c.Streams) && share < still {
			calm += now.Sub(last)
		} else {
			calm = 0
		}
		last, before = now, used
		tell("%d of %d streams are there, scheduler at %.2f processors, %s", begun.Load(), c.Streams, share, megabytes(memory))
	}
	return nil
}

func megabytes(bytes uint64) string { return fmt.Sprintf("%.0f MB", float64(bytes)/1e6) }
