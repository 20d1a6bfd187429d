package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/services/bench/internal/faults"
)

func (c *console) chaos() *cobra.Command {
	cfg := &faults.ProcessConfig{}
	var kinds []string
	cmd := &cobra.Command{
		Use: "chaos", Short: "Kills, freezes and partitions workers, and kills schedulers, and compares every bit of their streams",
		Long: "Starts workers and two schedulers, the shipped programs, and runs requests undisturbed. Then it keeps streams of the same\n" +
			"requests open and injects a fault into a random busy worker at every interval; then it kills schedulers, while clients resume\n" +
			"on the other one. A stream that fails, lacks a token, has one twice or differs from the undisturbed one in a bit fails the\n" +
			"run, and so do a pause longer than promised and a stage in which no stream was continued.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.runChaos(cmd.Context(), cfg, kinds) },
	}
	flags := cmd.Flags()
	flags.StringVar(&cfg.Scheduler, "scheduler", "", "path of millrace-scheduler (default: in this program's folder)")
	flags.StringVar(&cfg.Worker, "worker", "", "path of millrace-worker (default: in this program's folder)")
	flags.StringVar(&cfg.Models, "models", "models", "folder of model files NAME.gguf")
	flags.StringVar(&cfg.Model, "model", "stories", "model that serves")
	flags.StringArrayVar(&cfg.Devices, "device", []string{"cpu"}, "device of a worker, as its own --device; may be repeated: the workers use them in turn")
	flags.IntVar(&cfg.Workers, "workers", 0, "workers; 0: one for each device, or 4 if there is one device")
	flags.IntVar(&cfg.MaxSequences, "max-sequences", 0, "slots of each worker; 0: twice the streams, so that one worker has a slot for each, and 1024 at most")
	flags.IntVar(&cfg.Streams, "streams", 200, "streams to keep open")
	flags.IntVar(&cfg.Requests, "requests", 0, "different requests, used in turn; 0: as many as streams")
	flags.IntVar(&cfg.Prompt, "prompt-tokens", 256, "tokens of the longest prompts")
	flags.IntVar(&cfg.Answer, "max-tokens", 192, "tokens of the longest answers; the others have at least half as many, unless they stop earlier")
	flags.DurationVar(&cfg.Duration, "duration", time.Minute, "duration of faults on workers; 0: no such faults")
	flags.DurationVar(&cfg.Every, "every", 3*time.Second, "time between faults")
	flags.IntVar(&cfg.AtMost, "at-most", 0, "most faults on workers; 0: no limit but the duration")
	flags.StringSliceVar(&kinds, "faults", []string{"kill", "freeze", "cut"}, "kinds of faults on workers, each as often: kill (SIGKILL), freeze (SIGSTOP), cut (a partition: no byte passes either way)")
	flags.DurationVar(&cfg.Restart, "restart", time.Second, "time until a killed program is started again")
	flags.DurationVar(&cfg.Restore, "restore", 5*time.Second, "time until a frozen or partitioned worker is restored")
	flags.IntVar(&cfg.SchedulerKills, "scheduler-kills", 4, "kills of schedulers, one after the other")
	flags.DurationVar(&cfg.Grace, "grace", time.Minute, "time in which the last streams of a stage must end")
	flags.Uint64Var(&cfg.Seed, "seed", 1, "seed of requests and faults")
	return cmd
}

func (c *console) runChaos(ctx context.Context, cfg *faults.ProcessConfig, kinds []string) (err error) {
	if cfg.Kinds, err = faults.ParseKinds(kinds); err != nil {
		return fmt.Errorf("%w: --faults: %w", ErrUsage, err)
	}
	if cfg.Workers == 0 {
		if cfg.Workers = len(cfg.Devices); cfg.Workers == 1 {
			cfg.Workers = 4
		}
	}
	if cfg.MaxSequences == 0 {
		cfg.MaxSequences = min(max(2*cfg.Streams, 1), 1024)
	}
	if cfg.Requests == 0 {
		cfg.Requests = cfg.Streams
	}
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrUsage, err)
	}
	if err := findPrograms(&cfg.Scheduler, &cfg.Worker); err != nil {
		return err
	}
	report, err := faults.RunProcesses(ctx, *cfg, c.line.Step)
	c.line.Clear()
	if report == nil {
		return err
	}
	return errors.Join(c.print(report), err)
}
