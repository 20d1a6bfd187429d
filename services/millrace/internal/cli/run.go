package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/services/internal/telemetry"
	"github.com/millrace/millrace/services/internal/transport"
	"github.com/millrace/millrace/services/millrace/internal/config"
	"github.com/millrace/millrace/services/millrace/internal/failure"
	"github.com/millrace/millrace/services/millrace/internal/session"
	"github.com/millrace/millrace/services/millrace/internal/tty"
	"github.com/millrace/millrace/services/millrace/internal/vectorcli"
)

const program = "millrace"

// unaryTimeout bounds calls that are answered at once, unless --timeout says otherwise.
const unaryTimeout = 30 * time.Second

// System is the process environment of a command. Streams that are terminals are *os.File.
type System struct {
	In       io.Reader
	Out, Err io.Writer
	// Signals brings SIGINT and SIGTERM; nil brings none.
	Signals <-chan os.Signal
	// Release gives signals their default effect again: called after the first that ends the command, so that a second
	// one ends the process. May be nil.
	Release func()
	Config  config.Config
}

// Run executes one command line and returns its exit code. Errors are explained on sys.Err.
func Run(ctx context.Context, sys *System, args []string) int {
	a := &app{System: sys}
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { a.watchSignals(cancel, done) })
	root := a.root()
	root.SetArgs(args)
	root.SetIn(sys.In)
	root.SetOut(sys.Out)
	root.SetErr(sys.Err)
	called, err := root.ExecuteContextC(ctx)
	a.command = called.CommandPath()
	a.endTraces()
	if err != nil && !a.begun {
		err = fmt.Errorf("%w: %w", failure.ErrUsage, err)
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	close(done)
	watching.Wait()
	cancel(nil)
	return a.report(err)
}

// app is one run of the program.
type app struct {
	*System
	begun   bool                 // the command line was understood
	command string               // path of the command that was called
	sent    *telemetry.Telemetry // nil before the first call
	target  string
	timeout time.Duration
	leave   func() // redirects calls to another of --target; nil before dial, and for one server

	mu        sync.Mutex
	interrupt func() // guarded by mu; handles SIGINT instead of ending the command; nil if unset
}

// watchSignals ends the command on a signal, or passes Ctrl-C to interrupt, until done.
func (a *app) watchSignals(cancel context.CancelCauseFunc, done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case s := <-a.Signals:
			a.mu.Lock()
			take := a.interrupt
			a.mu.Unlock()
			if s == syscall.SIGINT && take != nil {
				take()
				continue
			}
			cause := failure.ErrInterrupted
			if s == syscall.SIGTERM {
				cause = failure.ErrTerminated
			}
			cancel(cause)
			if a.Release != nil {
				a.Release()
			}
		}
	}
}

// onInterrupt lets take have Ctrl-C; nil gives it back.
func (a *app) onInterrupt(take func()) {
	a.mu.Lock()
	a.interrupt = take
	a.mu.Unlock()
}

// report explains an error and gives its exit code.
func (a *app) report(err error) int {
	var code *exitError
	switch {
	case err == nil:
		return failure.OK
	case errors.As(err, &code):
		a.explain(code.err)
		return code.code
	}
	a.explain(err)
	var call *failure.CallError
	if errors.As(err, &call) {
		err = call.Err
	}
	return failure.Code(err)
}

func (a *app) explain(err error) {
	request := a.request()
	var call *failure.CallError
	if errors.As(err, &call) {
		err, request.Model, request.Usage = call.Err, call.Model, call.Usage
	}
	fmt.Fprintf(a.Err, "%s: %s\n", program, failure.Explain(err, request))
}

// request is what advice needs to know of the command line.
func (a *app) request() failure.Request {
	r := failure.Request{Target: a.target, TargetGiven: a.target != config.DefaultTarget}
	if !a.begun {
		r.Help = a.command
	}
	return r
}

// exitError is an error with an exit code of its own.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d: %v", e.code, e.err) }
func (e *exitError) Unwrap() error { return e.err }

// dial connects to the target.
func (a *app) dial() (conn *grpc.ClientConn, closeConn func(), err error) {
	creds, err := a.credentials()
	if err != nil {
		return nil, nil, err
	}
	traces, err := a.traces()
	if err != nil {
		return nil, nil, err
	}
	targets, err := a.targets()
	if err != nil {
		return nil, nil, err
	}
	conn, a.leave, err = connect(targets, append(creds, traces...)...)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: --target: %w", failure.ErrUsage, err)
	}
	return conn, func() { _ = conn.Close() }, nil // only an error if closed twice
}

// session is what commands of other packages are given.
func (a *app) session() session.Session {
	return session.Session{
		Out: a.Out, Err: a.Err, Deadline: a.deadline, TargetFlag: func() string { return a.request().TargetFlag() },
		Names: func(ctx context.Context, list func(context.Context, grpc.ClientConnInterface) ([]string, error)) []string {
			return a.names(ctx, list)
		},
		Dial: func(target string) (*grpc.ClientConn, func(), error) {
			if target == "" {
				return a.dial()
			}
			other := &app{System: a.System, command: a.command, sent: a.sent, target: target, timeout: a.timeout}
			return other.dial()
		},
	}
}

// credentials are what connections to the target are made with, and the token that it is shown.
func (a *app) credentials() ([]grpc.DialOption, error) {
	flags, keys := &a.Config.Transport, &a.Config.Auth
	targets, err := a.targets()
	if err != nil {
		return nil, err
	}
	farthest := targets[0] // the token is shown as the strictest of the servers wants
	for _, t := range targets {
		if err := errors.Join(flags.CheckClient("--target", t), keys.CheckDial(flags, "--target", t)); err != nil {
			return nil, fmt.Errorf("%w: %w", failure.ErrUsage, err)
		}
		if !transport.IsLocal(t) {
			farthest = t
		}
	}
	creds, err := flags.Dialer(hclog.NewNullLogger())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", failure.ErrUsage, err)
	}
	token, err := keys.Dialer(hclog.NewNullLogger())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", failure.ErrUsage, err)
	}
	return []grpc.DialOption{grpc.WithTransportCredentials(creds), token(farthest)}, nil
}

// deadline applies --timeout, or unless if the flag is not given; 0 means without a deadline.
func (a *app) deadline(ctx context.Context, unless time.Duration) (context.Context, context.CancelFunc) {
	timeout := a.timeout
	if timeout == 0 {
		timeout = unless
	}
	if timeout == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, timeout)
}

// faint returns text in a dim style if standard error is a terminal with colours.
func (a *app) faint(text string) string {
	if _, isTerminal := tty.Of(a.Err); !isTerminal || a.Config.Plain {
		return text
	}
	return "\x1b[2m" + text + "\x1b[0m"
}

// root is the command tree.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   program,
		Short: "Client of language models served over gRPC",
		Long: "millrace generates, chats, embeds, loads, watches and measures over gRPC, against a scheduler or a single worker, and trains\n" +
			"vector codebooks there.\n\n" +
			"Environment:\n  MILLRACE_TARGET  address of the server, when --target is not given\n" +
			"  MILLRACE_TLS_CA, MILLRACE_TLS_CERT, MILLRACE_TLS_KEY, MILLRACE_TLS_SERVER_NAME\n" +
			"                   the same for the flags of these names\n" +
			"  MILLRACE_TOKEN   token to show to the server, when there is no file of it\n" +
			"  MILLRACE_TOKEN_FILE\n" +
			"                   the same for --token-file\n" +
			"  NO_COLOR         no colours on a terminal, if it is set\n" +
			"  OTEL_EXPORTER_OTLP_ENDPOINT and the other variables of OpenTelemetry\n" +
			"                   where traces of calls are sent to; none are without them\n\n" + failure.Documentation,
		Example: "  millrace load stories\n  millrace generate -m stories --temperature 0.7 --top-p 0.9 \"Once upon a time\"",
		// Without a command the help is shown; with one that is not there, cobra says so.
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		if a.timeout < 0 {
			return fmt.Errorf("--timeout is %v: want a time above 0, or 0 for the default", a.timeout)
		}
		a.begun = true
		return nil
	}
	flags := root.PersistentFlags()
	flags.StringVar(&a.target, "target", a.Config.Target, "addresses of schedulers or workers, separated by commas: calls go to the first that answers; host:port, unix:PATH, or, alone, dns:///name:port")
	a.Config.Transport.AddClientFlags(flags)
	a.Config.Auth.AddClientFlags(flags, "token-file", "the server")
	flags.DurationVar(&a.timeout, "timeout", 0, "longest time for each call, sent to the server as its deadline "+
		"(default: 2s for health, 30s for models, drain, undrain, tokenize, detokenize and vectors list, none for the rest)")
	root.SetUsageFunc(usage)
	root.SetHelpFunc(help)
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	versions(root)
	root.AddCommand(a.generate(), a.chat(), a.load(), a.unload(), a.models(), a.workers(), a.drain(), a.undrain(), a.embed(),
		a.rerank(), a.tokenize(), a.detokenize(), a.score(), vectorcli.Command(a.session()), local(a.certs()), local(a.keys()), a.health())
	a.complete(root)
	return root
}
