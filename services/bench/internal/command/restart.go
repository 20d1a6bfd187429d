package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/services/bench/internal/restart"
)

func (c *console) restart() *cobra.Command {
	cfg, floors := &restart.Config{}, ""
	cmd := &cobra.Command{
		Use: "restart", Short: "Measures how soon a scheduler that was killed sends requests where their prefixes are",
		Long: "Starts workers on the sim engine, gives each of them prefixes that no other has, kills a scheduler over them and starts\n" +
			"it again: one call after another, each for another prefix, from the moment that it listens. Time is judged by floors alone.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.runRestart(cmd.Context(), cfg, floors) },
	}
	flags := cmd.Flags()
	programFlags(flags, &cfg.Scheduler, &cfg.Worker)
	flags.IntVar(&cfg.Workers, "workers", 8, "workers")
	flags.IntVar(&cfg.Prefix, "prefix", 512, "tokens of each prefix")
	flags.DurationVar(&cfg.Every, "every", 10*time.Millisecond, "time between calls")
	flags.DurationVar(&cfg.For, "for", 2*time.Second, "how long calls are made after a restart")
	flags.IntVar(&cfg.Repeat, "repeat", 5, "restarts, each over fresh workers")
	flags.Uint64Var(&cfg.Seed, "seed", 1, "seed of the prefixes")
	flags.StringVar(&floors, "floors", "", floorsUsage)
	return cmd
}

func (c *console) runRestart(ctx context.Context, cfg *restart.Config, floors string) error {
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrUsage, err)
	}
	set, err := readFloors(floors, "restart")
	if err != nil {
		return err
	}
	if err := findPrograms(&cfg.Scheduler, &cfg.Worker); err != nil {
		return err
	}
	c.logger() // gRPC's own messages go through it
	report, err := restart.Run(ctx, *cfg, c.line.Update)
	c.line.Clear()
	if err != nil {
		return err
	}
	report.Floors = judge(set, report.Figure)
	return errors.Join(c.print(report), report.Floors.Err())
}
