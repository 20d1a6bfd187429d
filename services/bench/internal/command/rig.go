package command

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/services/bench/internal/faults"
)

func (c *console) rig() *cobra.Command {
	cfg := faults.ContainerConfig{}
	cmd := &cobra.Command{
		Use: "rig", Short: "Injects faults into a fleet of containers under load and compares every bit of the streams",
		Long: "Takes a Compose project that is up, with two schedulers and workers that have the model loaded. It records the streams of\n" +
			"the undisturbed fleet, and then kills, freezes, partitions, drains and restarts its containers while clients send the same\n" +
			"requests. It prints a line for each section, and exits with 1 if a stream failed or differs, or if a scheduler shows the\n" +
			"old state of a worker for longer than --truth. Run it in the folder of docker-compose.yml; deploy/rig-test.sh starts the\n" +
			"project.\n\n" +
			"Sections: " + strings.Join(faults.Sections(), ", ") + ".",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cfg.Validate(); err != nil {
				return fmt.Errorf("%w: %w", ErrUsage, err)
			}
			report, err := faults.RunContainers(cmd.Context(), cfg, func(line fmt.Stringer) {
				if !c.json {
					fmt.Fprintln(c.out, line)
				}
			})
			if err != nil {
				return err
			}
			return errors.Join(c.print(report), report.Err())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&cfg.Project, "project", "millrace-rig", "name of the Compose project")
	flags.StringSliceVar(&cfg.Schedulers, "schedulers", []string{"127.0.0.1:7070", "127.0.0.1:7170"}, "published addresses of scheduler-0 and scheduler-1")
	flags.StringVar(&cfg.Model, "model", "stories", "name of the model that every worker has loaded")
	flags.StringVar(&cfg.Service, "service", "worker", "service of the Compose file whose containers are the workers")
	flags.IntVar(&cfg.Workers, "workers", 4, "containers of that service")
	flags.IntVar(&cfg.Streams, "streams", 36, "streams at once")
	flags.IntVar(&cfg.Tokens, "max-tokens", 450, "tokens of each")
	flags.StringSliceVar(&cfg.Only, "only", nil, "sections to run, separated by commas (default: all)")
	flags.DurationVar(&cfg.Truth, "truth", 2*time.Second, "time within which schedulers must show a new state of a worker; up to 0.7 s more for a silent one whose steps may take longer than 1.6 s")
	return cmd
}
