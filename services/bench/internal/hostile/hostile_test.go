package hostile

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/bench/internal/simfleet/simfleettest"
	"github.com/millrace/millrace/services/bench/internal/stats"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// TestMain lets the test binary stand in for all programs.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == PeerCommand || os.Args[1] == BurnCommand) {
		if err := play(os.Args[1], os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	simfleettest.Main(m)
}

func play(command string, args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	flags := pflag.NewFlagSet(command, pflag.ContinueOnError)
	target, from := flags.String("target", "", ""), flags.String("from", "", "")
	connections, rate, processors := flags.Int("connections", 0, ""), flags.Float64("rate", 0, ""), flags.Float64("processors", 0, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if command == BurnCommand {
		return Burn(ctx, *processors, os.Stdout)
	}
	return Peer(ctx, *target, *from, *connections, *rate, os.Stdout)
}

func TestStrangersAndAHarmlessProcessAreCompared(t *testing.T) {
	rpctest.NoLeaks(t)
	path := simfleettest.Use(t, simfleettest.Ignorant)
	c := Config{Scheduler: path, Worker: path, Self: path, Connections: 40, Rate: 40, From: "127.0.0.2", Calls: 20, Tokens: 2, Rounds: 1}
	report, err := Run(t.Context(), c, func(string, ...any) {})
	require.NoError(t, err)
	require.NoError(t, report.Err())
	require.Len(t, report.Rounds, 1)
	round := report.Rounds[0]
	require.Positive(t, round.Tally.Opened)
	for _, m := range []Measured{round.Alone, round.Hostile, round.Harmless} {
		require.Positive(t, m.Calls.Count)
		require.Positive(t, m.Memory)
	}
	v, ok := report.Figure("hostile", "ratio")
	require.True(t, ok)
	require.InDelta(t, round.Hostile.Calls.P99/round.Harmless.Calls.P99, v, 1e-9)
	var text bytes.Buffer
	report.Print(&text)
	require.Contains(t, text.String(), "bar: at most 2")
}

func TestACallThatFailsBreaksThePromise(t *testing.T) {
	fine := Measured{Calls: stats.Summary{Count: 1, P99: 1}}
	require.NoError(t, (&Report{Rounds: []Round{{Alone: fine, Hostile: fine, Harmless: fine}}}).Err())
	failed := fine
	failed.Failed, failed.Example = 2, "gone"
	err := (&Report{Rounds: []Round{{Alone: fine, Hostile: failed, Harmless: fine}}}).Err()
	require.ErrorIs(t, err, ErrBroken)
	require.ErrorContains(t, err, "round 1, beside strangers: 2 calls failed: gone")
}

func TestWhatCannotBeMeasuredIsRefused(t *testing.T) {
	valid := Config{Connections: 10, Rate: 10, From: "127.0.0.2", Calls: 1, Tokens: 1, Rounds: 1, Settle: time.Second}
	require.NoError(t, valid.Validate())
	for want, change := range map[string]func(*Config){
		"--connections 0": func(c *Config) { c.Connections = 0 }, "--rate 0": func(c *Config) { c.Rate = 0 },
		`--from "10.0.0.1"`: func(c *Config) { c.From = "10.0.0.1" }, "--calls": func(c *Config) { c.Calls = 0 },
		"--tokens": func(c *Config) { c.Tokens = 0 }, "--rounds": func(c *Config) { c.Rounds = 0 }, "--settle": func(c *Config) { c.Settle = -1 },
	} {
		c := valid
		change(&c)
		require.ErrorContains(t, c.Validate(), want)
	}
}
