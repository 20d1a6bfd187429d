package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/services/bench/internal/replay"
)

// replayFlags are the flags of replay that are not in its Config.
type replayFlags struct {
	trace, floors string
	limit         int
}

func (c *console) replay() *cobra.Command {
	cfg, f := &replay.Config{}, &replayFlags{}
	cmd := &cobra.Command{
		Use: "replay", Short: "Measures what routing by cached prefixes gains: replays a trace on workers on the sim engine",
		Long: "Starts workers on the sim engine and schedulers with default flags, all the shipped programs, and plays a trace once\n" +
			"for each row: through one scheduler, through two, and by rules that select workers without one, each time on fresh\n" +
			"workers. Compares TTFT and hit rates. Failed calls fail the run, and so does a machine that is too busy.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.runReplay(cmd.Context(), cfg, f) },
	}
	flags := cmd.Flags()
	programFlags(flags, &cfg.Scheduler, &cfg.Worker)
	flags.StringVar(&f.trace, "trace", "", "file of requests with hash_ids, as in Mooncake's traces (default: a synthetic trace of conversations)")
	flags.IntVar(&f.limit, "limit", 0, "maximum of requests; 0: all, or 4000 of the synthetic trace")
	flags.StringSliceVar(&cfg.Rows, "rows", replay.RowNames(), "rows to measure, separated by commas")
	flags.IntVar(&cfg.Workers, "workers", 8, "workers")
	flags.IntVar(&cfg.Cache, "cache", 819_200, "tokens of each worker's cache, at the scale of the trace; the default is 100 GiB in f16 for a model of 8B")
	flags.Float64Var(&cfg.Load, "load", 0.7, "share of all workers' time that the prompts take without a cache; it determines the prefill rate of a worker")
	flags.DurationVar(&cfg.Step, "step", 4*time.Millisecond, "time of a worker's step without its prompt tokens, at the scale of the trace; the default is that of a model of 8B in bf16 on an H200")
	flags.IntVar(&cfg.Sequences, "sequences", 64, "slots of a worker")
	flags.IntVar(&cfg.Scale.Shrink, "shrink", 2, "number of tokens of the trace that one replayed token stands for")
	flags.Float64Var(&cfg.Scale.Speed, "speed", 10, "factor by which the trace and the workers run faster")
	flags.Uint64Var(&cfg.Scale.Seed, "seed", 1, "seed of token ids and of the synthetic trace")
	flags.StringVar(&f.floors, "floors", "", floorsUsage)
	return cmd
}

// programFlags registers the paths of the programs that a command starts.
func programFlags(flags *pflag.FlagSet, scheduler, worker *string) {
	flags.StringVar(scheduler, "scheduler", "", "path of millrace-scheduler (default: next to this program)")
	flags.StringVar(worker, "worker", "", "path of millrace-worker (default: next to this program)")
}

// findPrograms sets the paths that no flag has set.
func findPrograms(scheduler, worker *string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for path, name := range map[*string]string{scheduler: "millrace-scheduler", worker: "millrace-worker"} {
		if *path == "" {
			*path = filepath.Join(filepath.Dir(self), name)
		}
	}
	return nil
}

// synthetic is the default number of requests of the synthetic trace.
const synthetic = 4000

func (c *console) runReplay(ctx context.Context, cfg *replay.Config, f *replayFlags) error {
	if err := errors.Join(cfg.Validate(), checkCounts(count{"--limit", f.limit, 0, 1 << 24})); err != nil {
		return fmt.Errorf("%w: %w", ErrUsage, err)
	}
	set, err := readFloors(f.floors, "replay")
	if err != nil {
		return err
	}
	requests, err := f.requests(cfg.Scale.Seed)
	if err != nil {
		return fmt.Errorf("--trace: %w", err)
	}
	if err := findPrograms(&cfg.Scheduler, &cfg.Worker); err != nil {
		return err
	}
	c.logger() // gRPC's own messages go through it
	report, err := replay.Run(ctx, *cfg, requests, c.line.Update)
	c.line.Clear()
	if report == nil {
		return err
	}
	report.Floors = judge(set, report.Figure)
	return errors.Join(err, c.print(report), report.Floors.Err())
}

func (f *replayFlags) requests(seed uint64) ([]replay.Request, error) {
	if f.trace == "" {
		n := f.limit
		if n == 0 {
			n = synthetic
		}
		return replay.Synthetic(n, seed), nil
	}
	file, err := os.Open(f.trace)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // opened for reading only
	return replay.ReadTrace(file, f.limit)
}
