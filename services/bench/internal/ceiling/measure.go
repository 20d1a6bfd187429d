package ceiling

import (
	"context"
	"errors"
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

// Measure runs the generator against the server in this process and gives messages a second.
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
	ctx, cancel := context.WithTimeout(ctx, cfg.Duration)
	defer cancel()
	recorder := load.NewRecorder(nil)
	generator := load.Generator{Conns: conns, Maker: cfg.Maker, To: recorder}
	begin := time.Now()
	generator.Closed(ctx, cfg.Concurrency, cfg.Size, 0, 0)
	return float64(recorder.Live().Messages) / time.Since(begin).Seconds(), nil
}
