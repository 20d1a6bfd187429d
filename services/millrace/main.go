package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/millrace/millrace/services/millrace/internal/cli"
	"github.com/millrace/millrace/services/millrace/internal/config"
)

func main() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	os.Exit(cli.Run(context.Background(), &cli.System{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		Signals: signals, Release: func() { signal.Stop(signals) },
		Config: config.Load(),
	}, os.Args[1:]))
}
