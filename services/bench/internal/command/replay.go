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
	"github.com/millrace/millrace/services/bench/internal/trace"
)

// replayFlags are the flags of replay that are not its Config.
type replayFlags struct {
	trace, floors string
	limit         int
}

func (c *console) replay() *cobra.Command {
	cfg, f := &replay.Config{}, &replayFlags{}
	cmd := &cobra.Command{
		Use: "replay", Short: "Measures what routing by cached prefixes gains, over a trace replayed on workers on the sim engine",
		Long: "Starts workers on the sim engine and schedulers with default flags, all the shipped programs, and plays a trace once for\n" +
			"each row: through one scheduler and two, and by rules that choose workers without one, each time on fresh workers.\n" +
			"Compares times to the first token and hit rates. Failed calls fail the run, and so does a machine that is too busy.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.runReplay(cmd.Context(), cfg, f) },
	}
	flags := cmd.Flags()
	programFlags(flags, &cfg.Scheduler, &cfg.Worker)
	flags.StringVar(&f.trace, "trace", "", "file of requests with hash_ids, as Mooncake's traces are (default: a synthetic one of conversations)")
	flags.IntVar(&f.limit, "limit", 0, "requests of it, from the first; 0: all, and 4000 of the synthetic one")
	flags.StringSliceVar(&cfg.Rows, "rows", replay.RowNames(), "what is measured, separated by commas")
	flags.IntVar(&cfg.Workers, "workers", 8, "workers")
	flags.IntVar(&cfg.Cache, "cache", 819_200, "tokens of each worker's cache, of the trace's; the default is 100 GiB in f16, of a model of 8B")
	flags.Float64Var(&cfg.Load, "load", 0.7, "share of all workers' time that the prompts would take if none were cached: what a worker computes a second follows")
	flags.DurationVar(&cfg.Step, "step", 4*time.Millisecond, "time of a worker's step beside that of its prompt tokens, of the trace's; the default is that of a model of 8B in bf16 on an H200")
	flags.IntVar(&cfg.Sequences, "sequences", 64, "sequences of a worker at once")
	flags.IntVar(&cfg.Scale.Shrink, "shrink", 2, "tokens of the trace that are replayed as one")
	flags.Float64Var(&cfg.Scale.Speed, "speed", 10, "so many times as fast as the trace, workers and all")
	flags.Uint64Var(&cfg.Scale.Seed, "seed", 1, "seed of token ids and of the synthetic trace")
	flags.StringVar(&f.floors, "floors", "", floorsUsage)
	return cmd
}

// programFlags register the paths of the programs that a command starts.
func programFlags(flags *pflag.FlagSet, scheduler, worker *string) {
	flags.StringVar(scheduler, "scheduler", "", "path of millrace-scheduler (default: beside this program)")
	flags.StringVar(worker, "worker", "", "path of millrace-worker (default: beside this program)")
}

// findPrograms fills in the paths that no flag gave.
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

// synthetic is how many requests the synthetic trace has where no flag says.
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

func (f *replayFlags) requests(seed uint64) ([]trace.Request, error) {
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
	return trace.Read(file, f.limit)
}
