package relaybench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/machine"
)

// OpenConfig is the configuration of Streams.
type OpenConfig struct {
	Programs
	Streams int           // open at once
	States  []string      // idle, stalled or both
	Pause   time.Duration // between two tokens of an idle stream
	Tokens  int           // that a stalled stream may pile up
	Prompt  int           // tokens
	Settle  time.Duration // how long nothing must move before memory is taken
}

// States of a stream: idle, it waits for its first or its next token; stalled, its reader has stopped after its first.
const (
	stateIdle    = "idle"
	stateStalled = "stalled"
)

// perWorker is how many of the streams one worker gets: the scheduler's bound for a worker is above it.
const perWorker = 1000

// Validate reports everything that is wrong.
func (c *OpenConfig) Validate() error {
	wrong := []error{c.wrong(), within("--streams", c.Streams, 1<<20), within("--tokens", c.Tokens, 1<<18), within("--prompt", c.Prompt, 1<<10)}
	for _, state := range c.States {
		if state != stateIdle && state != stateStalled {
			wrong = append(wrong, fmt.Errorf("--states %q: want %s, %s or both", state, stateIdle, stateStalled))
		}
	}
	if c.Pause < time.Second || c.Pause > time.Hour {
		wrong = append(wrong, fmt.Errorf("--pause %v: want 1s to 1h", c.Pause))
	}
	if c.Settle < time.Second || c.Settle > time.Hour {
		wrong = append(wrong, fmt.Errorf("--settle %v: want 1s to 1h", c.Settle))
	}
	return errors.Join(wrong...)
}

// OpenReport is what Streams found.
type OpenReport struct {
	Machine machine.Facts `json:"machine"`
	Streams int           `json:"streams"`
	Empty   uint64        `json:"rss_without_streams_bytes"`
	Idle    uint64        `json:"rss_idle_bytes,omitempty"`    // every stream is open and waits for its first or its next token
	Stalled uint64        `json:"rss_stalled_bytes,omitempty"` // every reader stopped after its first message, and nothing moves any more
}

// Streams measures the scheduler's resident memory under open streams: idle ones, and ones whose readers have stopped
// reading while the workers go on until flow control holds them. A stream that ends early is ErrFailed.
func Streams(ctx context.Context, c OpenConfig, tell func(format string, args ...any)) (*OpenReport, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	r := &OpenReport{Machine: machine.Look(), Streams: c.Streams}
	for _, stage := range []struct {
		name    string
		step    time.Duration
		stalled bool
		to      *uint64
	}{{stateIdle, c.Pause, false, &r.Idle}, {stateStalled, time.Millisecond, true, &r.Stalled}} {
		if !slices.Contains(c.States, stage.name) {
			continue
		}
		tell("starting the programs for %s streams", stage.name)
		err := c.stage(ctx, stage.step, stage.stalled, r, stage.to, func(format string, args ...any) {
			tell(stage.name+": "+format, args...)
		})
		if err != nil {
			return nil, err
		}
	}
	return r, nil
}

// stage opens the streams, waits until nothing moves and takes the memory.
func (c OpenConfig) stage(ctx context.Context, step time.Duration, stalled bool, r *OpenReport, to *uint64,
	tell func(format string, args ...any)) (err error) {
	each := min(c.Streams, perWorker)
	m, err := begin(ctx, rig{
		Programs: c.Programs, workers: (c.Streams + each - 1) / each, device: device(step),
		kvTokens: uint64(each) * uint64(c.Prompt+c.Tokens+64), context: uint32(c.Prompt + c.Tokens + 1), sequences: uint32(each),
	})
	defer func() { err = errors.Join(err, m.fleet.stop()) }()
	if err != nil {
		return err
	}
	scheduler := m.fleet.scheduler.program
	if r.Empty, err = scheduler.Memory(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel(nil)
	var begun atomic.Int64
	for i := range c.Streams {
		work.Go(func() {
			conn := m.fleet.scheduler.conns[i%len(m.fleet.scheduler.conns)]
			in := m.maker.Request(uint64(i), load.Size{Prompt: c.Prompt, Output: c.Tokens})
			if err := hold(ctx, conn, in, stalled, func() { begun.Add(1) }); err != nil {
				cancel(fmt.Errorf("%w: stream %d: %w", ErrFailed, i, err))
			}
		})
	}
	if err := c.settle(ctx, scheduler, &begun, tell); err != nil {
		return err
	}
	*to, err = scheduler.Memory()
	return err
}

// hold opens a stream and tells that it is open; then it reads on until ctx ends or, stalled, tells so at the first message with
// tokens and reads no further. The stream must not end before.
func hold(ctx context.Context, conn grpc.ClientConnInterface, in *pb.GenerateRequest, stalled bool, begun func()) error {
	stream, err := pb.NewInferenceServiceClient(conn).Generate(ctx, in)
	if err == nil && !stalled {
		begun()
	}
	for err == nil {
		var event *pb.GenerateResponse
		if event, err = stream.Recv(); stalled && len(event.GetTokens().GetTokenIds()) > 0 {
			begun()
			<-ctx.Done()
		}
	}
	switch {
	case ctx.Err() != nil:
		err = nil
	case errors.Is(err, io.EOF):
		err = errors.New("it ended by itself: give it more --tokens")
	}
	return err
}
