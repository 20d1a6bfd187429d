package command

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/millrace/millrace/services/bench/internal/load"
)

// joiners are calls of a long prompt and one token that come while others run.
type joiners struct {
	prompt int
	every  time.Duration
}

// parseJoin reads PROMPTxPERIOD; the zero value for nothing.
func parseJoin(s string) (joiners, error) {
	if s == "" {
		return joiners{}, nil
	}
	wrong := fmt.Errorf("--join %q: want PROMPTxPERIOD, such as 4096x2s, of 1 to 1048576 tokens and 1ms to 1h", s)
	prompt, period, ok := strings.Cut(s, "x")
	if !ok {
		return joiners{}, wrong
	}
	n, err := strconv.Atoi(prompt)
	if err != nil || n < 1 || n > 1<<20 {
		return joiners{}, wrong
	}
	every, err := time.ParseDuration(period)
	if err != nil || every < time.Millisecond || every > time.Hour {
		return joiners{}, wrong
	}
	return joiners{prompt: n, every: every}, nil
}

// joinSeed keeps the prompts of joiners apart from those that they join.
const joinSeed = 1 << 40

// run starts calls until ctx ends, which cuts off those that run.
func (j joiners) run(ctx context.Context, conns []grpc.ClientConnInterface, maker load.Maker, timeout time.Duration, to *load.Recorder) {
	if j.prompt == 0 {
		return
	}
	maker.Seed += joinSeed
	maker.Text = ""
	g := load.Generator{Conns: conns, Maker: maker, Timeout: timeout, To: to}
	g.Open(ctx, load.Periodic(j.every, load.Size{Prompt: j.prompt, Output: 1}))
}
