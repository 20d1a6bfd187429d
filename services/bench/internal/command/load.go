package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/proc"
	"github.com/millrace/millrace/services/bench/internal/replay"
	"github.com/millrace/millrace/services/bench/internal/stats"
	"github.com/millrace/millrace/services/internal/auth"
	"github.com/millrace/millrace/services/internal/transport"
)

// errNothingOK is returned if no request succeeded.
var errNothingOK = errors.New("no request succeeded")

// loadFlags are the flags of the command load.
type loadFlags struct {
	transport                         transport.Flags
	auth                              auth.Flags
	target, model, prompt, trace, csv string
	mix, engine, metrics, join        string
	floors                            string
	concurrency, connections, limit   int
	promptTokens, maxTokens, warmUp   int
	requests                          int
	rate, speed                       float64
	temperature                       float32
	duration, timeout, ceilingTime    time.Duration
	seed                              uint64
	idsOnly, stopAtEnd, noHistogram   bool
	joiners                           joiners // of join
}

// loadReport is the report of the command load.
type loadReport struct {
	Machine proc.Machine `json:"machine"`
	Target  string       `json:"target"`
	Model   string       `json:"model"`
	Mode    string       `json:"mode"`
	// Ceiling is the messages a second that the generator can receive; 0: not measured.
	Ceiling          float64 `json:"ceiling_messages_per_second"`
	GeneratorLimited bool    `json:"generator_is_the_limit"`
	load.Report
	Engine *engineShare   `json:"engine,omitempty"` // nil: not compared
	Idle   *load.Idle     `json:"idle,omitempty"`   // nil: not measured, or the run was shorter than two scrapes
	Join   *load.Report   `json:"join,omitempty"`   // of the calls of --join; nil: none
	Floors *stats.Verdict `json:"floors,omitempty"`

	recorder  *load.Recorder
	histogram bool
}

// bars is the number of lines of a drawn histogram.
const bars = 12

// Print writes the report as text.
func (r *loadReport) Print(w io.Writer) {
	fmt.Fprintf(w, "machine  %s\ntarget   %s, model %s, %s\n", r.Machine, r.Target, r.Model, r.Mode)
	if r.Ceiling > 0 {
		fmt.Fprintf(w, "ceiling  this generator receives %.0f messages/s from a server in its own process\n", r.Ceiling)
	}
	fmt.Fprintln(w)
	r.Report.Print(w)
	if r.Join != nil {
		fmt.Fprintf(w, "\njoining prompts: ")
		r.Join.Print(w)
	}
	fmt.Fprintln(w)
	r.Engine.Print(w)
	if r.Idle != nil {
		fmt.Fprintf(w, "idle     %.2f %% of %.1f s: steps were on the device for %.2f s of them by its own time\n", 100*r.Idle.Share,
			r.Idle.Seconds, r.Idle.Steps)
	}
	r.Floors.Print(w)
	if r.histogram {
		ttft, gaps, total := r.recorder.Bars(bars)
		load.PrintBars(w, "first token", ttft)
		load.PrintBars(w, "inter-token", gaps)
		load.PrintBars(w, "end to end", total)
	}
	if r.GeneratorLimited {
		fmt.Fprintf(w, "\nThe generator is the limit: %.0f messages/s are above 70 %% of its ceiling of %.0f.\n",
			r.MessagesPerSecond, r.Ceiling)
	}
}

func (c *console) load() *cobra.Command {
	f := &loadFlags{}
	cmd := &cobra.Command{
		Use: "load", Short: "Puts a scheduler or worker under load and reports latencies and throughput",
		Long: "Three ways to send: a closed loop keeps --concurrency calls running; an open loop with --rate starts calls\n" +
			"at random times whether earlier ones have ended or not; --trace plays recorded arrivals. Prompts are random\n" +
			"token ids, or the text of --prompt.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.runLoad(cmd.Context(), f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.target, "target", "127.0.0.1:7070", "scheduler or worker: host:port, dns:///name:port or unix:PATH")
	f.transport.AddClientFlags(flags)
	f.auth.AddClientFlags(flags, "token-file", "the server")
	flags.StringVar(&f.model, "model", "", "name of a loaded model (default: the only one)")
	flags.IntVar(&f.concurrency, "concurrency", 8, "calls kept running in a closed loop")
	flags.Float64Var(&f.rate, "rate", 0, "open loop: calls a second on average, at Poisson times")
	flags.StringVar(&f.trace, "trace", "", "open loop: file with arrivals, CSV (TIMESTAMP,ContextTokens,GeneratedTokens) or JSON lines (timestamp, input_length, output_length)")
	flags.Float64Var(&f.speed, "speed", 1, "factor by which a trace is played faster")
	flags.IntVar(&f.limit, "limit", 0, "requests taken from a trace; 0: all")
	flags.DurationVar(&f.duration, "duration", 0, "time in which calls are started (default 10s, without --requests and --trace)")
	flags.IntVar(&f.requests, "requests", 0, "calls to start; 0: any number")
	flags.IntVar(&f.promptTokens, "prompt-tokens", 128, "random ids of a prompt")
	flags.StringVar(&f.prompt, "prompt", "", "text of every prompt, instead of random ids")
	flags.IntVar(&f.maxTokens, "max-tokens", 64, "tokens generated by a call")
	flags.Float32Var(&f.temperature, "temperature", 0, "sampling temperature; 0 is greedy")
	flags.BoolVar(&f.stopAtEnd, "stop-at-end", false, "let the model's end tokens end a stream before --max-tokens")
	flags.BoolVar(&f.idsOnly, "ids-only", false, "request token ids without text (always so for a model without tokenizer)")
	flags.Uint64Var(&f.seed, "seed", 1, "seed of prompts, arrivals and sampling")
	flags.IntVar(&f.warmUp, "warmup", 8, "calls made before any is counted")
	flags.IntVar(&f.connections, "connections", 1, "connections, used in turn")
	flags.DurationVar(&f.timeout, "timeout", 0, "deadline of a call; 0: none")
	flags.DurationVar(&f.ceilingTime, "ceiling-time", time.Second, "time for measuring the generator itself first; 0: not measured")
	flags.StringVar(&f.mix, "mix", "", "SEQUENCESxPROMPT/TOKENS: sets --concurrency, --prompt-tokens and --max-tokens")
	flags.StringVar(&f.engine, "engine", "", "file that `millrace-bench engine --mix ... --save` wrote: reports the share of the engine's rate")
	flags.StringVar(&f.metrics, "metrics", "", "URL of the worker's metrics, for example http://127.0.0.1:9071/metrics: reports how long its device was idle")
	flags.StringVar(&f.join, "join", "", "PROMPTxPERIOD: every period a call with a prompt of that length and one generated token joins; reported separately")
	flags.StringVar(&f.floors, "floors", "", floorsUsage)
	flags.StringVar(&f.csv, "csv", "", "CSV file with a line for each call")
	flags.BoolVar(&f.noHistogram, "no-histogram", false, "print no histograms")
	return cmd
}

func (f *loadFlags) validate() error {
	wrong := []error{checkCounts(
		count{"--concurrency", f.concurrency, 1, mostCalls}, count{"--connections", f.connections, 1, 10_000}, count{"--limit", f.limit, 0, 1 << 30},
		count{"--prompt-tokens", f.promptTokens, 1, mostTokens}, count{"--max-tokens", f.maxTokens, 1, mostTokens},
		count{"--warmup", f.warmUp, 0, 1 << 20}, count{"--requests", f.requests, 0, 1 << 30},
	)}
	refuse := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	for name, d := range map[string]time.Duration{"--duration": f.duration, "--timeout": f.timeout, "--ceiling-time": f.ceilingTime} {
		if d < 0 || d > 24*time.Hour {
			refuse("%s %v: want 0 to 24h", name, d)
		}
	}
	if !(f.rate >= 0 && f.rate <= 1e6) {
		refuse("--rate %v: want 0 to 1e6", f.rate)
	}
	if !(f.speed > 0 && f.speed <= 1e6) {
		refuse("--speed %v: want above 0, at most 1e6", f.speed)
	}
	var err error
	if f.joiners, err = parseJoin(f.join); err != nil {
		wrong = append(wrong, err)
	}
	if f.rate > 0 && f.trace != "" {
		refuse("--rate and --trace exclude each other")
	}
	return errors.Join(wrong...)
}

func (c *console) runLoad(ctx context.Context, f *loadFlags) (err error) {
	var alone *engineShare
	if err = f.applyMix(); err == nil {
		if err = f.validate(); err == nil {
			alone, err = f.readEngine()
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUsage, err)
	}
	if f.duration == 0 && f.requests == 0 && f.trace == "" {
		f.duration = 10 * time.Second
	}
	r := &loadRun{console: c, loadFlags: f, alone: alone, maker: load.Maker{
		Text: f.prompt, Seed: f.seed, Temperature: f.temperature, StopAtEnd: f.stopAtEnd,
	}}
	if f.trace != "" {
		if r.trace, err = readTrace(f); err != nil {
			return fmt.Errorf("%w: --trace: %w", ErrUsage, err)
		}
	}
	if r.floors, err = readFloors(f.floors, "load"); err != nil {
		return err
	}
	if err := errors.Join(f.transport.CheckClient("--target", f.target), f.auth.CheckDial(&f.transport, "--target", f.target)); err != nil {
		return fmt.Errorf("%w: %w", ErrUsage, err)
	}
	creds, err := f.transport.Dialer(hclog.NewNullLogger())
	if err != nil {
		return err
	}
	token, err := f.auth.Dialer(hclog.NewNullLogger())
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUsage, err)
	}
	conns, hangUp, err := load.Dial(f.target, f.connections, grpc.WithTransportCredentials(creds), token(f.target))
	if err != nil {
		return err
	}
	defer hangUp()
	r.conns = conns
	return r.run(ctx)
}

func readTrace(f *loadFlags) ([]replay.Request, error) {
	file, err := os.Open(f.trace)
	if err != nil {
		return nil, err
	}
	requests, err := replay.ReadTrace(file, f.limit)
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	requests = replay.Faster(requests, f.speed)
	if f.duration > 0 {
		requests = slices.DeleteFunc(requests, func(r replay.Request) bool { return r.Arrival >= f.duration })
	}
	return requests, nil
}

// loadRun is a run of the command load.
type loadRun struct {
	*console
	*loadFlags
	alone  *engineShare  // nil: not compared
	floors *stats.Floors // nil: none; hides the file name of the flags
	maker  load.Maker
	conns  []grpc.ClientConnInterface
	trace  []replay.Request
	target load.Target
}
