package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/template"
	"github.com/millrace/millrace/services/gpuworker/internal/app"
	"github.com/millrace/millrace/services/gpuworker/internal/config"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/version"
)

// Exit codes.
const (
	exitFailed = 1
	exitUsage  = 2 // a wrong flag, or a device that this machine does not have
)

func main() {
	template.MaybeChild()
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	c, flags := &config.Config{}, pflag.NewFlagSet("millrace-worker", pflag.ContinueOnError)
	c.Register(flags)
	printVersion := flags.Bool("version", false, "print the version and exit")
	switch err := flags.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err == nil && flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
		fallthrough
	case err != nil:
		fmt.Fprintf(os.Stderr, "millrace-worker: %v; see --help\n", err)
		return exitUsage
	}
	if *printVersion {
		fmt.Fprintln(os.Stdout, "millrace-worker", version.String())
		return 0
	}
	if err := c.Validate(); err != nil {
		fmt.Fprintf(os.Stderr, "millrace-worker: %v\n", err)
		return exitUsage
	}
	logger := hclog.New(&hclog.LoggerOptions{
		Name: "millrace-worker", Level: hclog.LevelFromString(c.LogLevel), JSONFormat: c.LogJSON, Output: os.Stderr,
	})
	rpc.LogGRPC(logger)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	logger.Debug("configuration", "config", fmt.Sprintf("%+v", *c))
	serve := func() error { return app.Run(ctx, c, logger) }
	if c.SelfTest {
		serve = func() error { return app.SelfTest(c, os.Stdout, logger) }
	}
	if err := serve(); err != nil {
		fmt.Fprintf(os.Stderr, "millrace-worker: %v\n", err)
		if errors.Is(err, engine.ErrNoDevice) {
			return exitUsage
		}
		return exitFailed
	}
	return 0
}
