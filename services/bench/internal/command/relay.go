package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/services/bench/internal/relaybench"
)

func (c *console) relay() *cobra.Command {
	cfg := &relaybench.Config{}
	cmd := &cobra.Command{
		Use: "relay", Short: "Measures what the scheduler adds to a stream, over a worker on the sim engine",
		Long: "Starts a worker on the sim engine and a scheduler with default flags, both the shipped programs, and measures\n" +
			"the scheduler's processor time for each relayed token, the time it adds to the first token against the same\n" +
			"worker directly, and a burst of streams. Timing never fails the run; failed calls and lost tokens do.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.runRelay(cmd.Context(), cfg) },
	}
	flags := cmd.Flags()
	flags.StringVar(&cfg.Scheduler, "scheduler", "", "path of millrace-scheduler (default: beside this program)")
	flags.StringVar(&cfg.Worker, "worker", "", "path of millrace-worker (default: beside this program)")
	flags.StringVar(&cfg.Model, "model", "", "model file whose vocabulary is used (default: a small one of random weights, without text)")
	flags.IntVar(&cfg.Streams, "streams", 100, "streams at once while processor time is taken")
	flags.Float64Var(&cfg.Rate, "rate", 20000, "tokens a second wanted over all of them")
	flags.DurationVar(&cfg.Duration, "duration", 10*time.Second, "how long they run")
	flags.IntVar(&cfg.Pairs, "pairs", 300, "first tokens taken directly and through the scheduler, in turn")
	flags.IntVar(&cfg.Burst, "burst", 1000, "streams at once at the end")
	flags.IntVar(&cfg.BurstTokens, "burst-tokens", 100, "tokens of each of them")
	flags.IntVar(&cfg.Connections, "connections", 1, "connections of this client to each program")
	flags.IntVar(&cfg.Prompt, "prompt", 16, "tokens of each prompt")
	flags.Uint64Var(&cfg.Seed, "seed", 1, "seed of the prompts")
	return cmd
}

func (c *console) runRelay(ctx context.Context, cfg *relaybench.Config) error {
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrUsage, err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for path, name := range map[*string]string{&cfg.Scheduler: "millrace-scheduler", &cfg.Worker: "millrace-worker"} {
		if *path == "" {
			*path = filepath.Join(filepath.Dir(self), name)
		}
	}
	c.logger() // gRPC's own messages go through it
	report, err := relaybench.Run(ctx, *cfg, c.line.Tell)
	c.line.Clear()
	if report == nil {
		return err
	}
	return errors.Join(err, c.print(report))
}
