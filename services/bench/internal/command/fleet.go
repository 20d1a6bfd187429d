package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/services/bench/internal/idlebench"
)

func (c *console) fleet() *cobra.Command {
	cfg, floors := &idlebench.Config{}, ""
	cmd := &cobra.Command{
		Use: "fleet", Short: "Measures what a scheduler spends on following workers that nobody asks",
		Long: "Starts as many workers on the sim engine as the largest size says, and for each size a scheduler with default flags over that\n" +
			"many of them: its processor time and memory while nobody asks for anything. Workers take some 20 MB each.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.runFleet(cmd.Context(), cfg, floors) },
	}
	flags := cmd.Flags()
	programFlags(flags, &cfg.Scheduler, &cfg.Worker)
	flags.IntSliceVar(&cfg.Sizes, "sizes", []int{1, 100, 300}, "numbers of workers, separated by commas")
	flags.DurationVar(&cfg.Settle, "settle", 5*time.Second, "how long a scheduler is left alone before it is watched")
	flags.DurationVar(&cfg.Duration, "duration", 30*time.Second, "how long it is watched")
	flags.StringVar(&floors, "floors", "", floorsUsage)
	return cmd
}

func (c *console) runFleet(ctx context.Context, cfg *idlebench.Config, floors string) error {
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrUsage, err)
	}
	set, err := readFloors(floors, "fleet")
	if err != nil {
		return err
	}
	if err := findPrograms(&cfg.Scheduler, &cfg.Worker); err != nil {
		return err
	}
	c.logger() // gRPC's own messages go through it
	report, err := idlebench.Run(ctx, *cfg, c.line.Tell)
	c.line.Clear()
	if err != nil {
		return err
	}
	report.Floors = judge(set, report.Figure)
	return errors.Join(c.print(report), report.Floors.Err())
}
