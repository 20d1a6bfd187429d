package ceiling

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/services/bench/internal/load"
)

// near is the share of the ceiling above which the generator, not the server, may be what was measured.
const near = 0.7

// Limits says whether a rate is so near a ceiling that the generator may be the limit; a ceiling of 0 was not measured.
func Limits(rate, ceiling float64) bool { return ceiling > 0 && rate > near*ceiling }

// Config is the configuration of the generator that is measured.
type Config struct {
	Connections int
	Concurrency int
	Size        load.Size
	Maker       load.Maker
	Duration    time.Duration
}

// Measure runs the generator against the server in this process and gives messages a second, above 0. The clock starts
// when every connection stands; if no message comes within the duration, twice as much is added, and so on.
func Measure(ctx context.Context, cfg Config, logger hclog.Logger) (rate float64, err error) {
	address, stop, err := serve(ctx, logger)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	conns, hangUp, err := load.Dial(address, cfg.Connections)
	if err != nil {
		return 0, err
	}
	defer hangUp()
	first := load.Generator{Conns: conns, Maker: cfg.Maker, To: load.NewRecorder(nil)}
	first.Closed(ctx, cfg.Connections, load.Size{Prompt: 1, Output: 1}, 0, uint64(cfg.Connections))
	recorder := load.NewRecorder(nil)
	generator := load.Generator{Conns: conns, Maker: cfg.Maker, To: recorder}
	begin := time.Now()
	var live load.Live
	for d := cfg.Duration; live.Messages+live.Failed == 0 && ctx.Err() == nil; d *= 2 {
		window, cancel := context.WithCancel(ctx) // a deadline would travel with the calls and fail some
		timer := time.AfterFunc(d, cancel)
		generator.Closed(window, cfg.Concurrency, cfg.Size, 0, 0)
		timer.Stop()
		cancel()
		live = recorder.Live()
	}
	took := time.Since(begin).Seconds()
	switch {
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case live.Failed > 0:
		return 0, fmt.Errorf("measuring the generator: %d of %d calls within this process failed", live.Failed, live.Finished)
	}
	return float64(live.Messages) / took, nil
}
