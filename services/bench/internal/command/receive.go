package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/services/bench/internal/config"
	"github.com/millrace/millrace/services/bench/internal/receivebench"
)

func (c *console) receive() *cobra.Command {
	cfg, memory := &receivebench.Config{}, config.Bytes(2<<30)
	cmd := &cobra.Command{
		Use: "receive", Short: "Sends far more bytes of requests at once than a server has memory for, beside small ones",
		Long: "Starts a worker on the sim engine and a scheduler over it, with a bound of the memory that each may ask the system for, and sends\n" +
			"each of them all large requests at once: of text, and of token ids. Every one must end with a status, no program may end,\n" +
			"and small requests beside them must be served.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.Memory = uint64(memory)
			return c.runReceive(cmd.Context(), cfg)
		},
	}
	flags := cmd.Flags()
	programFlags(flags, &cfg.Scheduler, &cfg.Worker)
	flags.StringVar(&cfg.Model, "model", "", "model file whose tokenizer is used (default: a small one of random weights, without text)")
	flags.IntVar(&cfg.Requests, "requests", 1000, "large requests at once")
	flags.IntVar(&cfg.Bytes, "bytes", 16<<20, "bytes of each")
	flags.IntVar(&cfg.Connections, "connections", 100, "connections that they share")
	flags.Var(&memory, "memory", "what each program may ask the system for; 0: any amount")
	flags.DurationVar(&cfg.Measure, "measure", 5*time.Second, "how long small requests are measured alone, before")
	flags.DurationVar(&cfg.Timeout, "timeout", 10*time.Minute, "time in which every large request must have a status")
	return cmd
}

func (c *console) runReceive(ctx context.Context, cfg *receivebench.Config) error {
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrUsage, err)
	}
	if err := findPrograms(&cfg.Scheduler, &cfg.Worker); err != nil {
		return err
	}
	c.logger() // gRPC's own messages go through it
	report, err := receivebench.Run(ctx, *cfg, c.line.Tell)
	c.line.Clear()
	if err != nil {
		return err
	}
	return errors.Join(c.print(report), report.Err())
}
