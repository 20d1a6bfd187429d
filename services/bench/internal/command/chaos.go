package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/services/bench/internal/chaos"
)

func (c *console) chaos() *cobra.Command {
	cfg := &chaos.Config{}
	var kinds []string
	cmd := &cobra.Command{
		Use: "chaos", Short: "Kills, freezes and cuts off workers, and kills schedulers, under streams that must not notice",
		Long: "Starts workers and two schedulers, the shipped programs, and runs requests undisturbed. Then it keeps streams of the same\n" +
			"requests open and hurts a random busy worker every so often; then it kills schedulers, while clients go to the other one with\n" +
			"what they have. A stream that fails, lacks a token, has one twice or differs from the undisturbed one in a bit fails the run,\n" +
			"and so do a pause longer than promised and a run in which no stream was continued.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.runChaos(cmd.Context(), cfg, kinds) },
	}
	flags := cmd.Flags()
	flags.StringVar(&cfg.Scheduler, "scheduler", "", "path of millrace-scheduler (default: beside this program)")
	flags.StringVar(&cfg.Worker, "worker", "", "path of millrace-worker (default: beside this program)")
	flags.StringVar(&cfg.Models, "models", "models", "folder of model files NAME.gguf")
	flags.StringVar(&cfg.Model, "model", "stories", "model that serves")
	flags.StringArrayVar(&cfg.Devices, "device", []string{"cpu"}, "device of a worker, as its own --device; may be repeated: the workers take them in turn")
	flags.IntVar(&cfg.Workers, "workers", 0, "workers; 0: one for each device, or 4 where one is named")
	flags.IntVar(&cfg.MaxSequences, "max-sequences", 0, "sequences that a worker has places for; 0: twice the streams, so that one might take them all, and 1024 at most")
	flags.IntVar(&cfg.Streams, "streams", 200, "streams that are always open")
	flags.IntVar(&cfg.Requests, "requests", 0, "different requests, used in turn; 0: as many as streams")
	flags.IntVar(&cfg.Prompt, "prompt-tokens", 256, "tokens of the longest prompts")
	flags.IntVar(&cfg.Answer, "max-tokens", 192, "tokens of the longest answers; the others have half as many at least, unless something ends them")
	flags.DurationVar(&cfg.Duration, "duration", time.Minute, "time in which workers are hurt; 0: none is")
	flags.DurationVar(&cfg.Every, "every", 3*time.Second, "from one fault to the next")
	flags.IntVar(&cfg.AtMost, "at-most", 0, "faults on workers at most; 0: as many as the duration has room for")
	flags.StringSliceVar(&kinds, "faults", []string{"kill", "freeze", "cut"}, "what is done to workers, each as often: kill (SIGKILL), freeze (SIGSTOP), cut (bytes are held both ways)")
	flags.DurationVar(&cfg.Restart, "restart", time.Second, "a killed program is started again after so long")
	flags.DurationVar(&cfg.Restore, "restore", 5*time.Second, "a frozen worker is thawed, and one cut off is healed, after so long")
	flags.IntVar(&cfg.SchedulerKills, "scheduler-kills", 4, "kills of schedulers, one after the other")
	flags.DurationVar(&cfg.Grace, "grace", time.Minute, "time in which the last streams of a stage must end")
	flags.Uint64Var(&cfg.Seed, "seed", 1, "seed of requests and faults")
	return cmd
}

func (c *console) runChaos(ctx context.Context, cfg *chaos.Config, kinds []string) (err error) {
	if cfg.Kinds, err = chaos.ParseKinds(kinds); err != nil {
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
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for path, name := range map[*string]string{&cfg.Scheduler: "millrace-scheduler", &cfg.Worker: "millrace-worker"} {
		if *path == "" {
			*path = filepath.Join(filepath.Dir(self), name)
		}
	}
	report, err := chaos.Run(ctx, *cfg, c.line.Tell)
	c.line.Clear()
	if report == nil {
		return err
	}
	return errors.Join(c.print(report), err)
}
