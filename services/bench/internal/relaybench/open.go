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
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/machine"
)

// OpenConfig is the configuration of Streams.
type OpenConfig struct {
	Programs
	Streams    int           // open at once
	States     []string      // idle, stalled or both
	Pause      time.Duration // between two tokens of an idle stream
	Rate       float64       // tokens a second of all streams together until their readers have stalled them
	Within     time.Duration // how long streams may take to be still
	Tokens     int           // that a stalled stream may pile up
	Prompt     int           // tokens
	Candidates int           // that come with each token of a stalled stream, to fill its windows sooner; 0: none
	Settle     time.Duration // how long nothing must move before memory is taken
}

// States of a stream: idle, it waits for its first or its next token; stalled, its reader has stopped after its first.
const (
	stateIdle    = "idle"
	stateStalled = "stalled"
)

const (
	// perWorker is how many of the streams one worker has, and spare the part of it, one in so many, that it has places for besides: a
	// burst is not spread exactly, and a stream that waits at a full worker would never begin.
	perWorker, spare = 900, 8
	// opening is how many streams are opened at once: beyond it they only wait for each other.
	opening = 1000
	// maxCandidates is what a worker gives.
	maxCandidates = 20
)

// Validate reports everything that is wrong.
func (c *OpenConfig) Validate() error {
	wrong := []error{
		c.wrong(), within("--streams", c.Streams, 1<<20), within("--tokens", c.Tokens, 1<<18), within("--prompt", c.Prompt, 1<<10),
	}
	if c.Candidates < 0 || c.Candidates > maxCandidates {
		wrong = append(wrong, fmt.Errorf("--candidates %d: want 0 to %d", c.Candidates, maxCandidates))
	}
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
	if least := float64(c.Streams) / c.Settle.Seconds(); !(c.Rate >= 2*least && c.Rate <= 1e7) {
		wrong = append(wrong, fmt.Errorf("--rate %v: want two tokens of each stream within --settle at least, %.0f/s, and 1e7/s at most",
			c.Rate, 2*least))
	}
	if c.Within <= c.Settle || c.Within > 24*time.Hour {
		wrong = append(wrong, fmt.Errorf("--within %v: want more than --settle (%v), and 24h at most", c.Within, c.Settle))
	}
	return errors.Join(wrong...)
}

// step is the time of a worker's step, in which each of its streams gets a token.
func (c *OpenConfig) step(state string) time.Duration {
	if state == stateIdle {
		return c.Pause
	}
	return time.Duration(float64(c.Streams) / c.Rate * float64(time.Second))
}

// rig is what a state needs.
func (c *OpenConfig) rig(state string) rig {
	each := min(c.Streams, perWorker)
	places := each + each/spare
	r := rig{
		Programs: c.Programs, workers: (c.Streams + each - 1) / each, device: device(c.step(state)), metrics: true,
		// Workers that wait for a processor of a busy machine are not lost: streams that move say nothing of memory.
		schedulerFlags: []string{"--stale", "1m"},
		kvTokens:       uint64(places) * uint64(c.Prompt+c.Tokens+64), context: uint32(c.Prompt + c.Tokens + 1), sequences: uint32(places),
	}
	if state == stateStalled {
		r.callerOptions = narrow()
	}
	return r
}

// Streams measures the resident memory of the scheduler under open streams: idle ones, and ones whose readers have stopped
// reading while the workers go on until flow control holds them. A stream that ends early is ErrFailed, and so are stalled streams
// that no flow control holds.
func Streams(ctx context.Context, c OpenConfig, tell func(format string, args ...any)) (*OpenReport, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	r := &OpenReport{Machine: machine.Look(), Streams: c.Streams}
	for _, state := range []string{stateIdle, stateStalled} {
		if !slices.Contains(c.States, state) {
			continue
		}
		tell("starting the programs for %s streams", state)
		taken, err := c.stage(ctx, state, func(format string, args ...any) { tell(state+": "+format, args...) })
		if err != nil {
			return nil, err
		}
		r.States = append(r.States, taken)
	}
	return r, nil
}

// stage opens the streams, waits until nothing moves and takes the memory.
func (c *OpenConfig) stage(ctx context.Context, state string, tell func(format string, args ...any)) (taken OpenState, err error) {
	m, err := begin(ctx, c.rig(state))
	defer func() { err = errors.Join(err, m.fleet.stop()) }()
	if err != nil {
		return taken, err
	}
	taken.State = state
	if taken.Empty, err = m.fleet.scheduler.program.Memory(); err != nil {
		return taken, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel(nil)
	var begun atomic.Int64
	places := make(chan struct{}, opening)
	// Readers stall when all have begun: while others wait for its place, a worker ends a stream that is not read.
	var stop chan struct{}
	if state == stateStalled {
		stop = make(chan struct{})
	}
	work.Go(func() {
		for i := range c.Streams {
			select {
			case places <- struct{}{}:
			case <-ctx.Done():
				return
			}
			work.Go(func() {
				conn := m.fleet.scheduler.conns[i%len(m.fleet.scheduler.conns)]
				in := m.maker.Request(uint64(i), load.Size{Prompt: c.Prompt, Output: c.Tokens})
				if state == stateStalled && c.Candidates > 0 {
					if in.Response == nil {
						in.Response = &pb.ResponseOptions{}
					}
					in.Response.OutputCandidates = proto.Int32(int32(c.Candidates))
				}
				err := hold(ctx, conn, in, stop, func() {
					<-places
					if begun.Add(1) == int64(c.Streams) && stop != nil {
						close(stop)
					}
				})
				if err != nil {
					cancel(fmt.Errorf("%w: stream %d: %w", ErrFailed, i, err))
				}
			})
		}
	})
	last, err := c.settle(ctx, m.fleet, state, &begun, tell)
	if err != nil {
		return taken, err
	}
	taken.Tokens = last.tokens / float64(c.Streams)
	err = taken.take(m.fleet)
	return taken, err
}

// hold opens a stream, tells that it is open, and reads until ctx ends or stop is closed. The stream must not end before. One that will be
// stopped is open once it has tokens.
func hold(ctx context.Context, conn grpc.ClientConnInterface, in *pb.GenerateRequest, stop <-chan struct{}, begun func()) error {
	stream, err := pb.NewInferenceServiceClient(conn).Generate(ctx, in)
	told := err == nil && stop == nil
	if told {
		begun()
	}
	for err == nil {
		select {
		case <-stop:
			<-ctx.Done()
			return nil
		default:
		}
		var event *pb.GenerateResponse
		if event, err = stream.Recv(); !told && len(event.GetTokens().GetTokenIds()) > 0 {
			told = true
			begun()
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
