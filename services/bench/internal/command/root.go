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

	"github.com/millrace/millrace/services/bench/internal/terminal"
	"github.com/millrace/millrace/services/internal/version"
)

// ErrUsage says that the command line is wrong; nothing was measured.
var ErrUsage = errors.New("wrong usage")

// console is where a command writes.
type console struct {
	out, err io.Writer
	line     *terminal.Line
	json     bool
	save     string // file for the JSON object, besides what is printed
	level    string
}

// Run runs the command that args name.
func Run(ctx context.Context, args []string, out, errs io.Writer) error {
	c := &console{out: out, err: errs, line: terminal.New(errs)}
	root := c.root()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errs)
	return root.ExecuteContext(ctx)
}

// root is the command line.
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
	root.PersistentFlags().StringVar(&c.save, "save", "", "file that the JSON object is written to besides what is printed")
	root.PersistentFlags().StringVar(&c.level, "log-level", "error", "trace, debug, info, warn or error")
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return fmt.Errorf("%w: %w; see --help", ErrUsage, err) })
	root.AddCommand(c.engine(), c.load(), c.prefix(), c.cancel(), c.overload(), c.fairness(), c.memory(), c.memoryPeer(), c.ops(), c.receive(), c.relay(),
		c.replay(), c.restart(), c.fleet(), c.hostile(), c.hostilePeer(), c.hostileBurn(), c.safeguards(), c.chaos(), c.rig(), c.synth(), c.vectors())
	return root
}

// noArgs refuses arguments that are no flags.
func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%w: unexpected argument %q; see --help", ErrUsage, args[0])
	}
	return nil
}

func (c *console) logger() hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Name: "millrace-bench", Level: hclog.LevelFromString(c.level), Output: c.err})
}

// printer is a report that can be read.
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
