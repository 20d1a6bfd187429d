package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/services/bench/internal/stats"
	"github.com/millrace/millrace/services/internal/version"
)

// ErrUsage is returned for a wrong command line. Nothing was measured.
var ErrUsage = errors.New("wrong usage")

// console is the output of a command.
type console struct {
	out, err io.Writer
	line     *statusLine
	json     bool
	save     string // file for the JSON object, in addition to the output
	level    string
}

// Run runs the command of args.
func Run(ctx context.Context, args []string, out, errs io.Writer) error {
	c := &console{out: out, err: errs, line: newStatusLine(errs)}
	root := c.root()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errs)
	return root.ExecuteContext(ctx)
}

// root returns the command line.
func (c *console) root() *cobra.Command {
	root := &cobra.Command{
		Use: "millrace-bench", Short: "Measures Millrace against its roofs", Version: version.String(),
		SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if hclog.LevelFromString(c.level) == hclog.NoLevel {
				return fmt.Errorf("%w: --log-level %q: want trace, debug, info, warn or error", ErrUsage, c.level)
			}
			return nil
		},
	}
	root.PersistentFlags().BoolVar(&c.json, "json", false, "print one JSON object instead of text")
	root.PersistentFlags().StringVar(&c.save, "save", "", "file that the JSON object is written to in addition to the output")
	root.PersistentFlags().StringVar(&c.level, "log-level", "error", "trace, debug, info, warn or error")
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return fmt.Errorf("%w: %w; see --help", ErrUsage, err) })
	root.AddCommand(c.engine(), c.load(), c.prefix(), c.cancel(), c.overload(), c.fairness(), c.memory(), c.memoryPeer(), c.ops(), c.relay(),
		c.replay(), c.chaos(), c.rig(), c.synth(), c.vectors())
	return root
}

// noArgs returns ErrUsage for arguments that are not flags.
func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%w: unexpected argument %q; see --help", ErrUsage, args[0])
	}
	return nil
}

func (c *console) logger() hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Name: "millrace-bench", Level: hclog.LevelFromString(c.level), Output: c.err})
}

// printer is a report with a text form.
type printer interface{ Print(w io.Writer) }

// print writes a report.
func (c *console) print(report printer) error {
	c.line.Clear()
	encoded, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	encoded = append(encoded, '\n')
	if c.json {
		_, err = c.out.Write(encoded)
	} else {
		report.Print(c.out)
	}
	if c.save != "" && err == nil {
		err = os.WriteFile(c.save, encoded, 0o600)
	}
	return err
}

const floorsUsage = "file of floors that fail the run; see bench/floors"

// readFloors reads the floors of a command; nil if path is empty.
func readFloors(path, command string) (*stats.Floors, error) {
	if path == "" {
		return nil, nil
	}
	set, err := stats.ReadFloors(path, command)
	if err != nil {
		return nil, fmt.Errorf("%w: --floors: %w", ErrUsage, err)
	}
	return &set, nil
}

// judge compares figures with floors; nil without floors.
func judge(set *stats.Floors, figure stats.Figure) *stats.Verdict {
	if set == nil {
		return nil
	}
	return set.Judge(figure)
}
