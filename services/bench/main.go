package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/gpuworker/template"
	"github.com/millrace/millrace/services/bench/internal/command"
	"github.com/millrace/millrace/services/internal/rpc"
)

// Exit codes.
const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	template.MaybeChild()
	// gRPC's own logger is one for the process, and set before anything uses it.
	rpc.LogGRPC(hclog.New(&hclog.LoggerOptions{Name: "millrace-bench", Level: hclog.Error, Output: os.Stderr}))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	err := command.Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err == nil {
		return
	}
	fmt.Fprintf(os.Stderr, "millrace-bench: %v\n", err)
	if errors.Is(err, command.ErrUsage) {
		os.Exit(exitUsage)
	}
	os.Exit(exitFailed)
}
