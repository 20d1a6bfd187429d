package hostile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/machine"
	"github.com/millrace/millrace/services/bench/internal/process"
	"github.com/millrace/millrace/services/bench/internal/simfleet"
	"github.com/millrace/millrace/services/internal/certs"
	"github.com/millrace/millrace/services/internal/transport"
)

// Commands of the program that Config.Self names.
const (
	PeerCommand = "hostile-peer"
	BurnCommand = "hostile-burn"
)

// peerTimeout is a hang guard of such a process's beginning and end.
const peerTimeout = time.Minute

// Run measures.
func Run(ctx context.Context, c Config, tell func(format string, args ...any)) (_ *Report, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "millrace-hostile-*")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	flags, trust, err := identity(dir)
	if err != nil {
		return nil, err
	}
	tell("starting a worker and a scheduler")
	fleet, err := simfleet.Start(ctx, simfleet.Config{
		Scheduler: c.Scheduler, Worker: c.Worker, Workers: 1, Device: "sim:step=1ms,prefill=0s,decode=0s", KVTokens: 1 << 16, Context: 1 << 12, Sequences: 256,
		SchedulerFlags: flags, Dial: []grpc.DialOption{trust},
	})
	defer func() { err = errors.Join(err, fleet.Stop()) }()
	if err != nil {
		return nil, err
	}
	s, err := fleet.Schedule(ctx, "", 1)
	if err != nil {
		return nil, err
	}
	r := &run{Config: c, tell: tell, server: s, programs: []*simfleet.Program{s, fleet.Workers[0]}}
	report := &Report{Machine: machine.Look(), Config: c}
	for n := range c.Rounds {
		round, err := r.round(ctx, n+1)
		if err != nil {
			return nil, fmt.Errorf("round %d: %w", n+1, err)
		}
		report.Rounds = append(report.Rounds, *round)
	}
	return report, nil
}

// identity makes the scheduler's certificate and what its client trusts.
func identity(dir string) (flags []string, trust grpc.DialOption, err error) {
	from, to := time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	ca, err := certs.New("millrace-bench", from, to)
	if err != nil {
		return nil, nil, err
	}
	sans, err := transport.ParseSANs([]string{"ip:127.0.0.1"})
	if err != nil {
		return nil, nil, err
	}
	pair, err := ca.Issue("scheduler", sans, from, to.Add(-time.Hour))
	if err != nil {
		return nil, nil, err
	}
	paths := map[string][]byte{"cert.pem": pair.Cert, "key.pem": pair.Key, "ca.pem": ca.Cert}
	for name, text := range paths {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return nil, nil, err
		}
	}
	creds, err := (&transport.Flags{CA: filepath.Join(dir, "ca.pem")}).Dialer(hclog.NewNullLogger())
	if err != nil {
		return nil, nil, err
	}
	return []string{"--tls-cert", filepath.Join(dir, "cert.pem"), "--tls-key", filepath.Join(dir, "key.pem")},
		grpc.WithTransportCredentials(creds), nil
}

// run is a run under way.
type run struct {
	Config
	tell     func(format string, args ...any)
	server   *simfleet.Program
	programs []*simfleet.Program
}

// round measures alone, beside strangers, and beside a process that burns what they did.
func (r *run) round(ctx context.Context, n int) (*Round, error) {
	round := &Round{}
	var err error
	settle := func() { sleep(ctx, r.Settle) }
	settle()
	r.tell("round %d: alone", n)
	if round.Alone, err = r.measure(ctx, nil); err != nil {
		return nil, err
	}
	settle()
	r.tell("round %d: beside %d hostile connections, %g a second", n, r.Connections, r.Rate)
	peer, said, err := r.beside(ctx, "hostile peer", PeerCommand, "--target", r.server.Address, "--from", r.From, "--connections",
		strconv.Itoa(r.Connections), "--rate", strconv.FormatFloat(r.Rate, 'g', -1, 64))
	if err != nil {
		return nil, err
	}
	if round.Hostile, err = r.measure(ctx, peer); err != nil {
		return nil, errors.Join(err, peer.Stop(peerTimeout))
	}
	if err := peer.Stop(peerTimeout); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(said.rest(), &round.Tally); err != nil {
		return nil, fmt.Errorf("what became of the connections: %w", err)
	}
	settle()
	r.tell("round %d: beside a process that uses %.2f processors", n, round.Hostile.Others)
	burner, _, err := r.beside(ctx, "burner", BurnCommand, "--processors", strconv.FormatFloat(round.Hostile.Others, 'f', 3, 64))
	if err != nil {
		return nil, err
	}
	round.Harmless, err = r.measure(ctx, burner)
	return round, errors.Join(err, burner.Stop(peerTimeout))
}

// beside starts a process and returns when it says that it has begun: before that it harms nobody, and does not know how to end well.
func (r *run) beside(ctx context.Context, name string, args ...string) (*process.Program, *words, error) {
	said := &words{begun: make(chan struct{})}
	p, err := process.StartLogged(context.WithoutCancel(ctx), said, name, r.Self, args...)
	if err != nil {
		return nil, nil, err
	}
	if err := p.Wait(ctx, peerTimeout, func(context.Context) error {
		select {
		case <-said.begun:
			return nil
		default:
			return errSilent
		}
	}); err != nil {
		return nil, nil, errors.Join(err, p.Stop(peerTimeout))
	}
	return p, said, nil
}

// measure is the good client's calls for one window, and what another process used meanwhile.
func (r *run) measure(ctx context.Context, other *process.Program) (Measured, error) {
	before, err := r.used(other)
	if err != nil {
		return Measured{}, err
	}
	began := time.Now()
	to := load.NewRecorder(nil)
	g := load.Generator{Conns: []grpc.ClientConnInterface{r.server.Conn}, To: to,
		Maker: load.Maker{Model: simfleet.Model, Vocabulary: simfleet.Vocabulary, IDsOnly: true}}
	g.Open(ctx, load.Poisson(r.Calls, load.Size{Prompt: 16, Output: r.Tokens}, 1, r.Window(), 0))
	if ctx.Err() != nil {
		return Measured{}, context.Cause(ctx)
	}
	report, err := to.Report()
	if err != nil {
		return Measured{}, err
	}
	after, err := r.used(other)
	if err != nil {
		return Measured{}, err
	}
	span := time.Since(began).Seconds()
	m := Measured{Calls: report.EndToEnd, Failed: report.Failed, Others: (after.other - before.other).Seconds() / span,
		Server: (after.server - before.server).Seconds() / span}
	if len(report.Errors) > 0 {
		m.Example = report.Errors[0].Example
	}
	if m.Memory, err = r.server.Memory(); err != nil {
		return Measured{}, err
	}
	for _, p := range r.programs {
		if err := p.Check(); err != nil {
			return Measured{}, err
		}
	}
	return m, nil
}

// used is processor time.
type used struct{ server, other time.Duration }

func (r *run) used(other *process.Program) (u used, err error) {
	if u.server, err = r.server.CPU(); err != nil || other == nil {
		return u, err
	}
	u.other, err = other.CPU()
	return u, err
}
