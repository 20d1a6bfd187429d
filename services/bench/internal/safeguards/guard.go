package safeguards

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/services/bench/internal/process"
	"github.com/millrace/millrace/services/internal/auth"
	"github.com/millrace/millrace/services/internal/certs"
	"github.com/millrace/millrace/services/internal/transport"
)

// guard is what programs and their callers are told.
type guard struct {
	worker, scheduler []string          // flags
	dial              []grpc.DialOption // of callers
	pages             []string          // URLs of measures, to be read once a second
}

// with is both guards together.
func (g guard) with(other guard) guard {
	return guard{
		slices.Concat(g.worker, other.worker), slices.Concat(g.scheduler, other.scheduler), slices.Concat(g.dial, other.dial),
		slices.Concat(g.pages, other.pages),
	}
}

// Bare and All are the first and the last of the rows: without a safeguard and with every one.
const (
	Bare = "bare"
	All  = "all"
)

// row is one way to run the programs.
type row struct {
	name string
	guard
}

// rows make every way; what they need lies in dir.
func rows(ctx context.Context, dir string) ([]row, error) {
	list, all := []row{{name: Bare}}, guard{}
	for _, one := range []struct {
		name string
		make func(context.Context, string) (guard, error)
	}{{"logs", logs}, {"measures", measures}, {"keys", keys}, {"tls", mutualTLS}} {
		g, err := one.make(ctx, dir)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", one.name, err)
		}
		list = append(list, row{one.name, g})
		if one.name == "measures" { // each program needs addresses of its own
			if g, err = one.make(ctx, dir); err != nil {
				return nil, fmt.Errorf("%s: %w", one.name, err)
			}
		}
		all = all.with(g)
	}
	return append(list, row{All, all}), nil
}

// logs has a line written for each call, as by default; the other rows tell warnings alone.
func logs(context.Context, string) (guard, error) {
	flags := []string{"--log-level", "info"}
	return guard{worker: flags, scheduler: flags}, nil
}

// measures serves them.
func measures(ctx context.Context, _ string) (g guard, err error) {
	for _, flags := range []*[]string{&g.worker, &g.scheduler} {
		address, err := process.FreeAddress(ctx)
		if err != nil {
			return g, err
		}
		*flags = []string{"--metrics-listen", address}
		g.pages = append(g.pages, "http://"+address+"/metrics")
	}
	return g, nil
}

// plenty is a limit that is counted and never reached.
const plenty = 1_000_000_000

// keys lets in the caller, whose requests, tokens and streams are counted, and the scheduler, which speaks for others.
func keys(_ context.Context, dir string) (g guard, err error) {
	caller, scheduler := auth.NewToken(), auth.NewToken()
	var file string
	for _, key := range []*auth.Key{
		{ID: "caller", Hashes: []auth.Hash{auth.HashOf(caller)}, Rights: []auth.Right{auth.Generate, auth.Load, auth.Health},
			Limits: auth.Limits{RequestsPerMinute: plenty, TokensPerMinute: plenty, Streams: plenty}},
		{ID: "scheduler", Hashes: []auth.Hash{auth.HashOf(scheduler)}, Tenant: auth.AnyTenant, Rights: auth.Rights()},
	} {
		line, err := key.Line()
		if err != nil {
			return g, err
		}
		file += line
	}
	book, token := filepath.Join(dir, "keys.yaml"), filepath.Join(dir, "scheduler.token")
	if err := errors.Join(os.WriteFile(book, []byte(file), 0o600), os.WriteFile(token, []byte(scheduler+"\n"), 0o600)); err != nil {
		return g, err
	}
	show, err := (&auth.Flags{Token: caller}).Dialer(hclog.NewNullLogger())
	if err != nil {
		return g, err
	}
	return guard{
		worker: []string{"--auth-keys", book}, scheduler: []string{"--auth-keys", book, "--worker-token-file", token},
		dial: []grpc.DialOption{show("127.0.0.1:0")},
	}, nil
}

// mutualTLS has every connection show certificates on both sides, and look at their names.
func mutualTLS(_ context.Context, dir string) (g guard, err error) {
	from, to := time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	ca, err := certs.New("millrace-bench", from, to)
	if err != nil {
		return g, err
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(at("ca.pem"), ca.Cert, 0o600); err != nil {
		return g, err
	}
	for _, name := range []string{"worker", "scheduler", "client"} {
		sans, err := transport.ParseSANs([]string{"dns:" + name})
		if err != nil {
			return g, err
		}
		pair, err := ca.Issue(name, sans, from, to.Add(-time.Hour))
		if err != nil {
			return g, err
		}
		if err := errors.Join(os.WriteFile(at(name+".pem"), pair.Cert, 0o600), os.WriteFile(at(name+"-key.pem"), pair.Key, 0o600)); err != nil {
			return g, err
		}
	}
	creds, err := (&transport.Flags{
		CA: at("ca.pem"), Cert: at("client.pem"), Key: at("client-key.pem"), ServerSANs: []string{"dns:worker", "dns:scheduler"},
	}).Dialer(hclog.NewNullLogger())
	if err != nil {
		return g, err
	}
	serves := func(name, callers string) []string {
		return []string{"--tls-cert", at(name + ".pem"), "--tls-key", at(name + "-key.pem"), "--tls-client-ca", at("ca.pem"), "--tls-client-san", callers}
	}
	return guard{
		worker:    serves("worker", "dns:scheduler,dns:client"),
		scheduler: append(serves("scheduler", "dns:client"), "--tls-ca", at("ca.pem"), "--tls-server-san", "dns:worker"),
		dial:      []grpc.DialOption{grpc.WithTransportCredentials(creds)},
	}, nil
}
