package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/services/bench/internal/hostile"
)

func (c *console) hostile() *cobra.Command {
	cfg, floors := &hostile.Config{}, ""
	cmd := &cobra.Command{
		Use: "hostile", Short: "Measures what connections that mean harm cost a good client",
		Long: "Starts a worker on the sim engine and a scheduler over it that serves over TLS. A good client asks it alone; beside a process that\n" +
			"opens hostile connections, which are silent, noisy, slow or too large; and beside a process that burns as much processor time.\n" +
			"The 99th percentiles of the latter two are compared. A call of the good client that fails, fails the run.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.runHostile(cmd.Context(), cfg, floors) },
	}
	flags := cmd.Flags()
	programFlags(flags, &cfg.Scheduler, &cfg.Worker)
	flags.IntVar(&cfg.Connections, "connections", 10_000, "hostile connections of a round")
	flags.Float64Var(&cfg.Rate, "rate", 500, "of them a second")
	flags.StringVar(&cfg.From, "from", "127.0.0.2", "address of this machine that they come from")
	flags.Float64Var(&cfg.Calls, "calls", 100, "calls of the good client a second")
	flags.IntVar(&cfg.Tokens, "tokens", 8, "tokens of each")
	flags.IntVar(&cfg.Rounds, "rounds", 3, "comparisons, of which the median is told")
	flags.DurationVar(&cfg.Settle, "settle", 5*time.Second, "time between two measurements")
	flags.StringVar(&floors, "floors", "", floorsUsage)
	return cmd
}

func (c *console) runHostile(ctx context.Context, cfg *hostile.Config, floors string) error {
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrUsage, err)
	}
	set, err := readFloors(floors, "hostile")
	if err != nil {
		return err
	}
	if cfg.Self, err = os.Executable(); err != nil {
		return err
	}
	if err := findPrograms(&cfg.Scheduler, &cfg.Worker); err != nil {
		return err
	}
	c.logger() // gRPC's own messages go through it
	report, err := hostile.Run(ctx, *cfg, c.line.Tell)
	c.line.Clear()
	if err != nil {
		return err
	}
	return errors.Join(c.print(report), report.Err(), judge(set, report.Figure).Err())
}

// hostilePeer is what hostile starts beside itself: the strangers.
func (c *console) hostilePeer() *cobra.Command {
	var target, from string
	var connections int
	var rate float64
	cmd := &cobra.Command{
		Use: hostile.PeerCommand, Short: "Opens hostile connections, as the command hostile tells it", Hidden: true, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return hostile.Peer(cmd.Context(), target, from, connections, rate, c.out)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&target, "target", "", "address of the server")
	flags.StringVar(&from, "from", "127.0.0.1", "address that they come from")
	flags.IntVar(&connections, "connections", 1, "how many")
	flags.Float64Var(&rate, "rate", 1, "of them a second")
	return cmd
}

// hostileBurn is the other one: a process that harms nobody.
func (c *console) hostileBurn() *cobra.Command {
	var processors float64
	cmd := &cobra.Command{
		Use: hostile.BurnCommand, Short: "Burns processor time, as the command hostile tells it", Hidden: true, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return hostile.Burn(cmd.Context(), processors, c.out)
		},
	}
	cmd.Flags().Float64Var(&processors, "processors", 1, "how many")
	return cmd
}
